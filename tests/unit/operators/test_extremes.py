"""Oracle: min and max of all rows that are there, in plain Python, after each of random deltas."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
import pytest

from dataflow.collect import ErrorRows
from dataflow.delta import Column, Delta
from dataflow.expressions.evaluator import NoEvaluator
from dataflow.expressions.ir import ColumnRef
from dataflow.graph import ViewDataflow
from dataflow.operators.aggregates import extremes
from dataflow.operators.ordered.ordered_nodes import INNER
from dataflow.plan.nodes import Aggregate, AggregateCall, Scan
from dataflow.schema import Field, Relation, RelationName
from dataflow.sql.lower.lowering import lower
from dataflow.types import INT4
from storage.memory import MemoryStore
from storage.rocks import RocksStore
from storage.store import Store
from tests.harness.counting_store import CountingStore

FIELDS = (Field("key", INT4), Field("value", INT4))
RELATION = Relation(RelationName("s", "public", "t"), 1, FIELDS, is_full=True)
VALUE = ColumnRef(1, INT4)
CALLS = tuple(
    AggregateCall(function, VALUE, False, None, Field(function, INT4))
    for function in ("min", "max")
)
BY_KEY = Aggregate(
    Scan(RELATION, (0, 1), FIELDS),
    (ColumnRef(0, INT4),),
    CALLS,
    (FIELDS[0], *(call.field for call in CALLS)),
)
OF_ALL = Aggregate(Scan(RELATION, (0, 1), FIELDS), (), CALLS, tuple(c.field for c in CALLS))


def _flow(store: Store, plan: Aggregate = BY_KEY) -> ViewDataflow:
    return ViewDataflow(lower(plan), "v", store, NoEvaluator(), ErrorRows())


@pytest.mark.parametrize("kind", ["memory", "rocks"])
@pytest.mark.parametrize("seed", range(3))
def test_groups_that_are_put_in_order(
    seed: int, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large and small groups, that lose extremes, empty and come again; reopened each time."""
    monkeypatch.setattr(extremes, "MANY", 5)
    random = Random(seed)
    store: Store = MemoryStore() if kind == "memory" else RocksStore(tmp_path / "state")
    rows: Counter = Counter()
    shown: Counter = Counter()
    for epoch in range(60):
        change: Counter = Counter()
        for _ in range(random.choice([1, 3, 40])):
            value = None if random.random() < 0.1 else random.randrange(300)
            change[random.choice([0, 0, 0, 1, 2]), value] += 1
        if epoch % 2:
            ordered = sorted(rows, key=lambda row: (row[0], row[1] is None, row[1] or 0))
            leaving = random.choice([ordered[:3], ordered[-3:], [r for r in ordered if r[0] == 0]])
            change.update({row: -rows[row] for row in leaving})
        change = Counter({row: weight for row, weight in change.items() if weight})
        rows.update(change)
        rows = +rows
        delta = Delta.of("ii", list(change), list(change.values()))
        out = _flow(store).step({RELATION.name: delta})
        store.commit()
        for row, weight in out.rows():
            shown[row] += weight
        assert {row: w for row, w in shown.items() if w} == _recomputed(rows), f"epoch {epoch}"
        if kind == "rocks" and epoch % 20 == 7:
            store.close()
            store = RocksStore(tmp_path / "state")
    store.close()


def _recomputed(rows: Counter) -> dict:
    out = {}
    for key in {row[0] for row in rows}:
        values = [value for k, value in rows if k == key and value is not None]
        out[key, min(values, default=None), max(values, default=None)] = 1
    return out


@pytest.mark.parametrize("n", [10**3, 10**5, 10**6])
def test_a_lost_extreme_costs_no_group(n: int) -> None:
    """Once a large group has lost an extreme, the next ones cost a few nodes of its order."""
    store = CountingStore()
    flow = _flow(store, OF_ALL)  # type: ignore[arg-type]
    flow.seed()
    whole = Delta([Column(np.zeros(n, np.int64)), Column(np.arange(n))], np.ones(n, np.int64))
    flow.step({RELATION.name: whole})
    flow.step({RELATION.name: Delta.of("ii", [(0, 0)], -1)})
    store.reset()
    for value, weight in ((1, -1), (n - 1, -1), (n // 2, -1), (n, 1), (n, -1), (2, -1)):
        flow.step({RELATION.name: Delta.of("ii", [(0, value)], weight)})
        assert store.reset() <= 24 * INNER.most
