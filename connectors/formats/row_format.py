"""Combine the readers of values and keys: records to rows, removals and bad records.

A record without a value is a removal if some columns are in its key, else it is malformed. A record
with any fault is not a row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from connectors.formats.declared import KEY, DeclaredColumn
from connectors.formats.fields import Fault, Fields, Reader, no_key, no_value, null_value
from connectors.formats.record_format import BadRecord, Decoded, Raws, decode_apart
from dataflow.delta import Column


class RowFormat:
    """A RecordFormat of two readers; key_reader is None if no column is in the key."""

    def __init__(
        self, columns: Sequence[DeclaredColumn], value_reader: Reader, key_reader: Reader | None
    ) -> None:
        self._columns = columns
        self._value_reader = value_reader
        self._key_reader = key_reader

    def decode(
        self, values: Sequence[bytes | None], keys: Sequence[bytes | None] | None = None
    ) -> Decoded:
        """See RecordFormat."""
        return decode_apart(self._decode, values, keys)

    def _decode(self, values: Raws, keys: Raws | None) -> Decoded:
        n = len(values)
        has_value = np.fromiter((value is not None for value in values), np.bool_, n)
        positions = {KEY: np.arange(0), "value": np.flatnonzero(has_value)}
        bad: dict[int, Fault] = {}
        read = self._value_reader.read([value for value in values if value is not None])
        parts = {"value": read}
        if self._key_reader is None:
            for row in np.flatnonzero(~has_value).tolist():
                bad[row] = no_value()
        else:
            given = [None] * n if keys is None else keys
            has_key = np.fromiter((key is not None for key in given), np.bool_, n)
            positions[KEY] = np.flatnonzero(has_key)
            parts[KEY] = self._key_reader.read([key for key in given if key is not None])
            for row in np.flatnonzero(~has_key).tolist():
                bad[row] = no_key()
        for origin, part in parts.items():
            rows = positions[origin].tolist()
            for number, fault in part.bad.items():
                bad.setdefault(rows[number], fault)
        columns = self._spread(parts, positions, n)
        self._refuse_nulls(columns, has_value, bad)
        return finish(columns, ~has_value, bad, has_removals=self._key_reader is not None)

    def _spread(
        self, parts: dict[str, Fields], positions: dict[str, np.ndarray], n: int
    ) -> list[Column]:
        """Return the columns of all records in their declared order; NULL if a part is missing."""
        left = {origin: iter(part.columns) for origin, part in parts.items()}
        columns = []
        for declared in self._columns:
            column, rows = next(left[declared.origin]), positions[declared.origin]
            if len(rows) < n:
                # The row after the last one is NULL.
                index = np.full(n, len(rows), np.int64)
                index[rows] = np.arange(len(rows))
                column = Column.concat([column, Column.nulls(column.kind, 1)]).take(index)
            columns.append(column)
        return columns

    def _refuse_nulls(
        self, columns: list[Column], has_value: np.ndarray, bad: dict[int, Fault]
    ) -> None:
        for declared, column in zip(self._columns, columns, strict=True):
            if declared.field.is_nullable or column.valid is None:
                continue
            nulls = ~column.valid if declared.origin == KEY else ~column.valid & has_value
            for row in np.flatnonzero(nulls).tolist():
                bad.setdefault(row, null_value(declared))


def finish(
    columns: Sequence[Column],
    removes: np.ndarray,
    bad: dict[int, Fault],
    *,
    has_removals: bool,
) -> Decoded:
    """Return the rows of the records that are not bad."""
    rows = np.arange(len(removes), dtype=np.int64)
    if bad:
        rows = np.delete(rows, sorted(bad))
        columns, removes = [column.take(rows) for column in columns], removes[rows]
    bad_records = [BadRecord(row, *bad[row]) for row in sorted(bad)]
    return Decoded(list(columns), rows, bad_records, removes if has_removals else None)
