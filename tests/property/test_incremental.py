"""Oracle: the rows of state that a one-row change touches do not grow with the state.

Counted by the store itself, at 10^3 to 10^6 rows, for each operator that keeps state.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataflow.collect import ErrorRows
from dataflow.delta import Column, Delta
from dataflow.expressions.evaluator import NoEvaluator
from dataflow.expressions.ir import Call, ColumnRef
from dataflow.graph import ViewDataflow
from dataflow.plan.nodes import (
    Aggregate,
    AggregateCall,
    Distinct,
    Join,
    Plan,
    Project,
    Scan,
    SemiJoin,
    SetOperation,
    SortKey,
    ThresholdFilter,
    TopK,
)
from dataflow.schema import Field, Relation, RelationName
from dataflow.sql.lower.lowering import lower
from dataflow.types import BOOL, INT4, INT8
from tests.harness.counting_store import CountingRocksStore, CountingStore
from tests.harness.tiers import is_fast

MATCHES = 4
LIMIT = 60
SIZES = [10**3, 10**5, pytest.param(10**6, marks=pytest.mark.whole)]


def _table(name: str) -> Scan:
    fields = (Field("key", INT4), Field("value", INT4))
    relation = Relation(RelationName("s", "public", name), 1, fields, is_full=True)
    return Scan(relation, (0, 1), fields)


A, B = _table("a"), _table("b")
KEY, VALUE, OTHER = ColumnRef(0, INT4), ColumnRef(1, INT4), ColumnRef(3, INT4)
RESIDUAL = Call("<>", (VALUE, OTHER), BOOL)
BOTH = A.fields + B.fields


def _calls(*functions: str) -> tuple[AggregateCall, ...]:
    return tuple(
        AggregateCall(f.split()[0], VALUE, "distinct" in f, None, Field(f, INT8)) for f in functions
    )


def _aggregate(*functions: str) -> Plan:
    calls = _calls(*functions)
    return Aggregate(A, (KEY,), calls, (A.fields[0], *(call.field for call in calls)))


PLANS: dict[str, Plan] = {
    "inner": Join("inner", A, B, (KEY,), (KEY,), None, BOTH),
    "left": Join("left", A, B, (KEY,), (KEY,), None, BOTH),
    "full": Join("full", A, B, (KEY,), (KEY,), None, BOTH),
    "left with residual": Join("left", A, B, (KEY,), (KEY,), RESIDUAL, BOTH),
    "full with residual": Join("full", A, B, (KEY,), (KEY,), RESIDUAL, BOTH),
    "semi": SemiJoin("semi", A, B, (KEY,), (KEY,), None),
    "anti": SemiJoin("anti", A, B, (KEY,), (KEY,), None),
    "anti with residual": SemiJoin("anti", A, B, (KEY,), (KEY,), RESIDUAL),
    "not in": SemiJoin("not in", A, B, (KEY,), (KEY,), None),
    "count and sum": _aggregate("count", "sum"),
    "distinct calls": _aggregate("count distinct", "sum distinct"),
    "min and max": _aggregate("min", "max"),
    "distinct": Distinct(A),
    "intersect": SetOperation("intersect", False, A, B),
    "intersect all": SetOperation("intersect", True, A, B),
    "except": SetOperation("except", False, A, B),
    "except all": SetOperation("except", True, A, B),
    "top k by key": TopK(A, (KEY,), (SortKey(VALUE),), 2, 1, False),
}
# Of one partition that grows with the state: a bound for each doubling of its depth.
DEEP: dict[str, Plan] = {
    "first": TopK(A, (), (SortKey(VALUE),), 10, 0, False),
    "page": TopK(A, (), (SortKey(VALUE, is_descending=True),), 10, 500, False),
    "ties": TopK(A, (), (SortKey(KEY),), 10, 0, True),
    "all after": TopK(A, (), (SortKey(VALUE),), None, 5, False),
}

C = _table("c")
MOVING = ThresholdFilter(
    A, Project(C, (VALUE,), (Field("threshold", INT4),)), Call("+", (VALUE, KEY), INT4), ">"
)


def _touched(plan: Plan, rows: int, folder: Path | None = None) -> list[int]:
    """Rows touched by each of a few one-row changes over state of so many rows a table."""
    store: Any = CountingStore() if folder is None else CountingRocksStore(folder, 256 << 20)
    flow = ViewDataflow(lower(plan), "v", store, NoEvaluator(), ErrorRows())
    flow.seed()
    keys = np.arange(rows) // MATCHES
    whole = Delta([Column(keys), Column(np.arange(rows))], np.ones(rows, np.int64))
    flow.step({A.relation.name: whole, B.relation.name: whole})
    store.reset()
    counts = []
    for table in (A, B):
        if table.relation.name not in flow.needed_columns():
            continue
        for row, weight in (((7, 1), 1), ((7, 1), -1), ((7, 28), -1), ((10**6, 5), 1)):
            flow.step({table.relation.name: Delta.of("ii", [row], weight)})
            counts.append(store.reset())
    store.close()
    return counts


@pytest.mark.parametrize("name", PLANS)
def test_one_row_touches_its_matches(name: str, tmp_path: Path) -> None:
    """The same small counts at 10^3, 10^5 and, in the whole suite, 10^6 rows."""
    small = _touched(PLANS[name], 10**3)
    assert small == _touched(PLANS[name], 10**5, tmp_path / "large")
    if not is_fast():
        assert small == _touched(PLANS[name], 10**6, tmp_path / "huge")
    assert max(small) <= LIMIT


@pytest.mark.parametrize("name", DEEP)
@pytest.mark.parametrize("rows", SIZES)
def test_one_row_costs_the_depth_of_its_partition(name: str, rows: int) -> None:
    """A few nodes of at most 128 rows a level, wherever the row comes or goes."""
    depth = {10**3: 2, 10**5: 3, 10**6: 4}[rows]
    assert max(_touched(DEEP[name], rows)) <= 10 * 128 * depth


@pytest.mark.parametrize("rows", SIZES)
def test_a_moved_threshold_touches_what_lies_between(rows: int) -> None:
    """A few nodes a level and the rows passed, forwards and backwards; as many for a row."""
    store: Any = CountingStore()
    flow = ViewDataflow(lower(MOVING), "v", store, NoEvaluator(), ErrorRows())
    flow.seed()
    values = np.arange(rows)
    whole = Delta([Column(values * 0), Column(values)], np.ones(rows, np.int64))
    middle, passed = rows // 2, 10
    kept = flow.needed_columns()[C.relation.name]

    def moved(old: int, new: int) -> Delta:
        return Delta.of("ii", [(0, old), (0, new)], [-1, 1]).project(kept)

    first = Delta.of("ii", [(0, middle)]).project(kept)
    assert len(flow.step({A.relation.name: whole, C.relation.name: first})) == rows - middle - 1
    most = 10 * 128 * {10**3: 2, 10**5: 3, 10**6: 4}[rows]
    store.reset()
    for old, new in ((middle, middle + passed), (middle + passed, middle)):
        out = flow.step({C.relation.name: moved(old, new)})
        assert out.weights.tolist() == [old - new > 0 or -1] * passed
        assert store.reset() <= most
    for weight in (1, -1):
        out = flow.step({A.relation.name: Delta.of("ii", [(0, middle + 5)], weight)})
        assert out.weights.tolist() == [weight]
        assert store.reset() <= most
    assert len(flow.step({C.relation.name: first.negate()})) == rows - middle - 1
