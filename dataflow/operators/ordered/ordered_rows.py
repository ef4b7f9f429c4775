"""Ordered rows, partition by partition: the index of top-k, windows, min and max.

Invariant: everything is in arrangements (see ordered_nodes), so that a restart finds it. A lookup
or a change of one row reads and writes O(log rows) nodes of bounded size, whatever the partition's
size. All rows of a step descend together, one comparison a level.

    rows = OrderedRows(context, "rows", kinds, (0,), [Order(2, DATE, is_descending=True)])
    rows.apply(delta)                                   # rows of `kinds` with weights
    newest = rows.ranges(keys, zeros, zeros + 3)        # the first three of each partition
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dataflow.delta import Column, Delta
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
from dataflow.operators.ordered.row_order import Order, RowOrder
from storage import kernels

__all__ = [
    "AFTER_PEERS",
    "AFTER_ROW",
    "BEFORE_PEERS",
    "BEFORE_ROW",
    "ENDLESS",
    "Bound",
    "Order",
    "OrderedRows",
    "Range",
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
        at, _ = descent.down(columns, touched.group, AFTER_ROW)
        OrderedChange(self._store, touched.keys, descent.levels).run(delta, at)

    def sizes(self, keys: Sequence[Column], n: int) -> np.ndarray:
        """Return Return int64[n]: how many rows, with their weights, each partition has.

        keys: the partition columns of n partitions.
        """
        out = np.zeros(n, np.int64)
        for level, nodes in enumerate(self._store.roots(keys, n)[1]):
            sizes = self._store.sizes(level, nodes.items)
            out[nodes.part] = kernels.sum_by_group(nodes.owner, sizes, nodes.count)
        return out

    def ranks(self, rows: Delta, bound: Bound = BEFORE_ROW) -> np.ndarray:
        """Return Return int64[n]: how many rows of its partition come before a bound at each of n
        rows.

        BEFORE_ROW and AFTER_ROW: by the total order, without and with its own copies. BEFORE_PEERS
        and AFTER_PEERS: by ORDER BY alone. The rows themselves need not be stored.
        """
        if len(rows) == 0:
            return np.empty(0, np.int64)
        touched = touch(columns_at(rows, self._partition), len(rows))
        columns = rows.columns
        descent = _Descent(self._store, touched.keys, touched.count)
        at, before = descent.down(columns, touched.group, bound)
        leaves = descent.levels[0]
        last = self._store.seek(leaves, columns, at, bound)
        total = _summed(leaves.items.weights)
        return before + total[last + 1] - total[leaves.starts()[at]]

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


class _Descent:
    """The nodes visited on the descent to some rows, by level."""

    def __init__(self, store: NodeStore, keys: Sequence[Column], count: int) -> None:
        self._store = store
        self._keys = keys
        self._root_level, self.levels = store.roots(keys, count)

    def down(
        self, rows: Sequence[Column], part: np.ndarray, bound: Bound
    ) -> tuple[np.ndarray, np.ndarray]:
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
            last = store.seek(nodes, [c.take(here) for c in rows], at[here], bound)
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


def _placed(nodes: Nodes, start: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (position of each item's first row in its partition, its sizes), items being sorted
    and start being the position at which each node begins."""
    total = _summed(sizes)
    own = nodes.starts()[nodes.owner]
    return start[nodes.owner] + total[:-1] - total[own], sizes
