"""Oracle: the same operator over a store of its own, stepped as a whole.

What a join gives out in parts adds up to that, over both stores, with the store relieved between
two parts; each part is consolidated, and after none of them a row has been taken back that was
not out. A failure names the seed; to repeat one:
TIDEMARK_SEED=<seed> pytest tests/property/test_join_parts.py
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from dataflow.collect import ErrorRows
from dataflow.delta import Delta
from dataflow.expressions.evaluator import NoEvaluator
from dataflow.expressions.ir import Call, ColumnRef
from dataflow.operators.base import Operator, parts_of
from dataflow.plan.nodes import Join, Plan, SemiJoin
from dataflow.sql.lower.lowering import Node, lower, make_operator
from dataflow.types import BOOL
from storage.memory import MemoryStore
from storage.pages import Tuning
from storage.rocks import RocksStore, StoreBudget
from storage.store import Store
from tests.harness.oracle import exact
from tests.harness.tiers import count
from tests.property.plans import SMALL, Table

EPOCHS = 40
SEEDS = count("TIDEMARK_TEST_JOIN_SEEDS", 4, 12)
TINY = Tuning(page_rows=4, memory_rows=24, file_rows=64, fan=2)
KINDS = ("inner", "left", "right", "full", "semi", "anti", "not in")


def _plan(kind: str, has_residual: bool, keys: int, left: Plan, right: Plan) -> Plan:
    refs = [
        tuple(ColumnRef(i, side.fields[i].type, side.fields[i].name) for i in range(keys))
        for side in (left, right)
    ]
    residual = None
    if has_residual:
        width = len(left.fields)
        sides = (
            ColumnRef(1, left.fields[1].type, ""),
            ColumnRef(width + 2, right.fields[2].type, ""),
        )
        residual = Call("<=", sides, BOOL)
    if kind == "not in":
        return SemiJoin(kind, left, right, refs[0][:1], refs[1][:1], None)
    if kind in ("semi", "anti"):
        return SemiJoin(kind, left, right, refs[0], refs[1], residual)
    fields = (*left.fields, *right.fields)
    return Join(kind, left, right, refs[0], refs[1], residual, fields)


def _operator(plan: Plan, store: Store) -> Operator:
    node = next(n for n in lower(plan) if isinstance(n.plan, Join | SemiJoin))
    return make_operator(Node("join", node.plan, (), None), store, "v", NoEvaluator(), ErrorRows())


def _bag(delta: Delta) -> Counter:
    found: Counter = Counter()
    for row, weight in delta.rows():
        assert weight and exact(row) not in found, "a part is not consolidated"
        found[exact(row)] = weight
    return found


def _change(table: Table, random: Random) -> Delta:
    """Many rows for few keys, so that some are hot."""
    if random.random() < 0.3:
        return table.change()
    count = random.choice((0, 1, 1, 10, 60))
    return Delta.concat([table.change() for _ in range(count + 1)]).consolidate()


def _run(seed: int, kind: str, store: Store) -> int:
    """How many steps came in several parts."""
    random = Random(seed)
    has_residual, keys = random.random() < 0.5, random.choice((0, 1, 1, 2))
    left, right = (Table(name, SMALL, random) for name in "ab")
    plan = _plan(kind, has_residual, keys or kind == "not in", left.scan(), right.scan())
    alone, operator = _operator(plan, MemoryStore()), _operator(plan, store)
    total: Counter = Counter()
    several = 0
    for _ in range(EPOCHS):
        deltas = _change(left, random), _change(right, random)
        expected = _bag(alone.step(*deltas))
        max_rows = random.choice((1, 3, 20, 1 << 62))
        make_parts = parts_of(operator)
        assert make_parts is not None
        parts = make_parts(*deltas, max_rows=max_rows)
        found: Counter = Counter()
        number = 0
        for part in parts:
            number += 1
            for row, weight in _bag(part).items():
                found[row] += weight
                total[row] += weight
                assert total[row] >= 0, "a row is taken back that was not out"
            store.relieve()
        store.commit()
        several += number > 1
        assert {r: w for r, w in found.items() if w} == expected
    return several


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sort", ["memory", "rocks"])
def test_parts_add_up(kind: str, sort: str, tmp_path: Path) -> None:
    given = os.environ.get("TIDEMARK_SEED")
    several = 0
    for seed in [int(given)] if given else range(SEEDS):
        store: Store = MemoryStore()
        if sort == "rocks":
            rest = StoreBudget(run_bytes=500, ahead_bytes=500)
            store = RocksStore(tmp_path / str(seed), 20_000, TINY, rest)
        try:
            several += _run(seed, kind, store)
        except AssertionError as error:
            pytest.fail(f"seed {seed}: {error}")
        finally:
            store.close()
    assert several >= SEEDS or given, "too little came in parts to tell"
