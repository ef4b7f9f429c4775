"""Rows of a view as Arrow columns of a lake's types.

Invariant: a value in the lake is PostgreSQL's value, in full. Types that a lake lacks are
PostgreSQL's text; a value that its type there cannot have is refused, never changed.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from dataflow.delta import Column, row_hashes
from dataflow.errors import ViewError
from dataflow.schema import Field
from dataflow.types import EPOCH_2000_US, FIXED_NAN, NUMERIC_OID, TypeKind
from dataflow.values import to_text

_DAYS_2000 = 10_957
# 0001-01-01 and 10000-01-01, the range that Spark, Iceberg and SQL have in common.
_LEAST_DAY, _END_DAY = -719_162, 2_932_897
_DAY_US = 86_400_000_000
_MAX_DIGITS = 38
_HEADER = 4
_PLAIN = {
    TypeKind.BOOL: pa.bool_(),
    TypeKind.INT2: pa.int32(),
    TypeKind.INT4: pa.int32(),
    TypeKind.INT8: pa.int64(),
    TypeKind.FLOAT4: pa.float32(),
    TypeKind.FLOAT8: pa.float64(),
    TypeKind.DATE: pa.date32(),
    TypeKind.TIMESTAMP: pa.timestamp("us"),
    TypeKind.TIMESTAMPTZ: pa.timestamp("us", "UTC"),
    TypeKind.BYTEA: pa.binary(),
}


def lake_type(field: Field) -> pa.DataType:
    """Return the type of a column in the lake; text for what it has no type for.

    >>> from dataflow.types import fixed
    >>> lake_type(Field("price", fixed(12, 2)))
    Decimal128Type(decimal128(12, 2))
    """
    type = field.type
    if type.kind in (TypeKind.FIXED, TypeKind.DECIMAL) and type.oid == NUMERIC_OID:
        digits, scale = (type.typmod - _HEADER) >> 16, (type.typmod - _HEADER) & 0x7FF
        if type.typmod >= _HEADER and scale <= digits <= _MAX_DIGITS:
            return pa.decimal128(digits, scale)
    return _PLAIN.get(type.kind, pa.string())


def arrow_column(field: Field, column: Column) -> pa.Array:
    """Return values as an array of `lake_type`. ViewError batch.value."""
    target, kind = lake_type(field), field.type.kind
    mask = None if column.valid is None else ~column.valid
    if pa.types.is_date32(target):
        days = column.values + _DAYS_2000
        _require_range(field, column, days, _LEAST_DAY, _END_DAY)
        return pa.array(np.where(_valid(column), days, 0).astype(np.int32), target, mask=mask)
    if pa.types.is_timestamp(target):
        times = column.values
        least, end = _LEAST_DAY * _DAY_US, _END_DAY * _DAY_US
        _require_range(field, column, times, least - EPOCH_2000_US, end - EPOCH_2000_US)
        return pa.array(np.where(_valid(column), times, 0) + EPOCH_2000_US, target, mask=mask)
    if kind in _PLAIN and kind is not TypeKind.BYTEA:
        with np.errstate(over="ignore"):
            return pa.array(column.values.astype(target.to_pandas_dtype()), target, mask=mask)
    if pa.types.is_decimal(target) and kind is TypeKind.FIXED:
        return _decimals(field, column, target)
    texts = _texts(to_text(field.type, column))
    if kind is TypeKind.BYTEA:
        found = [None if t is None else bytes.fromhex(t[2:]) for t in texts.to_pylist()]
        return pa.array(found, target)
    try:
        return texts.cast(target)
    except pa.ArrowInvalid as error:
        raise _misfit(field, str(error)) from None


def _decimals(field: Field, column: Column, target: pa.DataType) -> pa.Array:
    if (_valid(column) & (column.values == FIXED_NAN)).any():
        raise _misfit(field, "NaN is not a decimal")
    # 128 bits in two's complement, the low half first.
    halves = np.empty((len(column), 2), np.int64)
    halves[:, 0], halves[:, 1] = column.values, column.values >> 63
    return pa.Array.from_buffers(target, len(column), [_bitmap(column), pa.py_buffer(halves)])


def _bitmap(column: Column) -> pa.Buffer | None:
    if column.valid is None:
        return None
    return pa.py_buffer(np.packbits(column.valid, bitorder="little").tobytes())


def _texts(column: Column) -> pa.Array:
    assert column.data is not None
    offsets, data = pa.py_buffer(column.values), pa.py_buffer(column.data)
    found = pa.LargeStringArray.from_buffers(len(column), offsets, data, _bitmap(column))
    return found.cast(pa.string())


def _valid(column: Column) -> np.ndarray:
    return np.ones(len(column), np.bool_) if column.valid is None else column.valid


def _require_range(field: Field, column: Column, values: np.ndarray, least: int, end: int) -> None:
    is_out = _valid(column) & ((values < least) | (values >= end))
    if is_out.any():
        first = to_text(field.type, column.take(np.flatnonzero(is_out)[:1])).texts()[0]
        raise _misfit(field, f"{first} is not in the years 1 to 9999")


def _misfit(field: Field, detail: str) -> ViewError:
    return ViewError(
        "batch.value",
        f'a value of column "{field.name}" has no form in the lake',
        detail=detail[:300],
        hint=f'select it as text ("{field.name}"::text), or leave such rows out',
    )


def row_keys(columns: list[Column], n: int) -> pa.Array:
    """Return 128 bits in hex that stand for n rows of key columns (decision 2)."""
    first, second = row_hashes(columns, n)
    pairs = zip(first.tolist(), second.tolist(), strict=True)
    return pa.array([f"{a:016x}{b:016x}" for a, b in pairs], pa.string())
