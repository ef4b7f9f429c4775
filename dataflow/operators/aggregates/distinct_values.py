"""The distinct values of a column by group, for count(DISTINCT x) and similar calls.

Invariant: a group's feed gains a value when its first row arrives and loses it when the last one
leaves.
"""

from __future__ import annotations

import numpy as np

from dataflow.delta import Column, equal_rows
from dataflow.errors import InvariantError
from dataflow.expressions.compile import compile_expression
from dataflow.expressions.ir import ColumnRef
from dataflow.expressions.keys import key_form
from dataflow.operators.aggregates.extremes import Extremes
from dataflow.operators.aggregates.linear import Feed
from dataflow.operators.base import Context
from dataflow.operators.groups import Touched, touch
from dataflow.plan.aggregate_functions import LEAST
from dataflow.types import SqlType


class DistinctValues:
    """Turns a feed of rows into a feed of distinct values.

    State: the number of rows of each (group, value). Where equal values may differ in bits (1.5 and
    1.50), the values by (group, key form) instead; the least by text represents them. Cost: O(rows
    of the delta).
    """

    def __init__(
        self, context: Context, key_kinds: str, column: tuple[int, SqlType], is_counted: bool
    ) -> None:
        self._position, type = column
        reference = ColumnRef(0, type)
        form = reference if is_counted else key_form(reference)
        if form is None:
            raise InvariantError("plan.distinct", f"no key form of type {type.name}")
        self._form = None
        if form == reference:
            role = f"distinct {self._position}{' counted' if is_counted else ''}"
            self._counts = context.arrange_sums(role, key_kinds + type.physical, 1)
            return
        self._form = compile_expression(form, context.evaluator)
        kinds = key_kinds + form.type.physical
        self._least = Extremes(context, f"distinct {self._position}", kinds, column)
        self._least.want(LEAST)

    def advance(self, touched: Touched, feed: Feed) -> Feed:
        """Return the values that become or cease to be present, with weight 1 or -1."""
        column, group, weights = feed.columns[self._position], feed.group, feed.weights
        if column.valid is not None:
            chosen = np.flatnonzero(column.valid)
            column, group, weights = column.take(chosen), group[chosen], weights[chosen]
        n = len(group)
        form = column if self._form is None else self._form.evaluate((column,), n)[0]
        # The outer groups have few keys: gather them for the distinct pairs only.
        pairs = touch((Column(group), form), n)
        owner = group[pairs.representative]
        keys = (*(k.take(owner) for k in touched.keys), pairs.keys[1])
        found = Touched(keys, pairs.group, pairs.representative)
        if self._form is not None:
            return self._represented(
                found, owner, Feed({self._position: column}, weights, pairs.group)
            )
        change = found.sum(weights)
        old = self._counts.lookup(keys)[0]
        self._counts.add(keys, change[np.newaxis])
        turns = (old + change > 0).astype(np.int64) - (old > 0)
        chosen = np.flatnonzero(turns)
        values = pairs.keys[1].take(chosen)
        return Feed({self._position: values}, turns[chosen], owner[chosen])

    def _represented(self, found: Touched, owner: np.ndarray, feed: Feed) -> Feed:
        both = self._least.advance(found, feed)[LEAST]
        every = np.arange(found.count)
        moved = np.flatnonzero(~equal_rows([both], every, [both], every + found.count))
        mask = both.mask()
        gone = moved[mask[moved]]
        come = moved[mask[moved + found.count]]
        values = both.take(np.concatenate([gone, come + found.count]))
        turns = np.repeat(np.array([-1, 1], np.int64), [len(gone), len(come)])
        return Feed({self._position: values}, turns, owner[np.concatenate([gone, come])])
