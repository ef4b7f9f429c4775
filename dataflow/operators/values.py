"""Values: constant rows, emitted once in a view's life.

Invariant: the state records that they were emitted, so that a restart does not repeat them.
"""

from __future__ import annotations

import numpy as np

from dataflow.delta import KIND_BYTES, Column, Delta
from dataflow.errors import InvariantError
from dataflow.expressions.ir import Expression, Literal
from dataflow.operators.base import Context, Traits, kinds_of
from dataflow.plan.nodes import Values
from dataflow.values import from_text


class ValuesOperator:
    """Linear, without input.

    State: one flag that the rows have been emitted. Cost: O(rows) in the first step, one lookup in
    any other. NULL: a literal like any other.
    """

    traits = Traits(needs_evaluator=False)

    def __init__(self, plan: Values, context: Context) -> None:
        self._emitted = context.arrange_sums("emitted", "", 1)
        self._kinds = kinds_of(plan.fields)
        columns = []
        for position, field in enumerate(plan.fields):
            texts = [_text(row[position]) for row in plan.rows]
            columns.append(from_text(field.type, Column.of(KIND_BYTES, texts)))
        self._rows = Delta(columns, np.ones(len(plan.rows), np.int64)).consolidate()

    def step(self) -> Delta:
        """Return all rows in the first step, none later."""
        if self._emitted.lookup(())[0, 0]:
            return Delta.empty(self._kinds)
        self._emitted.add((), np.ones((1, 1), np.int64))
        return self._rows


def _text(cell: Expression) -> str | None:
    if not isinstance(cell, Literal):
        raise InvariantError("plan.values", f"a cell of values is no literal: {cell}")
    return cell.text
