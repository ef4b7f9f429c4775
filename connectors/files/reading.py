"""Read one version of one file as rows of its relation, in any format.

Every row gets its number in the file, the columns of its folders, and its metadata. Invariant:
reading the same version again, or from the middle, gives the same rows under the same numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from connectors.files import options as known
from connectors.files.folder import Folder
from connectors.files.journal import FileStat
from connectors.files.pattern import folder_values
from connectors.files.records import (
    BLOCK_RECORDS,
    LineForm,
    Records,
    Stretch,
    first_record,
    json_records,
    line_ends,
    line_records,
)
from connectors.files.shape import FILE, MODIFIED, ROW, Shape
from connectors.files.stream import UTF8, ByteStream, UnreadableFile
from connectors.files.xml_records import XmlColumn, xml_records
from connectors.formats.csv_reader import Dialect, split_record
from connectors.formats.declared import DeclaredColumn
from connectors.formats.fields import NOT_UTF8, null_value, utf8_fault
from connectors.formats.record_format import Decoded, RecordFormat, joined
from connectors.formats.row_format import finish
from connectors.formats.text_reader import TextReader
from dataflow.delta import KIND_BYTES, Column
from dataflow.errors import SourceError
from dataflow.types import TypeKind

if TYPE_CHECKING:
    from connectors.files.parquet_rows import ParquetRows

SPLIT_BYTES = 32 << 20
# Records whose values may be longer than their texts are decoded so many at a time, and their rows
# yielded once they have this size.
_EXPANDING_RECORDS, _ROWS_BYTES = 512, 32 << 20
_WHOLE = (TypeKind.JSON, TypeKind.JSONB)
# Exceptions that malformed content may raise unexpectedly.
OF_CONTENT = (ValueError, LookupError, TypeError, ArithmeticError, AttributeError, RecursionError)


@dataclass(frozen=True)
class BadRow:
    """A malformed record; number 0 is the file itself. raw: its bytes."""

    number: int
    code: str
    reason: str
    raw: bytes


@dataclass(frozen=True)
class Rows:
    """A block of rows.

    columns: of the relation's fields, one value a row. numbers: of the rows, rising. reach: the
    greatest row number that was read. offset: where to continue, 0 if that is impossible.
    """

    columns: list[Column]
    numbers: np.ndarray
    reach: int
    offset: int
    bad: list[BadRow] = field(default_factory=list)

    def between(self, after: int, last: int | None) -> Rows:
        """Return the rows numbered after + 1 ... last."""
        last = self.reach if last is None else min(last, self.reach)
        keep = np.flatnonzero((self.numbers > after) & (self.numbers <= last))
        bad = [row for row in self.bad if after < row.number <= last]
        if len(keep) == len(self.numbers):
            return Rows(self.columns, self.numbers, last, self.offset, bad)
        columns = [column.take(keep) for column in self.columns]
        return Rows(columns, self.numbers[keep], last, self.offset, bad)


@dataclass(frozen=True)
class Measure:
    """The size of a file in rows.

    reach: the greatest row number. splits: (byte or row group, rows before it) where parts may
    start. broken: why the file cannot be read further.
    """

    reach: int = 0
    splits: tuple[tuple[int, int], ...] = ()
    broken: str = ""


class FileReader:
    """Reads files of one relation. Used by one thread at a time."""

    def __init__(self, shape: Shape, folder: Folder) -> None:
        self.shape = shape
        self._folder = folder

    def read(
        self, stat: FileStat, stretch: Stretch = Stretch(), after: int = 0, last: int | None = None
    ) -> Iterator[Rows]:
        """Yield the rows numbered after + 1 ... last, of a stretch of the file, in blocks.

        stretch: of row groups in Parquet. Each block was checked to be of this version.
        UnreadableFile: the file is broken. `source.file_changed`: it has another version.
        """
        columns, constants = self._columns(stat)
        with self._opened(stat) as stream:
            for column in self._absent(stream, columns):
                columns.remove(column)
                constants[column.field.name] = Column.nulls(column.field.type.physical, 1)
            for rows in self._blocks(stream, columns, stretch, after):
                whole = self._with_constants(rows, columns, constants, stat)
                if not stream.has_offsets:
                    whole = replace(whole, offset=0)
                self._folder.verify(stream.file, stat)
                yield whole.between(after, last)
                if last is not None and rows.reach >= last:
                    return
            self._folder.verify(stream.file, stat)

    def lacking(self, stat: FileStat) -> list[str]:
        """Return declared columns that neither the file nor its folders name, if files
        have names.
        """
        columns, _ = self._columns(stat)
        with self._opened(stat) as stream:
            if self.shape.options.format == known.PARQUET:
                from connectors.files.parquet_rows import open_parquet

                names = open_parquet(stream.seekable()).names()
                return [c.field.name for c in columns if c.path[0] not in names]
            return [c.field.name for c in self._absent(stream, columns)]

    def measure(self, stat: FileStat) -> Measure:
        """Read through the file once, without its values."""
        found = Measure()
        try:
            with self._opened(stat) as stream:
                try:
                    self._absent(stream, self._columns(stat)[0])
                    for measured in self._measures(stream):
                        found = measured
                finally:
                    self._folder.verify(stream.file, stat)
        except UnreadableFile as error:
            found = replace(found, broken=str(error))
        return found

    def _measures(self, stream: ByteStream) -> Iterator[Measure]:
        """Yield measures of growing prefixes of the file."""
        format, tag = self.shape.options.format, self.shape.options.row_tag
        if format == known.PARQUET:
            from connectors.files.parquet_rows import group_ends, open_parquet

            ends = group_ends(open_parquet(stream.seekable()))
            yield Measure(ends[-1] if ends else 0, tuple(enumerate(ends[:-1], start=1)))
        elif format in (known.CSV, known.JSONL):
            yield from _measured_lines(stream, self._line_form())
        else:
            found = json_records(stream) if format == known.JSON else xml_records(stream, tag, [])
            yield from (Measure(records.reach) for records in found)

    @contextmanager
    def _opened(self, stat: FileStat) -> Iterator[ByteStream]:
        """Yield the file's bytes; an unexpected failure that only its content causes is
        UnreadableFile.
        """
        if stat.fault:
            raise UnreadableFile(stat.fault)
        options = self.shape.options
        try:
            opened = self._folder.open(stat)
        except SourceError as error:
            if error.code != "path.forbidden":
                raise
            raise UnreadableFile(error.detail) from error
        with opened as file:
            try:
                yield ByteStream(file, options.compression, options.encoding)
            except OF_CONTENT as error:
                reason = f"it cannot be read: {type(error).__name__}: {error}"
                raise UnreadableFile(reason[:200]) from error

    def _columns(self, stat: FileStat) -> tuple[list[DeclaredColumn], dict[str, Column]]:
        """Return (columns in the file, columns that its folders name: one value each)."""
        named = dict(folder_values(stat.path))
        inside = [c for c in self.shape.content if c.field.name not in named]
        constants = {}
        for column in self.shape.content:
            if column.field.name not in named:
                continue
            text = named[column.field.name]
            if text is None:
                constants[column.field.name] = Column.nulls(column.field.type.physical, 1)
                if not column.field.is_nullable:
                    raise UnreadableFile(f'column "{column.field.name}" has no value in its path')
                continue
            read = TextReader([column]).read([text])
            if read.bad:
                raise UnreadableFile(f"its path has an invalid value: {read.bad[0][1]}")
            constants[column.field.name] = read.columns[0]
        return inside, constants

    def _blocks(
        self, stream: ByteStream, columns: list[DeclaredColumn], stretch: Stretch, after: int
    ) -> Iterator[Rows]:
        options = self.shape.options
        if options.format == known.PARQUET:
            from connectors.files.parquet_rows import open_parquet, parquet_rows

            groups = (stretch.offset, stretch.stop)
            parquet = open_parquet(stream.seekable())
            yield from map(_of_parquet, parquet_rows(parquet, columns, after, groups))
        elif options.format == known.JSON:
            format = self.shape.json_format(columns)
            yield from _decoded(format, json_records(stream), stream, columns)
        elif options.format == known.XML:
            format = self.shape.json_format([self.shape.flat(c) for c in columns])
            found = xml_records(stream, options.row_tag, [_xml_column(c) for c in columns])
            yield from _decoded(format, found, stream, columns)
        elif options.format == known.CSV and options.has_header:
            format = self.shape.csv_format(columns, self._header(stream))
            found = line_records(stream, self._line_form(), stretch)
            yield from _decoded(format, found, stream, columns, 0 if stretch.offset else 1)
        else:
            is_csv = options.format == known.CSV
            make = self.shape.json_format
            format = self.shape.csv_format(columns, None) if is_csv else make(columns)
            found = line_records(stream, self._line_form(), stretch)
            yield from _decoded(format, found, stream, columns)

    def _line_form(self) -> LineForm:
        if self.shape.options.format == known.JSONL:
            return LineForm()
        return LineForm(*self.shape.options.dialect.bytes())

    def _header(self, stream: ByteStream) -> list[str]:
        """Return the column names of a CSV file; the stream is rewound."""
        record = first_record(stream, self._line_form())
        stream.seek(0)
        names = header_names(record, stream, self.shape.options.dialect)
        twice = sorted(name for name, count in Counter(names).items() if count > 1)
        if twice:
            raise UnreadableFile(f'its header has "{twice[0]}" twice')
        return names

    def _absent(self, stream: ByteStream, columns: list[DeclaredColumn]) -> list[DeclaredColumn]:
        """Return the columns that a CSV file's header lacks: NULL in all its rows."""
        if self.shape.options.format != known.CSV or not self.shape.options.has_header:
            return []
        names = self._header(stream)
        found = [c for c in columns if c.path[0] not in names]
        for column in found:
            if not column.field.is_nullable:
                raise UnreadableFile(null_value(column).reason)
        return found

    def _with_constants(
        self,
        rows: Rows,
        inside: list[DeclaredColumn],
        constants: dict[str, Column],
        stat: FileStat,
    ) -> Rows:
        n = len(rows.numbers)
        found = dict(zip([c.field.name for c in inside], rows.columns, strict=True))
        index = np.zeros(n, np.int64)
        found |= {name: column.take(index) for name, column in constants.items()}
        found[FILE] = Column.of(KIND_BYTES, [stat.path]).take(index)
        found[ROW] = Column(rows.numbers)
        found[MODIFIED] = Column(np.full(n, stat.modified_us, np.int64))
        columns = [found[f.name] for f in self.shape.fields]
        return Rows(columns, rows.numbers, rows.reach, rows.offset, rows.bad)


def header_names(record: bytes | None, stream: ByteStream, dialect: Dialect) -> list[str]:
    """Return the cells of a header's record.

    UnreadableFile: it is malformed, or not text in the stream's encoding.
    """
    if record is None:
        return []
    fault = utf8_fault(record)
    if fault:
        fault = _in_encoding(fault, stream)
        raise UnreadableFile(f"its header is {fault}; set encoding to the file's encoding")
    if b"\0" in record:
        hint = 'UTF-16 without a byte order mark needs the encoding "utf-16"'
        raise UnreadableFile(f"its header holds NUL characters; {hint}")
    names = split_record(record, dialect)
    if names is None:
        raise UnreadableFile("its header has an unclosed quote")
    return names


def _in_encoding(reason: str, stream: ByteStream) -> str:
    """Return a reason with the file's own encoding."""
    if reason.startswith(NOT_UTF8) and stream.encoding not in ("", UTF8):
        return f"not {stream.encoding}"
    return reason


def _decoded(
    format: RecordFormat,
    found: Iterator[Records],
    stream: ByteStream,
    columns: Sequence[DeclaredColumn],
    skipped: int = 0,
) -> Iterator[Rows]:
    """Yield rows of records. skipped: how many of the first records are not rows."""
    step = _EXPANDING_RECORDS if any(map(_may_expand, columns)) else BLOCK_RECORDS
    for records in found:
        values, numbers = records.values, records.numbers
        if skipped and values:
            values, numbers, skipped = values[1:], numbers[1:], skipped - 1
        parts: list[tuple[int, Decoded]] = []
        first = 0
        for begin in range(0, max(1, len(values)), step):
            end = min(begin + step, len(values))
            parts.append((begin - first, format.decode(values[begin:end])))
            is_last = end == len(values)
            if is_last or _nbytes(parts) >= _ROWS_BYTES:
                decoded = joined(parts)
                bad = [
                    BadRow(int(numbers[first + b.number]), b.code, _in_encoding(b.reason, stream),
                           values[first + b.number])
                    for b in decoded.bad
                ]  # fmt: skip
                reached = (records.reach, records.offset) if is_last else (int(numbers[end - 1]), 0)
                yield _rows(decoded, numbers[first:end], bad, *reached)
                parts, first = [], end


def _may_expand(column: DeclaredColumn) -> bool:
    """Return whether a value may be longer than its text: 1e131071 has 131,072 digits."""
    type = column.field.type
    is_open = type.kind is TypeKind.DECIMAL and type.typmod < 0
    return is_open or type.kind is TypeKind.JSONB or column.element is not None


def _nbytes(parts: Sequence[tuple[int, Decoded]]) -> int:
    return sum(column.nbytes() for _, decoded in parts for column in decoded.columns)


def _of_parquet(part: ParquetRows) -> Rows:
    n = part.batch.num_rows
    numbers = np.arange(part.after + 1, part.after + n + 1, dtype=np.int64)
    removes = np.zeros(n, np.bool_)
    decoded = finish(part.fields.columns, removes, part.fields.bad, has_removals=False)
    bad = [
        BadRow(int(numbers[b.number]), b.code, b.reason, part.raw(b.number)) for b in decoded.bad
    ]
    return _rows(decoded, numbers, bad, part.after + n, 0)


def _rows(
    decoded: Decoded, numbers: np.ndarray, bad: list[BadRow], reach: int, offset: int
) -> Rows:
    return Rows(decoded.columns, numbers[decoded.records], reach, offset, bad)


def _measured_lines(stream: ByteStream, form: LineForm) -> Iterator[Measure]:
    splits: tuple[tuple[int, int], ...] = ()
    last = 0
    for offset, lines in line_ends(stream, form):
        if stream.has_offsets and offset - last >= SPLIT_BYTES:
            splits, last = (*splits, (offset, lines)), offset
        yield Measure(lines, splits)


def _xml_column(column: DeclaredColumn) -> XmlColumn:
    type = column.field.type
    is_whole = type.kind in _WHOLE or column.element is not None
    is_text = type.kind in (TypeKind.TEXT, TypeKind.BPCHAR)
    return XmlColumn(column.field.name, column.path, is_whole, is_text)
