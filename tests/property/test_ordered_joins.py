"""Oracle: bisection and comparison of all pairs, in plain Python, over the present rows.

As-of joins and interval joins over trees of several levels: large random changes of few keys, with
repeated rows, NULLs and ties, in parts of any size; a changed row touches nodes, not its partition.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from dataflow.collect import ErrorRows
from dataflow.delta import Column, Delta
from dataflow.expressions.evaluator import NoEvaluator
from dataflow.expressions.ir import Call, ColumnRef, Literal
from dataflow.graph import ViewDataflow
from dataflow.operators.base import parts_of
from dataflow.plan.nodes import AsOfJoin, Bounds, Join, Plan, Scan, SortKey
from dataflow.schema import Field, Relation, RelationName
from dataflow.sql.lower.lowering import Node, lower, make_operator
from dataflow.types import BOOL, INT8
from storage.memory import MemoryStore
from storage.rocks import RocksStore
from storage.store import Store
from tests.harness.counting_store import CountingStore

# Columns of both inputs: key, value, and a third one that tells rows apart.
_FIELDS = tuple(Field(name, INT8) for name in ("k", "ts", "v"))
KEY, VALUE, THIRD = (ColumnRef(i, INT8, f.name) for i, f in enumerate(_FIELDS))
REACH = 40
Row = tuple[Any, ...]


def _scan(name: str) -> Scan:
    relation = Relation(RelationName("s", "public", name), 1, _FIELDS, is_full=True)
    return Scan(relation, (0, 1, 2), _FIELDS)


A, B = _scan("a"), _scan("b")
BOTH = _FIELDS + _FIELDS


def _as_of(kind: str, operator: str, *, has_key: bool) -> AsOfJoin:
    keys = (KEY,) if has_key else ()
    order = (SortKey(VALUE, operator[0] == "<"), SortKey(THIRD, True))
    return AsOfJoin(kind, A, B, keys, keys, VALUE, operator, order, BOTH)


def _interval(kind: str, *, is_fixed: bool, is_left: bool) -> Join:
    """A value between ts and ts + REACH, or ts and v, of the other input."""
    n = 0 if is_left else 3
    other = 3 - n
    reach = Literal(str(REACH), INT8)
    high = Call("+", (VALUE, reach), INT8) if is_fixed else THIRD
    moved = ColumnRef(n + 1, INT8), ColumnRef(other + 1, INT8), ColumnRef(other + 2, INT8)
    top = Call("+", (moved[1], reach), INT8) if is_fixed else moved[2]
    parts = Call(">=", moved[:2], BOOL), Call("<=", (moved[0], top), BOOL)
    residual = Call("and", parts, BOOL)
    bounds = Bounds(VALUE, VALUE, high, is_left)
    return Join(kind, A, B, (KEY,), (KEY,), residual, BOTH, bounds)


AS_OF = {
    f"{kind} {operator}{'' if has_key else ' without keys'}": _as_of(
        kind, operator, has_key=has_key
    )
    for kind, has_key in (("left", True), ("inner", False))
    for operator in ("<", "<=", ">", ">=")
}
INTERVALS = {
    f"{kind} {'fixed' if is_fixed else 'own'} {'left' if is_left else 'right'}": _interval(
        kind, is_fixed=is_fixed, is_left=is_left
    )
    for kind, is_fixed in (("inner", True), ("left", False), ("full", True))
    for is_left in (True, False)
}


class _Table:
    """The present rows of one input."""

    def __init__(self, random: Random, span: int) -> None:
        self.rows: Counter[Row] = Counter()
        self._random = random
        self._span = span

    def change(self, count: int) -> Delta:
        """So many rows come, some of them twice, and a few of the present ones go."""
        random, change = self._random, Counter()
        present = list(self.rows)
        for row in random.sample(present, min(len(present), count // 3)):
            change[row] -= random.randint(1, self.rows[row])
        for _ in range(count):
            value = None if random.random() < 0.02 else random.randrange(self._span)
            length = int(2 ** random.uniform(0, 9)) if value is not None else 0
            third = None if random.random() < 0.02 else (value or 0) + length - 3
            key = None if random.random() < 0.02 else random.randrange(2)
            change[key, value, third] += random.choice([1, 1, 2])
        kept = [(row, weight) for row, weight in change.items() if weight]
        self.rows.update(dict(kept))
        self.rows = +self.rows
        return Delta.of("iii", [row for row, _ in kept], [weight for _, weight in kept])


def _expected_as_of(plan: AsOfJoin, left: Counter[Row], right: Counter[Row]) -> Counter[Row]:
    has_key, is_back = bool(plan.left_keys), plan.operator[0] == "<"
    by_key: dict[Any, list[Row]] = {}
    for row in right:
        if row[1] is not None and (row[0] is not None or not has_key):
            by_key.setdefault(row[0] if has_key else 0, []).append(row)

    def tie(row: Row) -> Any:
        """THIRD descending, NULLs last; then all columns, NULLs last."""
        rest = [(x is None, x or 0) for x in row]
        return (row[2] is None, -(row[2] or 0), rest)

    groups = {}
    for key, rows in by_key.items():
        best: dict[Any, Row] = {}
        for row in sorted(rows, key=tie, reverse=True):
            best[row[1]] = row
        groups[key] = (sorted(best), best)
    out: Counter[Row] = Counter()
    for row, weight in left.items():
        values, best = groups.get(row[0] if has_key else 0, ([], {}))
        at = -1
        if row[1] is not None and (row[0] is not None or not has_key):
            is_equal_in = plan.operator in ("<=", ">")
            at = (bisect_right if is_equal_in else bisect_left)(values, row[1]) - is_back
        if 0 <= at < len(values):
            out[row + best[values[at]]] += weight
        elif plan.kind == "left":
            out[(*row, None, None, None)] += weight
    return out


def _expected_interval(plan: Join, left: Counter[Row], right: Counter[Row]) -> Counter[Row]:
    assert plan.bounds is not None
    is_left, is_fixed = plan.bounds.is_left, plan.bounds.high != THIRD
    out: Counter[Row] = Counter()
    paired: set[tuple[int, Row]] = set()
    for a, n in left.items():
        for b, m in right.items():
            value, ends = (a, b) if is_left else (b, a)
            low, high = ends[1], ends[2]
            if is_fixed and low is not None:
                high = low + REACH
            if None in (a[0], b[0], value[1], low, high) or a[0] != b[0]:
                continue
            if low <= value[1] <= high:
                out[a + b] += n * m
                paired |= {(0, a), (1, b)}
    nothing = (None, None, None)
    if plan.kind in ("left", "full"):
        out.update({a + nothing: n for a, n in left.items() if (0, a) not in paired})
    if plan.kind == "full":
        out.update({nothing + b: n for b, n in right.items() if (1, b) not in paired})
    return out


def _run(plan: Any, store: Store, sizes: list[tuple[int, int]], span: int) -> None:
    random = Random(str(plan))
    node = next(n for n in lower(plan) if isinstance(n.plan, type(plan)))
    operator = make_operator(
        Node("join", node.plan, (), ()), store, "v", NoEvaluator(), ErrorRows()
    )
    extra = tuple(len(side.fields) - 3 for side in (node.plan.left, node.plan.right))  # type: ignore[union-attr]
    left, right = _Table(random, span), _Table(random, span)
    total: Counter[Row] = Counter()
    make_parts = parts_of(operator)
    assert make_parts is not None
    for counts in sizes:
        deltas = [t.change(n) for t, n in zip((left, right), counts, strict=True)]
        wide = [_widened(d) if e else d for d, e in zip(deltas, extra, strict=True)]
        for part in make_parts(*wide, max_rows=random.choice([40, 300, 1 << 62])):
            for row, weight in part.rows():
                row = (*row[:3], *row[3 + extra[0] : 6 + extra[0]])
                total[row] += weight
                assert total[row] >= 0, "a row is taken back that was not out"
            store.relieve()
        store.commit()
        expect = _expected_as_of if isinstance(plan, AsOfJoin) else _expected_interval
        assert +total == expect(plan, left.rows, right.rows)


def _widened(delta: Delta) -> Delta:
    """What lowering appends: the high end of a fixed reach."""
    value = delta.columns[1]
    return Delta((*delta.columns, Column(value.values + REACH, value.valid)), delta.weights)


@pytest.mark.parametrize("name", AS_OF)
def test_an_as_of_join_of_large_partitions(name: str) -> None:
    sizes = [(700, 0), (1, 700), (5, 5), (400, 400), (0, 3), (300, 0), (0, 300), (2, 2)]
    span = 500 if "left" in name else 20_000
    _run(AS_OF[name], MemoryStore(), sizes, span)


@pytest.mark.parametrize("name", INTERVALS)
def test_an_interval_join_of_large_partitions(name: str) -> None:
    sizes = [(300, 0), (1, 400), (5, 5), (100, 100), (0, 3), (2, 2)]
    _run(INTERVALS[name], MemoryStore(), sizes, 3000)


@pytest.mark.parametrize("name", ["left <=", "inner > without keys"])
def test_state_of_an_as_of_join_in_files(name: str, tmp_path: Path) -> None:
    store = RocksStore(tmp_path / "state", 1 << 20)
    _run(AS_OF[name], store, [(600, 600), (5, 5), (300, 300), (1, 1)], 20_000)
    store.close()


def _touched(plan: Plan, rows: int, changes: list[tuple[Scan, Row]]) -> list[int]:
    """Rows read and written by each of a few one-row changes over inputs of so many rows."""
    store: Any = CountingStore()
    flow = ViewDataflow(lower(plan), "v", store, NoEvaluator(), ErrorRows())
    flow.seed()
    values = np.arange(rows) * 10
    whole = Delta([Column(values * 0), Column(values), Column(values)], np.ones(rows, np.int64))
    flow.step({A.relation.name: whole, B.relation.name: whole})
    store.reset()
    counts = []
    for scan, row in changes:
        for weight in (1, -1):
            flow.step({scan.relation.name: Delta.of("iii", [row], weight)})
            counts.append(store.reset())
    return counts


@pytest.mark.parametrize("rows", [10**3, 10**5])
def test_one_row_costs_the_depth_of_its_partition(rows: int) -> None:
    """A few nodes of at most 128 rows a level, wherever the row comes or goes."""
    depth = {10**3: 2, 10**5: 3}[rows]
    plans = (_as_of("left", "<=", has_key=True), _interval("left", is_fixed=True, is_left=False))
    for plan in plans:
        changes = [(scan, (0, rows * at, 7)) for scan in (A, B) for at in (1, 5, 9)]
        assert max(_touched(plan, rows, changes)) <= 25 * 128 * depth
