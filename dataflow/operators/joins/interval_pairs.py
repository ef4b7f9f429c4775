"""Pairs of a join in which a value of one input lies between two bounds of the other.

Both inputs are stored in order by key. A changed row with bounds finds a range of the stored
values. A changed value finds the stored bounds around it. For that, bounds are also stored by their
length, in classes that double. In each class, the low ends that may reach the value are one range,
at most twice as long as the class's longest interval. Invariant: exactly the pairs with low <=
value <= high are found. A row with empty or NULL bounds, or with a NULL value, pairs with nothing
and is not stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dataflow.delta import Column, Delta
from dataflow.operators.base import Context, kinds_of
from dataflow.operators.groups import Touched, columns_at, plain_columns, split_nulls, touch
from dataflow.operators.joins.pairs import JoinState, Pairs, PairState
from dataflow.operators.ordered.ordered_rows import (
    Bound,
    Order,
    OrderedRows,
    OrderedSearch,
    pieces,
)
from dataflow.plan.nodes import Bounds, Join, SemiJoin

_LEAST = np.iinfo(np.int64).min
_MAX_CLASS = 64


def pair_state(plan: Join | SemiJoin, context: Context) -> PairState:
    """Return the state of a join, in order if its rows are bounded."""
    if plan.bounds is None:
        return JoinState(plan, context)
    return IntervalState(plan, plan.bounds, context)


@dataclass(frozen=True)
class _Ranges:
    """Where the pairs of changed rows are stored.

    stored: the rows; search: of the partitions that the ranges are in. index int64[k]: a changed
    row; part: its partition, by its position among those; low and high: positions in the
    partition. A changed row may have several ranges.
    """

    stored: OrderedRows
    search: OrderedSearch
    index: np.ndarray
    part: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def picked(self, chosen: np.ndarray, low: np.ndarray, high: np.ndarray) -> _Ranges:
        """Return the chosen ranges with other ends."""
        if len(chosen) == len(self.part):
            return replace(self, low=low, high=high)
        numbers, part = np.unique(self.part[chosen], return_inverse=True)
        search = self.stored.search([k.take(numbers) for k in self.search.keys])
        return _Ranges(self.stored, search, self.index[chosen], part, low, high)

    def between(self, start: np.ndarray, end: np.ndarray) -> _Ranges:
        """Return the ranges clipped to positions from start to end of each one's partition."""
        low, high = np.maximum(self.low, start), np.minimum(self.high, end)
        some = np.flatnonzero(low < high)
        return self.picked(some, low[some], high[some])


class IntervalState(PairState):
    """Both inputs in order. Keys, value and bounds are plain columns (lowering sees to it).

    State: the values and the low ends in order by key (see OrderedRows), the latter also by class;
    how many intervals of each class a key has. Cost: O(log n + matches) for each row, for each of
    the few classes of its key.
    """

    def __init__(self, plan: Join | SemiJoin, bounds: Bounds, context: Context) -> None:
        super().__init__(plan, context)
        self._value_side = 0 if bounds.is_left else 1
        inputs = (plan.left, plan.right)
        value_kinds = kinds_of(inputs[self._value_side].fields)
        kinds = kinds_of(inputs[1 - self._value_side].fields)
        self._width = len(kinds)
        (self._value,) = plain_columns([bounds.value])
        self._ends = plain_columns([bounds.low, bounds.high])
        key = self.keys[1 - self._value_side]
        self._values = OrderedRows(
            context,
            "values",
            value_kinds,
            self.keys[self._value_side],
            [Order(self._value, bounds.value.type)],
        )
        self._intervals = OrderedRows(
            context,
            "intervals",
            kinds + "i",
            (*key, self._width),
            [Order(self._ends[0], bounds.low.type)],
        )
        key_kinds = "".join(kinds[i] for i in key)
        self._classes = context.arrange("classes", key_kinds + "i", range(len(key)))

    def take(self, side: int, delta: Delta) -> None:
        """See PairState."""
        if side == self._value_side:
            delta, _ = split_nulls(delta, (self._value,))
            self._values.apply(delta)
            return
        delta = self._some(delta)
        if len(delta):
            classes = self._class_of(delta)
            key = columns_at(delta, self.keys[side])
            self._classes.apply(Delta((*key, classes), delta.weights))
            self._intervals.apply(Delta((*delta.columns, classes), delta.weights))

    def meet(
        self, side: int, delta: Delta, max_rows: int, *, is_collecting: bool = True
    ) -> Iterator[Pairs]:
        """See PairState."""
        ranges = self._ranges(side, delta)
        for chosen, start, end in pieces(ranges.low, ranges.high, max_rows):
            found = self._paired(side, delta, ranges.picked(chosen, start, end))
            if len(found := self._true(found, is_collecting=is_collecting)):
                yield found

    def meet_by_stored(
        self, side: int, delta: Delta, max_rows: int, *, is_collecting: bool = True
    ) -> Iterator[Pairs]:
        """See PairState."""
        ranges = self._ranges(side, delta)
        sizes = ranges.search.sizes()
        base = (np.cumsum(sizes) - sizes)[ranges.part]
        cuts = _cuts(base + ranges.low, base + ranges.high, max_rows)
        for start, end in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
            some = ranges.between(start - base, end - base)
            found = self._paired(side, delta, some)
            if len(found := self._true(found, is_collecting=is_collecting)):
                yield found

    def _some(self, delta: Delta) -> Delta:
        """Return the rows whose bounds are not empty."""
        delta, _ = split_nulls(delta, self._ends)
        low, high = (delta.columns[i].values for i in self._ends)
        return delta.filter(low <= high)

    def _class_of(self, delta: Delta) -> Column:
        """Return for each interval the class c that is above its length: length < 2^c."""
        low, high = (delta.columns[i].values for i in self._ends)
        lengths = high.view(np.uint64) - low.view(np.uint64)
        exponents = np.frexp(lengths.astype(np.float64))[1]
        return Column(np.minimum(exponents, _MAX_CLASS).astype(np.int64))

    def _ranges(self, side: int, delta: Delta) -> _Ranges:
        """Return where the stored rows are that changed rows pair with."""
        if side == self._value_side:
            return self._intervals_around(delta)
        index = np.arange(len(delta))
        if len(delta):
            low, high = (delta.columns[i] for i in self._ends)
            ordered = low.mask() & high.mask() & (low.values <= high.values)
            index = np.flatnonzero(ordered)
        rows = delta.take(index)
        touched = touch(columns_at(rows, self.keys[side]), len(rows))
        ends = columns_at(rows, self._ends)
        search = self._values.search(touched.keys)
        low, high = _positions(search, touched.group, self._value, ends)
        return _Ranges(self._values, search, index, touched.group, low, high)

    def _intervals_around(self, delta: Delta) -> _Ranges:
        """Return where the intervals are that begin so near before a value as one of their class
        may reach."""
        index = np.flatnonzero(delta.columns[self._value].mask())
        rows = delta.take(index)
        touched = touch(columns_at(rows, self.keys[self._value_side]), len(rows))
        of_key, classes = self._classes_of(touched, len(rows))
        row, place = _expanded(touched.group, of_key, touched.count)
        value = rows.columns[self._value].values[row]
        length = classes[place]
        # A sum of two steps, since 2^63 and more are no int64.
        half = np.left_shift(np.int64(1), np.maximum(length - 1, 0))
        first = _lowered(_lowered(value, half - 1), half)
        first = np.where(length > 0, first, value)
        keys = (*(k.take(of_key) for k in touched.keys), Column(classes))
        ends = Column(first), Column(value)
        search = self._intervals.search(keys)
        low, high = _positions(search, place, self._ends[0], ends)
        return _Ranges(self._intervals, search, index[row], place, low, high)

    def _classes_of(self, touched: Touched, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the classes of each key: (int64[k] the key, sorted; int64[k] the class)."""
        if n == 0:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        of_key, found = self._classes.lookup(touched.keys)
        order = np.argsort(of_key, kind="stable")
        return of_key[order], found.columns[-1].values[order]

    def _paired(self, side: int, delta: Delta, ranges: _Ranges) -> Pairs:
        """Return the pairs of changed rows and the rows of their ranges."""
        part = ranges.part
        cover = ranges.search.covering(part, ranges.low, ranges.high)
        base = cover.offsets[part]
        # A row is in the piece that has its first copy.
        first = np.searchsorted(cover.start, base + ranges.low)
        counts = np.searchsorted(cover.start, base + ranges.high) - first
        at = np.repeat(first - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
        index = np.repeat(ranges.index, counts)
        if side == self._value_side:
            values = delta.columns[self._value].values[index]
            reached = np.flatnonzero(cover.rows.columns[self._ends[1]].values[at] >= values)
            at, index = at[reached], index[reached]
        rows = cover.rows.take(at)
        if side == self._value_side:
            rows = Delta(rows.columns[: self._width], rows.weights)
        return Pairs(side, index, delta.take(index), rows)


def _positions(
    search: OrderedSearch, part: np.ndarray, column: int, ends: Sequence[Column]
) -> tuple[np.ndarray, np.ndarray]:
    """Return int64[n] each: how many rows of a partition come before the first of two values, and
    how many up to the second. One descent finds both."""
    n = len(part)
    is_after = np.repeat([False, True], n)
    at = search.positions(np.tile(part, 2), {column: Column.concat(ends)}, Bound(False, is_after))
    return at[:n], at[n:]


def _lowered(values: np.ndarray, by: np.ndarray) -> np.ndarray:
    """Return values - by, the least int64 where that is less."""
    lowered = values - by
    return np.where(lowered > values, _LEAST, lowered)


def _expanded(group: np.ndarray, of_key: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return every row beside every place of its key: (int64[k] rows, int64[k] places).

    >>> _expanded(np.array([1, 0]), np.array([0, 0, 1]), 2)
    (array([0, 1, 1]), array([2, 0, 1]))
    """
    sizes = np.bincount(of_key, minlength=count)
    starts = np.cumsum(sizes) - sizes
    counts = sizes[group]
    row = np.repeat(np.arange(len(group)), counts)
    within = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    return row, starts[group][row] + within


def _cuts(low: np.ndarray, high: np.ndarray, most: int) -> np.ndarray:
    """Return increasing positions from the first low to the last high, between which the ranges
    have about `most` positions in total; one position may have more.

    >>> _cuts(np.array([0, 2, 2]), np.array([6, 4, 4]), 4).tolist()
    [0, 2, 4, 6]
    """
    some = np.flatnonzero(low < high)
    if len(some) == 0:
        return np.empty(0, np.int64)
    at = np.concatenate([low[some], high[some]])
    step = np.repeat(np.array([1, -1]), len(some))
    order = np.argsort(at, kind="stable")
    at, depth = at[order], np.cumsum(step[order])
    total = np.concatenate([np.zeros(1, np.int64), np.cumsum(depth[:-1] * np.diff(at))])
    marks = np.arange(most, int(total[-1]), most) if most < total[-1] else np.empty(0, np.int64)
    # The last boundary up to a mark, and the positions from there on.
    last = np.searchsorted(total, marks, "right") - 1
    inner = at[last] + (marks - total[last]) // np.maximum(depth[last], 1)
    return np.unique(np.concatenate([at[:1], inner, at[-1:]]))
