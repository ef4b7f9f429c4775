"""Inner and cross join.

Invariant: the output is the product of both inputs as multisets, restricted to equal keys and a
true residual. Each input row is stored exactly once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dataflow.delta import Delta
from dataflow.operators.base import Context, Traits, kinds_of
from dataflow.operators.chunking import EVERY_ROW, whole
from dataflow.operators.groups import split_nulls
from dataflow.operators.joins.interval_pairs import pair_state
from dataflow.operators.joins.pairs import LEFT, RIGHT, Pairs, clearable_inputs
from dataflow.plan.nodes import Join


class JoinOperator:
    """Bilinear: dL x R_old + L_new x dR.

    State: the rows of either side that have no NULL key, by key.
    Cost: O(rows of the deltas + matches); memory for a part of the matches.
    NULL: equals nothing; such rows are dropped on arrival.
    """

    def __init__(self, plan: Join, context: Context) -> None:
        self._state = pair_state(plan, context)
        self.traits = Traits(emits_parts=True, clearable=clearable_inputs(plan, ()))
        self.stored_rows = self._state.stored_rows
        self._kinds = kinds_of(plan.fields)

    def step(self, left: Delta, right: Delta) -> Delta:
        """Return the change of the joined rows: left columns, then right ones."""
        return whole(self.parts(left, right, max_rows=EVERY_ROW), self._kinds)

    def parts(self, left: Delta, right: Delta, *, max_rows: int) -> Iterator[Delta]:
        left, _ = split_nulls(left, self._state.keys[LEFT])
        right, _ = split_nulls(right, self._state.keys[RIGHT])
        held: list[Pairs] = []
        rows = 0
        for pairs in self._state.advance_parts(left, right, max_rows):
            if held and rows + len(pairs) > max_rows:
                yield _joined(held)
                held, rows = [], 0
            held.append(pairs)
            rows += len(pairs)
        if held:
            yield _joined(held)


def _joined(some: Sequence[Pairs]) -> Delta:
    """Return the joined rows of pairs, consolidated.

    Pairs of one kind are distinct, so only pairs of different kinds can cancel out.
    """
    if len(some) == 1:
        return some[0].joined()
    joined = Delta.concat([pairs.joined() for pairs in some])
    return joined if len({pairs.side for pairs in some}) == 1 else joined.consolidate()
