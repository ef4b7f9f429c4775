"""One history of one random schema under many generated queries, and what is counted of it.

Invariant: seed and lists of features name everything that happens. A query that PostgreSQL does
not take, or that is too much for it, is drawn anew a few times and then dropped, and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg2

from connectors.postgres.embedded.server import EmbeddedPostgres
from dataflow.types import UTC
from storage.memory import MemoryStore
from storage.store import Store
from tests.equality.history import Asked, History, Outcome, run_history
from tests.harness.changes import linguistic_of
from tests.harness.grammar import Query
from tests.harness.hostile import Hostile, hostile_schema
from tests.harness.maintained import Maintained
from tests.harness.moving_clock import at_clock
from tests.harness.postgres import new_database
from tests.harness.query_writer import Known, Writer
from tests.harness.together import Together

DRAWS = 15
DRAWS_FOR_ROWS = 4
MAX_ROWS = 1500
MAX_MS = 5000
SINGLES = 8
_FAST = {"jit": "off", "max_parallel_workers_per_gather": "0", "statement_timeout": "20s"}


@dataclass
class Tally:
    """Counts over histories. temporal: queries that read the clock. dropped: by PostgreSQL's
    reason; refused: by ours."""

    queries: int = 0
    temporal: int = 0
    comparisons: int = 0
    moved: int = 0
    failing: int = 0
    wrong: int = 0
    drawn: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)

    def add(self, other: Tally) -> None:
        """Take over the counts of another."""
        for name in ("queries", "temporal", "comparisons", "moved", "failing", "wrong", "drawn"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.dropped.update(other.dropped)
        self.refused.update(other.refused)

    def facts(self) -> dict[str, Any]:
        """As JSON has it."""
        return {**vars(self), "dropped": dict(self.dropped), "refused": dict(self.refused)}


@dataclass
class Played:
    """A history that was played: its queries by name, how it went, and the counts."""

    hostile: Hostile
    queries: dict[str, Query]
    outcome: Outcome
    tally: Tally
    together: bool = False


def accepted(connection: Any, writer: Writer, wanted: Sequence[str], tally: Tally) -> Query | None:
    """A query of these features that PostgreSQL takes and computes quickly, with rows if it can."""
    empty: list[Query] = []
    for _ in range(DRAWS):
        query = writer.query(wanted)
        tally.drawn += 1
        rows, reason = tried(connection, query.text(), query.time_zone)
        if rows or (rows == 0 and len(empty) >= DRAWS_FOR_ROWS):
            return query
        if reason:
            tally.dropped[reason] += 1
        else:
            empty.append(query)
    return empty[0] if empty else None


def known(connection: Any) -> Known:
    """What the server of a connection can do."""
    return Known(linguistic_of(connection), connection.server_version >= 180000)


def tried(connection: Any, sql: str, time_zone: str = UTC) -> tuple[int | None, str]:
    """How many rows PostgreSQL answers, or why it does not take the query, or it is too much."""
    with connection.cursor() as cursor:
        cursor.execute(f"BEGIN; SET LOCAL statement_timeout = {MAX_MS}")
        try:
            cursor.execute(f"SET LOCAL TimeZone = '{time_zone}'")
            cursor.execute(f"CREATE TEMP VIEW drawn AS {at_clock(sql)}")
            cursor.execute("SELECT * FROM drawn")
            too_many = cursor.rowcount > MAX_ROWS
            return (None, "too many rows") if too_many else (cursor.rowcount, "")
        except psycopg2.Error as error:
            return None, str(error).split("\n", 1)[0]
        finally:
            try:
                cursor.execute("ROLLBACK")
            except psycopg2.errors.QueryCanceled:
                # The timeout holds for the end of its transaction too, on a busy machine.
                cursor.execute("ROLLBACK")


def play(
    server: EmbeddedPostgres,
    seed: int | str,
    lists: Sequence[Sequence[str]],
    store: Store | None = None,
    *,
    restarts: bool = False,
    together: bool = False,
) -> Played:
    """A query for each list of features, maintained through one history and compared.

    together: by one engine, which shares work and is asked when its clock is due.
    """
    hostile = hostile_schema(seed)
    tally = Tally()
    queries: dict[str, Query] = {}

    def draw(connection: Any) -> Mapping[str, Asked]:
        with connection.cursor() as cursor:
            for name, value in _FAST.items():
                cursor.execute(f"SET {name} = '{value}'")
        writer = Writer(hostile, f"{seed}", known(connection))
        for wanted in lists:
            query = accepted(connection, writer, wanted, tally)
            if query is not None:
                queries[f"g{len(queries)}"] = query
        return {name: Asked(query.text(), query.time_zone) for name, query in queries.items()}

    history = History(hostile.schema, 0, singles=SINGLES, batches=1, batch=4, restarts=restarts)
    with new_database(server) as database:
        maintained = Together if together else Maintained
        outcome = run_history(database, store or MemoryStore(), history, draw, maintained)
    tally.queries = len(queries)
    tally.temporal = sum(at_clock(query.text()) != query.text() for query in queries.values())
    tally.comparisons = outcome.comparisons
    tally.moved = len(outcome.moved & queries.keys())
    tally.failing = outcome.refusals
    tally.wrong = len(outcome.faults)
    tally.refused = Counter(outcome.reasons.values())
    return Played(hostile, queries, outcome, tally, together)
