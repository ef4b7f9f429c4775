"""The difference between the rows of a view's new version and the rows that it shows.

If both have the same columns and key, it is the table's own delta: the table stays, with everything
that users and other views have put on it. Otherwise it is computed over the common columns, for the
views that read this one. Invariant: memory is bounded by `buffered`; the sum is exactly the new
rows minus the old rows once both are complete up to one epoch.
"""

from __future__ import annotations

from collections.abc import Iterator

from connectors.sink import SinkTable
from dataflow.delta import Delta
from service.engine.epoch_buffer import EpochBuffer


class Difference:
    """Of one build. columns: those of the new version that the old one has too, in order."""

    def __init__(self, before: SinkTable, table: SinkTable, buffered: EpochBuffer) -> None:
        """Collect the difference in `buffered`; it is that of the table itself if the table
        stays.
        """
        positions = {f.name: i for i, f in enumerate(before.fields)}
        self.columns = tuple(
            i
            for i, f in enumerate(table.fields)
            if f.name in positions and before.fields[positions[f.name]].type == f.type
        )
        self._positions = tuple(positions[table.fields[i].name] for i in self.columns)
        self._width = len(table.fields)
        self._old_width = len(before.fields)
        self._table = table if is_one_shape(before, table) else self._narrowed(table)
        self._buffered = buffered

    def _narrowed(self, table: SinkTable) -> SinkTable:
        key = [self.columns.index(i) for i in table.key if i in self.columns]
        fields = tuple(table.fields[i] for i in self.columns)
        is_whole = len(key) == len(table.key)
        return SinkTable(table.schema, table.name, fields, tuple(key) if is_whole else ())

    def add_new(self, rows: Delta) -> None:
        """Changes of the new version; all of its rows are, to begin with."""
        self._buffered.add(self._table, _only(rows, self.columns, self._width))

    def add_old(self, rows: Delta) -> None:
        """Changes of the old version, or all of its rows."""
        found = _only(rows, self._positions, self._old_width)
        self._buffered.add(self._table, found.negate())

    def parts(self) -> Iterator[Delta]:
        """Yield the difference in the common columns, in consolidated parts."""
        for part in self._buffered:
            yield from (delta for _, delta in part.deltas)

    def close(self) -> None:
        """Release its memory and files."""
        self._buffered.close()


def is_one_shape(before: SinkTable, table: SinkTable) -> bool:
    """Return True if rows of both fit a table of the same columns and key."""
    old, new = ([(f.name, f.type) for f in t.fields] for t in (before, table))
    return old == new and before.key == table.key


def _only(rows: Delta, columns: tuple[int, ...], width: int) -> Delta:
    if columns == tuple(range(width)):
        return rows
    found = rows.project(columns)
    return found if len(columns) == width else found.consolidate()
