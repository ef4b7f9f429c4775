"""Oracle: the recursion computed from the start, round after round, by tests.harness.oracle.

Graphs are random, with circles, loops of one row and rows that come several times; each epoch adds
and removes some. Every plan runs over both stores and is reopened in between.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from dataflow.collect import ErrorRows
from dataflow.delta import Delta
from dataflow.errors import SqlError, ViewError
from dataflow.expressions.evaluator import NoEvaluator
from dataflow.graph import ViewDataflow
from dataflow.operators.recursion import recursive
from dataflow.plan.check import check_plan
from dataflow.plan.nodes import (
    Plan,
    SingleRow,
)
from dataflow.schema import Relation, RelationName
from dataflow.sql.bind.rounds import check_recursions
from dataflow.sql.lower.lowering import lower
from dataflow.types import INT4, NUMERIC
from storage.memory import MemoryStore
from storage.rocks import RocksStore
from storage.store import Store
from tests.harness.counting_store import CountingStore
from tests.harness.oracle import Oracle
from tests.unit.operators.recursions import (
    COUNTS_FAILURES,
    EDGES,
    PLANS,
    PRICES,
    STARTS,
    closure_of_starts,
    endless,
    last_round,
    reach,
    recursion_of,
    scan,
)

EPOCHS = 25
NODES = 7


class Table:
    """A relation with its present rows."""

    def __init__(self, relation: Relation, random: Random) -> None:
        self.relation = relation
        self.rows: Counter[tuple] = Counter()
        self._random = random

    def _draw(self) -> tuple:
        row: list = []
        for field in self.relation.fields:
            if field.type is NUMERIC:
                row.append(self._random.choice([b"1.5", b"1.50", b"1.500", b"2", b"-7.0"]))
            else:
                row.append(self._random.choice([*range(NODES), None]))
        return tuple(row)

    def change(self) -> Delta:
        """Some rows more and some less, consolidated."""
        change: Counter[tuple] = Counter()
        for _ in range(self._random.choice((0, 1, 1, 2, 6))):
            change[self._draw()] += self._random.choice((1, 1, 1, 2))
        present = list(self.rows)
        if self._random.random() < 0.04:
            change.update({row: -n for row, n in self.rows.items()})
        elif self._random.random() < 0.7:
            for row in self._random.sample(present, min(len(present), self._random.randint(1, 4))):
                change[row] -= self.rows[row]
        for row, weight in change.items():
            self.rows[row] += weight
        self.rows = +self.rows
        kinds = "".join(f.type.physical for f in self.relation.fields)
        return Delta.of(kinds, list(change), list(change.values())).consolidate()


def _run(make: Callable[[], Plan], seed: int, opened: Callable[[], Store]) -> None:
    random = Random(f"{make.__name__}/{seed}")
    plan = make()
    check_plan(plan)
    check_recursions(plan)
    nodes = pickle.loads(pickle.dumps(lower(plan)))
    tables = [Table(relation, random) for relation in (EDGES, STARTS, PRICES)]
    errors, total, failures = ErrorRows(), Counter(), Counter()
    store = opened()
    flow = ViewDataflow(nodes, "v", store, NoEvaluator(), errors)
    for epoch in range(EPOCHS):
        if epoch == 0:
            delta = flow.seed()
        else:
            deltas = {t.relation.name: t.change() for t in tables if random.random() < 0.6}
            needed = flow.needed_columns()
            delta = flow.step({n: d for n, d in deltas.items() if n in needed and len(d)})
        for row, weight in delta.rows():
            total[row] += weight
        assert all(weight >= 0 for weight in total.values()), "retracted and not out"
        for row, weight in errors.take().rows():
            failures[row[1].decode(), row[2].decode()] += weight
        oracle = Oracle({t.relation.name: t.rows for t in tables})
        assert +total == oracle.rows(plan), f"epoch {epoch}"
        if make in COUNTS_FAILURES:
            assert +failures == +oracle.failures
        store.commit()
        if random.random() < 0.2:
            store = opened()
            flow = ViewDataflow(nodes, "v", store, NoEvaluator(), errors)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("make", PLANS, ids=lambda make: make.__name__)
def test_memory(make: Callable[[], Plan], seed: int) -> None:
    store = MemoryStore()
    _run(make, seed, lambda: store)


@pytest.mark.parametrize("make", PLANS, ids=lambda make: make.__name__)
def test_rocks(make: Callable[[], Plan], tmp_path: Path) -> None:
    stores: list[RocksStore] = []

    def opened() -> Store:
        for store in stores:
            store.close()
        stores[:] = [RocksStore(tmp_path / "store", cache_bytes=1 << 20)]
        return stores[0]

    _run(make, 77, opened)
    stores[0].close()


def _flow(plan: Plan, errors: ErrorRows, store: Any = None) -> ViewDataflow:
    return ViewDataflow(lower(plan), "v", store or MemoryStore(), NoEvaluator(), errors)


def _edges(rows: list[tuple], weights: int = 1) -> dict[RelationName, Delta]:
    return {EDGES.name: Delta.of("ii", rows, weights)}


def test_what_does_not_end_is_an_error_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it ends again; then the rows are those of the query."""
    monkeypatch.setattr(recursive, "MAX_ROUNDS", 50)
    errors = ErrorRows()
    flow = _flow(endless(), errors)
    total = [flow.seed(), flow.step({STARTS.name: Delta.of("i", [(1,)])})]
    total.append(flow.step(_edges([(1, 2), (2, 3)])))
    assert len(errors.take()) == 0
    total.append(flow.step(_edges([(3, 1)])))
    assert sorted(Delta.concat(total).consolidate().rows()) == [((1,), 17), ((2,), 17), ((3,), 17)]
    text = b"the recursion r does not end within 50 rounds"
    assert errors.take().rows() == [((b"02.recursive", b"54000", text, b"(1)"), 1)]
    total.append(flow.step(_edges([(2, 3)], -1)))
    assert [weight for _, weight in errors.take().rows()] == [-1]
    assert sorted(Delta.concat(total).consolidate().rows()) == [((1,), 1), ((2,), 1)]


def test_rows_beyond_all_bounds_fail_the_view(monkeypatch: pytest.MonkeyPatch) -> None:
    """They double in every round: memory would end before the rounds do."""
    monkeypatch.setattr(recursive, "MAX_ROWS", 1000)
    flow = _flow(endless(), ErrorRows())
    flow.step({STARTS.name: Delta.of("i", [(1,)])})
    with pytest.raises(ViewError) as raised:
        flow.step(_edges([(1, 1), (1, 2), (2, 1)]))
    assert raised.value.code == "view.recursion_too_large"


def test_a_scalar_subquery_over_its_own_rows_is_refused() -> None:
    """PostgreSQL has no such query; a plan could."""
    with pytest.raises(SqlError) as raised:
        check_recursions(recursion_of(scan(STARTS), SingleRow(last_round(INT4)), is_distinct=True))
    assert raised.value.code == "sql.not_maintained"


@pytest.mark.parametrize("make", [reach, closure_of_starts], ids=lambda make: make.__name__)
def test_a_change_costs_what_it_changes(make: Callable[[], Plan]) -> None:
    """An edge far from most of the graph touches as many rows among 10^3 edges as among 10^5."""
    touched = []
    for size in (1_000, 100_000):
        random = Random(size)
        store = CountingStore()
        flow = _flow(make(), ErrorRows(), store)
        flow.seed()
        flow.step({STARTS.name: Delta.of("i", [(0,), (-1,)])})
        edges = {(random.randrange(size // 2), random.randrange(size // 2)) for _ in range(size)}
        flow.step(_edges(sorted(edges)))
        flow.step(_edges([(-1, -2), (-2, -3), (-3, -1), (-3, -4)]))
        store.reset()
        changes = [flow.step(_edges([(-4, -5)])), flow.step(_edges([(-2, -3)], -1))]
        changes.append(flow.step(_edges([(-2, -3)])))
        assert [len(change) for change in changes] == [1, 3, 3]
        touched.append(store.reset())
    assert touched[0] == touched[1] < 200
