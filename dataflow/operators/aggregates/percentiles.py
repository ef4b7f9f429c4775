"""percentile_cont and percentile_disc of one column: the rows at a few positions of its order.

Invariant: positions and interpolation are those of orderedsetaggs.c, over the live values of a
group that are not NULL.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dataflow.delta import Column, Delta
from dataflow.operators.aggregates.linear import Feed
from dataflow.operators.base import Context
from dataflow.operators.groups import Touched, value_at
from dataflow.operators.ordered.ordered_rows import Order, OrderedRows
from dataflow.types import SqlType
from dataflow.values import one_nan

Desired = tuple[str, float]


class Percentiles:
    """Any percentiles of one column in one direction.

    State: (group, value) in order by group, once.
    Cost: O(log n) for each row of the delta, and for each percentile of a touched group.
    """

    def __init__(
        self, context: Context, key_kinds: str, column: tuple[int, SqlType], *, is_descending: bool
    ) -> None:
        self._position, type = column
        key = tuple(range(len(key_kinds)))
        order = [Order(len(key), type, is_descending)]
        role = f"percentiles {self._position}" + (" descending" if is_descending else "")
        self._rows = OrderedRows(context, role, key_kinds + type.physical, key, order)
        self._desired: list[Desired] = []
        self._kind = type.physical

    def want(self, function: str, fraction: float) -> None:
        """Add a percentile, 0 <= fraction <= 1."""
        if (function, fraction) not in self._desired:
            self._desired.append((function, fraction))

    def advance(self, touched: Touched, feed: Feed) -> dict[Desired, Column]:
        """Apply a feed; return each percentile before, then after; NULL for a group without
        values."""
        column, weights, group = feed.columns[self._position], feed.weights, feed.group
        if column.valid is not None:
            chosen = np.flatnonzero(column.valid)
            column, weights, group = column.take(chosen), weights[chosen], group[chosen]
        old = self._values(touched)
        keys = [k.take(group) for k in touched.keys]
        self._rows.apply(Delta([*keys, column], weights).consolidate())
        new = self._values(touched)
        return {w: Column.concat([a, b]) for w, a, b in zip(self._desired, old, new, strict=True)}

    def _values(self, touched: Touched) -> list[Column]:
        """Return one column for each requested percentile."""
        sizes = self._rows.sizes(touched.keys, touched.count)
        answers = []
        for function, fraction in self._desired:
            if function == "percentile_disc":
                position = np.ceil(fraction * sizes).astype(np.int64) - 1
                answers.append(self._at(touched.keys, np.maximum(position, 0), sizes))
                continue
            exact = fraction * (sizes - 1)
            low = self._at(touched.keys, np.floor(exact).astype(np.int64), sizes)
            high = self._at(touched.keys, np.ceil(exact).astype(np.int64), sizes)
            answers.append(_between(low, high, exact - np.floor(exact)))
        return answers

    def _at(self, keys: Sequence[Column], position: np.ndarray, sizes: np.ndarray) -> Column:
        """Return the value at a position of each group; NULL for an empty one."""
        held = np.flatnonzero(sizes)
        ranks = position[held]
        found = self._rows.ranges([k.take(held) for k in keys], ranks, ranks + 1)
        at = np.full(len(position), -1, np.int64)
        at[held[found.index]] = np.arange(len(found.index))
        return value_at(found.rows.columns[-1], at)


def _between(low: Column, high: Column, share: np.ndarray) -> Column:
    """Return low + share * (high - low); the value itself where both are equal."""
    with np.errstate(invalid="ignore", over="ignore"):
        mixed = low.values + share * (high.values - low.values)
    values = np.where(share == 0, low.values, mixed)
    return Column(one_nan(np.where(low.mask(), values, 0.0)), low.valid)
