"""Oracle: each frame on its own, in plain Python."""

from __future__ import annotations

import bisect
import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tidemark_native import windows

INT64 = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(width=32) | st.floats(-100, 100) | st.sampled_from([1e308, -1.7e308, 1e200])


def _ints(items) -> np.ndarray:
    return np.array(items, np.int64)


@st.composite
def frames(draw, pieces=st.integers(1, 3)) -> tuple[np.ndarray, np.ndarray]:
    """Return low, high of frames whose bounds do not decrease."""
    n = draw(st.integers(0, 12))
    bounds = st.lists(st.integers(0, n), min_size=n, max_size=n).map(sorted)
    count = draw(pieces)
    low, high = ([draw(bounds) for _ in range(count)] for _ in range(2))
    begins = _ints(low).reshape(count, n)
    return begins, np.maximum(begins, _ints(high).reshape(count, n))


def _rows(low: np.ndarray, high: np.ndarray, i: int, valid) -> list[int]:
    pieces = zip(low[:, i], high[:, i], strict=True)
    return [j for start, stop in pieces for j in range(start, stop) if valid[j]]


@given(st.lists(INT64).map(sorted), INT64, st.data())
def test_bounds_are_those_of_a_bisection(values, distance: int, data) -> None:
    n = len(values)
    last = [data.draw(st.integers(0, n)) for _ in values]
    first = [data.draw(st.integers(0, stop)) for stop in last]
    for is_low, search in ((True, bisect.bisect_left), (False, bisect.bisect_right)):
        found = windows.range_ends(_ints(values), _ints(first), _ints(last), distance, is_low)
        expected = [
            search(values, value + distance, start, stop)
            for value, start, stop in zip(values, first, last, strict=True)
        ]
        assert found.tolist() == expected


def _sum(values, is_single: bool) -> tuple[float, bool]:
    total, is_bad = 0.0, False
    for k, value in enumerate(values):
        before, total = total, value if k == 0 else total + value
        if is_single:
            with np.errstate(over="ignore"):
                total = float(np.float32(total))
        is_bad |= math.isinf(total) and k > 0 and not (math.isinf(before) or math.isinf(value))
    return total, is_bad


@given(frames(), st.booleans(), st.data())
def test_sums_go_from_the_first_row_to_the_last(bounds, is_single: bool, data) -> None:
    low, high = bounds
    n = low.shape[1]
    kind = st.floats(width=32) if is_single else FLOATS
    values = np.array([data.draw(kind) for _ in range(n)], np.float64)
    valid = np.array([data.draw(st.booleans()) for _ in range(n)], np.bool_)
    sums, counts, failed = windows.sum_floats(values, valid, low, high, is_single)
    for i in range(n):
        rows = _rows(low, high, i, valid)
        total, is_bad = _sum(values[rows].tolist(), is_single)
        np.testing.assert_equal(sums[i], total)
        assert (counts[i], failed[i]) == (len(rows), is_bad)


@given(frames(), st.data())
def test_averages(bounds, data) -> None:
    low, high = bounds
    n = low.shape[1]
    values = np.array([data.draw(st.floats(-1e6, 1e6)) for _ in range(n)], np.float64)
    valid = np.array([data.draw(st.booleans()) for _ in range(n)], np.bool_)
    averages, counts, failed = windows.average_floats(values, valid, low, high)
    for i in range(n):
        rows = _rows(low, high, i, valid)
        expected = sum(values[rows].tolist(), 0.0) / len(rows) if rows else 0.0
        assert (averages[i], counts[i], failed[i]) == (expected, len(rows), False)


def test_an_average_overflows_in_its_squares() -> None:
    values, ends = np.array([1e200, -1e200]), (_ints([[0, 0]]), _ints([[1, 2]]))
    _, _, failed = windows.average_floats(values, np.ones(2, np.bool_), *ends)
    assert failed.tolist() == [False, True]


@given(frames(st.just(1)), st.data())
def test_the_best_row_is_the_last_of_the_greatest(bounds, data) -> None:
    low, high = bounds
    n = low.shape[1]
    positions = [data.draw(st.integers(0, 4)) for _ in range(n)]
    valid = np.array([data.draw(st.booleans()) for _ in range(n)], np.bool_)
    found = windows.best_rows(_ints(positions), valid, low[0], high[0])
    expected = [
        max(_rows(low, high, i, valid), key=lambda row: (positions[row], row), default=-1)
        for i in range(n)
    ]
    assert found.tolist() == expected


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(-1, 5))), st.data())
def test_tiles_differ_by_one_row_at_most(partitions, data) -> None:
    begin: list[int] = []
    for size, _ in partitions:
        begin += [len(begin)] * size
    end = [start + begin.count(start) for start in begin]
    buckets = [count for size, count in partitions for _ in range(size)]
    nulls = {start: data.draw(st.integers(0, 3)) for start in dict.fromkeys(begin)}
    valid = np.array([i >= start + nulls[start] for i, start in enumerate(begin)], np.bool_)
    tiles, failed = windows.tiles(_ints(begin), _ints(end), _ints(buckets), valid)
    for i, (start, count) in enumerate(zip(begin, buckets, strict=True)):
        row, total = i - start - nulls[start], end[i] - start
        if row < 0:
            assert (tiles[i], failed[i]) == (0, False)
        elif count <= 0:
            assert (tiles[i], failed[i]) == (0, True)
        else:
            sizes = [total // count + (k < total % count) for k in range(count)]
            numbers = [k + 1 for k, size in enumerate(sizes) for _ in range(size)]
            assert (tiles[i], failed[i]) == (numbers[row], False)


@given(st.lists(st.tuples(FLOATS, st.booleans()), max_size=12), st.integers(0, 2), st.data())
def test_running_sums_can_be_resumed_anywhere(rows, kind: int, data) -> None:
    values = np.array([value for value, _ in rows], np.float64)
    valid = np.array([is_valid for _, is_valid in rows], np.bool_)
    n = len(rows)
    if kind == 1:
        with np.errstate(over="ignore"):
            values = values.astype(np.float32).astype(np.float64)
    none = np.zeros((4, n))
    whole = windows.running_floats(values, valid, _ints([0] * n), none, kind)
    at = data.draw(st.integers(0, n))
    base = np.zeros((4, n))
    if 0 < at < n:
        base[:, at] = whole[:, at - 1]
    rest = windows.running_floats(values, valid, _ints([at] * n), base, kind)
    np.testing.assert_equal(rest[:, at:], whole[:, at:])
    assert not rest[:, :at].any()
    if kind < 2:
        for i in range(n):
            total, is_bad = _sum(values[: i + 1][valid[: i + 1]].tolist(), kind == 1)
            np.testing.assert_equal(whole[0, i], total)
            assert (whole[2, i], whole[3, i]) == (valid[: i + 1].sum(), is_bad)
