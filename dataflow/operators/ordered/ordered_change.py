"""A change of ordered rows: from the leaves up, nodes are filled, split, merged and removed.

Invariant: after each level its items are in nodes of bounded size, and the changed nodes are the
change of the level above. The root stays node 0, and grows and shrinks in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tidemark_native import storage as kernels

from dataflow.delta import Column, Delta, group_rows
from dataflow.operators.ordered.ordered_nodes import (
    CHILD,
    INNER,
    LEAF,
    LEVEL,
    ROOT_MOST,
    Nodes,
    NodeStore,
    Size,
)
from storage.errors import NegativeWeightError


@dataclass
class _Content:
    """The contents of a level's nodes after a change.

    items, owner: as of Nodes; filled and rows int64[k]: items and rows of each node; leader
    int64[k]: the first of the siblings that a node is merged with; itself if none.
    """

    items: Delta
    owner: np.ndarray
    filled: np.ndarray
    rows: np.ndarray
    leader: np.ndarray


@dataclass(frozen=True)
class _Pieces:
    """p new nodes: the node that each is split from, its number, and its first item, or -1 where it
    keeps the separator of that node; filled and rows as of _Content."""

    source: np.ndarray
    id: np.ndarray
    first: np.ndarray
    filled: np.ndarray
    rows: np.ndarray


class OrderedChange:
    """One change of the partitions of `keys`, whose nodes on the way down are `levels`."""

    def __init__(self, store: NodeStore, keys: Sequence[Column], levels: list[Nodes]) -> None:
        self._store = store
        self._keys = keys
        self._levels = levels
        self._lonely: list[np.ndarray] = []

    def run(self, change: Delta, at: np.ndarray) -> None:
        """Apply a change of the leaves, each row of it in the leaf `at`."""
        level = 0
        while len(change):
            change, at = self._resolve(level, change, at)
            level += 1
        if self._lonely:
            self._collapse(np.unique(np.concatenate(self._lonely)))

    def _resolve(self, level: int, change: Delta, at: np.ndarray) -> tuple[Delta, np.ndarray]:
        """Change the items of a level; return the change of the level above, and its nodes."""
        content = self._merged(level, change, at)
        nodes = self._levels[level]
        is_root = nodes.parent < 0
        total = kernels.sum_by_group(content.leader, content.filled, nodes.count)
        members = np.bincount(content.leader, minlength=nodes.count)
        most = np.where(is_root, ROOT_MOST, _size(level).most)
        is_cut = ((total > most) | (members > 1))[content.leader]
        plain = ~is_cut[at]
        self._store.write(level, nodes.id[at[plain]], change.filter(plain))
        if level:
            self._lonely.append(nodes.part[is_root & ~is_cut & (content.filled < 2)])
        stays = np.flatnonzero(~is_cut & (content.filled > 0) & ~is_root)
        pieces = _Pieces(
            stays,
            nodes.id[stays],
            np.full(len(stays), -1, np.int64),
            content.filled[stays],
            content.rows[stays],
        )
        parts = [self._entries(level, pieces, content.items, nodes.parent[stays])]
        if is_cut.any():
            parts.append(self._cut(level, content, is_cut, total))
        gone = np.flatnonzero(~is_root)
        above = self._levels[level + 1] if level + 1 < len(self._levels) else None
        if above is not None and len(gone):
            old = above.items.take(nodes.entry[gone]).negate()
            parts.append((old, nodes.parent[gone]))
        entries = Delta.concat([p[0] for p in parts])
        return _consolidated(entries, np.concatenate([p[1] for p in parts]))

    def _merged(self, level: int, change: Delta, at: np.ndarray) -> _Content:
        """Return the items after a change; nodes left too small are merged with a sibling."""
        nodes = self._levels[level]
        items = Delta.concat([nodes.items, change])
        items, owner = _consolidated(items, np.concatenate([nodes.owner, at]))
        if items.weights.min(initial=1) < 0:
            worst = int(items.weights.argmin())
            row, weight = items.take(np.array([worst])).rows()[0]
            raise NegativeWeightError(self._store.name, str(row), weight)
        filled = np.bincount(owner, minlength=nodes.count)
        low = np.flatnonzero((filled < _size(level).least) & (nodes.parent >= 0))
        leader = np.arange(nodes.count)
        if len(low):
            more = self._add_siblings(level, low)
            owner = np.concatenate([owner, more.owner])
            items = Delta.concat([items, more.items])
            nodes = self._levels[level]
            filled = np.bincount(owner, minlength=nodes.count)
            leader = self._leaders(level, low)
        rows = kernels.sum_by_group(owner, self._store.sizes(level, items), nodes.count)
        return _Content(items, owner, filled, rows, leader)

    def _links(self, level: int, low: np.ndarray) -> np.ndarray:
        """Return the entries of the level above that are merged with the next entry: int64,
        sorted."""
        entry = self._levels[level].entry[low]
        has_left, has_right = self._neighbours(level, entry)
        return np.unique(np.where(has_left, entry - 1, entry)[has_left | has_right])

    def _neighbours(self, level: int, entry: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return bool[k] each: whether nodes, of these entries, have a sibling before and after."""
        above = self._levels[level + 1].owner
        owner = np.concatenate([np.array([-1]), above, np.array([-1])])
        own = owner[entry + 1]
        return owner[entry] == own, owner[entry + 2] == own

    def _add_siblings(self, level: int, low: np.ndarray) -> Nodes:
        """Fetch the siblings that small nodes are merged with, unless already read.

        The result's owners are positions among all nodes of the level.
        """
        above, nodes = self._levels[level + 1], self._levels[level]
        left = self._links(level, low)
        required = np.setdiff1d(np.concatenate([left, left + 1]), nodes.entry)
        more = self._store.children(level, self._keys, above, required)
        self._levels[level] = nodes.added(more)
        more.owner = more.owner + nodes.count
        return more

    def _leaders(self, level: int, low: np.ndarray) -> np.ndarray:
        """Return int64[k]: the first node of each run of merged siblings."""
        nodes, left = self._levels[level], self._links(level, low)
        leader = np.arange(nodes.count)
        node_of = np.full(int(nodes.entry.max()) + 2, -1, np.int64)
        placed = np.flatnonzero(nodes.entry >= 0)
        node_of[nodes.entry[placed]] = placed
        fresh = np.ones(len(left), np.bool_)
        fresh[1:] = left[1:] != left[:-1] + 1
        head = left[fresh][np.cumsum(fresh) - 1]
        leader[node_of[left]] = node_of[head]
        leader[node_of[left + 1]] = node_of[head]
        return leader

    def _cut(
        self, level: int, content: _Content, is_cut: np.ndarray, total: np.ndarray
    ) -> tuple[Delta, np.ndarray]:
        """Distribute the items of merged and overfull nodes over pieces; return their entries."""
        store, nodes = self._store, self._levels[level]
        moved = np.flatnonzero(is_cut[content.owner])
        leader = content.leader[content.owner[moved]]
        items = content.items.take(moved)
        row_ranks = store.order.ranks(items.columns[: store.width], len(items))
        sequence = np.lexsort((row_ranks, leader))
        items, leader = items.take(sequence), leader[sequence]
        heads = np.flatnonzero(is_cut & (content.leader == np.arange(nodes.count)))
        size, usual, is_root = total[heads], _size(level), nodes.parent[heads] < 0
        pieces = np.where(size > usual.most, -(-size // usual.fill), np.minimum(size, 1))
        is_merged = np.bincount(content.leader, minlength=nodes.count)[heads] > 1
        side = np.where(is_merged, 0, self._sides(level, heads))
        source, rank, first = _starts(size, pieces, side, usual)
        # One piece of each node keeps its number: the one that has most of what it had.
        kept = np.where(side < 0, pieces - 1, 0)
        kept[is_root] = -1
        number = self._number(nodes.part[heads], pieces - (kept >= 0) * (pieces > 0))
        id = number[source] + rank - ((kept >= 0)[source] & (rank > kept[source]))
        is_kept = rank == kept[source]
        id[is_kept] = nodes.id[heads[source[is_kept]]]
        filled = np.diff(np.append(first, len(items)))
        piece = np.repeat(np.arange(len(source)), filled)
        self._move(level, is_cut, items, id[piece])
        rows = kernels.sum_by_group(piece, store.sizes(level, items), len(source))
        # Sort by the first row of each node: the first node of a parent may have rows before its
        # separator, and the next piece would precede it.
        made = _Pieces(heads[source], id, first, filled, rows)
        parent = self._parents(level, heads)[source]
        return self._entries(level, made, items, parent)

    def _sides(self, level: int, at: np.ndarray) -> np.ndarray:
        """Return int64[k]: 1 for a last child, -1 for a first one, 0 for others and roots."""
        entry = self._levels[level].entry[at]
        out = np.zeros(len(at), np.int64)
        below = np.flatnonzero(entry >= 0)
        if len(below):
            has_left, has_right = self._neighbours(level, entry[below])
            out[below] = has_left.astype(np.int64) - has_right
        return out

    def _move(self, level: int, is_cut: np.ndarray, items: Delta, ids: np.ndarray) -> None:
        nodes = self._levels[level]
        left = np.flatnonzero(is_cut[nodes.owner])
        old = nodes.items.take(left).negate()
        where = np.concatenate([nodes.id[nodes.owner[left]], ids])
        moved, where = _consolidated(Delta.concat([old, items]), where)
        self._store.write(level, where, moved)

    def _parents(self, level: int, heads: np.ndarray) -> np.ndarray:
        """Return the parent of each; a root that is split gets a new root above it."""
        nodes = self._levels[level]
        parent = nodes.parent[heads]
        grown = np.flatnonzero(parent < 0)
        if len(grown) == 0:
            return parent
        if level + 1 == len(self._levels):
            none = np.empty(0, np.int64)
            self._levels.append(Nodes(none, none, none, none, self._store.empty(level + 1), none))
        above = self._levels[level + 1]
        part = nodes.part[heads[grown]]
        root, zeros = np.full(len(part), -1, np.int64), np.zeros(len(part), np.int64)
        none = np.empty(0, np.int64)
        roots = Nodes(part, zeros, root, root, self._store.empty(level + 1), none)
        parent[grown] = above.count + np.arange(len(grown))
        self._levels[level + 1] = above.added(roots)
        return parent

    def _entries(
        self, level: int, pieces: _Pieces, items: Delta, parent: np.ndarray
    ) -> tuple[Delta, np.ndarray]:
        """Return the entries of nodes, and the parents that they go to."""
        w, nodes, n = self._store.width, self._levels[level], len(parent)
        if n == 0:
            return self._store.empty(level + 1), parent
        keeps = pieces.first < 0
        columns = [c.take(np.maximum(pieces.first, 0)[~keeps]) for c in items.columns[:w]]
        order = np.argsort(keeps, kind="stable")
        if keeps.any():
            above = self._levels[level + 1].items.take(nodes.entry[pieces.source[keeps]])
            columns = [
                Column.concat([c, a]) for c, a in zip(columns, above.columns[:w], strict=True)
            ]
        numbers = (pieces.id, np.full(n, level + 1, np.int64), pieces.filled, pieces.rows)
        columns += [Column(values[order]) for values in numbers]
        return Delta(columns, np.ones(n, np.int64)), parent[order]

    def _number(self, part: np.ndarray, required: np.ndarray) -> np.ndarray:
        """Return int64[h]: the first of that many new node numbers in each partition."""
        sequence = np.argsort(part, kind="stable")
        parts, first = np.unique(part[sequence], return_index=True)
        keys = [k.take(parts) for k in self._keys]
        ends = np.cumsum(required[sequence])
        starts = ends - required[sequence]
        used = self._store.numbers.lookup(keys)[0]
        sums = np.diff(np.append(starts[first], ends[-1]))
        some = np.flatnonzero(sums)
        if len(some):
            chosen = [k.take(some) for k in keys] if keys else []
            self._store.numbers.add(chosen, sums[some][np.newaxis])
        out = np.empty(len(part), np.int64)
        which = np.searchsorted(parts, part[sequence])
        out[sequence] = used[which] + 1 + starts - starts[first][which]
        return out

    def _collapse(self, parts: np.ndarray) -> None:
        """Replace roots with one child by that child's items; remove those with none."""
        store = self._store
        while len(parts):
            keys = [k.take(parts) for k in self._keys]
            zeros = np.zeros(len(parts), np.int64)
            owner, entries = store.read(1, keys, zeros)
            level = np.ones(len(parts), np.int64)
            level[owner] = entries.columns[store.width + LEVEL].values
            store.write(1, zeros[owner], entries.negate())
            again = []
            for number in np.unique(level).tolist():
                here = np.flatnonzero(level[owner] == number)
                of = owner[here]
                ids = entries.columns[store.width + CHILD].values[here]
                at, items = store.read(number - 1, [k.take(of) for k in keys], ids)
                both = Delta.concat([items.negate(), items])
                store.write(
                    number - 1, np.concatenate([ids[at], np.zeros(len(at), np.int64)]), both
                )
                if number > 1:
                    again.append(of[np.bincount(at, minlength=len(of)) < 2])
            ended = np.setdiff1d(np.arange(len(parts)), owner[level[owner] > 1])
            self._forget([k.take(ended) for k in keys], len(ended))
            parts = parts[np.concatenate(again)] if again else parts[:0]

    def _forget(self, keys: Sequence[Column], n: int) -> None:
        """Restart the node numbers of partitions that are one leaf."""
        if n:
            numbers = self._store.numbers.lookup(keys)
            some = np.flatnonzero(numbers[0])
            if len(some):
                taken = [k.take(some) for k in keys]
                self._store.numbers.add(taken, -numbers[:, some])


def _starts(
    size: np.ndarray, pieces: np.ndarray, side: np.ndarray, usual: Size
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cut h nodes of `size` items into pieces; return, for each of p pieces, its node, its rank in
    that node, and its first item of all.

    side: as of _sides. Rows that come in order come at one end, so a node there is cut close to it:
    the other pieces are full and stay so, and few items move.

    >>> sides = np.array([0, 1, -1])
    >>> _starts(np.full(3, 33), np.full(3, 2), sides, Size(8, 24, 32))[2].tolist()
    [0, 17, 33, 57, 66, 75]
    """
    source = np.repeat(np.arange(len(size)), pieces)
    rank = np.arange(len(source)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    n, count, side = size[source], pieces[source], side[source]
    within = -(-rank * n // count)
    within = np.where(side > 0, np.minimum(rank * usual.fill, n - usual.least), within)
    before_end = np.maximum(n - (count - rank) * usual.fill, usual.least)
    within = np.where(side < 0, before_end, within)
    within[rank == 0] = 0
    return source, rank, (np.cumsum(size) - size)[source] + within


def _size(level: int) -> Size:
    return INNER if level else LEAF


def _consolidated(items: Delta, owner: np.ndarray) -> tuple[Delta, np.ndarray]:
    """Return each item of an owner once, with its summed weight, without zero weights."""
    n = len(items)
    group, first = group_rows([Column(owner), *items.columns], n)
    if len(first) == n:
        keep = np.flatnonzero(items.weights)
        return items.take(keep), owner[keep]
    weights = kernels.sum_by_group(group, items.weights, len(first))
    keep = np.flatnonzero(weights)
    return items.take(first[keep]).weighted(weights[keep]), owner[first[keep]]
