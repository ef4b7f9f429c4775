"""Oracle: each value by its definition, row by row over sorted lists of the same rows in Python.

To repeat a failure: TIDEMARK_FIRST_SEED=<seed> pytest tests/unit/operators/test_windows.py
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from dataflow.collect import ErrorRows
from dataflow.delta import Delta
from dataflow.expressions.evaluator import NoEvaluator
from dataflow.operators.base import Context
from dataflow.operators.windows import window, window_follow, window_slabs
from dataflow.operators.windows.window import WindowOperator
from dataflow.operators.windows.window_reach import is_followed
from dataflow.plan.nodes import Window
from storage.errors import OutOfSpaceError
from storage.memory import MemoryStore
from storage.rocks import RocksStore
from storage.store import Store
from tests.unit.operators.window_cases import (
    CALLS,
    KINDS,
    ORDERS,
    Row,
    expected_rows,
    long_partition,
    one_row,
    open_operator,
    ties_of,
    window_over,
)

FIRST_SEED = int(os.environ.get("TIDEMARK_FIRST_SEED", "1"))


def _row(random: Random, span: int) -> Row:
    def maybe(value: Any) -> Any:
        return None if random.random() < 0.1 else value

    return (
        maybe(random.choice([1, 1, 1, 2])),
        maybe(random.randrange(span)),
        maybe(random.randint(-9, 9)),
        maybe(random.randint(-999, 999)),
        maybe(random.choice([b"1.5", b"1.50", b"-2", b"0.125", b"7.0"])),
        maybe(random.choice([0.1, 0.25, -1e16, 1e16, 3.0])),
        maybe(random.random() < 0.7),
    )


def _change(random: Random, model: Counter, span: int) -> Counter:
    change: Counter = Counter()
    for row in random.sample(sorted(model, key=ties_of), min(len(model), random.choice([0, 1, 3]))):
        change[row] = -random.randint(1, model[row])
        if random.random() < 0.5:
            # An update that leaves the order as it is.
            change[(*row[:2], random.randint(-9, 9), *row[3:])] += 1
    if model and random.random() < 0.05:
        change.update({row: -model[row] - change[row] for row in model if random.random() < 0.8})
    for _ in range(random.choice([0, 1, 1, 2, 40])):
        change[_row(random, span)] += random.choice([1, 1, 1, 3])
    return Counter({row: weight for row, weight in change.items() if weight})


def _delta(change: Counter) -> Delta:
    return Delta.of(KINDS, list(change), list(change.values()))


def _play(plan: Window, seed: int, open_store: Callable[[Store | None], Store], steps: int) -> None:
    random = Random(seed)
    store = open_store(None)
    operator = open_operator(plan, store)
    model: Counter = Counter()
    shown: Counter = Counter()
    span = random.choice([12, 1000])
    for step in range(steps):
        change = _change(random, model, span)
        for row, weight in change.items():
            model[row] += weight
        model = +model
        out = operator.step(_delta(change))
        store.commit()
        rows = out.rows()
        assert len({row for row, _ in rows}) == len(rows), "not consolidated"
        for row, weight in rows:
            shown[row] += weight
        shown = Counter({row: weight for row, weight in shown.items() if weight})
        expected = expected_rows(plan, model)
        assert shown == expected, (
            f"seed {seed}, step {step}: missing {list((expected - shown).items())[:3]}, "
            f"surplus {list((shown - expected).items())[:3]}"
        )
        if step == steps // 2:
            store = open_store(store)
            operator = open_operator(plan, store)
    store.close()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("kind", ["memory", "rocks"])
def test_values_are_those_of_the_definition(
    name: str, order: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if order == "down":
        # As if every partition were long, and slabs had to grow from the least on.
        monkeypatch.setattr(window_slabs, "_SHORT", 0)
        monkeypatch.setattr(window_follow, "_FIRST_ROWS", 1)
    plan = window_over(CALLS[name], ORDERS[order])

    def open_store(store: Store | None) -> Store:
        if kind == "memory":
            return MemoryStore() if store is None else store
        if store is not None:
            store.close()
        return RocksStore(tmp_path / "state", cache_bytes=1 << 20)

    seed = FIRST_SEED + 2 * list(CALLS).index(name) + (kind == "rocks")
    _play(plan, seed, open_store, steps=14)


def test_one_partition_of_all_rows() -> None:
    plan = window_over(CALLS["mixed"], ORDERS["up"], ())
    _play(plan, FIRST_SEED, lambda store: store or MemoryStore(), steps=12)


def test_which_calls_are_followed() -> None:
    followed = {
        name: is_followed(window_over(calls, ORDERS["up"])) for name, calls in CALLS.items()
    }
    assert followed == {name: name != "whole" for name in CALLS}


@pytest.mark.parametrize("name", [name for name in CALLS if name != "whole"])
def test_long_partitions_as_when_all_is_computed_again(name: str) -> None:
    plan = window_over(CALLS[name], ORDERS["up"])
    followed, whole = open_operator(plan, MemoryStore()), _whole(plan)
    random = Random(FIRST_SEED)
    steps = [
        long_partition(1500),
        one_row(7_000),
        one_row(7_000, -1),
        one_row(-1),
        one_row(10**6, 3),
        one_row(10**6, -2),
    ]
    for _ in range(12):
        steps.append(one_row(random.randrange(15_000), v=random.randint(-50, 50)))
    steps += [
        Delta.concat([one_row(random.randrange(15_000), 2) for _ in range(5)]).consolidate(),
        long_partition(1500).take(np.arange(700, 720)).negate(),
        long_partition(1500).take(np.array([3, 800, 1498])).negate(),
    ]
    for step in steps:
        assert Counter(followed.step(step).rows()) == Counter(whole.step(step).rows())


def _whole(plan: Window) -> WindowOperator:
    context = Context("03.window", "v", MemoryStore(), NoEvaluator(), ErrorRows())
    return WindowOperator(plan, context)


class NarrowStore(MemoryStore):
    """Has room for so many bytes at once."""

    room_bytes = 600_000

    def require_space(self, nbytes: int) -> None:
        if nbytes > self.room_bytes:
            raise OutOfSpaceError(nbytes)


def test_a_partition_that_needs_more_memory_than_there_is_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(window, "LARGE_BYTES", 1 << 16)
    operator = open_operator(window_over(CALLS["whole"], ORDERS["up"]), NarrowStore())
    operator.step(long_partition(500))
    operator.step(one_row(7_000))
    with pytest.raises(OutOfSpaceError):
        operator.step(long_partition(1500))
