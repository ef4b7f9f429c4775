"""A scalar subquery: always one row.

Invariant: the output is exactly one row (NULLs over an empty input), or one error row instead over
two or more rows.
"""

from __future__ import annotations

import numpy as np

from dataflow.delta import Column, Delta, equal_rows
from dataflow.expressions.evaluator import RowErrors
from dataflow.operators.base import Context, Traits, kinds_of, types_of
from dataflow.plan.nodes import SingleRow

_TOO_MANY = ("21000", "more than one row returned by a subquery used as an expression")
_EMITTED, _ROWS = 0, 1


class SingleRowOperator:
    """Group: one group of all rows.

    State: the rows, their number, and a flag that the one row has been emitted. Cost: O(rows of the
    delta). NULL: every column of the row over an empty input.
    """

    traits = Traits(needs_evaluator=False)

    def __init__(self, plan: SingleRow, context: Context) -> None:
        self._context = context
        self._types = types_of(plan.fields)
        self._kinds = kinds_of(plan.fields)
        self._rows = context.arrange("rows", self._kinds, ())
        self._counts = context.arrange_sums("counts", "", 2)
        self._nulls = Delta([Column.nulls(k, 1) for k in self._kinds], np.ones(1, np.int64))

    def step(self, delta: Delta) -> Delta:
        """Return the change of the one row."""
        was_emitted, before = self._counts.lookup(())[:, 0].tolist()
        if was_emitted and len(delta) == 0:
            return Delta.empty(self._kinds)
        change = int(delta.weights.sum())
        old = self._shown(before, -1) if was_emitted else None
        if len(delta):
            self._rows.apply(delta)
        self._counts.add((), np.array([[1 - was_emitted], [change]], np.int64))
        new = self._shown(before + change, 1)
        if old is None or new is None:
            return old or new or Delta.empty(self._kinds)
        one = np.zeros(1, np.int64)
        if equal_rows(old.columns, one, new.columns, one).all():
            return Delta.empty(self._kinds)
        return Delta.concat([old, new])

    def _shown(self, rows: int, weight: int) -> Delta | None:
        """Return the output row for that many stored rows; None for an error."""
        weights = np.array([weight], np.int64)
        if rows == 0:
            return self._nulls.weighted(weights)
        if rows == 1:
            return self._rows.lookup(())[1].weighted(weights)
        failed = RowErrors({0: _TOO_MANY})
        self._context.collect(self._types, self._nulls.weighted(weights), failed)
        return None
