"""Ordered rows, partition by partition: the index of top-k, windows, min and max.

Invariant: everything is in arrangements (see ordered_nodes), so that a restart finds it. A lookup
or a change of one row reads and writes O(log rows) nodes of bounded size, whatever the partition's
size. All rows of a step descend together, one comparison a level.

    rows = OrderedRows(context, "rows", kinds, (0,), [Order(2, DATE, is_descending=True)])
    rows.apply(delta)                                   # rows of `kinds` with weights
    newest = rows.ranges(keys, zeros, zeros + 3)        # the first three of each partition
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    NodeStore,
)
from dataflow.operators.ordered.ordered_search import OrderedSearch, placed, summed
from dataflow.operators.ordered.row_order import Order, RowOrder

__all__ = [
    "AFTER_PEERS",
    "AFTER_ROW",
    "BEFORE_PEERS",
    "BEFORE_ROW",
    "ENDLESS",
    "Bound",
    "Order",
    "OrderedRows",
    "OrderedSearch",
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
        self.apply_after(self.search(touched.keys), touched.group, delta)

    def search(self, keys: Sequence[Column]) -> OrderedSearch:
        """Begin a search in distinct partitions, given by their partition columns."""
        return OrderedSearch(self._store, keys, len(keys[0]) if keys else 1)

    def apply_after(self, search: OrderedSearch, part: np.ndarray, delta: Delta) -> None:
        """Apply a delta as `apply` does, and end a search in its partitions.

        part int64[n]: the partition of each row, by its position among those of the search.
        """
        at, _ = search.descend(dict(enumerate(delta.columns)), part, AFTER_ROW)
        OrderedChange(self._store, search.keys, search.levels).run(delta, at)

    def forget(self, keys: Sequence[Column], n: int) -> None:
        """Remove all rows of n partitions, each once. keys: their partition columns."""
        if n and (sizes := self.sizes(keys, n)).any():
            self.apply(self.ranges(keys, np.zeros(n, np.int64), sizes).rows.negate())

    def sizes(self, keys: Sequence[Column], n: int) -> np.ndarray:
        """Return int64[n]: how many rows, with their weights, each partition has.

        keys: the partition columns of n distinct partitions.
        """
        return OrderedSearch(self._store, keys, n).sizes()

    def ranks(self, rows: Delta, bound: Bound = BEFORE_ROW) -> np.ndarray:
        """Return int64[n]: how many rows of its partition come before a bound at each of n
        rows.

        BEFORE_ROW and AFTER_ROW: by the total order, without and with its own copies. BEFORE_PEERS
        and AFTER_PEERS: by ORDER BY alone. The rows themselves need not be stored.
        """
        touched = touch(columns_at(rows, self._partition), len(rows))
        columns = dict(enumerate(rows.columns))
        return self.search(touched.keys).positions(touched.group, columns, bound)

    def spans(self, rows: Delta) -> tuple[np.ndarray, np.ndarray]:
        """Return int64[n] ranks BEFORE_ROW and AFTER_ROW of rows, by one descent."""
        if len(rows) == 0:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        touched = touch(columns_at(rows, self._partition), len(rows))
        columns, compared = rows.columns, dict(enumerate(rows.columns))
        search = self.search(touched.keys)
        at, before = search.descend(compared, touched.group, AFTER_ROW)
        leaves = search.levels[0]
        last = self._store.seek(leaves, compared, at, AFTER_ROW)
        weights, start = leaves.items.weights, leaves.starts()[at]
        total = summed(weights)
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
            first, sizes = placed(nodes, start, store.sizes(number, nodes.items))
            part = nodes.part[nodes.owner]
            chosen = np.flatnonzero((first < high[part]) & (first + sizes > low[part]))
            below = store.children(number - 1, keys, nodes, chosen)
            others = roots[number - 1]
            nodes = below.added(others)
            start = np.concatenate([first[chosen], np.zeros(others.count, np.int64)])
        store.sort(nodes)
        first, sizes = placed(nodes, start, nodes.items.weights)
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
