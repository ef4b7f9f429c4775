"""The nodes of ordered rows as stored in arrangements, and the descent to a row.

A partition is a B+-tree. A leaf holds rows. An inner node holds an entry for each child: the
child's number, the number of rows below it, and a separator. The separator is not above the child's
first row, and above every row of the previous child. The root is always node 0, so a small
partition is one leaf, found in one lookup. Invariant: a node with siblings has at least `least` and
at most `most` items of its level's Size, a root at most ROOT_MOST. A separator changes only when
its node is split or merged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from tidemark_native import storage as kernels

from dataflow.delta import Column, Delta
from dataflow.operators.base import Context
from dataflow.operators.ordered.row_order import Columns, RowOrder, tie_ranks


@dataclass(frozen=True)
class Size:
    """How many items a node has: at least, in the pieces of a split, and at most."""

    least: int
    fill: int
    most: int


# Every lookup and change of a row reads a whole node of each level. A step that changes many
# partitions pays for the rows that it reads, so leaves are small. One that changes a single row
# pays for its levels, so inner nodes are large, and a partition is one leaf as long as it can be.
LEAF = Size(8, 24, 32)
INNER = Size(32, 96, 128)
ROOT_MOST = 128
# The columns of an entry after the row columns: the child's number, the level of the entry's own
# node, and the items and rows of the child.
CHILD, LEVEL, ITEMS, ROWS = range(4)


@dataclass(frozen=True)
class Bound:
    """A bound of a search. is_total: by the whole order, else by ORDER BY alone, or by its first
    `parts`. is_after: after equal rows, else before them; for all rows, or bool[n] for each."""

    is_total: bool
    is_after: bool | np.ndarray
    parts: int | None = None

    def of(self, index: np.ndarray) -> Bound:
        """Return the bound of the rows at int64 positions."""
        if isinstance(self.is_after, bool):
            return self
        return replace(self, is_after=self.is_after[index])


BEFORE_ROW = Bound(True, False)
AFTER_ROW = Bound(True, True)
BEFORE_PEERS = Bound(False, False)
AFTER_PEERS = Bound(False, True)


@dataclass
class Nodes:
    """k nodes of one level.

    part, id int64[k]: the partition (its position among those asked for) and the number in it.
    parent, entry int64[k]: the node above and the own entry, as positions in the level above; -1
    for a root. items: rows, or entries without their node's number; owner int64[m]: of each item
    the node. is_sorted: the items are in order, node by node; nodes that are added leave the
    positions of the others as they are.
    """

    part: np.ndarray
    id: np.ndarray
    parent: np.ndarray
    entry: np.ndarray
    items: Delta
    owner: np.ndarray
    is_sorted: bool = False

    @property
    def count(self) -> int:
        """How many nodes."""
        return len(self.part)

    def sort(self, sequence: np.ndarray) -> None:
        """Sort the items into this sequence."""
        self.items, self.owner = self.items.take(sequence), self.owner[sequence]
        self.is_sorted = True

    def starts(self) -> np.ndarray:
        """Return int64[k + 1]: where each node's items begin, if sorted by node."""
        return np.searchsorted(self.owner, np.arange(self.count + 1))

    def added(self, other: Nodes) -> Nodes:
        """Return these nodes, followed by the other ones."""
        return Nodes(
            np.concatenate([self.part, other.part]),
            np.concatenate([self.id, other.id]),
            np.concatenate([self.parent, other.parent]),
            np.concatenate([self.entry, other.entry]),
            Delta.concat([self.items, other.items]),
            np.concatenate([self.owner, other.owner + self.count]),
            self.is_sorted and other.is_sorted,
        )


class NodeStore:
    """Reads and writes nodes. width: the number of row columns; partition: positions in them."""

    def __init__(
        self, context: Context, role: str, kinds: str, partition: Sequence[int], order: RowOrder
    ) -> None:
        self.width = len(kinds)
        self.partition = tuple(partition)
        self.order = order
        key = (*self.partition, self.width)
        self.name = f"{context.name}/{role}"
        self._kinds = (kinds, kinds + "iiii")
        self._leaves = context.arrange(f"{role} rows", kinds + "i", key)
        self._inner = context.arrange(f"{role} nodes", kinds + "iiiii", key)
        key_kinds = "".join(kinds[i] for i in self.partition)
        self.numbers = context.arrange_sums(f"{role} numbers", key_kinds, 1)

    def empty(self, level: int) -> Delta:
        """Return an empty delta of a level's items."""
        return Delta.empty(self._kinds[level > 0])

    def read(self, level: int, keys: Sequence[Column], ids: np.ndarray) -> tuple[np.ndarray, Delta]:
        """Return the items of n nodes of a level: (int64[m] which of the n, items)."""
        if len(ids) == 0:
            return np.empty(0, np.int64), self.empty(level)
        rows = self._inner if level else self._leaves
        owner, found = rows.lookup([*keys, Column(ids)])
        w = self.width
        return owner, Delta((*found.columns[:w], *found.columns[w + 1 :]), found.weights)

    def write(self, level: int, ids: np.ndarray, items: Delta) -> None:
        """Add items, with their weights, to the nodes of these numbers: int64, one an item."""
        rows = self._inner if level else self._leaves
        w = self.width
        rows.apply(Delta((*items.columns[:w], Column(ids), *items.columns[w:]), items.weights))

    def roots(self, keys: Sequence[Column], count: int) -> tuple[np.ndarray, list[Nodes]]:
        """Return int64 levels of the roots of `count` partitions, and the roots by level."""
        every = np.arange(count)
        owner, rows = self.read(0, keys, np.zeros(count, np.int64))
        level = np.zeros(count, np.int64)
        without = np.ones(count, np.bool_)
        without[owner] = False
        lacking = np.flatnonzero(without)
        taken = [k.take(lacking) for k in keys]
        found, entries = self.read(1, taken, np.zeros(len(lacking), np.int64))
        level[lacking[found]] = entries.columns[self.width + LEVEL].values
        out = []
        for number in range(int(level.max(initial=0)) + 1):
            chosen = np.flatnonzero(level == number) if len(found) else every
            items, of = rows, owner
            if number:
                own = np.flatnonzero(level[lacking[found]] == number)
                items, of = entries.take(own), lacking[found][own]
            position = np.full(count, -1, np.int64)
            position[chosen] = np.arange(len(chosen))
            none = np.full(len(chosen), -1, np.int64)
            zeros = np.zeros(len(chosen), np.int64)
            out.append(Nodes(chosen, zeros, none, none, items, position[of]))
        return level, out

    def children(self, level: int, keys: Sequence[Column], above: Nodes, at: np.ndarray) -> Nodes:
        """Return the nodes of a level that the entries at these positions of the level above lead
        to."""
        parent = above.owner[at]
        part = above.part[parent]
        ids = above.items.columns[self.width + CHILD].values[at]
        owner, items = self.read(level, [k.take(part) for k in keys], ids)
        return Nodes(part, ids, parent, at, items, owner)

    def sizes(self, level: int, items: Delta) -> np.ndarray:
        """Return int64[m]: how many rows, with their weights, each item stands for."""
        return items.columns[self.width + ROWS].values if level else items.weights

    def sort(self, nodes: Nodes) -> None:
        """Sort the items of each node in the total order, node by node, unless they are sorted."""
        if nodes.is_sorted:
            return
        own, owner = nodes.items.columns[: self.width], nodes.owner
        keys = self.order.keys(own, len(owner))
        sequence = np.lexsort((keys, owner))
        tied = _ties(owner[sequence], keys[sequence])
        if len(tied):
            rows = sequence[tied]
            within = np.zeros(len(owner), np.int64)
            within[rows] = tie_ranks([c.take(rows) for c in own], len(rows))
            sequence = np.lexsort((within, keys, owner))
        nodes.sort(sequence)

    def compared(self, bound: Bound) -> tuple[int, ...]:
        """Return the positions of the columns that a search for a bound reads."""
        return tuple(range(self.width)) if bound.is_total else self.order.columns(bound.parts)

    def seek(self, nodes: Nodes, rows: Columns, at: np.ndarray, bound: Bound) -> np.ndarray:
        """Return int64[r]: for each row, in the node `at`, the last item up to the bound, or the
        position before the node's first one. Also sorts the items. rows: the columns that the
        bound compares."""
        self.sort(nodes)
        starts, r = nodes.starts(), len(at)
        is_used = np.zeros(nodes.count, np.bool_)
        is_used[at] = True
        items = np.flatnonzero(is_used[nodes.owner])
        m = len(items)
        # Where the items of a node begin among those of the used ones.
        begin = (np.cumsum(is_used * np.diff(starts)) - np.diff(starts))[at]
        end = begin + np.diff(starts)[at]
        own = nodes.items.columns
        columns = {
            i: Column.concat([own[i].take(items) if m < len(nodes.owner) else own[i], rows[i]])
            for i in self.order.columns(bound.parts)
        }
        keys = self.order.keys(columns, m + r, bound.parts)
        is_after = np.broadcast_to(np.asarray(bound.is_after), r).copy()
        if not bound.is_total:
            found = kernels.bisect_runs(keys[:m], begin, end, keys[m:], is_after)
            return starts[at] + found - begin - 1
        low = kernels.bisect_runs(keys[:m], begin, end, keys[m:], np.zeros(r, np.bool_))
        high = kernels.bisect_runs(keys[:m], low, end, keys[m:], np.ones(r, np.bool_))
        tied = np.flatnonzero(low < high)
        if len(tied):
            is_tied = np.zeros(m + 1, np.int64)
            np.add.at(is_tied, low[tied], 1)
            np.add.at(is_tied, high[tied], -1)
            among = np.flatnonzero(np.cumsum(is_tied[:m]))
            both = [
                Column.concat([own[i].take(items[among]), rows[i].take(tied)])
                for i in self.compared(bound)
            ]
            within = tie_ranks(both, len(among) + len(tied))
            first, last = np.searchsorted(among, low[tied]), np.searchsorted(among, high[tied])
            found = kernels.bisect_runs(
                within[: len(among)], first, last, within[len(among) :], is_after[tied]
            )
            low[tied] += found - first
        return starts[at] + low - begin - 1


def _ties(owner: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Return the positions of sorted items that share their key with a neighbour: int64."""
    if len(keys) == 0:
        return np.empty(0, np.int64)
    same = (owner[1:] == owner[:-1]) & (keys[1:] == keys[:-1])
    return np.flatnonzero(np.append(same, False) | np.insert(same, 0, False))
