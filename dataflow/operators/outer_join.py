"""Left, right and full join: the inner join, and unmatched rows padded with NULLs.

Invariant: a preserved row is in the output at least once: joined, or else padded.
"""

from __future__ import annotations

from dataflow.delta import Column, Delta
from dataflow.operators.base import Context, kinds_of
from dataflow.operators.groups import split_nulls
from dataflow.operators.pairs import LEFT, RIGHT, Pairs, Sides
from dataflow.operators.unmatched import KeyTurns, row_turns, unmatched_changes
from dataflow.sql.plan import Join

_PRESERVED = {"left": (LEFT,), "right": (RIGHT,), "full": (LEFT, RIGHT)}


class OuterJoinOperator:
    """Bilinear, with a group part for padding.

    State: the rows of either side that have no NULL key, by key; without a residual also the
    number of rows of each key on the side that a preserved side may miss.
    Cost: O(rows of the deltas + matches); with a residual also the matches of each kept row that
    a changed row pairs with.
    NULL: equals nothing; a preserved row with a NULL key is padded at once and not kept. A pair
    whose residual fails is no match.
    """

    def __init__(self, plan: Join, context: Context) -> None:
        self._sides = Sides(plan, context)
        self._preserved = _PRESERVED[plan.kind]
        self._kinds = (kinds_of(plan.left.fields), kinds_of(plan.right.fields))
        self._turns: dict[int, KeyTurns] = {}
        if not self._sides.has_residual:
            for side in self._preserved:
                key = self._sides.keys[1 - side]
                kinds = "".join(self._kinds[1 - side][i] for i in key)
                role = ("right counts", "left counts")[side]
                self._turns[side] = KeyTurns(context.arrange_sums(role, kinds, 1), key)

    def step(self, left: Delta, right: Delta) -> Delta:
        """The change of the joined and padded rows: left columns, then right ones."""
        left, left_nulls = split_nulls(left, self._sides.keys[LEFT])
        right, right_nulls = split_nulls(right, self._sides.keys[RIGHT])
        first, second = self._sides.advance(left, right)
        parts = [pairs.joined() for pairs in (first, second)]
        if LEFT in self._preserved:
            parts.append(self._pad(LEFT, unmatched_changes(first, left)))
            parts.append(self._pad(LEFT, self._kept_turns(LEFT, second, right)))
            if left_nulls is not None:
                parts.append(self._pad(LEFT, left_nulls))
        if RIGHT in self._preserved:
            parts.append(self._pad(RIGHT, unmatched_changes(second, right)))
            parts.append(self._pad(RIGHT, self._kept_turns(RIGHT, first, left)))
            if right_nulls is not None:
                parts.append(self._pad(RIGHT, right_nulls))
        return Delta.concat(parts).consolidate()

    def _kept_turns(self, side: int, pairs: Pairs, changed: Delta) -> Delta:
        if side in self._turns:
            return self._turns[side].kept_turns(pairs, changed)
        return row_turns(self._sides, pairs)

    def _pad(self, side: int, rows: Delta) -> Delta:
        nulls = tuple(Column.nulls(kind, len(rows)) for kind in self._kinds[1 - side])
        columns = rows.columns + nulls if side == LEFT else nulls + rows.columns
        return Delta(columns, rows.weights)
