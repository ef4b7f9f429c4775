"""Searches in ordered rows that share the nodes which they read.

A step of a join looks for positions, for the rows there, and changes rows, all in the same few
partitions. One search of them reads each node once. It is valid until the rows change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from tidemark_native import storage as kernels

from dataflow.delta import Column, Delta
from dataflow.operators.ordered.ordered_nodes import Bound, Nodes, NodeStore
from dataflow.operators.ordered.row_order import Columns


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


class OrderedSearch:
    """The nodes of `count` distinct partitions that searches have read.

    keys: the partition columns of the partitions. `part` of a search, int64[n]: the partition of
    each of n rows or ranges, by its position among the keys.
    """

    def __init__(self, store: NodeStore, keys: Sequence[Column], count: int) -> None:
        self._store = store
        self._count = count
        self.keys = keys

    @cached_property
    def _roots(self) -> tuple[np.ndarray, list[Nodes]]:
        """The levels of the roots, and the nodes; read at the first search."""
        return self._store.roots(self.keys, self._count)

    @property
    def levels(self) -> list[Nodes]:
        """The nodes that were read, by level, the leaves first."""
        return self._roots[1]

    def sizes(self) -> np.ndarray:
        """Return int64[count]: how many rows, with their weights, each partition has."""
        out = np.zeros(self._count, np.int64)
        for level, nodes in enumerate(self.levels):
            roots = np.flatnonzero(nodes.parent[nodes.owner] < 0)
            own = self._store.sizes(level, nodes.items)[roots]
            out += kernels.sum_by_group(nodes.part[nodes.owner[roots]], own, self._count)
        return out

    def positions(
        self, part: np.ndarray, columns: Mapping[int, Column], bound: Bound
    ) -> np.ndarray:
        """Return int64[n]: how many rows of a partition come before a bound.

        columns: of n rows each, by position; those that the bound compares.
        """
        if len(part) == 0:
            return np.empty(0, np.int64)
        at, before = self.descend(columns, part, bound)
        leaves = self.levels[0]
        last = self._store.seek(leaves, columns, at, bound)
        total = summed(leaves.items.weights)
        return before + total[last + 1] - total[leaves.starts()[at]]

    def covering(self, part: np.ndarray, low: np.ndarray, high: np.ndarray) -> Cover:
        """Return the rows at positions low <= p < high, each once, however many ranges hold it.

        low and high: int64[n], from 0 on, beyond the end too; the ranges may overlap. What no
        search has read is read, each node once, and is not kept.
        """
        store, sizes = self._store, self.sizes()
        offsets = summed(sizes)
        starts, ends = _merged(
            offsets[part] + np.minimum(low, sizes[part]),
            offsets[part] + np.minimum(high, sizes[part]),
        )
        level = len(self.levels) - 1
        nodes = self.levels[level]
        start = offsets[nodes.part]
        while True:
            store.sort(nodes)
            first, held = placed(nodes, start, store.sizes(level, nodes.items))
            chosen = np.flatnonzero(_overlaps(first, held, starts, ends))
            if level == 0:
                break
            level -= 1
            nodes, _ = self._with_children(level, nodes, chosen)
            start = offsets[nodes.part]
            below = np.flatnonzero(nodes.entry >= 0)
            start[below] = first[nodes.entry[below]]
        chosen = chosen[np.argsort(first[chosen], kind="stable")]
        return Cover(offsets, nodes.items.take(chosen), first[chosen])

    def descend(
        self, rows: Columns, part: np.ndarray, bound: Bound
    ) -> tuple[np.ndarray, np.ndarray]:
        """Descend for n rows; return (int64[n] the leaf of each, int64[n] the rows in the leaves
        before it)."""
        store = self._store
        at = np.full(len(part), -1, np.int64)
        before = np.zeros(len(part), np.int64)
        for number in range(len(self.levels) - 1, -1, -1):
            nodes = self.levels[number]
            own_root = self._roots[0][part] == number
            if own_root.any():
                root = np.full(self._count, -1, np.int64)
                is_root = np.flatnonzero(nodes.parent < 0)
                root[nodes.part[is_root]] = is_root
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
            total = summed(store.sizes(number, nodes.items))
            before[here] += total[chosen] - total[first]
            entries, which = np.unique(chosen, return_inverse=True)
            self.levels[number - 1], below = self._with_children(number - 1, nodes, entries)
            at[here] = below[which]
        return at, before

    def _with_children(
        self, level: int, above: Nodes, entries: np.ndarray
    ) -> tuple[Nodes, np.ndarray]:
        """Return the nodes of a level with those that distinct entries lead to; and which those
        are: int64 positions. above: the nodes of the next level, sorted, whatever comes later."""
        nodes = self.levels[level]
        self._store.sort(nodes)
        node_of = np.full(len(above.items), -1, np.int64)
        known = np.flatnonzero(nodes.entry >= 0)
        node_of[nodes.entry[known]] = known
        missing = entries[node_of[entries] < 0]
        if len(missing):
            more = self._store.children(level, self.keys, above, missing)
            self._store.sort(more)
            node_of[missing] = nodes.count + np.arange(more.count)
            nodes = nodes.added(more)
        return nodes, node_of[entries]


def summed(sizes: np.ndarray) -> np.ndarray:
    """Return int64[m + 1]: the sum of the sizes before each position."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])


def placed(nodes: Nodes, start: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (position of each item's first row in its partition, its sizes), items being sorted
    and start being the position at which each node begins."""
    total = summed(sizes)
    own = nodes.starts()[nodes.owner]
    return start[nodes.owner] + total[:-1] - total[own], sizes


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
