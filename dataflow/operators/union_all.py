"""Union all: the rows of all inputs, weights added.

Invariant: the output is consolidated: rows that one input gains and another loses cancel out.
"""

from __future__ import annotations

from dataflow.delta import Delta
from dataflow.operators.base import Context, Traits, kinds_of
from dataflow.plan.nodes import UnionAll


class UnionAllOperator:
    """Linear.

    State: none.
    Cost: O(rows of the deltas).
    NULL: carried through.
    """

    traits = Traits(is_linear=True, has_state=False, needs_evaluator=False)

    def __init__(self, plan: UnionAll, context: Context) -> None:
        self._kinds = kinds_of(plan.fields)

    def step(self, *deltas: Delta) -> Delta:
        """Return the sum of the deltas."""
        filled = [d for d in deltas if len(d)]
        if not filled:
            return Delta.empty(self._kinds)
        return filled[0] if len(filled) == 1 else Delta.concat(filled).consolidate()
