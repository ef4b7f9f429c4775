"""The parts of long partitions that a change can affect: slabs of ordered rows.

A slab is a range of positions of one partition in its new version; its old version is the same rows
without the changes. Invariant: every change is in one slab, slabs of a partition do not touch, and
outside of them both versions have the same rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dataflow.delta import Column, Delta
from dataflow.operators.ordered.ordered_rows import OrderedRows
from dataflow.operators.windows.window_rows import WindowRows, sequence_rows

# Beyond the length of any partition.
_STRIDE = np.int64(2**44)
# Partitions this small are read as a whole, which is cheaper than finding slabs.
_SHORT = 64


@dataclass
class Changes:
    """c changed rows and their positions. delta: the rows with weights. part int64[c]: the
    partition of each, among the touched ones. first, last int64[c]: how many rows of its new
    version come before the row, and up to its last copy; in a short partition 0 and its size. keys,
    sizes: of the touched partitions."""

    delta: Delta
    part: np.ndarray
    first: np.ndarray
    last: np.ndarray
    keys: Sequence[Column]
    sizes: np.ndarray

    @staticmethod
    def of(
        delta: Delta, part: np.ndarray, keys: Sequence[Column], count: int, rows: OrderedRows
    ) -> Changes:
        """Return changes that are already applied to the ordered rows. In a short partition one
        represents all."""
        sizes = rows.sizes(keys, count)
        first, last = np.zeros(len(delta), np.int64), sizes[part]
        in_long = np.flatnonzero(last > _SHORT)
        first[in_long], last[in_long] = rows.spans(delta.take(in_long))
        return Changes(delta, part, first, last, keys, sizes)


@dataclass
class Slabs:
    """s slabs: low <= p < high of the partition `part`, int64[s]; of int64[c]: of each change."""

    part: np.ndarray
    low: np.ndarray
    high: np.ndarray
    of: np.ndarray

    @staticmethod
    def around(changes: Changes, before: int, after: int, *, is_one: bool) -> Slabs:
        """Return slabs with that many rows on either side of each change; is_one: one per
        partition."""
        low, high = changes.first - before, changes.last + after
        every = np.arange(len(low))
        return Slabs(changes.part, low, high, every)._joined(changes.sizes, is_one)

    def grown(self, before: np.ndarray, after: np.ndarray, sizes: np.ndarray) -> Slabs:
        """Return slabs with int64[s] more rows on either side."""
        wider = Slabs(self.part, self.low - before, self.high + after, self.of)
        return wider._joined(sizes, is_one=False)

    def _joined(self, sizes: np.ndarray, is_one: bool) -> Slabs:
        """Return the slabs, merged where they meet."""
        low = np.clip(self.low, 0, sizes[self.part])
        high = np.clip(self.high, 0, sizes[self.part])
        order = np.lexsort((low, self.part))
        part, low, high = self.part[order], low[order], high[order]
        reach = np.maximum.accumulate(high + part * _STRIDE)
        begins = np.ones(len(order), np.bool_)
        begins[1:] = part[1:] != part[:-1]
        if not is_one:
            begins[1:] |= low[1:] + part[1:] * _STRIDE > reach[:-1]
        number = np.empty(len(order), np.int64)
        number[order] = np.cumsum(begins) - 1
        starts = np.flatnonzero(begins)
        return Slabs(part[starts], low[starts], np.maximum.reduceat(high, starts), number[self.of])


@dataclass
class Turn:
    """Both versions of s slabs: partition 2i has the old rows of slab i, 2i + 1 the new ones.

    slab, index int64[n]: of each row, index from the slab's begin. count int64[2, s]: rows of each.
    change int64[s]: the index of the first change; same int64[s]: the rows after the last change.
    is_left_open, is_right_open bool[s]: the partition extends beyond the slab.
    """

    rows: WindowRows
    slab: np.ndarray
    index: np.ndarray
    count: np.ndarray
    change: np.ndarray
    same: np.ndarray
    is_left_open: np.ndarray
    is_right_open: np.ndarray

    def at(self, side: int, index: np.ndarray) -> np.ndarray:
        """Return the row at int64[s] indexes of a side's sequences; -1 where there is none."""
        begins = self.begins[side]
        within = (index >= 0) & (index < self.count[side])
        return np.where(within, begins + index, -1)

    def of_versions(self, values: np.ndarray) -> np.ndarray:
        """Return int64[n]: of each row the value, int64[2, s], of its sequence."""
        return values.T.reshape(-1)[self.rows.partition]

    def counts_of(self, chosen: np.ndarray) -> np.ndarray:
        """Return int64[2, s]: how many rows of each sequence are chosen, bool[n]."""
        n = self.count.size
        return np.bincount(self.rows.partition[chosen], minlength=n).reshape(-1, 2).T

    @property
    def begins(self) -> np.ndarray:
        """int64[2, s]: where the sequences begin."""
        counts = self.count.T.reshape(-1)
        return (np.cumsum(counts) - counts).reshape(-1, 2).T

    @property
    def after_changes(self) -> np.ndarray:
        """Return int64[2, s]: the index of the first row after the last change."""
        return self.count - self.same


def read_turn(slabs: Slabs, changes: Changes, ordered: OrderedRows) -> Turn:
    """Return the rows of slabs; a slab is widened where a row has copies beyond it."""
    keys = [k.take(slabs.part) for k in changes.keys]
    found = ordered.ranges(keys, slabs.low, slabs.high)
    np.minimum.at(slabs.low, found.index, found.start)
    np.maximum.at(slabs.high, found.index, found.start + found.weights)
    new = Delta((*found.rows.columns, Column(found.index)), found.weights)
    delta = changes.delta
    undone = Delta((*delta.columns, Column(slabs.of)), -delta.weights)
    old = Delta.concat([new, undone]).consolidate()
    both = Delta.concat([old, new])
    number = both.columns[-1].values
    side = np.arange(len(both)) >= len(old)
    given = Delta(both.columns[:-1], both.weights)
    rows = sequence_rows(given, 2 * number + side, ordered.order)
    s = len(slabs.part)
    change = np.full(s, _STRIDE)
    after_last = np.zeros(s, np.int64)
    np.minimum.at(change, slabs.of, changes.first - slabs.low[slabs.of])
    np.maximum.at(after_last, slabs.of, changes.last - slabs.low[slabs.of])
    count = np.bincount(rows.partition, minlength=2 * s).reshape(-1, 2).T
    return Turn(
        rows,
        rows.partition // 2,
        rows.position - rows.begin,
        count,
        change,
        count[1] - after_last,
        slabs.low > 0,
        slabs.high < changes.sizes[slabs.part],
    )
