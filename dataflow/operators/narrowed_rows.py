"""The rows of a table without key, once some of its columns are no longer told.

A row that leaves is told without those columns, so it is not found among the rows kept with them:
rows as they were are left alone, and what changed since is added up beside them. Invariant: both
together, without those columns, are the table's present rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dataflow.delta import Column, Delta
from storage.store import Arrangement, Sums


class NarrowedRows:
    """The part of an arrangement that a TableState needs.

    State: the rows as they were, by the whole row; for each row told since, how often it came
    more than it left.
    Cost: O(changes); `scan` reads all at once.
    NULL: what stands in the columns that are no longer told.
    """

    def __init__(self, whole: Arrangement, since: Sums, dead: Sequence[int]) -> None:
        self._whole = whole
        self._since = since
        self._dead = frozenset(dead)

    def apply(self, delta: Delta) -> None:
        """Take rows whose dead columns are NULL."""
        self._since.add(delta.columns, delta.weights.reshape(1, -1))

    def scan(self) -> Iterator[Delta]:
        """All rows, in one chunk, their dead columns NULL."""
        parts = [self._without_dead(chunk) for chunk in self._whole.scan()]
        parts += [Delta(keys, sums[0]) for keys, sums in self._since.scan()]
        if parts:
            yield Delta.concat(parts).consolidate()

    def _without_dead(self, rows: Delta) -> Delta:
        columns = [
            Column.nulls(column.kind, len(rows)) if at in self._dead else column
            for at, column in enumerate(rows.columns)
        ]
        return Delta(columns, rows.weights)
