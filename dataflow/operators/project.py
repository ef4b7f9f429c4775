"""Project: one expression for each output column.

Invariant: the output is consolidated even where two rows become equal, unless `is_unconsolidated`.
"""

from __future__ import annotations

import numpy as np

from dataflow.delta import Column, Delta
from dataflow.expressions.compile import compile_expression
from dataflow.expressions.evaluator import RowErrors
from dataflow.expressions.ir import ColumnRef
from dataflow.operators.base import Context, Traits, kinds_of, types_of
from dataflow.plan.nodes import Project
from dataflow.plan.trees import in_postgres


class ProjectOperator:
    """Linear.

    State: none.
    Cost: O(rows of the delta); columns that are only passed on are not touched.
    NULL: as each expression says.

    is_loose: the output may be unconsolidated.
    """

    def __init__(self, plan: Project, context: Context) -> None:
        self._context = context
        self._types = types_of(plan.input.fields)
        self._kinds = kinds_of(plan.fields)
        self._cells = [
            e.index if isinstance(e, ColumnRef) else compile_expression(e, context.evaluator)
            for e in plan.expressions
        ]
        stored = {e.index for e in plan.expressions if isinstance(e, ColumnRef)}
        self._is_injective = len(stored) == len(plan.input.fields)
        self.is_unconsolidated = False
        # It consolidates anyway, unless no two rows can become equal.
        is_native = not any(map(in_postgres, plan.expressions))
        self.traits = Traits(
            is_linear=True,
            has_state=False,
            accepts_unconsolidated=is_native and not self._is_injective,
            may_skip_consolidation=True,
        )

    def step(self, delta: Delta) -> Delta:
        """Return the mapped rows of the delta; rows with a failing expression are left out."""
        n = len(delta)
        if n == 0:
            return Delta.empty(self._kinds)
        failed = RowErrors()
        columns: list[Column] = []
        for cell in self._cells:
            if isinstance(cell, int):
                columns.append(delta.columns[cell])
                continue
            column, errors = cell.evaluate(delta.columns, n)
            columns.append(column)
            for row, (sqlstate, text) in errors.by_row.items():
                failed.add(row, sqlstate, text)
        out = Delta(columns, delta.weights)
        if failed:
            self._context.collect(self._types, delta, failed)
            out = out.take(np.flatnonzero(~failed.mask(n)))
        return out if self._is_injective or self.is_unconsolidated else out.consolidate()
