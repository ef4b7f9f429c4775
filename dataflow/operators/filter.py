"""Filter: the rows for which a predicate is true.

Invariant: the predicate depends on the row alone, so a retraction passes iff the insertion did.
"""

from __future__ import annotations

import numpy as np

from dataflow.delta import Column, Delta
from dataflow.expressions.compile import compile_expression
from dataflow.operators.base import Context, Traits, types_of
from dataflow.plan.nodes import Filter
from dataflow.plan.trees import in_postgres


class FilterOperator:
    """Linear.

    State: none. Cost: O(rows of the delta). NULL: a predicate that is NULL drops the row, like
    false.
    """

    def __init__(self, plan: Filter, context: Context) -> None:
        self._context = context
        self._types = types_of(plan.input.fields)
        self._predicate = compile_expression(plan.predicate, context.evaluator)
        # A repeated row costs next to nothing, unless PostgreSQL evaluates it.
        self.traits = Traits(
            is_linear=True,
            has_state=False,
            passes_rows=True,
            accepts_unconsolidated=not in_postgres(plan.predicate),
        )

    def step(self, delta: Delta) -> Delta:
        """Return the delta's rows that pass, with their weights."""
        n = len(delta)
        if n == 0:
            return delta
        verdict, errors = self._predicate.evaluate(delta.columns, n)
        keep = is_true(verdict)
        if errors:
            self._context.collect(self._types, delta, errors)
            keep = keep & ~errors.mask(n)
        return delta.filter(keep)


def is_true(verdict: Column) -> np.ndarray:
    """Return bool[n]: where a boolean column is true, neither false nor NULL."""
    return verdict.values if verdict.valid is None else verdict.values & verdict.valid
