"""Inner and cross join.

Invariant: the output is the product of both inputs as bags, restricted to equal keys and a true
residual; each input row is kept exactly once.
"""

from __future__ import annotations

from dataflow.delta import Delta
from dataflow.operators.base import Context, kinds_of
from dataflow.operators.groups import split_nulls
from dataflow.operators.pairs import LEFT, RIGHT, Sides
from dataflow.sql.plan import Join


class JoinOperator:
    """Bilinear: dL x R_old + L_new x dR.

    State: the rows of either side that have no NULL key, by key.
    Cost: O(rows of the deltas + matches).
    NULL: equals nothing; such rows are dropped on arrival.
    """

    def __init__(self, plan: Join, context: Context) -> None:
        self._sides = Sides(plan, context)
        self._kinds = kinds_of(plan.fields)

    def step(self, left: Delta, right: Delta) -> Delta:
        """The change of the joined rows: left columns, then right ones."""
        left, _ = split_nulls(left, self._sides.keys[LEFT])
        right, _ = split_nulls(right, self._sides.keys[RIGHT])
        parts = [pairs.joined() for pairs in self._sides.advance(left, right) if len(pairs)]
        if not parts:
            return Delta.empty(self._kinds)
        # A pair of one delta with kept rows comes once: only two sorts of pairs can cancel out.
        return parts[0] if len(parts) == 1 else Delta.concat(parts).consolidate()
