"""What a TABLE_MAP event says of a table: its columns at that place of the log.

Sources: MySQL's libs/mysql/binlog/event/rows_event.h (Table_map_event), MariaDB's
sql/log_event.cc. Invariant: rows are decoded by the shape that precedes them in the log, never by
what the table is today.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dataflow.errors import SourceError
from dataflow.schema import RelationName

TINY, SHORT, LONG, FLOAT, DOUBLE, TIMESTAMP, LONGLONG, INT24 = 1, 2, 3, 4, 5, 7, 8, 9
DATE, TIME, DATETIME, YEAR, NEWDATE, VARCHAR, BIT = 10, 11, 12, 13, 14, 15, 16
TIMESTAMP2, DATETIME2, TIME2 = 17, 18, 19
BLOB_COMPRESSED, VARCHAR_COMPRESSED = 140, 141
JSON, NEWDECIMAL, ENUM, SET = 245, 246, 247, 248
BLOBS = (249, 250, 251, 252)
VAR_STRING, STRING, GEOMETRY = 253, 254, 255

BINARY_COLLATION = 63
_FIXED = {TINY: 1, SHORT: 2, INT24: 3, LONG: 4, LONGLONG: 8, YEAR: 1, DATE: 3, NEWDATE: 3}
_FIXED |= {FLOAT: 4, DOUBLE: 8}
_METADATA_BYTES = {FLOAT: 1, DOUBLE: 1, VARCHAR: 2, BIT: 2, NEWDECIMAL: 2, JSON: 1, GEOMETRY: 1}
_METADATA_BYTES |= {TIMESTAMP2: 1, DATETIME2: 1, TIME2: 1, STRING: 2, VAR_STRING: 2}
_METADATA_BYTES |= {BLOB_COMPRESSED: 1, VARCHAR_COMPRESSED: 2, ENUM: 2, SET: 2}
_METADATA_BYTES |= dict.fromkeys(BLOBS, 1)
_NUMERIC = {TINY, SHORT, INT24, LONG, LONGLONG, NEWDECIMAL, FLOAT, DOUBLE, YEAR}
_CHARACTER = {STRING, VAR_STRING, VARCHAR, *BLOBS, BLOB_COMPRESSED, VARCHAR_COMPRESSED}
# Of decimals: bytes of so many digits that are no group of nine.
DIGIT_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
# Forms from before MySQL 5.6, whose width the event does not say.
_OLD = {TIMESTAMP, TIME, DATETIME}
_SIGNEDNESS, _DEFAULT_CHARSET, _COLUMN_CHARSET, _NAMES, _SETS, _ENUMS = 1, 2, 3, 4, 5, 6
_LABEL_DEFAULT_CHARSET, _LABEL_CHARSET = 10, 11


@dataclass(frozen=True)
class ShapeColumn:
    """A column in the log.

    type: the constants above. width: of a value in bytes; minus the bytes of its length if it
    varies. length: of CHAR and BINARY. collation: its id, BINARY_COLLATION for bytes, 0 for what
    is no text. labels: of ENUM and SET, as bytes in its character set. digits: precision and
    scale. fraction: digits of a second.
    """

    name: str
    type: int
    width: int
    is_nullable: bool
    is_unsigned: bool = False
    length: int = 0
    collation: int = 0
    labels: tuple[bytes, ...] = ()
    digits: tuple[int, int] = (0, 0)
    fraction: int = 0

    @property
    def family(self) -> str:
        """The key in column_types.ALLOWED; "" if its values cannot be decoded."""
        if self.type in _CHARACTER and self.collation == BINARY_COLLATION:
            return "" if self.type in (BLOB_COMPRESSED, VARCHAR_COMPRESSED) else "bytes"
        return _FAMILIES.get(self.type, "")


_FAMILIES = {
    **dict.fromkeys((TINY, SHORT, INT24, LONG, LONGLONG), "int"),
    **dict.fromkeys((FLOAT, DOUBLE), "float"),
    **dict.fromkeys((VARCHAR, STRING, VAR_STRING, *BLOBS), "text"),
    NEWDECIMAL: "decimal",
    BIT: "bit",
    JSON: "json",
    ENUM: "enum",
    SET: "set",
    DATE: "date",
    NEWDATE: "date",
    DATETIME2: "datetime",
    TIMESTAMP2: "timestamp",
    TIME2: "time",
    YEAR: "year",
}


@dataclass(frozen=True, eq=False)
class Shape:
    """A table at a place of the log; one object for equal events."""

    schema: str
    table: str
    columns: tuple[ShapeColumn, ...]

    def position(self, name: str) -> int:
        """Return where a column is, or -1."""
        lowered = name.lower()
        found = (i for i, c in enumerate(self.columns) if c.name.lower() == lowered)
        return next(found, -1)

    @cached_property
    def widths(self) -> np.ndarray:
        """int64[columns], for mysql.walk of tidemark_native."""
        return np.array([column.width for column in self.columns], np.int64)


def table_of(body: bytes) -> tuple[int, str, str]:
    """Return (table id, schema, table) of the body of a TABLE_MAP event."""
    size = body[8]
    schema = body[9 : 9 + size].decode()
    at = 10 + size
    return int.from_bytes(body[:6], "little"), schema, body[at + 1 : at + 1 + body[at]].decode()


def read_shape(body: bytes, relation: RelationName) -> Shape:
    """Return the shape in the body of a TABLE_MAP event, without its checksum.

    SourceError mysql.unknown_column, mysql.setting.
    """
    _, schema, table = table_of(body)
    reader = _Bytes(body, 12 + body[8] + body[9 + body[8] + 1])
    count = reader.number()
    types = reader.take(count)
    metadata = _Bytes(reader.take(reader.number()))
    nullable = reader.take((count + 7) // 8)
    more = _optional(reader)
    if _NAMES not in more:
        raise SourceError(
            "mysql.setting",
            f'the log has no column names of table "{schema}.{table}"',
            detail="binlog_row_metadata was not FULL when these rows were written",
            hint="set binlog_row_metadata=FULL, then rebuild the views that read it",
            relation=relation,
        )
    names = [name.decode() for name in _strings(_Bytes(more[_NAMES]))]
    columns = []
    for i, type_code in enumerate(types):
        is_nullable = bool(nullable[i // 8] >> (i % 8) & 1)
        column = _column(names[i], type_code, metadata, is_nullable)
        if column is None:
            raise SourceError(
                "mysql.unknown_column",
                f'column "{names[i]}" of table "{schema}.{table}" has an unknown form in the log',
                detail=f"type {type_code}",
                hint="change its type: columns of old time types by ALTER TABLE ... FORCE",
                relation=relation,
            )
        columns.append(column)
    return Shape(schema, table, tuple(_completed(columns, more)))


def _column(name: str, type_code: int, metadata: _Bytes, is_nullable: bool) -> ShapeColumn | None:
    facts = metadata.take(_METADATA_BYTES.get(type_code, 0))
    if type_code in _OLD:
        return None
    if type_code in _FIXED:
        return ShapeColumn(name, type_code, _FIXED[type_code], is_nullable)
    if type_code in (VARCHAR, VARCHAR_COMPRESSED):
        most = int.from_bytes(facts, "little")
        return ShapeColumn(name, type_code, -2 if most > 255 else -1, is_nullable)
    if type_code in (*BLOBS, JSON, GEOMETRY, BLOB_COMPRESSED):
        return ShapeColumn(name, type_code, -facts[0], is_nullable)
    if type_code in (TIMESTAMP2, DATETIME2, TIME2):
        whole = {TIMESTAMP2: 4, DATETIME2: 5, TIME2: 3}[type_code]
        width = whole + (facts[0] + 1) // 2
        return ShapeColumn(name, type_code, width, is_nullable, fraction=facts[0])
    if type_code == BIT:
        width = facts[1] + (facts[0] > 0)
        return ShapeColumn(name, type_code, width, is_nullable, length=facts[1] * 8 + facts[0])
    if type_code == NEWDECIMAL:
        precision, scale = facts
        width = sum(n // 9 * 4 + DIGIT_BYTES[n % 9] for n in (precision - scale, scale))
        return ShapeColumn(name, type_code, width, is_nullable, digits=(precision, scale))
    if type_code in (STRING, VAR_STRING, ENUM, SET):
        return _string(name, facts, is_nullable)
    return None


def _string(name: str, facts: bytes, is_nullable: bool) -> ShapeColumn:
    """Return a column whose first byte of metadata is its type and a part of its length."""
    if facts[0] in (ENUM, SET):
        return ShapeColumn(name, facts[0], facts[1], is_nullable)
    length = ((((facts[0] >> 4) & 3) ^ 3) << 8) | facts[1]
    return ShapeColumn(name, STRING, -2 if length > 255 else -1, is_nullable, length=length)


def _completed(columns: list[ShapeColumn], more: Mapping[int, bytes]) -> Iterator[ShapeColumn]:
    """Yield the columns with what the optional metadata says of them."""
    unsigned = _unsigned(columns, more.get(_SIGNEDNESS, b""))
    texts = [c for c in columns if c.type in _CHARACTER]
    listed = [c for c in columns if c.type in (ENUM, SET)]
    charsets = _collations(texts, more, _DEFAULT_CHARSET, _COLUMN_CHARSET)
    charsets |= _collations(listed, more, _LABEL_DEFAULT_CHARSET, _LABEL_CHARSET)
    labels = {
        ENUM: list(_label_lists(_Bytes(more.get(_ENUMS, b"")))),
        SET: list(_label_lists(_Bytes(more.get(_SETS, b"")))),
    }
    for column in columns:
        own = labels.get(column.type)
        yield ShapeColumn(
            **{
                **vars(column),
                "is_unsigned": column.name in unsigned,
                "collation": charsets.get(column.name, 0),
                "labels": tuple(own.pop(0)) if own else (),
            }
        )


def _unsigned(columns: list[ShapeColumn], bits: bytes) -> set[str]:
    numbers = [c for c in columns if c.type in _NUMERIC][: 8 * len(bits)]
    return {c.name for i, c in enumerate(numbers) if bits[i // 8] & (0x80 >> (i % 8))}


def _collations(
    columns: list[ShapeColumn], more: Mapping[int, bytes], default: int, each: int
) -> dict[str, int]:
    """Return the collation of each column: listed one by one, or a default with exceptions."""
    if each in more:
        reader = _Bytes(more[each])
        return {column.name: reader.number() for column in columns}
    if default not in more:
        return {}
    reader = _Bytes(more[default])
    usual = reader.number()
    found = dict.fromkeys((column.name for column in columns), usual)
    while reader.is_left:
        position = reader.number()
        found[columns[position].name] = reader.number()
    return found


def _optional(reader: _Bytes) -> dict[int, bytes]:
    found = {}
    while reader.is_left:
        kind = reader.take(1)[0]
        found[kind] = reader.take(reader.number())
    return found


def _strings(reader: _Bytes) -> Iterator[bytes]:
    while reader.is_left:
        yield reader.take(reader.number())


def _label_lists(reader: _Bytes) -> Iterator[list[bytes]]:
    while reader.is_left:
        yield [reader.take(reader.number()) for _ in range(reader.number())]


class _Bytes:
    """Reads bytes one after the other. ValueError if there are too few."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self._data = data
        self._at = at

    @property
    def is_left(self) -> bool:
        return self._at < len(self._data)

    def take(self, count: int) -> bytes:
        found = self._data[self._at : self._at + count]
        if len(found) < count:
            raise ValueError("the event is shorter than it says")
        self._at += count
        return found

    def number(self) -> int:
        """Return a number of 1 to 9 bytes ("length encoded")."""
        first = self.take(1)[0]
        if first < 251:
            return first
        size = {252: 2, 253: 3, 254: 8}[first]
        return int(struct.unpack("<Q", self.take(size).ljust(8, b"\0"))[0])
