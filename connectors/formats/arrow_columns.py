"""Convert Arrow arrays to physical columns of a declared type, whole columns at a time.

An array of the declared type is taken as it is; everything else goes through its text, as
PostgreSQL reads it. Invariant: no value is truncated or wrapped. A value that does not fit is a
fault of its row and does not affect other rows.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from connectors.formats.columns import Faults, column_of_texts, without
from connectors.formats.declared import DeclaredColumn
from connectors.formats.fields import utf8_fault
from connectors.formats.json_reader import JsonReader
from connectors.formats.times import column_of_counts
from dataflow.delta import KIND_BYTES, Column
from dataflow.types import SqlType, TypeKind
from dataflow.values import one_nan

_INTS = {TypeKind.INT2: 15, TypeKind.INT4: 31, TypeKind.INT8: 63}
_PER_S = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_EPOCH_DAYS, _DAY_US = 10_957, 86_400_000_000
_EPOCH_US = _EPOCH_DAYS * _DAY_US
_STAMP_LEAST, _STAMP_END = -211_813_488_000_000_000, 9_223_371_331_200_000_000
_DATE_LEAST, _DATE_END = -2_451_545, 2_145_031_949
_OUT_OF_RANGE = "out of range"


def column_of_array(declared: DeclaredColumn, array: pa.Array) -> tuple[Column, Faults]:
    """Return a column of the declared type, and the faults by row."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    type, have = declared.field.type, array.type
    if pa.types.is_null(have):
        return Column.nulls(type.physical, len(array)), {}
    if pa.types.is_nested(have) or declared.element is not None:
        return _through_json(declared, array)
    if declared.unit and pa.types.is_integer(have):
        return column_of_counts(type, declared.unit, bytes_column(pc.cast(array, pa.string())))
    for is_meant, kinds, convert in _DIRECT:
        if is_meant(have) and type.kind in kinds:
            found = convert(type, array)
            if found is not None:
                return found
    if _is_bytes(have):
        if type.kind is TypeKind.BYTEA:
            return _hexadecimal(array), {}
        return _texts(type, array)
    return column_of_texts(type, bytes_column(pc.cast(array, pa.large_string())))


def column_of_batch(declared: DeclaredColumn, batch: pa.RecordBatch) -> tuple[Column, Faults]:
    """Return a declared column of a batch, and the faults by row; one that it lacks is NULL."""
    absent = Column.nulls(declared.field.type.physical, batch.num_rows), {}
    if not declared.path or declared.path[0] not in batch.schema.names:
        return absent
    array = batch.column(declared.path[0])
    for key in declared.path[1:]:
        if not pa.types.is_struct(array.type) or array.type.get_field_index(key) < 0:
            return absent
        array = pc.call_function("struct_field", [array], pc.StructFieldOptions([key]))
    return column_of_array(declared, array)


def bytes_column(array: pa.Array) -> Column:
    """Return a bytes column of an array of strings or bytes."""
    valid = _mask(array)
    filled = pc.fill_null(array.cast(pa.large_binary()), b"")
    _, offsets, values = filled.buffers()
    ends = np.frombuffer(offsets, np.int64)[filled.offset : filled.offset + len(filled) + 1]
    content = np.empty(0, np.uint8) if values is None else np.frombuffer(values, np.uint8)
    first = int(ends[0])
    return Column(ends - first, valid, content[first : int(ends[-1])])


def _texts(type: SqlType, array: pa.Array) -> tuple[Column, Faults]:
    """Convert strings that may not be UTF-8, whatever the file calls them."""
    plain = array.cast(pa.large_binary())
    try:
        plain.cast(pa.large_string())
        return column_of_texts(type, bytes_column(plain))
    except pa.ArrowInvalid:
        wrong = {
            row: why
            for row, why in enumerate(utf8_fault(v or b"") for v in plain.to_pylist())
            if why
        }
    index = np.array(sorted(wrong), np.int64)
    is_fine = np.ones(len(plain), np.bool_)
    is_fine[index] = False
    nothing = pa.scalar(None, pa.large_binary())
    fine = pc.call_function("if_else", [pa.array(is_fine), plain, nothing])
    column, faults = column_of_texts(type, bytes_column(fine))
    return column, {**faults, **wrong}


def _mask(array: pa.Array) -> np.ndarray | None:
    return array.is_valid().to_numpy(zero_copy_only=False) if array.null_count else None


def _numbers(array: pa.Array, fill: Any = 0) -> np.ndarray:
    if array.null_count:
        array = pc.fill_null(array, pa.scalar(fill, array.type))
    return array.to_numpy(zero_copy_only=False)


def _bounded(
    values: np.ndarray, wrong: np.ndarray, valid: np.ndarray | None
) -> tuple[Column, Faults]:
    faults: Faults = {}
    if wrong.any():
        if valid is not None:
            wrong &= valid
        faults = dict.fromkeys(np.flatnonzero(wrong).tolist(), _OUT_OF_RANGE)
        values = np.where(wrong, 0, values)
    valid = without(valid, faults, len(values))
    if valid is not None:
        values = np.where(valid, values, np.zeros((), values.dtype))
    return Column(np.ascontiguousarray(values), valid), faults


def _ints(type: SqlType, array: pa.Array) -> tuple[Column, Faults]:
    values = _numbers(array)
    bits = _INTS[type.kind]
    wrong = values > 2**bits - 1 if values.dtype.kind == "u" or bits < 63 else values != values
    if values.dtype.kind == "i" and bits < 63:
        wrong |= values < -(2**bits)
    return _bounded(values.astype(np.int64), wrong, _mask(array))


def _bools(_: SqlType, array: pa.Array) -> tuple[Column, Faults]:
    return Column(np.ascontiguousarray(_numbers(array, False)), _mask(array)), {}


def _floats(type: SqlType, array: pa.Array) -> tuple[Column, Faults]:
    values = _numbers(array, 0.0).astype(np.float64)
    wrong = np.zeros(len(values), np.bool_)
    if type.kind is TypeKind.FLOAT4:
        with np.errstate(over="ignore"):
            single = values.astype(np.float32).astype(np.float64)
        wrong = np.isinf(single) & ~np.isinf(values) | ((single == 0) & (values != 0))
        values = single
    return _bounded(one_nan(values), wrong, _mask(array))


def _decimals(type: SqlType, array: pa.Array) -> tuple[Column, Faults] | None:
    """Return unscaled integers if both types have at most 18 digits; None to go through text."""
    more = type.scale - array.type.scale
    digits = ((type.typmod - 4) >> 16) & 0xFFFF
    if array.type.precision > 18 or more < 0 or array.type.precision + more > 18:
        return None
    wide = array.cast(pa.decimal128(array.type.precision, array.type.scale))
    pairs = np.frombuffer(wide.buffers()[1], np.int64).reshape(-1, 2)
    values = pairs[wide.offset : wide.offset + len(wide), 0] * 10**more
    return _bounded(values, np.abs(values) >= 10**digits, _mask(array))


def _dates(_: SqlType, array: pa.Array) -> tuple[Column, Faults]:
    values = _numbers(array.cast(pa.date32()).cast(pa.int32())).astype(np.int64) - _EPOCH_DAYS
    return _bounded(values, (values < _DATE_LEAST) | (values >= _DATE_END), _mask(array))


def _stamps_of_dates(type: SqlType, array: pa.Array) -> tuple[Column, Faults]:
    days, faults = _dates(type, array)
    wrong = np.abs(days.values) > _STAMP_END // _DAY_US
    wrong |= days.values * _DAY_US < _STAMP_LEAST
    column, more = _bounded(days.values * _DAY_US, wrong, days.valid)
    return column, {**faults, **more}


def _stamps(_: SqlType, array: pa.Array) -> tuple[Column, Faults]:
    """Return microseconds since 2000; an array without a zone is in UTC."""
    values, wrong = _in_us(_numbers(array.cast(pa.int64())), array.type.unit)
    wrong |= values < _STAMP_LEAST + _EPOCH_US
    values = values - _EPOCH_US
    return _bounded(values, wrong | (values >= _STAMP_END), _mask(array))


def _times(_: SqlType, array: pa.Array) -> tuple[Column, Faults]:
    is_short = pa.types.is_time32(array.type)
    counts = _numbers(array.cast(pa.int32() if is_short else pa.int64())).astype(np.int64)
    values, wrong = _in_us(counts, array.type.unit)
    return _bounded(values, wrong | (values < 0) | (values > _DAY_US), _mask(array))


def _in_us(counts: np.ndarray, unit: str) -> tuple[np.ndarray, np.ndarray]:
    """Return (microseconds, rows that do not fit). Halves round to even, as in PostgreSQL."""
    if unit == "ns":
        whole, rest = np.divmod(counts, 1000)
        return whole + ((rest > 500) | ((rest == 500) & (whole & 1 == 1))), counts != counts
    factor = 1_000_000 // _PER_S[unit]
    most = (2**63 - 1) // factor
    wrong = (counts > most) | (counts < -most)
    return np.where(wrong, 0, counts) * factor, wrong


def _hexadecimal(array: pa.Array) -> Column:
    texts = [
        None if v is None else b"\\x" + v.hex().encode()
        for v in array.cast(pa.large_binary()).to_pylist()
    ]
    return Column.of(KIND_BYTES, texts)


def _through_json(declared: DeclaredColumn, array: pa.Array) -> tuple[Column, Faults]:
    """Convert structures, lists and maps like JSON of the same shape."""
    values, unreadable = _python_values(array)
    if pa.types.is_map(array.type):
        values = [None if v is None else dict(v) for v in values]
    whole = DeclaredColumn(declared.field, (), element=declared.element)
    is_there = np.fromiter((v is not None for v in values), np.bool_, len(values))
    records = [json.dumps(_jsonable(v), ensure_ascii=False).encode() for v in values]
    read = JsonReader([whole]).read(records)
    column = read.columns[0]
    if not is_there.all():
        # A NULL is not a JSON null.
        index = np.where(is_there, np.arange(len(values)), len(values))
        column = Column.concat([column, Column.nulls(column.kind, 1)]).take(index)
    faults = {row: reason for row, (_, reason) in read.bad.items() if is_there[row]}
    return column, {**faults, **unreadable}


def _python_values(array: pa.Array) -> tuple[list[Any], Faults]:
    """Return the values of structures, and faults for values that Python cannot represent."""
    try:
        return array.to_pylist(), {}
    except (ValueError, OverflowError):
        return _values_apart(array)


def _values_apart(array: pa.Array) -> tuple[list[Any], Faults]:
    values: list[Any] = []
    faults: Faults = {}
    for row, value in enumerate(array):
        try:
            values.append(value.as_py())
        except UnicodeDecodeError:
            values.append(None)
            faults[row] = "not UTF-8"
        except (ValueError, OverflowError) as error:
            values.append(None)
            faults[row] = f"out of range: {error}"
    return values, faults


def _jsonable(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _jsonable(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_jsonable(v) for v in value]
    if isinstance(value, tuple):
        return [_jsonable(v) for v in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Decimal | timedelta):
        return str(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    return value


def _is_bytes(type: pa.DataType) -> bool:
    t = pa.types
    return (
        t.is_string(type)
        or t.is_large_string(type)
        or t.is_string_view(type)
        or t.is_binary(type)
        or t.is_large_binary(type)
        or t.is_binary_view(type)
        or t.is_fixed_size_binary(type)
    )


_Convert = Callable[[SqlType, pa.Array], tuple[Column, Faults] | None]
_SINGLES = (TypeKind.FLOAT4, TypeKind.FLOAT8)
_STAMPS = (TypeKind.TIMESTAMP, TypeKind.TIMESTAMPTZ)
_DIRECT: tuple[tuple[Callable[[pa.DataType], bool], tuple[TypeKind, ...], _Convert], ...] = (
    (pa.types.is_integer, tuple(_INTS), _ints),
    (pa.types.is_boolean, (TypeKind.BOOL,), _bools),
    (pa.types.is_floating, _SINGLES, _floats),
    (pa.types.is_decimal, (TypeKind.FIXED,), _decimals),
    (pa.types.is_date, (TypeKind.DATE,), _dates),
    (pa.types.is_date, _STAMPS, _stamps_of_dates),
    (pa.types.is_timestamp, _STAMPS, _stamps),
    (pa.types.is_time, (TypeKind.TIME,), _times),
)
