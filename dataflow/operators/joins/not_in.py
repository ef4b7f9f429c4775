"""x NOT IN (subquery), with SQL's NULL rule.

Invariant: a left row passes iff `x = y` is false for every right row. While the right input has a
NULL, no row passes; a NULL x passes only while the right input is empty.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dataflow.delta import Column, Delta
from dataflow.errors import InvariantError
from dataflow.operators.base import Context, Traits, kinds_of
from dataflow.operators.chunking import EVERY_ROW, in_chunks, whole
from dataflow.operators.groups import columns_at, plain_columns, touch
from dataflow.operators.joins.unmatched import turn
from dataflow.plan.nodes import SemiJoin

_MATCHES, _NULLS = 0, 1


class NotInOperator:
    """Group: an anti join, disabled by NULLs in the right input.

    State: the left rows by x; the number of rows of each right value; under NULL the number of all
    right rows (which a NULL x compares with) and of NULLs among them. Cost: as an anti join; a scan
    of the left input when the first NULL arrives or the last one leaves; memory for a part of the
    rows that change then. NULL: see above.
    """

    traits = Traits(emits_parts=True, needs_evaluator=False)

    def __init__(self, plan: SemiJoin, context: Context) -> None:
        self._keys = (plain_columns(plan.left_keys), plain_columns(plan.right_keys))
        if len(self._keys[0]) != 1 or plan.residual is not None:
            raise InvariantError("plan.not_in", "not in takes one key and no residual")
        self._kinds = kinds_of(plan.left.fields)
        self._key_kind = kinds_of(plan.right.fields)[self._keys[1][0]]
        self._left = context.arrange("left", self._kinds, self._keys[0])
        self._counts = context.arrange_sums("right counts", self._key_kind, 2)
        self._null = (Column.nulls(self._key_kind, 1),)

    def step(self, left: Delta, right: Delta) -> Delta:
        """Return the change of the left rows that pass."""
        return whole(self.parts(left, right, max_rows=EVERY_ROW), self._kinds)

    def parts(self, left: Delta, right: Delta, *, max_rows: int) -> Iterator[Delta]:
        yield from in_chunks(self._changes(left, right, max_rows), max_rows)

    def _changes(self, left: Delta, right: Delta, max_rows: int) -> Iterator[Delta]:
        keys, change = self._count_changes(right)
        null = self._counts.lookup(self._null)[:, 0]
        was_off, is_off = null[_NULLS] > 0, null[_NULLS] + change[_NULLS, -1] > 0
        if is_off and not was_off:
            for rows in self._passing_rows(max_rows):
                yield rows.negate()
        elif not is_off and not was_off:
            yield self._passing(left)
        if len(left):
            self._left.apply(left)
        old = self._counts.lookup(keys)[_MATCHES]
        self._counts.add(keys, change)
        if was_off and not is_off:
            yield from self._passing_rows(max_rows)
        elif not is_off and not was_off:
            yield from self._turning(keys, turn(old, old + change[_MATCHES]), max_rows)

    def _count_changes(self, right: Delta) -> tuple[tuple[Column, ...], np.ndarray]:
        """Return (right values, NULL last; int64[2, values] of matches and nulls that they
        gain)."""
        column = right.columns[self._keys[1][0]]
        mask = column.mask()
        chosen = np.flatnonzero(mask)
        touched = touch((column.take(chosen),), len(chosen))
        change = np.zeros((2, touched.count + 1), np.int64)
        change[_MATCHES, :-1] = touched.sum(right.weights[chosen])
        change[_MATCHES, -1] = right.weights.sum()
        change[_NULLS, -1] = right.weights[~mask].sum()
        return (Column.concat([touched.keys[0], self._null[0]]),), change

    def _passing(self, left: Delta) -> Delta:
        if len(left) == 0:
            return left
        return left.filter(self._counts.lookup(columns_at(left, self._keys[0]))[_MATCHES] == 0)

    def _passing_rows(self, max_rows: int) -> Iterator[Delta]:
        for rows in self._left.scan():
            for start in range(0, len(rows), max_rows):
                yield self._passing(rows.slice(start, min(start + max_rows, len(rows))))

    def _turning(
        self, keys: tuple[Column, ...], turns: np.ndarray, max_rows: int
    ) -> Iterator[Delta]:
        chosen = np.flatnonzero(turns)
        if len(chosen) == 0:
            return
        chosen_keys = tuple(c.take(chosen) for c in keys)
        for index, rows in self._left.lookup_parts(chosen_keys, max_rows):
            yield rows.weighted(rows.weights * turns[chosen][index])
