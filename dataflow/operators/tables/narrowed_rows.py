"""The rows of a table without key, once the source no longer reports some of its columns.

A deleted row arrives without those columns, so it cannot be found among the stored rows that have
them. The old rows therefore stay unchanged, and changes since are summed separately. Invariant:
both together, without those columns, are the table's present rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dataflow.delta import Column, Delta
from storage.store import Arrangement, Sums


class NarrowedRows:
    """The subset of an arrangement's interface that a TableState needs.

    State: the old rows, by the whole row; the net weight of each row reported since. Cost:
    O(changes). NULL: the value of the columns that are no longer reported.
    """

    def __init__(self, whole: Arrangement, since: Sums, dead: Sequence[int]) -> None:
        self._whole = whole
        self._since = since
        self._dead = frozenset(dead)

    def apply(self, delta: Delta) -> None:
        """Apply rows whose dead columns are NULL."""
        self._since.add(delta.columns, delta.weights.reshape(1, -1))

    def scan(self) -> Iterator[Delta]:
        """Yield all rows, dead columns NULL, in chunks that add up to them.

        The changes since come first, so that a reader that retracts chunk by chunk never retracts a
        row more often than it exists.
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
        """Return an upper estimate of the number of rows."""
        return self._whole.row_count() + self._since.key_count()

    def _without_dead(self, rows: Delta) -> Delta:
        columns = [
            Column.nulls(column.kind, len(rows)) if at in self._dead else column
            for at, column in enumerate(rows.columns)
        ]
        return Delta(columns, rows.weights)
