"""Left, right and full join: the inner join, and unmatched rows padded with NULLs.

Invariant: a preserved row is in the output at least once: joined, or else padded.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dataflow.delta import Column, Delta
from dataflow.operators.base import Context, Traits, kinds_of
from dataflow.operators.chunking import EVERY_ROW, in_chunks, whole
from dataflow.operators.groups import split_nulls
from dataflow.operators.joins.interval_pairs import pair_state
from dataflow.operators.joins.pairs import LEFT, RIGHT, clearable_inputs
from dataflow.operators.joins.unmatched import KeyTurns, row_turns, stored_turns
from dataflow.plan.nodes import Join

_PRESERVED = {"left": (LEFT,), "right": (RIGHT,), "full": (LEFT, RIGHT)}


class OuterJoinOperator:
    """Bilinear, with a group part for padding.

    State: the rows of either input that have no NULL key, by key; without a residual also the
    number of rows of each key in the input opposite a preserved one. Cost: O(rows of the deltas +
    matches); with a residual also the matches of each stored row that a changed row pairs with;
    memory for a part of the matches. NULL: equals nothing; a preserved row with a NULL key is
    padded at once and not stored. A pair whose residual fails is no match.
    """

    def __init__(self, plan: Join, context: Context) -> None:
        self._state = pair_state(plan, context)
        self._preserved = _PRESERVED[plan.kind]
        clearable = clearable_inputs(plan, with_nulls=self._preserved)
        self.traits = Traits(emits_parts=True, clearable=clearable)
        self.stored_rows = self._state.stored_rows
        self._kinds = (kinds_of(plan.left.fields), kinds_of(plan.right.fields))
        self._turns: dict[int, KeyTurns] = {}
        if not self._state.has_residual:
            for side in self._preserved:
                key = self._state.keys[1 - side]
                kinds = "".join(self._kinds[1 - side][i] for i in key)
                role = ("right counts", "left counts")[side]
                self._turns[side] = KeyTurns(context.arrange_sums(role, kinds, 1), key)

    def step(self, left: Delta, right: Delta) -> Delta:
        """Return the change of the joined and padded rows: left columns, then right ones."""
        return whole(self.parts(left, right, max_rows=EVERY_ROW), "".join(self._kinds))

    def parts(self, left: Delta, right: Delta, *, max_rows: int) -> Iterator[Delta]:
        left, left_nulls = split_nulls(left, self._state.keys[LEFT])
        right, right_nulls = split_nulls(right, self._state.keys[RIGHT])
        changes = self._changes if self._state.has_residual else self._changes_by_key
        yield from in_chunks(changes(left, right, max_rows), max_rows)
        for side, nulls in ((LEFT, left_nulls), (RIGHT, right_nulls)):
            if side in self._preserved and nulls is not None:
                yield self._pad(side, nulls)

    def _changes(self, left: Delta, right: Delta, max_rows: int) -> Iterator[Delta]:
        """With a residual: all pairs of a stored row decide whether it gains or loses its
        padding."""
        sides, deltas = self._state, (left, right)
        for side, delta in enumerate(deltas):
            counts = np.zeros(len(delta), np.int64)
            sides.take(side, delta)
            for pairs in sides.meet_by_stored(side, delta, max_rows):
                yield pairs.joined()
                pairs.count_into(counts)
                if 1 - side in self._preserved:
                    yield self._pad(1 - side, row_turns(sides, pairs, max_rows))
            if side in self._preserved:
                # Emit before the same rows change again.
                yield self._unmatched(side, delta, counts)

    def _changes_by_key(self, left: Delta, right: Delta, max_rows: int) -> Iterator[Delta]:
        """Without a residual: all stored rows of a key gain or lose their padding together."""
        deltas = (left, right)
        turns = {side: self._turns[side].by_row(deltas[1 - side]) for side in self._preserved}
        counts = [np.zeros(len(delta), np.int64) for delta in deltas]
        last = LEFT
        for pairs in self._state.advance_parts(left, right, max_rows):
            if pairs.side != last:
                # Emit before the same rows change again.
                yield self._unmatched(LEFT, left, counts[LEFT])
                last = pairs.side
            yield pairs.joined()
            pairs.count_into(counts[pairs.side])
            stored = 1 - pairs.side
            if stored in turns:
                yield self._pad(stored, stored_turns(pairs, turns[stored]))
        if last == LEFT:
            yield self._unmatched(LEFT, left, counts[LEFT])
        yield self._unmatched(RIGHT, right, counts[RIGHT])

    def _unmatched(self, side: int, delta: Delta, counts: np.ndarray) -> Delta:
        """Return the changed rows of a preserved input that pair with nothing, padded."""
        if side not in self._preserved:
            return self._pad(side, delta.slice(0, 0))
        return self._pad(side, delta.filter(counts == 0))

    def _pad(self, side: int, rows: Delta) -> Delta:
        nulls = tuple(Column.nulls(kind, len(rows)) for kind in self._kinds[1 - side])
        columns = rows.columns + nulls if side == LEFT else nulls + rows.columns
        return Delta(columns, rows.weights)
