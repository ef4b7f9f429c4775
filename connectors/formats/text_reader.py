"""Records that are one value each: plain text lines, and keys that are a bare text.

Every declared column gets the whole record, as the input function of its type reads it.
"""

from __future__ import annotations

from collections.abc import Sequence

from connectors.formats.columns import column_of_texts
from connectors.formats.declared import DeclaredColumn
from connectors.formats.encoded import column_of_base64
from connectors.formats.fields import Fields, bad_value, shown, utf8_records
from connectors.formats.times import column_of_counts
from dataflow.delta import KIND_BYTES, Column
from dataflow.errors import SourceError

TEXT = "text"


class TextReader:
    """Reads the whole record as the value."""

    def __init__(self, columns: Sequence[DeclaredColumn]) -> None:
        for column in columns:
            refuse_array(column, TEXT)
        self._columns = columns

    def read(self, records: Sequence[bytes]) -> Fields:
        """Return one value for each record in each column; an empty record is an empty text."""
        fields = Fields([])
        records, _ = utf8_records(records, fields)
        read_columns(self._columns, [Column.of(KIND_BYTES, records)] * len(self._columns), fields)
        return fields


def read_columns(
    columns: Sequence[DeclaredColumn], texts: Sequence[Column], fields: Fields
) -> None:
    """Convert texts to the values of each column, for formats that only have texts."""
    for column, cells in zip(columns, texts, strict=True):
        if column.unit:
            values, faults = column_of_counts(column.field.type, column.unit, cells)
        elif column.encoding == "base64":
            values, faults = column_of_base64(cells)
        else:
            values, faults = column_of_texts(column.field.type, cells)
        fields.columns.append(values)
        for row, reason in faults.items():
            cell = cells.slice(row, row + 1).to_list()[0]
            reason = f"{reason}: {shown(cell or b'')}"
            fields.refuse(row, bad_value(column.field.name, reason))


def refuse_array(column: DeclaredColumn, format_name: str) -> None:
    """Refuse an array in a format that has none. SourceError format.type."""
    if column.element is not None:
        raise SourceError(
            "format.type",
            f'column "{column.field.name}" is an array, which {format_name} records do not have',
            detail=column.field.type.name,
            hint="declare it as text",
        )
