"""One history of one schema: generated transactions, maintained views, PostgreSQL's answers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from storage.memory import MemoryStore
from storage.rocks import RocksStore
from storage.store import Store
from tests.harness.changes import Transaction, create, transactions
from tests.harness.compare import columns_of_query, pin_session
from tests.harness.maintained import (
    MARKER,
    MARKER_QUERY,
    Fault,
    Maintained,
    ask,
    create_marker,
    plan_each,
    run_numbered,
)
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


def chosen_queries(queries: Mapping[str, str]) -> dict[str, str]:
    """Those that TIDEMARK_TEST_QUERIES names, separated by commas; without it all."""
    names = os.environ.get("TIDEMARK_TEST_QUERIES")
    return {n: q for n, q in queries.items() if names is None or n in names.split(",")}


Queries = Mapping[str, str]


def run_history(
    database: Database,
    store: Store,
    history: History,
    queries: Queries | Callable[[Any], Queries] | None = None,
    maintained: type[Maintained] = Maintained,
) -> Outcome:
    """Play a history in an empty database and compare after every transaction or batch.

    queries: instead of the schema's own; or what draws them when the first rows are there.
    """
    outcome = Outcome(history)
    connection = database.connect()
    pin_session(connection)
    create(connection, history.schema, history.seed)
    create_marker(connection)
    wanted = history.schema.queries() if queries is None else queries
    chosen = chosen_queries(wanted(connection) if callable(wanted) else wanted)
    chosen = {**chosen, MARKER: MARKER_QUERY}
    planned = plan_each(database, chosen)
    outcome.refused, outcome.reasons = planned.refused, planned.reasons
    plans = planned.plans
    assert MARKER in plans, planned
    asked = {name: query for name, query in chosen.items() if name in plans}
    views = maintained(database, plans, store)
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


def _check_columns(connection: Any, maintained: Maintained, asked: Mapping[str, str]) -> None:
    for name, answer in maintained.answers.items():
        columns = columns_of_query(connection, asked[name])
        if columns != answer.columns:
            what = f"columns: expected {columns}\n              got {answer.columns}"
            maintained.faults.append(Fault(name, 0, what))


def _advance(
    connection: Any, maintained: Maintained, outcome: Outcome, following: list[Transaction]
) -> None:
    for transaction in following:
        outcome.transactions.append(transaction)
        run_numbered(connection, transaction, len(outcome.transactions))
    maintained.follow(len(outcome.transactions))


def _compare(
    connection: Any, maintained: Maintained, outcome: Outcome, asked: Mapping[str, str]
) -> None:
    faulty = {fault.query for fault in maintained.faults}
    queries = {name: query for name, query in asked.items() if name not in faulty}
    expected = ask(connection, queries, outcome.history.guarded)
    outcome.comparisons += len(queries) - len(expected.unanswered)
    outcome.refusals += len(expected.refusals)
    for name, rows in expected.rows.items():
        if outcome.first.setdefault(name, rows) != rows:
            outcome.moved.add(name)
    maintained.compare(len(outcome.transactions), expected)
