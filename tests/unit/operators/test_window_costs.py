"""Oracle: the rows of state that an operator reads and writes, counted at several sizes."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest

from dataflow.delta import Delta
from dataflow.plan.nodes import WindowCall
from dataflow.types import INT4
from storage.store import Store
from tests.harness.counting_store import CountingStore
from tests.unit.operators.window_cases import (
    CALLS,
    KINDS,
    NEAR,
    NEAR_PEERS,
    NUMBERS,
    ORDERS,
    PLACE,
    RUNNING,
    RUNNING_ROWS,
    SHIFTS,
    call_of,
    long_partition,
    one_row,
    open_operator,
    window_over,
)

APPENDED = {
    **{c.function: [c] for c in [*NUMBERS, SHIFTS[0]]},
    "running": RUNNING,
    "near": NEAR,
    "near_peers": NEAR_PEERS,
    "all": CALLS["mixed"],
}
APART = [pytest.param(name, marks=pytest.mark.whole) for name in APPENDED if name != "all"]


def _touched(calls: list[WindowCall], rows: int, changes: list[Delta]) -> list[int]:
    """Rows of state read and written by each change of a partition of that many rows."""
    store = CountingStore()
    operator = open_operator(window_over(calls, ORDERS["up"]), cast(Store, store))
    operator.step(long_partition(rows))
    counts = []
    for change in changes:
        store.reset()
        operator.step(change)
        counts.append(store.reset())
    return counts


@pytest.mark.parametrize("name", [*APART, "all"])
def test_an_appended_row_costs_the_logarithm_of_its_partition(name: str) -> None:
    last = 10**9
    changes = [one_row(last), one_row(last + 1), one_row(last + 1, -1)]
    small = _touched(APPENDED[name], 1_000, changes)
    large = _touched(APPENDED[name], 100_000, changes)
    for few, many in zip(small, large, strict=True):
        assert many <= few + 1_000, f"{few} rows of state at 1,000 rows, {many} at 100,000"


@pytest.mark.whole
def test_an_appended_row_among_a_million() -> None:
    calls = [NUMBERS[0], SHIFTS[0], call_of("sum", "v", frame=RUNNING_ROWS), NEAR[0]]
    last = 10**9
    small, large = (
        max(_touched(calls, n, [one_row(last), one_row(last + 1), one_row(last + 1, -1)]))
        for n in (1_000, 1_000_000)
    )
    assert large <= small + 2_000, f"{small} rows of state at 1,000 rows, {large} at 1,000,000"


MIDDLE = {
    "shifts": SHIFTS,
    "near": NEAR,
    "near_peers": NEAR_PEERS,
    # The running extremes behind stay what they are.
    "min": [call_of("min", "v", frame=RUNNING_ROWS, type=INT4)],
}


@pytest.mark.parametrize("name", MIDDLE)
def test_a_row_in_the_middle_costs_its_readers(name: str) -> None:
    small, large = (
        _touched(MIDDLE[name], n, [one_row(5 * n + 3), one_row(5 * n + 3, -1)])
        for n in (1_000, 100_000)
    )
    for few, many in zip(small, large, strict=True):
        assert many <= few + 1_000, f"{few} rows of state at 1,000 rows, {many} at 100,000"


def test_a_new_value_at_the_same_rank_changes_no_number() -> None:
    row = long_partition(100_000).take(np.array([40_000]))
    cells = list(row.rows()[0][0])
    cells[PLACE["v"]] = 77
    update = Delta.concat([row.negate(), Delta.of(KINDS, [tuple(cells)], 1)])
    (touched,) = _touched(NUMBERS[:2], 100_000, [update])
    assert touched < 4_000
