"""The first rows of each partition in an order: LIMIT, OFFSET, WITH TIES, DISTINCT ON.

Invariant: after each epoch, the output of each partition is exactly the rows at positions offset to
offset + limit. The output is the rows before the end minus those before the offset. Each of these
two prefixes changes by the part of the delta inside it, and by the few rows that cross its edge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tidemark_native import storage as kernels

from dataflow.delta import Column, Delta
from dataflow.operators.base import Context, Traits, kinds_of
from dataflow.operators.groups import Touched, columns_at, plain_columns, touch
from dataflow.operators.ordered.ordered_rows import AFTER_PEERS, ENDLESS, Order, OrderedRows, Range
from dataflow.plan.nodes import SortKey, TopK


class TopKOperator:
    """Group: touched partitions emit new minus old.

    Partition and order are plain columns (lowering sees to it), the partition in key form. State:
    all rows, in order (see OrderedRows), so that the next row replaces one that leaves. Cost: O(log
    n) for each changed row, and the rows that cross an edge: a row beyond the edge costs only its
    insertion. NULL: a partition of its own; in the order as NULLS FIRST or LAST says.
    """

    traits = Traits()

    def __init__(self, plan: TopK, context: Context) -> None:
        self._partition = plain_columns(plan.partition)
        self._kinds = kinds_of(plan.fields)
        self._edges: list[_Edge] = []
        if plan.limit != 0:
            self._rows = OrderedRows(
                context, "kept", self._kinds, self._partition, orders_of(plan.order)
            )
            end = ENDLESS if plan.limit is None else min(plan.offset + plan.limit, ENDLESS)
            self._edges.append(_Edge(end, 1, plan.with_ties))
            if plan.offset:
                self._edges.append(_Edge(min(plan.offset, ENDLESS), -1, False))

    def step(self, delta: Delta) -> Delta:
        """Return the change of the rows that are out."""
        if len(delta) == 0 or not self._edges:
            return Delta.empty(self._kinds)
        touched = touch(columns_at(delta, self._partition), len(delta))
        moves = [self._before(edge, touched, delta) for edge in self._edges]
        self._rows.apply(delta)
        found = [part for move in moves for part in self._after(move, touched, delta)]
        return Delta.concat(found).consolidate()

    def _before(self, edge: _Edge, touched: Touched, delta: Delta) -> _Move:
        """Return which changed rows are before an edge at its old position."""
        n = touched.count
        if edge.position >= ENDLESS:
            every = np.ones(len(delta), np.bool_)
            return _Move(edge, every, np.full(n, -1), Range(*_nothing(self._kinds)))
        at = np.full(n, edge.position - edge.has_ties)
        found = self._rows.ranges(touched.keys, at, at + 1)
        position = np.full(n, -1, np.int64)
        position[found.index] = np.arange(len(found.index))
        m = len(found.index)
        columns = [
            Column.concat([a, b]) for a, b in zip(found.rows.columns, delta.columns, strict=True)
        ]
        row_ranks = self._rows.order.peers(columns, m + len(delta))
        if not edge.has_ties:
            row_ranks = self._rows.order.ranks(columns, m + len(delta), row_ranks)
        limit = np.full(n, np.iinfo(np.int64).max)
        limit[found.index] = row_ranks[:m] + edge.has_ties
        return _Move(edge, row_ranks[m:] < limit[touched.group], position, found)

    def _after(self, move: _Move, touched: Touched, delta: Delta) -> list[Delta]:
        """Return the change of the rows before an edge, with the edge's sign."""
        edge, sign = move.edge, move.edge.sign
        before = delta.filter(move.is_before)
        parts = [before.weighted(before.weights * sign)]
        if edge.position >= ENDLESS:
            return parts
        if edge.has_ties:
            reached, required = self._ends_with_ties(move, touched)
        else:
            reached, required, copies = self._ends(move, touched, delta)
            parts.append(copies.weighted(copies.weights * -sign))
        moved = np.flatnonzero(reached != required)
        if len(moved):
            low, high = np.minimum(reached, required)[moved], np.maximum(reached, required)[moved]
            keys = [k.take(moved) for k in touched.keys]
            crossing = self._rows.ranges(keys, low, high)
            signs = np.where(reached < required, sign, -sign)[moved[crossing.index]]
            parts.append(crossing.rows.weighted(crossing.rows.weights * signs))
        return parts

    def _ends(
        self, move: _Move, touched: Touched, delta: Delta
    ) -> tuple[np.ndarray, np.ndarray, Delta]:
        """Return (int64[n] where the old prefixes end now, int64[n] where the new ones do, copies).

        The row at an edge may have copies on both sides of it. The old prefix is counted up to the
        first copy; the copies before the edge are returned separately.
        """
        n, k = touched.count, move.edge.position
        is_moved = np.where(move.is_before, delta.weights, 0)
        reached = np.full(n, ENDLESS)
        held = np.flatnonzero(move.position >= 0)
        start = move.found.start[move.position[held]]
        reached[held] = start + kernels.sum_by_group(touched.group, is_moved, n)[held]
        split = np.flatnonzero(start < k)
        copies = move.found.rows.take(move.position[held[split]]).weighted(k - start[split])
        return reached, np.full(n, k), copies

    def _ends_with_ties(self, move: _Move, touched: Touched) -> tuple[np.ndarray, np.ndarray]:
        """Like _ends, where a prefix extends to the last peer of its last row."""
        n = touched.count
        reached, required = np.full(n, ENDLESS), np.full(n, ENDLESS)
        at = np.full(n, move.edge.position - 1)
        new = self._rows.ranges(touched.keys, at, at + 1)
        required[new.index] = self._rows.ranks(new.rows, AFTER_PEERS)
        reached[move.found.index] = self._rows.ranks(move.found.rows, AFTER_PEERS)
        return reached, required


@dataclass(frozen=True)
class _Edge:
    """The end of a prefix; sign: its sign in the output. has_ties: the prefix includes all peers of
    its last row."""

    position: int
    sign: int
    has_ties: bool


@dataclass(frozen=True)
class _Move:
    """An edge and the row at it before a change: found, and place int64[n], each partition's
    position in it, -1 where the partition ends earlier. is_before: the changed rows before the
    edge."""

    edge: _Edge
    is_before: np.ndarray
    position: np.ndarray
    found: Range


def orders_of(keys: Sequence[SortKey]) -> list[Order]:
    """Return the row order of sort keys that lowering has made plain columns."""
    out = []
    for key, column in zip(keys, plain_columns([k.expression for k in keys]), strict=True):
        type = key.expression.type
        out.append(Order(column, type, key.is_descending, key.nulls_first, key.operator))
    return out


def _nothing(kinds: str) -> tuple[np.ndarray, Delta, np.ndarray, np.ndarray]:
    none = np.empty(0, np.int64)
    return none, Delta.empty(kinds), none, none
