"""Remember by arguments: an expression that calls a replaceable function, computed once for each
combination of its arguments.

Invariant: while a row with these arguments exists, all rows with them have one result, possibly an
error, and leave with it.
"""

from __future__ import annotations

import numpy as np

from dataflow.delta import Column, Delta
from dataflow.expressions.compile import compile_expression
from dataflow.expressions.evaluator import RowErrors
from dataflow.expressions.ir import columns_of
from dataflow.operators.base import Context, Traits, kinds_of, types_of
from dataflow.operators.groups import Touched, columns_at, touch, value_at
from dataflow.plan.nodes import Remember


class RememberAnswersOperator:
    """Linear, over the stored results of one expression.

    State: (arguments, result) and (arguments, SQLSTATE, error message) by the arguments, weighted
    by the number of rows with them. Cost: O(rows of the delta); only new arguments are computed.
    NULL: as the expression says.
    """

    traits = Traits()

    def __init__(self, plan: Remember, context: Context) -> None:
        (expression,) = plan.expressions
        self._context = context
        self._types = types_of(plan.input.fields)
        self._kinds = kinds_of(plan.fields)
        self._used = sorted(columns_of(expression))
        self._cell = compile_expression(expression, context.evaluator)
        kinds = "".join(self._kinds[c] for c in self._used)
        key = tuple(range(len(kinds)))
        self._answers = context.arrange("answers", kinds + expression.type.physical, key)
        self._failed = context.arrange("failed", kinds + "ss", key)

    def step(self, delta: Delta) -> Delta:
        """Return the delta's rows with their stored or newly computed results."""
        n = len(delta)
        if n == 0:
            return Delta.empty(self._kinds)
        touched = touch(columns_at(delta, self._used), n)
        answers, position, errors = self._answered(delta, touched)
        self._keep(touched, touched.sum(delta.weights), (answers, position, errors))
        out = Delta([*delta.columns, value_at(answers, position[touched.group])], delta.weights)
        if not errors:
            return out
        is_lost = errors.mask(touched.count)[touched.group]
        lost = np.flatnonzero(is_lost)
        found = RowErrors({int(i): errors.by_row[int(touched.group[i])] for i in lost})
        self._context.collect(self._types, delta, found)
        return out.take(np.flatnonzero(~is_lost))

    def _answered(self, delta: Delta, touched: Touched) -> tuple[Column, np.ndarray, RowErrors]:
        """Return (results, int64 position among them of each touched key or -1, errors of keys)."""
        position = np.full(touched.count, -1, np.int64)
        index, stored = self._answers.lookup(touched.keys)
        position[index] = np.arange(len(index))
        errors = RowErrors()
        index, failed = self._failed.lookup(touched.keys)
        states, texts = (column.texts() for column in failed.columns[-2:])
        for at, state, text in zip(index.tolist(), states, texts, strict=True):
            errors.add(at, state or "", text or "")
        fresh = np.flatnonzero((position < 0) & ~errors.mask(touched.count))
        answers = stored.columns[-1]
        if len(fresh):
            rows = delta.take(touched.representative[fresh])
            found, failures = self._cell.evaluate(rows.columns, len(fresh))
            position[fresh] = len(answers) + np.arange(len(fresh))
            answers = Column.concat([answers, found])
            for at, error in failures.by_row.items():
                errors.add(int(fresh[at]), *error)
                position[fresh[at]] = -1
        return answers, position, errors

    def _keep(
        self,
        touched: Touched,
        counts: np.ndarray,
        found: tuple[Column, np.ndarray, RowErrors],
    ) -> None:
        answers, position, errors = found
        moved = np.flatnonzero((counts != 0) & (position >= 0))
        if len(moved):
            keys = [k.take(moved) for k in touched.keys]
            self._answers.apply(Delta([*keys, answers.take(position[moved])], counts[moved]))
        failed = np.array([k for k in sorted(errors.by_row) if counts[k]], np.int64)
        if len(failed):
            keys = [k.take(failed) for k in touched.keys]
            reported = [errors.by_row[int(k)] for k in failed]
            texts = [Column.of("s", [error[i] for error in reported]) for i in (0, 1)]
            self._failed.apply(Delta([*keys, *texts], counts[failed]))
