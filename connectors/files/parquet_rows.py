"""Rows of a Parquet file: columns by name, a bounded number of rows and bytes at a time.

Invariant: a file whose footer or pages cannot be read ends in UnreadableFile; rows read before that
stay valid. Rows are numbered from 1 through all row groups.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
import pyarrow as pa

from connectors.files.stream import UnreadableFile
from connectors.formats.arrow_columns import column_of_batch
from connectors.formats.declared import DeclaredColumn
from connectors.formats.fields import Fields, null_value
from connectors.formats.parquet_file import ParquetInput
from connectors.outside.bounded import OverLimitError
from dataflow.errors import TemporaryError

BATCH_ROWS = 16_384


@dataclass(frozen=True)
class ParquetRows:
    """All records of a batch, the faulty ones with NULLs. after: number of rows before them in the
    file.
    """

    fields: Fields
    after: int
    batch: pa.RecordBatch

    def raw(self, row: int) -> bytes:
        """Return a record as JSON, for people."""
        names = self.batch.schema.names
        found = {name: _shown(self.batch.column(i)[row]) for i, name in enumerate(names)}
        return json.dumps(found, default=str, ensure_ascii=False).encode(errors="replace")


def open_parquet(file: IO[bytes]) -> ParquetInput:
    """Open a file and read its footer."""
    try:
        found = ParquetInput(file)
        # Decoded here, where a name that is not UTF-8 has a known cause.
        found.names()
    except UnicodeDecodeError:
        raise UnreadableFile("the name of a column is not UTF-8") from None
    except (pa.ArrowException, OSError, OverLimitError) as error:
        raise _unreadable(error) from None
    return found


def group_ends(parquet: ParquetInput) -> list[int]:
    """Return the number of rows up to the end of each row group."""
    return np.cumsum(parquet.group_rows(), dtype=np.int64).tolist()


def parquet_rows(
    parquet: ParquetInput,
    columns: Sequence[DeclaredColumn],
    after: int = 0,
    groups: tuple[int, int | None] = (0, None),
) -> Iterator[ParquetRows]:
    """Read row groups [first, end), except those that end within the first `after` rows."""
    ends = group_ends(parquet)
    first, end = groups[0], len(ends) if groups[1] is None else groups[1]
    while first < end and ends[first] <= after:
        first += 1
    number = ends[first - 1] if first else 0
    there = set(parquet.names())
    names = list(dict.fromkeys(c.path[0] for c in columns if c.path and c.path[0] in there))
    batches = parquet.batches(names, range(first, end), BATCH_ROWS)
    while (batch := _next(batches)) is not None:
        if not names:
            batch = batch.select([])
        yield ParquetRows(_fields(columns, batch), number, batch)
        number += batch.num_rows


def _shown(value: pa.Scalar) -> Any:
    try:
        return value.as_py()
    except UnicodeDecodeError:
        # A string, or one inside a list or structure.
        is_text = hasattr(value, "as_buffer")
        return str(value.as_buffer().to_pybytes()) if is_text else str(value.type)
    except (ValueError, OverflowError):
        # A timestamp outside of Python's calendar.
        return getattr(value, "value", value.type)


def _next(batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch | None:
    try:
        return next(batches, None)
    except (pa.ArrowException, OSError, OverLimitError) as error:
        raise _unreadable(error) from None


def _fields(columns: Sequence[DeclaredColumn], batch: pa.RecordBatch) -> Fields:
    fields = Fields([])
    for declared in columns:
        column, faults = column_of_batch(declared, batch)
        fields.columns.append(column)
        fields.refuse_values(declared.field.name, faults)
        if not declared.field.is_nullable and column.valid is not None:
            for row in np.flatnonzero(~column.valid).tolist():
                fields.refuse(row, null_value(declared))
    return fields


def _unreadable(error: Exception) -> Exception:
    """Return UnreadableFile for a corrupt page, which Arrow raises as an OSError without errno."""
    if isinstance(error, OverLimitError):
        return UnreadableFile(str(error))
    if isinstance(error, OSError) and error.errno:
        what = "a Parquet file cannot be read"
        return TemporaryError("source.file_denied", what, detail=str(error))
    return UnreadableFile(f"it is not a complete Parquet file: {str(error)[:200]}")
