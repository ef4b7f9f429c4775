"""Conversion between PostgreSQL's text form and physical columns, whole columns at a time.

PostgreSQL's text output under types.SESSION_SETTINGS is the one exchange form: the replication
stream, COPY, literals, the evaluator, error rows and the sink all go through here. Both
directions are exact: to_text(from_text(x)) is x for every text that PostgreSQL prints.
"""

from __future__ import annotations

import numpy as np
from tidemark_native import values as kernels

from dataflow import float_text
from dataflow.delta import KIND_BYTES, Column
from dataflow.types import SqlType, TypeKind

_NO_MASK = np.empty(0, np.bool_)
_INT_RANGES = {
    TypeKind.INT2: (-(2**15), 2**15 - 1),
    TypeKind.INT4: (-(2**31), 2**31 - 1),
    TypeKind.INT8: (-(2**63), 2**63 - 1),
}
_SINGLE_TIE = np.int64(1 << 28)
_SINGLE_TAIL = np.int64((1 << 29) - 1)
_SINGLE_LEAST = 2.0**-126


def from_text(type: SqlType, texts: Column) -> Column:
    """Return the physical column of `type` from a bytes column of PostgreSQL's text output.

    NULL stays NULL. ValueError names the first text that is not of the type.

    >>> from dataflow.types import fixed
    >>> from_text(fixed(12, 2), Column.of("s", ["12.50", None, "-0.05"])).to_list()
    [1250, None, -5]
    """
    if type.physical == KIND_BYTES:
        return texts
    offsets, data, valid = texts.values, texts.data, texts.valid
    mask = _NO_MASK if valid is None else valid
    kind = type.kind
    if kind in _INT_RANGES:
        values, bad = kernels.parse_ints(offsets, data, mask, *_INT_RANGES[kind])
    elif kind is TypeKind.FIXED:
        values, bad = kernels.parse_fixed(offsets, data, mask, type.scale)
    elif kind is TypeKind.BOOL:
        values, bad = kernels.parse_bools(offsets, data, mask)
    elif kind in (TypeKind.FLOAT4, TypeKind.FLOAT8):
        return _floats_from_text(type, texts)
    elif kind is TypeKind.DATE:
        values, bad = kernels.parse_dates(offsets, data, mask)
    elif kind is TypeKind.TIME:
        values, bad = kernels.parse_times(offsets, data, mask)
    else:
        has_zone = kind is TypeKind.TIMESTAMPTZ
        values, bad = kernels.parse_stamps(offsets, data, mask, has_zone)
    if bad >= 0:
        raise _refusal(type, texts, bad, "not of the type")
    return Column(values, valid)


def to_text(type: SqlType, column: Column) -> Column:
    """Return a bytes column of PostgreSQL's text output of each value; NULL stays NULL.

    >>> from dataflow.types import FLOAT8
    >>> to_text(FLOAT8, Column.of("f", [1e20, 0.0001, 123456789012345.0])).texts()
    ['1e+20', '0.0001', '123456789012345']
    """
    if type.physical == KIND_BYTES:
        return column
    values, valid = column.values, column.valid
    mask = _NO_MASK if valid is None else valid
    kind = type.kind
    if kind in _INT_RANGES:
        offsets, data = kernels.print_ints(values, mask)
    elif kind is TypeKind.FIXED:
        offsets, data = kernels.print_fixed(values, mask, type.scale)
    elif kind is TypeKind.BOOL:
        offsets, data = kernels.print_bools(values, mask)
    elif kind in (TypeKind.FLOAT4, TypeKind.FLOAT8):
        offsets, data = _print_floats(values, mask, kind is TypeKind.FLOAT4)
    elif kind is TypeKind.DATE:
        offsets, data = kernels.print_dates(values, mask)
    elif kind is TypeKind.TIME:
        offsets, data = kernels.print_times(values, mask)
    else:
        offsets, data = kernels.print_stamps(values, mask, kind is TypeKind.TIMESTAMPTZ)
    return Column(offsets, valid, data)


def one_nan(values: np.ndarray) -> np.ndarray:
    """Return float64[n] with one NaN: PostgreSQL has a single one, a processor has many.

    Every float computation ends with this, since rows are compared by their bits: -NaN, and
    infinity minus infinity, have the sign bit set.

    >>> int(one_nan(-np.array([np.nan])).view(np.int64)[0] < 0)
    0
    """
    nan = np.isnan(values)
    return np.where(nan, np.nan, values) if nan.any() else values


def read_floats(type: SqlType, texts: Column) -> tuple[np.ndarray, np.ndarray]:
    """Return (float64[n], bool[n] marks) of texts as FLOAT4 or FLOAT8: a marked row is not exact
    yet."""
    mask = _NO_MASK if texts.valid is None else texts.valid
    values, marks = kernels.parse_floats(texts.values, texts.data, mask)
    if type.kind is TypeKind.FLOAT4:
        # Rounding to float8 and then to float4 is wrong only where the first one lands half way
        # between two float4, or among the few bits of the smallest ones.
        size = np.abs(values)
        marks |= (values.view(np.int64) & _SINGLE_TAIL) == _SINGLE_TIE
        marks |= ((size > 0) & (size < _SINGLE_LEAST)) | (size > float_text.SINGLE_MAX)
        with np.errstate(over="ignore"):
            values = values.astype(np.float32).astype(np.float64)
    return values, marks


def _floats_from_text(type: SqlType, texts: Column) -> Column:
    values, marks = read_floats(type, texts)
    is_single = type.kind is TypeKind.FLOAT4
    for row in np.flatnonzero(marks).tolist():
        try:
            values[row] = float_text.parse_float(_text(texts, row), is_single)
        except ValueError as error:
            raise _refusal(type, texts, row, str(error)) from None
    return Column(values, texts.valid)


def _print_floats(values: np.ndarray, mask: np.ndarray, is_single: bool) -> tuple:
    slots, lengths, marks = kernels.print_floats(values, mask, is_single)
    rows = np.flatnonzero(marks).tolist()
    for row, value in zip(rows, values[rows].tolist(), strict=True):
        text = float_text.print_float(value, is_single)
        slots[row, : len(text)] = np.frombuffer(text, np.uint8)
        lengths[row] = len(text)
    return kernels.join_slots(slots, lengths)


def _text(texts: Column, row: int) -> bytes:
    assert texts.data is not None
    return texts.data[texts.values[row] : texts.values[row + 1]].tobytes()


def _refusal(type: SqlType, texts: Column, row: int, why: str) -> ValueError:
    shown = _text(texts, row)[:80].decode(errors="replace")
    return ValueError(f'row {row}: "{shown}" as {type.name}: {why}')
