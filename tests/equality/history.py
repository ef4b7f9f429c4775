"""One history of one schema: generated transactions, maintained views, PostgreSQL's answers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from dataflow.types import UTC
from storage.memory import MemoryStore
from storage.rocks import RocksStore
from storage.store import Store
from tests.harness.changes import Transaction, create, transactions
from tests.harness.compare import columns_of_query, pin_session
from tests.harness.maintained import (
    MARKER,
    MARKER_QUERY,
    Expected,
    Fault,
    Maintained,
    Plans,
    ask,
    create_marker,
    plan_each,
    run_numbered,
)
from tests.harness.moving_clock import clock_us
from tests.harness.postgres import Database
from tests.harness.schemas import TestSchema

CACHE_BYTES = 16 << 20


@dataclass(frozen=True)
class History:
    """singles: transactions that are compared one by one; then batches of them.

    A batch is written before it is read, so that an epoch takes many transactions. chosen: these
    transactions instead of those of the seed; the first rows are the seed's in any case. guarded:
    for queries that may fail, the query without the rows that do. restarts: before each single
    transaction the operators are made anew over the state.
    """

    schema: TestSchema
    seed: int
    singles: int = 40
    batches: int = 4
    batch: int = 10
    chosen: tuple[Transaction, ...] | None = None
    guarded: Mapping[str, str] = field(default_factory=dict)
    restarts: bool = False

    def following(self) -> Iterator[Transaction]:
        """The transactions in order."""
        if self.chosen is not None:
            return iter(self.chosen)
        return transactions(self.schema, self.seed)


@dataclass
class Outcome:
    """What came of a history. refusals: how often PostgreSQL failed where a view must go on.

    reasons: of the refused ones, without what belongs to one query. first: answers at the
    beginning. moved: queries that had another one later.
    """

    history: History
    refused: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    moved: set[str] = field(default_factory=set)
    first: dict[str, Any] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    transactions: list[Transaction] = field(default_factory=list)
    comparisons: int = 0
    refusals: int = 0

    def text(self, queries: Mapping[str, str], command: str) -> str:
        """For people: every fault with its query, its transaction and how to repeat it."""
        lines = [f"schema {self.history.schema.name}, seed {self.history.seed}"]
        for fault in self.faults:
            lines += [
                "",
                f"--- {fault.query}, after transaction {fault.transaction}",
                queries.get(fault.query, ""),
                fault.what,
            ]
            if fault.transaction:
                lines.append(self.transactions[fault.transaction - 1].text())
            lines.append(f"repeat: TIDEMARK_TEST_QUERIES={fault.query} {command}")
        return "\n".join(lines)


@contextmanager
def opened_store(kind: str, folder: Path) -> Iterator[Store]:
    """An empty store of a kind, "memory" or "rocks"."""
    if kind == "memory":
        store: Store = MemoryStore()
    else:
        store = RocksStore(folder / "store", cache_bytes=CACHE_BYTES)
    try:
        yield store
    finally:
        store.close()


@dataclass(frozen=True)
class Asked:
    """A query, and the time zone in which it is computed."""

    sql: str
    time_zone: str = UTC


Queries = Mapping[str, str] | Mapping[str, Asked]


def chosen_queries(queries: Queries) -> dict[str, Asked]:
    """Those that TIDEMARK_TEST_QUERIES names, separated by commas; without it all."""
    names = os.environ.get("TIDEMARK_TEST_QUERIES")
    return {
        name: Asked(query) if isinstance(query, str) else query
        for name, query in queries.items()
        if names is None or name in names.split(",")
    }


def run_history(
    database: Database,
    store: Store,
    history: History,
    queries: Queries | Callable[[Any], Queries] | None = None,
    maintained: type[Maintained] = Maintained,
) -> Outcome:
    """Play a history in an empty database and compare after every transaction or batch.

    queries: instead of the schema's own; or what draws them when the first rows are there. If the
    session has a clock (tests/harness/moving_clock.py), now() is what that says.
    """
    outcome = Outcome(history)
    connection = database.connect()
    pin_session(connection)
    create(connection, history.schema, history.seed)
    create_marker(connection)
    wanted = history.schema.queries() if queries is None else queries
    chosen = chosen_queries(wanted(connection) if callable(wanted) else wanted)
    chosen[MARKER] = Asked(MARKER_QUERY)
    planned = _planned(database, chosen, is_moving=clock_us(connection) is not None)
    outcome.refused, outcome.reasons = planned.refused, planned.reasons
    plans = planned.plans
    assert MARKER in plans, planned
    asked = {name: query for name, query in chosen.items() if name in plans}
    views = maintained(database, plans, store, clock_us(connection))
    views.faults += [Fault(name, 0, what) for name, what in planned.broken.items()]
    try:
        _check_columns(connection, views, asked)
        _compare(connection, views, outcome, asked)
        following = history.following()
        for _ in range(history.singles):
            if history.restarts:
                views.restart()
            _advance(connection, views, outcome, list(islice(following, 1)))
            _compare(connection, views, outcome, asked)
        for _ in range(history.batches):
            _advance(connection, views, outcome, list(islice(following, history.batch)))
            _compare(connection, views, outcome, asked)
    finally:
        outcome.faults = views.faults
        views.close()
        connection.close()
    return outcome


def _planned(database: Database, asked: Mapping[str, Asked], *, is_moving: bool) -> Plans:
    found = Plans()
    for zone, queries in _by_zone(asked).items():
        planned = plan_each(database, queries, zone, is_moving=is_moving)
        for name, part in vars(planned).items():
            getattr(found, name).update(part)
    return found


def _by_zone(asked: Mapping[str, Asked]) -> dict[str, dict[str, str]]:
    zones: dict[str, dict[str, str]] = {}
    for name, query in asked.items():
        zones.setdefault(query.time_zone, {})[name] = query.sql
    return zones


def _check_columns(connection: Any, maintained: Maintained, asked: Mapping[str, Asked]) -> None:
    for name, answer in maintained.answers.items():
        columns = columns_of_query(connection, asked[name].sql)
        if columns != answer.columns:
            what = f"columns: expected {columns}\n              got {answer.columns}"
            maintained.faults.append(Fault(name, 0, what))


def _advance(
    connection: Any, maintained: Maintained, outcome: Outcome, following: list[Transaction]
) -> None:
    for transaction in following:
        outcome.transactions.append(transaction)
        run_numbered(connection, transaction, len(outcome.transactions))
    number, at = len(outcome.transactions), clock_us(connection)
    if number % 2:
        maintained.move_clock(at, number)
    maintained.follow(number)
    maintained.move_clock(at, number)


def _compare(
    connection: Any, maintained: Maintained, outcome: Outcome, asked: Mapping[str, Asked]
) -> None:
    faulty = {fault.query for fault in maintained.faults}
    queries = {name: query for name, query in asked.items() if name not in faulty}
    expected = Expected()
    for zone, texts in _by_zone(queries).items():
        answered = ask(connection, texts, outcome.history.guarded, time_zone=zone)
        for name, part in vars(answered).items():
            getattr(expected, name).update(part)
    outcome.comparisons += len(queries) - len(expected.unanswered)
    outcome.refusals += len(expected.refusals)
    for name, rows in expected.rows.items():
        if outcome.first.setdefault(name, rows) != rows:
            outcome.moved.add(name)
    maintained.compare(len(outcome.transactions), expected)
