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
    Cost: O(changes).
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
        """All rows, their dead columns NULL, in chunks that add up to them.

        What changed since comes first: so no row is taken away more often than it is there by
        whoever takes the chunks away one by one.
        """
        for keys, sums in self._since.scan():
            yield Delta(keys, sums[0])
        for chunk in self._whole.scan():
            yield self._without_dead(chunk).consolidate()

    def clear(self) -> None:
        """Remove every row."""
        self._whole.clear()
        self._since.clear()

    def row_count(self) -> int:
        """About how many rows there are, at most."""
        return self._whole.row_count() + self._since.key_count()

    def _without_dead(self, rows: Delta) -> Delta:
        columns = [
            Column.nulls(column.kind, len(rows)) if at in self._dead else column
            for at, column in enumerate(rows.columns)
        ]
        return Delta(columns, rows.weights)
