"""Convert texts, numbers and decoded values to physical columns of a declared type.

The values are those of PostgreSQL's input functions for the same text. Invariant: a bad value does
not affect other rows; its row is NULL here, and the faults hold the reason.
"""

from __future__ import annotations

import numpy as np
from tidemark_native import formats

from connectors.formats.text_values import parse_value
from dataflow.delta import KIND_BYTES, Column
from dataflow.types import SqlType, TypeKind
from dataflow.values import read_floats

# Row -> what is wrong with its value.
Faults = dict[int, str]

_NO_MASK = np.empty(0, np.bool_)
_INT_RANGES = {
    TypeKind.INT2: (-(2**15), 2**15 - 1),
    TypeKind.INT4: (-(2**31), 2**31 - 1),
    TypeKind.INT8: (-(2**63), 2**63 - 1),
}


def column_of_texts(type: SqlType, texts: Column) -> tuple[Column, Faults]:
    """Return a bytes column of UTF-8 as a column of `type`; NULL stays NULL.

    >>> from dataflow.types import INT4
    >>> column, faults = column_of_texts(INT4, Column.of("s", ["7", "x", None]))
    >>> column.to_list(), faults
    ([7, None, None], {1: 'not an integer'})
    """
    mask = _NO_MASK if texts.valid is None else texts.valid
    if type.physical == KIND_BYTES:
        return _bytes_of_texts(type, texts, mask)
    values, marks = _fast(type, texts, mask)
    faults: Faults = {}
    for row in np.flatnonzero(marks).tolist():
        try:
            values[row] = parse_value(type, _text(texts, row))
        except ValueError as error:
            faults[row] = str(error)
            values[row] = 0
    return Column(values, without(texts.valid, faults, len(texts))), faults


def without(valid: np.ndarray | None, faults: Faults, n: int) -> np.ndarray | None:
    """Return the mask with the faulty rows NULL."""
    if not faults:
        return valid
    left = np.ones(n, np.bool_) if valid is None else valid.copy()
    left[list(faults)] = False
    return left


def _fast(type: SqlType, texts: Column, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (values, rows that need the exact path) for a type that is not text."""
    offsets, raw = texts.values, texts.data
    kind = type.kind
    if kind in _INT_RANGES:
        return formats.read_ints(offsets, raw, mask, *_INT_RANGES[kind])
    if kind is TypeKind.FIXED:
        precision = ((type.typmod - 4) >> 16) & 0xFFFF
        return formats.read_fixed(offsets, raw, mask, precision, type.scale)
    if kind is TypeKind.BOOL:
        return formats.read_bools(offsets, raw, mask)
    if kind in (TypeKind.FLOAT4, TypeKind.FLOAT8):
        return read_floats(type, texts)
    if kind is TypeKind.DATE:
        return formats.read_dates(offsets, raw, mask)
    if kind is TypeKind.TIME:
        return formats.read_times(offsets, raw, mask)
    return formats.read_stamps(offsets, raw, mask, kind is TypeKind.TIMESTAMPTZ)


def _bytes_of_texts(type: SqlType, texts: Column, mask: np.ndarray) -> tuple[Column, Faults]:
    """Convert types stored as texts; a text in another form than PostgreSQL's is printed again."""
    offsets, raw, kind = texts.values, texts.data, type.kind
    most = type.typmod - 4 if type.typmod >= 4 else -1
    if kind in (TypeKind.TEXT, TypeKind.BPCHAR):
        marks = formats.odd_texts(offsets, raw, mask, most)
    elif kind is TypeKind.DECIMAL:
        precision, scale = ((type.typmod - 4) >> 16) & 0xFFFF, (type.typmod - 4) & 0x7FF
        is_plain = type.typmod < 0
        marks = formats.odd_numerics(
            offsets, raw, mask, precision, -1 if is_plain or scale >= 1024 else scale
        )
        if not is_plain and scale >= 1024:
            marks[:] = texts.mask()
    elif kind is TypeKind.UUID:
        marks = formats.odd_uuids(offsets, raw, mask)
    else:
        marks = texts.mask()
    faults: Faults = {}
    changed: dict[int, bytes] = {}
    for row in np.flatnonzero(marks).tolist():
        try:
            changed[row] = parse_value(type, _text(texts, row))  # type: ignore[assignment]
        except ValueError as error:
            faults[row] = str(error)
            changed[row] = b""
    valid = without(texts.valid, faults, len(texts))
    column = replaced(Column(texts.values, valid, texts.data), changed)
    if kind is TypeKind.BPCHAR:
        offsets, raw = formats.pad_texts(column.values, column.data, most)
        column = Column(offsets, valid, raw)
        if valid is not None:
            column = emptied(column)
    return column, faults


def replaced(column: Column, changed: dict[int, bytes]) -> Column:
    """Return the bytes column with other bytes in some rows."""
    if not changed:
        return column
    assert column.data is not None
    rows = np.arange(len(column))
    positions = sorted(changed)
    rows[positions] = len(column) + np.arange(len(positions))
    others = Column.of(KIND_BYTES, [changed[row] for row in positions])
    whole = Column(column.values, None, column.data)
    taken = Column.concat([whole, others]).take(rows)
    return Column(taken.values, column.valid, taken.data)


def emptied(column: Column) -> Column:
    """Return the bytes column with no bytes in its NULLs."""
    gaps = np.flatnonzero(~column.mask()).tolist()
    return replaced(column, dict.fromkeys(gaps, b""))


def _text(texts: Column, row: int) -> bytes:
    assert texts.data is not None
    return texts.data[texts.values[row] : texts.values[row + 1]].tobytes()
