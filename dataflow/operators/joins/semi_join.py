"""Semi and anti join: left rows with or without a match in the right input.

Invariant: a left row is emitted with its own weight or not at all, however often it matches.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dataflow.delta import Column, Delta
from dataflow.operators.base import Context, Traits, kinds_of
from dataflow.operators.chunking import EVERY_ROW, in_chunks, whole
from dataflow.operators.groups import columns_at, plain_columns, split_nulls
from dataflow.operators.joins.interval_pairs import pair_state
from dataflow.operators.joins.pairs import LEFT, RIGHT, all_of, clearable_inputs
from dataflow.operators.joins.unmatched import KeyTurns, row_turns
from dataflow.plan.nodes import SemiJoin


def _clearable_inputs(plan: SemiJoin) -> tuple[int, ...]:
    """An anti join passes left rows with a NULL key, and does not store them."""
    return clearable_inputs(plan, with_nulls=(LEFT,) if plan.kind == "anti" else ())


class SemiJoinOperator:
    """Group: without a residual, the rows of the right input are only counted.

    State: the left rows that have no NULL key, by key; the number of right rows of each key.
    Cost: O(rows of the deltas + left rows of keys that gain their first or lose their last match).
    NULL: equals nothing: a left row with a NULL key never passes semi and always passes anti.
    """

    def __init__(self, plan: SemiJoin, context: Context) -> None:
        self._is_anti = plan.kind == "anti"
        self.traits = Traits(
            emits_parts=True, needs_evaluator=False, clearable=_clearable_inputs(plan)
        )
        self._keys = (plain_columns(plan.left_keys), plain_columns(plan.right_keys))
        self._left_kinds, right = kinds_of(plan.left.fields), kinds_of(plan.right.fields)
        self._right_kinds = right
        self._left = context.arrange("left", self._left_kinds, self._keys[LEFT])
        key_kinds = "".join(right[i] for i in self._keys[RIGHT])
        self._counts = context.arrange_sums("right counts", key_kinds, 1)
        self._turns = KeyTurns(self._counts, self._keys[RIGHT])

    def step(self, left: Delta, right: Delta) -> Delta:
        """Return the change of the left rows that pass."""
        return whole(self.parts(left, right, max_rows=EVERY_ROW), self._left_kinds)

    def parts(self, left: Delta, right: Delta, *, max_rows: int) -> Iterator[Delta]:
        yield from in_chunks(self._changes(left, right, max_rows), max_rows)

    def _changes(self, left: Delta, right: Delta, max_rows: int) -> Iterator[Delta]:
        left, left_nulls = split_nulls(left, self._keys[LEFT])
        right, _ = split_nulls(right, self._keys[RIGHT])
        yield self._passing(left)
        if left_nulls is not None and self._is_anti:
            yield left_nulls
        if len(left):
            self._left.apply(left)
        if len(right):
            yield from self._turning(right, max_rows)

    def _passing(self, left: Delta) -> Delta:
        """Return the rows of dL that have a match (semi) or none (anti) in the old right input."""
        if len(left) == 0:
            return left
        counts = self._counts.lookup(columns_at(left, self._keys[LEFT]))[0]
        if not self._keys[LEFT]:
            counts = np.repeat(counts, len(left))
        return left.filter((counts == 0) == self._is_anti)

    def _turning(self, right: Delta, max_rows: int) -> Iterator[Delta]:
        """Return the rows of L_new whose key has gained its first match or lost its last."""
        representative, turns = self._turns.advance(right)
        chosen = np.flatnonzero(turns)
        if len(chosen) == 0:
            return
        keys = columns_at(right.take(representative[chosen]), self._keys[RIGHT])
        for index, rows in self._left.lookup_parts(keys, max_rows):
            signs = turns[chosen][index] if self._is_anti else -turns[chosen][index]
            yield rows.weighted(rows.weights * signs)

    def stored_rows(self, side: int) -> Iterator[Delta]:
        """See Clearable. Of the right rows only the keys have an effect."""
        if side == LEFT:
            yield from all_of(self._left)
            return
        for keys, counts in self._counts.scan():
            columns = [Column.nulls(kind, counts.shape[1]) for kind in self._right_kinds]
            for position, key in zip(self._keys[RIGHT], keys, strict=True):
                columns[position] = key
            yield Delta(columns, counts[0])
        self._counts.clear()


class ResidualSemiJoinOperator:
    """Group: with a residual, left rows that a changed right row pairs with are re-evaluated.

    State: the rows of either side that have no NULL key, by key.
    Cost: O(rows of the deltas + matches + matches of each left row that a changed one pairs with);
    memory for a part of the matches.
    NULL: as in SemiJoinOperator; a residual that is NULL or fails is no match.
    """

    def __init__(self, plan: SemiJoin, context: Context) -> None:
        self._is_anti = plan.kind == "anti"
        self._left_kinds = kinds_of(plan.left.fields)
        self._state = pair_state(plan, context)
        self.traits = Traits(emits_parts=True, clearable=_clearable_inputs(plan))
        self.stored_rows = self._state.stored_rows

    def step(self, left: Delta, right: Delta) -> Delta:
        """Return the change of the left rows that pass."""
        return whole(self.parts(left, right, max_rows=EVERY_ROW), self._left_kinds)

    def parts(self, left: Delta, right: Delta, *, max_rows: int) -> Iterator[Delta]:
        yield from in_chunks(self._changes(left, right, max_rows), max_rows)

    def _changes(self, left: Delta, right: Delta, max_rows: int) -> Iterator[Delta]:
        sides = self._state
        left, left_nulls = split_nulls(left, sides.keys[LEFT])
        right, _ = split_nulls(right, sides.keys[RIGHT])
        matches = np.zeros(len(left), np.int64)
        for pairs in sides.meet(LEFT, left, max_rows):
            pairs.count_into(matches)
        yield left.filter((matches == 0) == self._is_anti)
        if left_nulls is not None and self._is_anti:
            yield left_nulls
        sides.take(LEFT, left)
        sides.take(RIGHT, right)
        for pairs in sides.meet_by_stored(RIGHT, right, max_rows):
            turning = row_turns(sides, pairs, max_rows)
            yield turning if self._is_anti else turning.negate()
