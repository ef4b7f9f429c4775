"""INTERSECT and EXCEPT, with and without ALL.

Invariant: after each epoch the counts of a key in both inputs determine how often its row is in the
output. The row shows values of the key's live left rows.
"""

from __future__ import annotations

import numpy as np

from dataflow.delta import Column, Delta, equal_rows
from dataflow.errors import InvariantError
from dataflow.operators.aggregates.extremes import Extremes
from dataflow.operators.aggregates.linear import Feed
from dataflow.operators.base import Context, Traits, kinds_of
from dataflow.operators.groups import Touched, columns_at, touch
from dataflow.plan.aggregate_functions import LEAST
from dataflow.plan.nodes import SetOperation


class SetOperationOperator:
    """Group: touched keys are counted again in both inputs, new minus old.

    The first `compared` columns are the key, in key form (lowering ensures it). Each further column
    shows the least value by text among the left rows of a key. State: the number of left and of
    right rows of each key; for each further column its values by key. Cost: O(rows of the deltas);
    a key's values are read again when the least one is retracted. NULL: equals NULL.
    """

    traits = Traits(needs_evaluator=False)

    def __init__(self, plan: SetOperation, context: Context) -> None:
        self._context = context
        self._kind, self._is_all = plan.kind, plan.is_all
        fields = plan.left.fields
        self._kinds = kinds_of(fields)
        self._compared = len(fields) if plan.compared is None else plan.compared
        key_kinds = self._kinds[: self._compared]
        self._counts = context.arrange_sums("counts", key_kinds, 2)
        self._shown = [
            Extremes(context, f"shown {i}", key_kinds, (i, fields[i].type))
            for i in range(self._compared, len(fields))
        ]
        for extremes in self._shown:
            extremes.want(LEAST)

    def step(self, left: Delta, right: Delta) -> Delta:
        """Return the change of the output rows."""
        n = len(left) + len(right)
        if n == 0:
            return Delta.empty(self._kinds)
        key = range(self._compared)
        sides = zip(columns_at(left, key), columns_at(right, key), strict=True)
        touched = touch([Column.concat(pair) for pair in sides], n)
        old, new = self._count(touched, left, right)
        feed = Feed(dict(enumerate(left.columns)), left.weights, touched.group[: len(left)])
        shown = [extremes.advance(touched, feed)[LEAST] for extremes in self._shown]
        return self._turned(touched, self._times(old), self._times(new), shown)

    def _count(self, touched: Touched, left: Delta, right: Delta) -> tuple[np.ndarray, np.ndarray]:
        """Return int64[2, keys]: the rows of each key in either input, before and after."""
        change = np.zeros((2, touched.count), np.int64)
        np.add.at(change[0], touched.group[: len(left)], left.weights)
        np.add.at(change[1], touched.group[len(left) :], right.weights)
        old = self._counts.lookup(touched.keys)
        self._counts.add(touched.keys, change)
        new = old + change
        if new.min() < 0:
            raise InvariantError(
                "state.negative_weight",
                f'operator "{self._context.name}" would keep a key with {new.min()} rows',
                hint="rebuild the view",
            )
        return old, new

    def _times(self, counts: np.ndarray) -> np.ndarray:
        """Return int64[keys]: how often each key is in the output."""
        left, right = counts
        if self._kind == "intersect":
            times = np.minimum(left, right)
        elif self._is_all:
            times = np.maximum(left - right, 0)
        else:
            times = np.where(right == 0, left, 0)
        return times if self._is_all else np.minimum(times, 1)

    def _turned(
        self, touched: Touched, old: np.ndarray, new: np.ndarray, shown: list[Column]
    ) -> Delta:
        """Return new minus old, from columns [2 * keys]: all old values, then all new ones."""
        every = np.arange(touched.count)
        same = equal_rows(shown, every, shown, every + touched.count)
        # Where the shown values are the same, emit only the difference of the counts.
        gone = np.where(same, 0, -old)
        come = np.where(same, new - old, new)
        weights = np.concatenate([gone, come])
        chosen = np.flatnonzero(weights)
        keys = [k.take(chosen % touched.count) for k in touched.keys]
        return Delta([*keys, *(c.take(chosen) for c in shown)], weights[chosen])
