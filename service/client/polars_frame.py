"""Rows as a polars DataFrame: a column's type follows from its PostgreSQL type.

numeric without a precision has the scale of its values, because polars' Decimal needs one.
Invariant: a value that the type cannot represent exactly is an error, never NULL or rounded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import polars as pl  # pyright: ignore[reportMissingImports]

from dataflow.errors import TidemarkError
from service.client.answers import Field
from service.client.table import WEIGHT, Table, unfit
from service.client.values import base_type, text_of

_NUMERIC = re.compile(r"numeric\((\d+),(-?\d+)\)")
_MOST_DIGITS = 38
_TYPES: dict[str, Any] = {
    "boolean": pl.Boolean,
    "smallint": pl.Int16,
    "integer": pl.Int32,
    "bigint": pl.Int64,
    "real": pl.Float32,
    "double precision": pl.Float64,
    "date": pl.Date,
    "time without time zone": pl.Time,
    "timestamp without time zone": pl.Datetime("us"),
    "timestamp with time zone": pl.Datetime("us", "UTC"),
    "bytea": pl.Binary,
}


def frame_of(table: Table) -> pl.DataFrame:
    """Return rows as a DataFrame. TidemarkError rows.not_in_frame."""
    columns = list(zip(*table.rows, strict=True)) if table.rows else [()] * len(table.fields)
    series = [_series(f, values) for f, values in zip(table.fields, columns, strict=True)]
    if table.weights is not None:
        series.append(pl.Series(WEIGHT, list(table.weights), pl.Int64))
    names = [one.name for one in series]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise TidemarkError(
            "rows.not_in_frame",
            f'two columns are named "{twice[0]}", which polars cannot hold',
            hint="give each column of the query a name of its own: AS name",
        )
    return pl.DataFrame(series)


def _series(field: Field, values: Sequence[Any]) -> pl.Series:
    try:
        kind, plain = _type_of(field.type, values)
        return pl.Series(field.name, _plain(values, plain), kind, strict=True)
    except (pl.exceptions.PolarsError, ValueError, TypeError, OverflowError) as error:
        raise unfit(field, "polars", str(error)) from error


def _type_of(type_name: str, values: Sequence[Any]) -> tuple[Any, Callable[[Any], Any] | None]:
    """Return a column's type, and what a value becomes before; None: nothing."""
    name = base_type(type_name)
    if name.endswith("[]"):
        elements = [each for value in values if value is not None for each in value]
        kind, plain = _type_of(type_name[:-2], elements)
        return pl.List(kind), lambda value: _plain(value, plain)
    if name == "numeric":
        return _decimal(type_name, values), None
    if name in ("json", "jsonb"):
        return pl.String, lambda value: json.dumps(value, ensure_ascii=False)
    kind = _TYPES.get(name)
    return (pl.String, text_of) if kind is None else (kind, None)


def _plain(values: Sequence[Any], plain: Callable[[Any], Any] | None) -> list[Any]:
    return list(values) if plain is None else [None if v is None else plain(v) for v in values]


def _decimal(type_name: str, values: Sequence[Any]) -> pl.Decimal:
    """Return the type that has all digits of all values. ValueError."""
    found = _NUMERIC.fullmatch(type_name)
    for value in values:
        if not (value is None or (isinstance(value, Decimal) and value.is_finite())):
            raise ValueError(f"{value} is not a finite number")
    if found and 0 <= int(found[2]) <= int(found[1]) <= _MOST_DIGITS:
        return pl.Decimal(int(found[1]), int(found[2]))
    given = [value for value in values if value is not None]
    scale = max((-int(v.as_tuple().exponent) for v in given), default=0)
    whole = max((v.adjusted() + 1 for v in given if v), default=0)
    if max(scale, 0) + max(whole, 0) > _MOST_DIGITS:
        raise ValueError(f"its values have more than {_MOST_DIGITS} digits together")
    return pl.Decimal(_MOST_DIGITS, max(scale, 0))
