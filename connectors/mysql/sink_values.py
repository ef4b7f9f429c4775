"""PostgreSQL's values as columns and literals of MySQL, whole columns at a time.

Texts and bytes are hexadecimal literals, so no value can be read as anything else. Invariant: a
value that the column's type cannot hold exactly is refused by name, never rounded or replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from connectors.formats.encode_rows import Piece, joined, json_column
from dataflow.delta import Column
from dataflow.errors import SinkError
from dataflow.schema import Field
from dataflow.types import TIMESTAMP, SqlType, TypeKind
from dataflow.values import to_text

# numeric without a precision: the most digits that the server has.
DIGITS, SCALE = 65, 30
_INTEGERS = {TypeKind.INT2: "smallint", TypeKind.INT4: "int", TypeKind.INT8: "bigint"}
_FLOATS = (TypeKind.FLOAT4, TypeKind.FLOAT8)
_PLAIN = {
    TypeKind.BOOL: "boolean",
    TypeKind.FLOAT4: "double",
    TypeKind.FLOAT8: "double",
    TypeKind.DATE: "date",
    TypeKind.TIME: "time(6)",
    TypeKind.TIMESTAMP: "datetime(6)",
    TypeKind.TIMESTAMPTZ: "datetime(6)",
    TypeKind.BYTEA: "longblob",
    TypeKind.UUID: "char(36) character set ascii collate ascii_bin",
    **_INTEGERS,
}
# 0001-01-01 and 9999-12-31, in days since 2000-01-01.
_FIRST_DAY, _LAST_DAY = -730_119, 2_921_939
_DAY_US = 86_400_000_000
_HEX = np.frombuffer(b"".join(b"%02x" % i for i in range(256)), np.uint8).reshape(256, 2)
_LETTERS = ord("A")


def column_type(type: SqlType) -> str:
    """Return the server's type of a column.

    >>> from dataflow.types import NUMERIC, TEXT, fixed
    >>> [column_type(t) for t in (fixed(12, 2), NUMERIC, TEXT)]
    ['decimal(12,2)', 'decimal(65,30)', 'longtext']
    """
    if type.kind in (TypeKind.FIXED, TypeKind.DECIMAL):
        return "decimal({},{})".format(*_precision_of(type))
    return _PLAIN.get(type.kind, "longtext")


def _precision_of(type: SqlType) -> tuple[int, int]:
    """Return digits and scale of a numeric's column."""
    if type.typmod >= 4:
        precision, scale = ((type.typmod - 4) >> 16) & 0xFFFF, (type.typmod - 4) & 0x7FF
        if precision <= DIGITS and scale <= min(SCALE, precision):
            return precision, scale
    return DIGITS, SCALE


def literals(field: Field, column: Column) -> Column:
    """Return each value as an SQL literal, `null` for NULL. SinkError sink.value_unfit."""
    kind = field.type.kind
    if kind is TypeKind.BOOL or kind in _INTEGERS:
        return json_column(field, column)
    if kind in _FLOATS:
        _refuse(field, column, ~np.isfinite(column.values))
        return _or_null(to_text(field.type, column), column, b"", b"")
    if kind in (TypeKind.FIXED, TypeKind.DECIMAL):
        texts = to_text(field.type, column)
        _require_digits(field, texts)
        return _or_null(texts, column, b"", b"")
    if kind in (TypeKind.DATE, TypeKind.TIMESTAMP, TypeKind.TIMESTAMPTZ):
        unit = 1 if kind is TypeKind.DATE else _DAY_US
        least, most = _FIRST_DAY * unit, (_LAST_DAY + 1) * unit - 1
        _refuse(field, column, (column.values < least) | (column.values > most))
        # The session's zone is UTC, and so is the text without one.
        shown = TIMESTAMP if kind is TypeKind.TIMESTAMPTZ else field.type
        return _or_null(to_text(shown, column), column, b"'", b"'")
    texts = to_text(field.type, column)
    if kind in (TypeKind.TIME, TypeKind.UUID):
        return _or_null(texts, column, b"'", b"'")
    if kind is TypeKind.BYTEA:
        return _or_null(_without_prefix(texts), column, b"x'", b"'")
    return _or_null(_hex(texts), column, b"_utf8mb4 x'", b"'")


def rows_of(columns: Sequence[Column], n: int) -> Column:
    """Return (a,b,c) of each row, from columns of literals."""
    pieces: list[Piece] = []
    for k, column in enumerate(columns):
        pieces += [b"(" if k == 0 else b",", column]
    return joined([*pieces, b")"], n)


def hex_literals(column: Column) -> Column:
    """Return x'...' of each value, which holds hexadecimal digits."""
    return joined([b"x'", column, b"'"], len(column))


def _or_null(texts: Column, column: Column, before: bytes, after: bytes) -> Column:
    found = joined([before, Column(texts.values, None, texts.data), after], len(column))
    if column.valid is None:
        return found
    # The literal that is not used is an empty text.
    both = Column.concat([found, Column.of("s", [b"null"])])
    return both.take(np.where(column.valid, np.arange(len(column)), len(column)))


def _hex(texts: Column) -> Column:
    start, stop = int(texts.values[0]), int(texts.values[-1])
    assert texts.data is not None
    digits = _HEX[texts.data[start:stop]].reshape(-1)
    return Column((texts.values - start) * 2, texts.valid, digits)


def _without_prefix(texts: Column) -> Column:
    r"""Return the digits of \x...; NULLs are empty."""
    sizes = np.diff(texts.values)
    assert texts.data is not None
    has_prefix = sizes >= 2
    keep = np.ones(len(texts.data), np.bool_)
    starts = texts.values[:-1][has_prefix]
    keep[starts] = keep[starts + 1] = False
    start, stop = int(texts.values[0]), int(texts.values[-1])
    ends = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(np.where(has_prefix, sizes - 2, sizes), out=ends[1:])
    return Column(ends, texts.valid, texts.data[start:stop][keep[start:stop]])


def _require_digits(field: Field, texts: Column) -> None:
    """Refuse NaN, infinity, and more digits than the column has."""
    precision, scale = _precision_of(field.type)
    sizes = np.diff(texts.values)
    assert texts.data is not None
    used = texts.data[int(texts.values[0]) : int(texts.values[-1])]
    has_letters = bool((used >= _LETTERS).any())
    if not has_letters and int(sizes.max(initial=0)) <= min(scale, precision - scale):
        return
    raw, ends = texts.data.tobytes(), texts.values.tolist()
    is_bad = np.fromiter(
        (not _fits(raw[a:b], precision, scale) for a, b in pairwise(ends)), np.bool_, len(sizes)
    )
    _refuse(field, texts, is_bad)


def _fits(text: bytes, precision: int, scale: int) -> bool:
    whole, _, fraction = text.lstrip(b"-").partition(b".")
    if whole and not whole.isdigit():
        return False
    return len(whole.lstrip(b"0")) <= precision - scale and len(fraction.rstrip(b"0")) <= scale


def _refuse(field: Field, column: Column, is_bad: np.ndarray) -> None:
    is_bad = is_bad & column.mask()
    if not is_bad.any():
        return
    row = int(np.flatnonzero(is_bad)[0])
    texts = to_text(field.type, column) if column.data is None else column
    shown = texts.slice(row, row + 1).texts()[0]
    raise SinkError(
        "sink.value_unfit",
        f'column "{field.name}" has a value that type {column_type(field.type)} cannot hold',
        detail=str(shown)[:100],
        hint="cast the column to text in the view, or leave such rows out",
    )
