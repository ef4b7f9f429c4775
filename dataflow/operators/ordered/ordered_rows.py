"""Ordered rows, partition by partition: the index of top-k, windows, min and max.

Invariant: everything is in arrangements (see ordered_nodes), so that a restart finds it. A lookup
or a change of one row reads and writes O(log rows) nodes of bounded size, whatever the partition's
size. All rows of a step descend together, one comparison a level.

    rows = OrderedRows(context, "rows", kinds, (0,), [Order(2, DATE, is_descending=True)])
    rows.apply(delta)                                   # rows of `kinds` with weights
    newest = rows.ranges(keys, zeros, zeros + 3)        # the first three of each partition
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dataflow.delta import Column, Delta, equal_rows
from dataflow.operators.base import Context
from dataflow.operators.groups import columns_at, touch
from dataflow.operators.ordered.ordered_change import OrderedChange
from dataflow.operators.ordered.ordered_nodes import (
    AFTER_PEERS,
    AFTER_ROW,
    BEFORE_PEERS,
    BEFORE_ROW,
    Bound,
    Nodes,
    NodeStore,
)
from dataflow.operators.ordered.row_order import Columns, Order, RowOrder
from storage import kernels

__all__ = [
    "AFTER_PEERS",
    "AFTER_ROW",
    "BEFORE_PEERS",
    "BEFORE_ROW",
    "ENDLESS",
    "Bound",
    "Cover",
    "Order",
    "OrderedRows",
    "Range",
    "pieces",
]

ENDLESS = 2**62


@dataclass(frozen=True)
class Range:
    """Rows of some ranges, range by range and in order.

    index int64[m]: the range of each row. rows: m different rows, with as much of their weight as
    lies in the range. start int64[m]: the position in its partition of a row's first copy, and
    weights int64[m]: its whole weight, both also where the range holds a part of the copies.
    """

    index: np.ndarray
    rows: Delta
    start: np.ndarray
    weights: np.ndarray


@dataclass(frozen=True)
class Cover:
    """Rows of some partitions, in order, partition by partition.

    Positions are counted on from one partition to the next: offsets int64[partitions + 1]: where
    each begins. rows: m different rows with their whole weight. start int64[m]: the position of a
    row's first copy.
    """

    offsets: np.ndarray
    rows: Delta
    start: np.ndarray

    def index(self, part: np.ndarray, position: np.ndarray) -> np.ndarray:
        """Return int64[n]: which row is at a position of a partition, -1 outside of it. The rows
        at positions inside must be covered."""
        at = self.offsets[part] + position
        inside = (position >= 0) & (at < self.offsets[part + 1])
        return np.where(inside, np.searchsorted(self.start, at, "right") - 1, -1)


class OrderedRows:
    """A multiset of rows in partitions, each in a total order (see row_order).

    kinds: of the rows' columns. partition: positions of the partition columns, in key form; NULL is
    a partition as any other. Positions count copies: a row of weight 3 has three. State: two
    arrangements and one Sums, "<role> rows", "<role> nodes" and "<role> numbers". Cost: O(log n)
    nodes of at most 128 items for each row looked up or changed.
    """

    def __init__(
        self,
        context: Context,
        role: str,
        kinds: str,
        partition: Sequence[int],
        order: Sequence[Order],
    ) -> None:
        self._kinds = kinds
        self._partition = tuple(partition)
        self.order = RowOrder(order, context.evaluator)
        self._store = NodeStore(context, role, kinds, self._partition, self.order)

    def apply(self, delta: Delta) -> None:
        """Add the weights of a consolidated delta; NegativeWeightError as an arrangement does."""
        if len(delta) == 0:
            return
        touched = touch(columns_at(delta, self._partition), len(delta))
        columns = delta.columns
        descent = _Descent(self._store, touched.keys, touched.count)
        at, _ = descent.down(dict(enumerate(columns)), touched.group, AFTER_ROW)
        OrderedChange(self._store, touched.keys, descent.levels).run(delta, at)

    def forget(self, keys: Sequence[Column], n: int) -> None:
        """Remove all rows of n partitions, each once. keys: their partition columns."""
        if n and (sizes := self.sizes(keys, n)).any():
            self.apply(self.ranges(keys, np.zeros(n, np.int64), sizes).rows.negate())

    def sizes(self, keys: Sequence[Column], n: int) -> np.ndarray:
        """Return int64[n]: how many rows, with their weights, each partition has.

        keys: the partition columns of n partitions.
        """
        out = np.zeros(n, np.int64)
        for level, nodes in enumerate(self._store.roots(keys, n)[1]):
            sizes = self._store.sizes(level, nodes.items)
            out[nodes.part] = kernels.sum_by_group(nodes.owner, sizes, nodes.count)
        return out

    def ranks(self, rows: Delta, bound: Bound = BEFORE_ROW) -> np.ndarray:
        """Return int64[n]: how many rows of its partition come before a bound at each of n
        rows.

        BEFORE_ROW and AFTER_ROW: by the total order, without and with its own copies. BEFORE_PEERS
        and AFTER_PEERS: by ORDER BY alone. The rows themselves need not be stored.
        """
        touched = touch(columns_at(rows, self._partition), len(rows))
        return self.positions(touched.keys, touched.group, dict(enumerate(rows.columns)), bound)

    def positions(
        self, keys: Sequence[Column], part: np.ndarray, columns: Mapping[int, Column], bound: Bound
    ) -> np.ndarray:
        """Return int64[n]: how many rows of a partition come before a bound.

        keys: the partition columns of distinct partitions. part int64[n]: the partition of each
        bound, by its position among the keys. columns: of n rows each, by position; those that the
        bound compares.
        """
        if len(part) == 0:
            return np.empty(0, np.int64)
        descent = _Descent(self._store, keys, _count(keys))
        at, before = descent.down(columns, part, bound)
        leaves = descent.levels[0]
        last = self._store.seek(leaves, columns, at, bound)
        total = _summed(leaves.items.weights)
        return before + total[last + 1] - total[leaves.starts()[at]]

    def covering(
        self, keys: Sequence[Column], part: np.ndarray, low: np.ndarray, high: np.ndarray
    ) -> Cover:
        """Return the rows at positions low <= p < high, each once, however many ranges hold it.

        keys: the partition columns of distinct partitions. part int64[n]: the partition of each
        range, by its position among the keys. low and high: int64[n], from 0 on, beyond the end
        too; the ranges may overlap. Each node is read once.
        """
        store = self._store
        if len(part) == 0:
            none = np.empty(0, np.int64)
            return Cover(np.zeros(1, np.int64), Delta.empty(self._kinds), none)
        count = _count(keys)
        _, roots = store.roots(keys, count)
        sizes = np.zeros(count, np.int64)
        for level, nodes in enumerate(roots):
            own = store.sizes(level, nodes.items)
            sizes[nodes.part] = kernels.sum_by_group(nodes.owner, own, nodes.count)
        offsets = _summed(sizes)
        starts, ends = _merged(
            offsets[part] + np.minimum(low, sizes[part]),
            offsets[part] + np.minimum(high, sizes[part]),
        )
        nodes = roots[-1]
        start = offsets[nodes.part]
        for number in range(len(roots) - 1, 0, -1):
            store.sort(nodes)
            first, held = _placed(nodes, start, store.sizes(number, nodes.items))
            chosen = np.flatnonzero(_overlaps(first, held, starts, ends))
            below = store.children(number - 1, keys, nodes, chosen)
            others = roots[number - 1]
            nodes = below.added(others)
            start = np.concatenate([first[chosen], offsets[others.part]])
        store.sort(nodes)
        first, held = _placed(nodes, start, nodes.items.weights)
        chosen = np.flatnonzero(_overlaps(first, held, starts, ends))
        chosen = chosen[np.argsort(first[chosen], kind="stable")]
        return Cover(offsets, nodes.items.take(chosen), first[chosen])

    def spans(self, rows: Delta) -> tuple[np.ndarray, np.ndarray]:
        """Return int64[n] ranks BEFORE_ROW and AFTER_ROW of rows, by one descent."""
        if len(rows) == 0:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        touched = touch(columns_at(rows, self._partition), len(rows))
        columns, compared = rows.columns, dict(enumerate(rows.columns))
        descent = _Descent(self._store, touched.keys, touched.count)
        at, before = descent.down(compared, touched.group, AFTER_ROW)
        leaves = descent.levels[0]
        last = self._store.seek(leaves, compared, at, AFTER_ROW)
        weights, start = leaves.items.weights, leaves.starts()[at]
        total = _summed(weights)
        after = before + total[last + 1] - total[start]
        # The last row up to a bound after the row is the row itself, if it is stored.
        held = np.flatnonzero(last >= start)
        own = leaves.items.columns[: len(self._kinds)]
        held = held[equal_rows(own, last[held], columns, held)]
        first = after.copy()
        first[held] -= weights[last[held]]
        return first, after

    def ranges(self, keys: Sequence[Column], low: np.ndarray, high: np.ndarray) -> Range:
        """Return the rows at positions low <= p < high of n partitions, which may repeat.

        keys: their partition columns; low and high: int64[n] from 0 on, beyond the end too.
        """
        store, n = self._store, len(low)
        if n == 0:
            none = np.empty(0, np.int64)
            return Range(none, Delta.empty(self._kinds), none, none)
        _, roots = store.roots(keys, n)
        nodes, start = roots[-1], np.zeros(roots[-1].count, np.int64)
        for number in range(len(roots) - 1, 0, -1):
            store.sort(nodes)
            first, sizes = _placed(nodes, start, store.sizes(number, nodes.items))
            part = nodes.part[nodes.owner]
            chosen = np.flatnonzero((first < high[part]) & (first + sizes > low[part]))
            below = store.children(number - 1, keys, nodes, chosen)
            others = roots[number - 1]
            nodes = below.added(others)
            start = np.concatenate([first[chosen], np.zeros(others.count, np.int64)])
        store.sort(nodes)
        first, sizes = _placed(nodes, start, nodes.items.weights)
        part = nodes.part[nodes.owner]
        within = np.minimum(first + sizes, high[part]) - np.maximum(first, low[part])
        chosen = np.flatnonzero(within > 0)
        # The leaves of one partition are in order already; those of several are mixed.
        chosen = chosen[np.lexsort((first[chosen], part[chosen]))]
        rows = nodes.items.take(chosen).weighted(within[chosen])
        return Range(part[chosen], rows, first[chosen], sizes[chosen])


def pieces(
    low: np.ndarray, high: np.ndarray, most: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield ranges in runs of about `most` positions: (their indices, starts, ends); a longer one
    is cut.

    >>> [tuple(x.tolist() for x in p) for p in pieces(np.array([0, 9]), np.array([5, 10]), 4)]
    [([0], [0], [4]), ([0, 1], [4, 9], [5, 10])]
    """
    total = np.cumsum(high - low)
    before = total - (high - low)
    for start in range(0, int(total[-1]) if len(total) else 0, most):
        first, end = np.searchsorted(total, start, "right"), np.searchsorted(before, start + most)
        index = np.arange(first, end)
        shift = low[index] - before[index]
        yield (
            index,
            np.maximum(before[index], start) + shift,
            np.minimum(total[index], start + most) + shift,
        )


class _Descent:
    """The nodes visited on the descent to some rows, by level."""

    def __init__(self, store: NodeStore, keys: Sequence[Column], count: int) -> None:
        self._store = store
        self._keys = keys
        self._root_level, self.levels = store.roots(keys, count)

    def down(self, rows: Columns, part: np.ndarray, bound: Bound) -> tuple[np.ndarray, np.ndarray]:
        """Descend for n rows; return (int64[n] the leaf of each, int64[n] the rows in the leaves
        before it)."""
        store = self._store
        at = np.full(len(part), -1, np.int64)
        before = np.zeros(len(part), np.int64)
        for number in range(len(self.levels) - 1, -1, -1):
            nodes = self.levels[number]
            own_root = self._root_level[part] == number
            if own_root.any():
                root = np.full(len(self._root_level), -1, np.int64)
                is_root = nodes.parent < 0
                root[nodes.part[is_root]] = np.flatnonzero(is_root)
                at[own_root] = root[part[own_root]]
            if number == 0:
                break
            here = np.flatnonzero(at >= 0)
            taken, edge = rows, bound
            if len(here) < len(part):
                taken = {i: rows[i].take(here) for i in store.compared(bound)}
                edge = bound.of(here)
            last = store.seek(nodes, taken, at[here], edge)
            first = nodes.starts()[at[here]]
            chosen = np.maximum(last, first)
            total = _summed(store.sizes(number, nodes.items))
            before[here] += total[chosen] - total[first]
            entries, at[here] = np.unique(chosen, return_inverse=True)
            below = store.children(number - 1, self._keys, nodes, entries)
            self.levels[number - 1] = below.added(self.levels[number - 1])
        return at, before


def _summed(sizes: np.ndarray) -> np.ndarray:
    """Return int64[m + 1]: the sum of the sizes before each position."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])


def _count(keys: Sequence[Column]) -> int:
    """Return the number of partitions of these keys: one without columns."""
    return len(keys[0]) if keys else 1


def _merged(low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the union of ranges as sorted ranges that do not touch: (starts, ends).

    >>> _merged(np.array([7, 0, 2, 4]), np.array([9, 3, 5, 4]))
    (array([0, 7]), array([5, 9]))
    """
    some = np.flatnonzero(low < high)
    order = some[np.argsort(low[some], kind="stable")]
    starts, ends = low[order], np.maximum.accumulate(high[order])
    fresh = np.ones(len(order), np.bool_)
    fresh[1:] = starts[1:] > ends[:-1]
    last = np.ones(len(order), np.bool_)
    last[:-1] = fresh[1:]
    return starts[fresh], ends[last]


def _overlaps(
    first: np.ndarray, sizes: np.ndarray, starts: np.ndarray, ends: np.ndarray
) -> np.ndarray:
    """Return bool[m]: which items, of sizes from their first position on, reach into a range."""
    if len(starts) == 0:
        return np.zeros(len(first), np.bool_)
    at = np.searchsorted(ends, first, "right")
    inside = at < len(starts)
    return inside & (starts[np.minimum(at, len(starts) - 1)] < first + sizes)


def _placed(nodes: Nodes, start: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (position of each item's first row in its partition, its sizes), items being sorted
    and start being the position at which each node begins."""
    total = _summed(sizes)
    own = nodes.starts()[nodes.owner]
    return start[nodes.owner] + total[:-1] - total[own], sizes
