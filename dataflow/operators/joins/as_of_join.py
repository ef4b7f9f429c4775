"""As-of join: of the right rows up to a left row's value, the first in an order.

Invariant: after each epoch each left row is out once, with the first right row at or after its
own position in the order, or padded. Both inputs are in the same order, so the left rows that share
an answer are neighbours: those after the right row before it, up to its own peers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dataflow.delta import Column, Delta, equal_rows
from dataflow.operators.base import Context, Traits, kinds_of
from dataflow.operators.chunking import EVERY_ROW, in_chunks, whole
from dataflow.operators.groups import (
    columns_at,
    plain_columns,
    split_nulls,
    touch,
    value_at,
)
from dataflow.operators.ordered.ordered_rows import (
    AFTER_PEERS,
    BEFORE_PEERS,
    Bound,
    Order,
    OrderedRows,
    OrderedSearch,
    pieces,
)
from dataflow.operators.ordered.top_k import orders_of
from dataflow.plan.nodes import AsOfJoin

# Right rows are compared by the first part of their order alone, which is the value.
_BEFORE_VALUE = Bound(False, False, 1)


@dataclass(frozen=True)
class _Answers:
    """What n values find among the right rows, as positions of `rows`, -1 for none.

    answer int64[n]: the first row at a value or after it. previous int64[n]: the row before that.
    """

    rows: Delta
    answer: np.ndarray
    previous: np.ndarray


class AsOfJoinOperator:
    """Bilinear in effect: each left row has at most one answer.

    Keys, value and order are plain columns (lowering sees to it), the keys in key form.
    State: the left rows in the order of their value, and the right rows in theirs, by key (see
    OrderedRows); no rows with a NULL key or value.
    Cost: O(log n) for each changed row, and the left rows whose answer changes; memory for a part
    of those.
    NULL: equals nothing and is up to nothing; such a left row is padded at once and not stored.
    """

    traits = Traits(emits_parts=True)

    def __init__(self, plan: AsOfJoin, context: Context) -> None:
        self._is_padding = plan.kind == "left"
        self._is_inclusive = plan.operator in ("<=", ">=")
        self._kinds = (kinds_of(plan.left.fields), kinds_of(plan.right.fields))
        self._keys = (plain_columns(plan.left_keys), plain_columns(plan.right_keys))
        order = orders_of(plan.order)
        (value,) = plain_columns([plan.value])
        self._values = (value, order[0].column)
        own = Order(value, plan.value.type, order[0].is_descending)
        self._left = OrderedRows(context, "left", self._kinds[0], self._keys[0], [own])
        self._right = OrderedRows(context, "right", self._kinds[1], self._keys[1], order)

    def step(self, left: Delta, right: Delta) -> Delta:
        """Return the change of the joined and padded rows: left columns, then right ones."""
        return whole(self.parts(left, right, max_rows=EVERY_ROW), "".join(self._kinds))

    def parts(self, left: Delta, right: Delta, *, max_rows: int) -> Iterator[Delta]:
        """See Chunked."""
        yield from in_chunks(self._changes(left, right, max_rows), max_rows)

    def _changes(self, left: Delta, right: Delta, max_rows: int) -> Iterator[Delta]:
        """L_old as of the old and the new right rows, then the changed left rows as of the new.

        Both inputs change in the same partitions, as a rule: one search serves both.
        """
        right, _ = split_nulls(right, (*self._keys[1], self._values[1]))
        left, nulls = split_nulls(left, (*self._keys[0], self._values[0]))
        own = zip(columns_at(left, self._keys[0]), columns_at(right, self._keys[1]), strict=True)
        touched = touch([Column.concat(pair) for pair in own], len(left) + len(right))
        keys, (part, of_right) = touched.keys, np.split(touched.group, [len(left)])
        among_left, among_right = self._left.search(keys), self._right.search(keys)
        if len(right):
            after = self._right.search(keys)
            yield from self._of_right(right, of_right, (among_left, among_right, after), max_rows)
            among_right = after
        if len(left):
            value = left.columns[self._values[0]]
            bound = _BEFORE_VALUE if self._is_inclusive else Bound(False, True, 1)
            found = self._answers(among_right, part, value, bound)
            yield self._joined(left, found.rows, found.answer)
            self._left.apply_after(among_left, part, left)
        if nulls is not None:
            nothing = np.full(len(nulls), -1, np.int64)
            yield self._joined(nulls, Delta.empty(self._kinds[1]), nothing)

    def _of_right(
        self,
        right: Delta,
        part: np.ndarray,
        searches: tuple[OrderedSearch, OrderedSearch, OrderedSearch],
        max_rows: int,
    ) -> Iterator[Delta]:
        """Apply changed right rows; yield the change of the stored left rows whose answer they
        change: those after the previous right row, up to a changed one.

        part: as of the searches, which are among the left rows, and among the right rows before
        and after.
        """
        among_left, before, after = searches
        value = right.columns[self._values[1]]
        high = self._edges(among_left, part, value)
        reached = np.flatnonzero(high > 0)
        if len(reached) == 0:
            self._right.apply_after(before, part, right)
            return
        value, high, own_part = value.take(reached), high[reached], part[reached]
        old = self._answers(before, own_part, value, _BEFORE_VALUE)
        self._right.apply_after(before, part, right)
        new = self._answers(after, own_part, value, _BEFORE_VALUE)
        changed = np.flatnonzero(~_same(old, new))
        low = np.zeros(len(own_part), np.int64)
        some = [changed[found.previous[changed] >= 0] for found in (old, new)]
        previous = [
            found.rows.columns[self._values[1]].take(found.previous[index])
            for found, index in zip((old, new), some, strict=True)
        ]
        index = np.concatenate(some)
        edges = self._edges(among_left, own_part[index], Column.concat(previous))
        np.maximum.at(low, index, edges)
        changed = changed[low[changed] < high[changed]]
        # Rows of one value change the same left rows.
        changed = _distinct(changed, own_part, low)
        for piece, rows in self._spans(
            among_left, own_part[changed], (low[changed], high[changed]), max_rows
        ):
            at = changed[piece]
            retracted = self._joined(rows.negate(), old.rows, old.answer[at])
            yield Delta.concat([retracted, self._joined(rows, new.rows, new.answer[at])])

    def _edges(self, search: OrderedSearch, part: np.ndarray, value: Column) -> np.ndarray:
        """Return int64[n]: how many left rows of a partition have a right row of this value, or
        one before it, as their answer."""
        bound = AFTER_PEERS if self._is_inclusive else BEFORE_PEERS
        return search.positions(part, {self._values[0]: value}, bound)

    def _answers(
        self, search: OrderedSearch, part: np.ndarray, value: Column, bound: Bound
    ) -> _Answers:
        """Find the first right row from a bound at each value on, and the one before it."""
        at = search.positions(part, {self._values[1]: value}, bound)
        cover = search.covering(part, np.maximum(at - 1, 0), at + 1)
        return _Answers(cover.rows, cover.index(part, at), cover.index(part, at - 1))

    def _spans(
        self,
        search: OrderedSearch,
        part: np.ndarray,
        ranges: tuple[np.ndarray, np.ndarray],
        max_rows: int,
    ) -> Iterator[tuple[np.ndarray, Delta]]:
        """Yield the left rows of disjoint ranges, about max_rows at a time: (int64[m] the range
        of each, rows)."""
        keys, (low, high) = search.keys, ranges
        for index, start, end in pieces(low, high, max_rows):
            own, of_piece = part[index], search
            if len(index) < len(part):
                numbers, own = np.unique(own, return_inverse=True)
                of_piece = self._left.search([k.take(numbers) for k in keys])
            cover = of_piece.covering(own, start, end)
            starts, ends = cover.offsets[own] + start, cover.offsets[own] + end
            order = np.argsort(starts, kind="stable")
            within = np.searchsorted(starts[order], cover.start, "right") - 1
            # A row is in the piece that has its first copy.
            inside = (within >= 0) & (cover.start < ends[order[np.maximum(within, 0)]])
            rows = np.flatnonzero(inside)
            yield index[order[within[rows]]], cover.rows.take(rows)

    def _joined(self, left: Delta, right: Delta, index: np.ndarray) -> Delta:
        """Return left rows beside the right rows at int64 positions, -1 for none."""
        if not self._is_padding:
            some = np.flatnonzero(index >= 0)
            left, index = left.take(some), index[some]
        columns = tuple(value_at(column, index) for column in right.columns)
        return Delta(left.columns + columns, left.weights)


def _distinct(index: np.ndarray, part: np.ndarray, low: np.ndarray) -> np.ndarray:
    """Return the positions with each pair of part and low once, in their order."""
    order = index[np.lexsort((low[index], part[index]))]
    fresh = np.ones(len(order), np.bool_)
    fresh[1:] = (part[order[1:]] != part[order[:-1]]) | (low[order[1:]] != low[order[:-1]])
    return order[fresh]


def _same(old: _Answers, new: _Answers) -> np.ndarray:
    """Return bool[n]: whether a value has the same answer in both."""
    same = (old.answer < 0) & (new.answer < 0)
    both = np.flatnonzero((old.answer >= 0) & (new.answer >= 0))
    same[both] = equal_rows(old.rows.columns, old.answer[both], new.rows.columns, new.answer[both])
    return same
