"""A column that says whether a row's value is on one side of a threshold that moves.

Invariant: after each epoch every row is out once, with the truth value of its comparison. When the
threshold moves, only the rows between its old and its new position change.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dataflow.delta import Column, Delta
from dataflow.operators.groups import split_nulls
from dataflow.operators.ordered.ordering import peer_ranks
from dataflow.operators.ordered.threshold_filter import ThresholdFilterOperator


class ThresholdFlagOperator(ThresholdFilterOperator):
    """Group: one group of all rows, of which those between two thresholds are emitted again.

    State: as of ThresholdFilterOperator.
    Cost: O(log n) for each changed row; O(log n + rows between) for each move of the threshold.
    NULL: the flag is NULL where the value is, and everywhere while the threshold is.
    """

    def _changes(self, rows: Delta, threshold: Delta, max_rows: int) -> Iterator[Delta]:
        if len(threshold):
            old = self._present()
            self._threshold.apply(threshold)
            yield from self._turned(old, self._present(), max_rows)
        rows, unknown = split_nulls(rows, (self._value,))
        if unknown is not None and len(unknown):
            yield _flagged(unknown, Column.nulls("b", len(unknown)))
        if len(rows):
            yield _flagged(rows, self._flags(rows))
            self._rows.apply(rows)

    def _flags(self, rows: Delta) -> Column:
        """The flag of each row."""
        threshold = self._present()
        if threshold is None:
            return Column.nulls("b", len(rows))
        values = Column.concat([rows.columns[self._value], threshold])
        ranks = peer_ranks(self._type, values, self._evaluator)
        own, edge = ranks[:-1], ranks[-1]
        passes = own > edge if self._is_after else own < edge
        return Column(passes | (own == edge) if self._has_peers else passes)

    def _turned(self, old: Column | None, new: Column | None, max_rows: int) -> Iterator[Delta]:
        """The kept rows whose flag changes, without the old one and with the new one."""
        before, after = self._edge(old), self._edge(new)
        low, high = min(before, after), max(before, after)
        if (old is None) != (new is None):
            low, high = 0, int(self._rows.sizes((), 1)[0])
        for start in range(low, high, max_rows):
            end = min(start + max_rows, high)
            found = self._rows.ranges((), np.array([start]), np.array([end]))
            for threshold, edge, sign in ((old, before, -1), (new, after, 1)):
                flags = Column.nulls("b", len(found.rows))
                if threshold is not None:
                    flags = Column((found.start >= edge) == self._is_after)
                yield _flagged(found.rows.weighted(found.rows.weights * sign), flags)


def _flagged(rows: Delta, flags: Column) -> Delta:
    return Delta([*rows.columns, flags], rows.weights)
