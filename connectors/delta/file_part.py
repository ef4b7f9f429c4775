"""Parts of the files of a Delta table, and their rows as changes of a relation.

A part is some row groups of a file, so a large file is read by several processes. Invariant: the
parts of a file hold each of its rows once, and a row is read to the same values wherever it lies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.fs import FileSystem

from connectors.delta.table_log import CHANGES, INSERTS, DataFile, FolderFiles, open_files, reached
from connectors.delta.table_options import FAIL, TableOptions
from connectors.delta.table_schema import TIMESTAMP, TableSchema
from connectors.formats.arrow_columns import column_of_array, column_of_batch
from connectors.formats.columns import Faults
from connectors.formats.declared import DeclaredColumn, resolved
from connectors.formats.parquet_file import ParquetInput
from connectors.outside.bounded import OverLimitError
from dataflow.changes import Changes
from dataflow.delta import Column
from dataflow.errors import SourceError
from dataflow.schema import Relation

BATCH_ROWS = 65_536
# A part is about so many bytes of a file.
PART_BYTES = 32 << 20
CHANGE_TYPE = "_change_type"
_KINDS = {
    "insert": Changes.INSERT,
    "update_postimage": Changes.INSERT,
    "delete": Changes.DELETE,
    "update_preimage": Changes.DELETE,
}


@dataclass(frozen=True)
class FilePart:
    """Part `number` of `count` of a file of a version."""

    file: DataFile
    version: int
    number: int = 0
    count: int = 1

    @property
    def rows(self) -> int:
        """About how many rows it has."""
        return max(1, self.file.rows // self.count)


def parts_of(files: Sequence[DataFile], version: int, part_bytes: int) -> list[FilePart]:
    """Return the parts of files, in their order."""
    found = []
    for file in files:
        count = max(1, -(-file.size_bytes // part_bytes))
        found += [FilePart(file, version, number, count) for number in range(count)]
    return found


class PartReader:
    """Reads parts of one table with a schema. skipped: rows that did not fit, so far."""

    def __init__(self, relation: Relation, options: TableOptions, schema: TableSchema) -> None:
        self.skipped = 0
        self._relation = relation
        self._options = options
        self._columns = [
            replace(column, path=(schema.physical_name(column.path[0]), *column.path[1:]))
            for column in resolved(options.content(), relation, ())
        ]
        self._stamps = {c.physical for c in schema.columns.values() if c.type == TIMESTAMP}

    @cached_property
    def _files(self) -> FileSystem | FolderFiles:
        return open_files(self._options)

    def read(self, part: FilePart) -> Iterator[Changes]:
        """Yield the changes of a part in chunks. SourceError delta.version_gone, source.bad_record,
        delta.append_only; TemporaryError.
        """
        self._options.check(part.file.path)
        with reached(self._relation, self._options, part.version, f"no file {part.file.path}"):
            opened = self._files.open_input_file(part.file.path)
        with opened:
            before, batches = self._opened(part, opened)
            while (batch := self._read(part, lambda: next(batches, None))) is not None:
                found = self._changes(part, batch, before)
                before += batch.num_rows
                if len(found):
                    yield found

    def _opened(
        self, part: FilePart, opened: pa.NativeFile
    ) -> tuple[int, Iterator[pa.RecordBatch]]:
        """Return the number of rows before the part in its file, and its rows."""
        file = self._read(part, lambda: ParquetInput(opened, coerce_int96_timestamp_unit="us"))
        groups = file.group_rows()
        first, end = (n * len(groups) // part.count for n in (part.number, part.number + 1))
        before = sum(groups[:first])
        there = set(file.names())
        names = {c.path[0] for c in self._columns} - part.file.partition.keys()
        names |= {CHANGE_TYPE} if part.file.kind == CHANGES else set()
        return before, file.batches(sorted(names & there), range(first, end), BATCH_ROWS)

    def _read(self, part: FilePart, read: Callable[[], Any]) -> Any:
        try:
            with reached(self._relation, self._options, part.version, part.file.path):
                return read()
        except (pa.ArrowException, OverLimitError) as error:
            raise SourceError(
                "delta.file",
                f'file "{part.file.path}" of version {part.version} of Delta table'
                f' "{self._relation.name.name}" is no whole Parquet file',
                detail=str(error)[:300],
                hint="restore the file, or rebuild the views: they begin with the newest version",
                relation=self._relation.name,
            ) from None

    def _changes(self, part: FilePart, batch: pa.RecordBatch, before: int) -> Changes:
        kinds, take = self._kinds(part, batch, before)
        columns: list[Column] = []
        bad: Faults = {}
        for declared in self._columns:
            column, faults = self._column(part.file, declared, batch)
            columns.append(column)
            bad |= {row: f'"{declared.field.name}": {why}' for row, why in faults.items()}
        if bad:
            is_bad = np.zeros(len(kinds), np.bool_)
            is_bad[list(bad)] = True
            is_bad &= take
            if is_bad.any() and self._options.on_error == FAIL:
                row = int(np.flatnonzero(is_bad)[0])
                raise self._bad_record(part, before + row, bad[row])
            self.skipped += int(is_bad.sum())
            take = take & ~is_bad
        if not take.all():
            rows = np.flatnonzero(take)
            kinds, columns = kinds[rows], [c.take(rows) for c in columns]
        if self._relation.is_append and (kinds != Changes.INSERT).any():
            raise SourceError(
                "delta.append_only",
                f'version {part.version} of Delta table "{self._relation.name.name}" changes or'
                " deletes rows",
                hint="declare the relation without append_only; its views are built again",
                relation=self._relation.name,
            )
        return Changes(self._relation, kinds, tuple(columns))

    def _kinds(
        self, part: FilePart, batch: pa.RecordBatch, before: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the kinds of a batch's rows, and bool[n] of those that count."""
        count = batch.num_rows
        take = np.ones(count, np.bool_)
        if part.file.mask is not None:
            mask = np.unpackbits(np.frombuffer(part.file.mask, np.uint8)).astype(np.bool_)
            take = mask[before : before + count]
        if part.file.kind != CHANGES:
            kind = Changes.INSERT if part.file.kind == INSERTS else Changes.DELETE
            return np.full(count, kind, np.uint8), take
        names = pc.call_function("dictionary_encode", [batch.column(CHANGE_TYPE)])
        kinds = [_KINDS.get(name, 0) for name in names.dictionary.to_pylist()]
        if names.null_count or 0 in kinds:
            raise self._bad_record(part, before, f"{CHANGE_TYPE} has an unknown value")
        return np.array(kinds, np.uint8)[names.indices.to_numpy()], take

    def _column(
        self, file: DataFile, declared: DeclaredColumn, batch: pa.RecordBatch
    ) -> tuple[Column, Faults]:
        name = declared.path[0]
        if name in file.partition:
            text = file.partition[name]
            if text and name in self._stamps and not text.endswith("Z"):
                text += "Z"
            column, faults = column_of_array(declared, pa.array([text or None], pa.string()))
            rows = np.zeros(batch.num_rows, np.int64)
            return column.take(rows), {
                row: why for why in faults.values() for row in range(len(rows))
            }
        if name in self._stamps and name in batch.schema.names:
            # Some writers store it as INT96, which has no time zone.
            at = batch.schema.get_field_index(name)
            if pa.types.is_timestamp(type := batch.schema.field(at).type) and type.tz is None:
                zoned = batch.column(at).cast(pa.timestamp(type.unit, "UTC"))
                batch = batch.set_column(at, name, zoned)
        return column_of_batch(declared, batch)

    def _bad_record(self, part: FilePart, row: int, why: str) -> SourceError:
        return SourceError(
            "source.bad_record",
            f'a row of Delta table "{self._relation.name.name}" does not fit its columns',
            detail=f"row {row + 1} of {part.file.path}, version {part.version}: {why}",
            hint='change the declared columns, or set on_error to "skip"',
            relation=self._relation.name,
        )
