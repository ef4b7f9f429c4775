"""Remember: expressions whose result may change later, computed once for each row.

Invariant: a row leaves with exactly the values that it arrived with, so that everything derived
from them is retracted.
"""

from __future__ import annotations

import numpy as np

from dataflow.delta import Column, Delta
from dataflow.expressions.compile import compile_expression
from dataflow.expressions.evaluator import RowErrors
from dataflow.operators.base import Context, Traits, kinds_of, types_of
from dataflow.plan.nodes import Remember


class RememberOperator:
    """Linear, over the stored values of each row.

    State: the input rows with their values, by the whole input row; the rows that failed, with
    their errors. Cost: O(rows of the delta); only new rows are computed. NULL: as each expression
    defines.
    """

    traits = Traits()

    def __init__(self, plan: Remember, context: Context) -> None:
        self._context = context
        self._types = types_of(plan.input.fields)
        self._kinds = kinds_of(plan.fields)
        self._width = len(plan.input.fields)
        key = tuple(range(self._width))
        self._cells = [compile_expression(e, context.evaluator) for e in plan.expressions]
        self._rows = context.arrange("rows", self._kinds, key)
        self._failed = context.arrange("failed", kinds_of(plan.input.fields) + "ss", key)

    def step(self, delta: Delta) -> Delta:
        """Return the delta's rows with their stored or newly computed values."""
        if len(delta) == 0:
            return Delta.empty(self._kinds)
        delta = delta.consolidate()
        index, stored = self._rows.lookup(delta.columns)
        known = np.zeros(len(delta), np.bool_)
        known[index] = True
        parts = [stored.weighted(delta.weights[index])]
        index, failed = self._failed.lookup(delta.columns)
        known[index] = True
        failures = [failed.weighted(delta.weights[index])]
        fresh = delta.take(np.flatnonzero(~known))
        if len(fresh):
            computed, failing = self._compute(fresh)
            parts.append(computed)
            failures.append(failing)
        out, lost = Delta.concat(parts), Delta.concat(failures)
        if len(lost):
            self._failed.apply(lost)
            states, texts = (lost.columns[self._width + i].texts() for i in (0, 1))
            pairs = zip(states, texts, strict=True)
            errors = RowErrors({i: (str(s), str(t)) for i, (s, t) in enumerate(pairs)})
            self._context.collect(self._types, lost.project(range(self._width)), errors)
        self._rows.apply(out)
        return out

    def _compute(self, rows: Delta) -> tuple[Delta, Delta]:
        """Return (rows with their values, rows that fail with SQLSTATE and message)."""
        n = len(rows)
        failed = RowErrors()
        columns = []
        for cell in self._cells:
            column, errors = cell.evaluate(rows.columns, n)
            columns.append(column)
            for row, error in errors.by_row.items():
                failed.add(row, *error)
        out = Delta([*rows.columns, *columns], rows.weights)
        if not failed:
            return out, Delta.empty(self._kinds[: self._width] + "ss")
        is_lost = failed.mask(n)
        positions = np.flatnonzero(is_lost)
        reported = [failed.by_row[int(i)] for i in positions]
        texts = [Column.of("s", [error[i] for error in reported]) for i in (0, 1)]
        lost = rows.take(positions)
        return out.take(np.flatnonzero(~is_lost)), Delta([*lost.columns, *texts], lost.weights)
