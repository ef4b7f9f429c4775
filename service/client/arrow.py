"""Rows as Arrow tables: a column's Arrow type follows from its PostgreSQL type alone.

Invariant: the same columns give the same schema, so tables of pages and epochs can be concatenated.
A value that the Arrow type cannot represent exactly is an error, never NULL or rounded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from dataflow.errors import TidemarkError
from service.client.answers import Field
from service.client.values import Interval, base_type, text_of

_NUMERIC = re.compile(r"numeric\((\d+),(-?\d+)\)")
_TYPES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "smallint": pa.int16(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "real": pa.float32(),
    "double precision": pa.float64(),
    "date": pa.date32(),
    "time without time zone": pa.time64("us"),
    "timestamp without time zone": pa.timestamp("us"),
    "timestamp with time zone": pa.timestamp("us", "UTC"),
    "bytea": pa.binary(),
    "uuid": pa.uuid(),
}


def arrow_type(type_name: str) -> pa.DataType:
    """Return the Arrow type of a PostgreSQL type.

    numeric without a precision is text, because no Arrow type holds all its values. Text too are
    json and jsonb (as JSON), times with a time zone, and all types that are not listed.

    >>> arrow_type("numeric(12,2)"), arrow_type("numeric"), arrow_type("integer[]")
    (Decimal128Type(decimal128(12, 2)), DataType(string), ListType(list<item: int32>))
    """
    name = base_type(type_name)
    if name.endswith("[]"):
        element = arrow_type(type_name[:-2])
        return pa.list_(pa.string() if element == pa.uuid() else element)
    if name.startswith("interval"):
        return pa.month_day_nano_interval()
    found = _NUMERIC.fullmatch(type_name)
    if found is not None:
        precision, scale = int(found[1]), int(found[2])
        if 0 <= scale <= precision <= 76:
            wide = pa.decimal256 if precision > 38 else pa.decimal128
            return wide(precision, scale)
    return _TYPES.get(name, pa.string())


def table_of(
    fields: Sequence[Field],
    rows: Sequence[tuple[Any, ...]],
    types: Mapping[str, pa.DataType],
    weights: tuple[str, Sequence[int]] | None = None,
) -> pa.Table:
    """Return rows as a table. types: override those of some columns. weights: an extra column.

    TidemarkError rows.not_in_arrow, rows.unknown_column.
    """
    unknown = sorted(set(types) - {f.name for f in fields})
    if unknown:
        raise TidemarkError("rows.unknown_column", f'there is no column "{unknown[0]}"')
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(fields)
    arrays = [
        _array(field, values, types.get(field.name))
        for field, values in zip(fields, columns, strict=True)
    ]
    names = [f.name for f in fields]
    if weights is not None:
        names.append(weights[0])
        arrays.append(pa.array(weights[1], pa.int64()))
    return pa.table(arrays, names=names)


def _array(field: Field, values: Sequence[Any], requested: pa.DataType | None) -> pa.Array:
    own = arrow_type(field.type)
    kind = requested or own
    try:
        if pa.types.is_string(kind) or pa.types.is_decimal(kind):
            return _made(field, values, kind)
        if pa.types.is_floating(kind) and own == pa.string():
            return pa.array([None if v is None else float(v) for v in values], kind)
        made = _made(field, values, own)
        return made if requested is None else made.cast(requested)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise TidemarkError(
            "rows.not_in_arrow",
            f'column "{field.name}" ({field.type}) has a value that does not fit Arrow type {kind}',
            detail=str(error)[:300],
            hint="choose another type: to_arrow({column: pyarrow.string()})",
        ) from error


def _made(field: Field, values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if kind == pa.uuid():
        storage = pa.array([None if v is None else v.bytes for v in values], pa.binary(16))
        return pa.ExtensionArray.from_storage(kind, storage)
    if base_type(field.type) in ("json", "jsonb"):
        return pa.array([None if v is None else _document(v) for v in values], kind)
    return pa.array([_plain(v, kind) for v in values], kind)


def _plain(value: Any, kind: pa.DataType) -> Any:
    """Return a value in the form that Arrow accepts."""
    if value is None:
        return None
    if pa.types.is_list(kind) and isinstance(value, list):
        return [_plain(each, kind.value_type) for each in value]
    if pa.types.is_string(kind):
        return value if isinstance(value, str) else text_of(value)
    if isinstance(value, Interval):
        return pa.MonthDayNano([value.months, value.days, value.microseconds * 1000])
    return value


def _document(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
