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

from connectors.postgres.embedded import EmbeddedPostgres
from storage.memory import MemoryStore
from storage.store import Store
from tests.equality.history import History, Outcome, run_history
from tests.harness.grammar import Query
from tests.harness.hostile import Hostile, hostile_schema
from tests.harness.postgres import new_database
from tests.harness.query_writer import Writer

DRAWS = 15
MOST_ROWS = 1500
MOST_MS = 1000
SINGLES = 8
_FAST = {"jit": "off", "max_parallel_workers_per_gather": "0", "statement_timeout": "20s"}


@dataclass
class Tally:
    """Counts over histories. dropped: by PostgreSQL's reason; refused: by ours."""

    queries: int = 0
    comparisons: int = 0
    moved: int = 0
    failing: int = 0
    wrong: int = 0
    drawn: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)

    def add(self, other: Tally) -> None:
        """Take over the counts of another."""
        for name in ("queries", "comparisons", "moved", "failing", "wrong", "drawn"):
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


def accepted(connection: Any, writer: Writer, wanted: Sequence[str], tally: Tally) -> Query | None:
    """A query of these features that PostgreSQL takes and computes quickly."""
    for _ in range(DRAWS):
        query = writer.query(wanted)
        tally.drawn += 1
        reason = refusal(connection, query.text())
        if not reason:
            return query
        tally.dropped[reason] += 1
    return None


def refusal(connection: Any, sql: str) -> str:
    """Why PostgreSQL does not take a query as a view, or why it is too much; "" when it is fine."""
    with connection.cursor() as cursor:
        cursor.execute(f"BEGIN; SET LOCAL statement_timeout = {MOST_MS}")
        try:
            cursor.execute(f"CREATE TEMP VIEW drawn AS {sql}")
            cursor.execute("SELECT * FROM drawn")
            return "too many rows" if cursor.rowcount > MOST_ROWS else ""
        except psycopg2.Error as error:
            return str(error).split("\n", 1)[0]
        finally:
            cursor.execute("ROLLBACK")


def play(
    server: EmbeddedPostgres,
    seed: int | str,
    lists: Sequence[Sequence[str]],
    store: Store | None = None,
) -> Played:
    """A query for each list of features, maintained through one history and compared."""
    hostile = hostile_schema(seed)
    tally = Tally()
    queries: dict[str, Query] = {}

    def draw(connection: Any) -> Mapping[str, str]:
        with connection.cursor() as cursor:
            for name, value in _FAST.items():
                cursor.execute(f"SET {name} = '{value}'")
        writer = Writer(hostile, f"{seed}")
        for wanted in lists:
            query = accepted(connection, writer, wanted, tally)
            if query is not None:
                queries[f"g{len(queries)}"] = query
        return {name: query.text() for name, query in queries.items()}

    history = History(hostile.schema, 0, singles=SINGLES, batches=1, batch=4)
    with new_database(server) as database:
        outcome = run_history(database, store or MemoryStore(), history, draw)
    tally.queries = len(queries)
    tally.comparisons = outcome.comparisons
    tally.moved = len(outcome.moved & queries.keys())
    tally.failing = outcome.refusals
    tally.wrong = len(outcome.faults)
    tally.refused = Counter(outcome.reasons.values())
    return Played(hostile, queries, outcome, tally)
