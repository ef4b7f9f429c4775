"""Rows as a pandas DataFrame: a column's dtype follows from its PostgreSQL type alone.

Invariant: NULL is pandas' NA (NaT in times, None among objects), and nothing else is, such as NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd

from service.client.answers import Field
from service.client.table import WEIGHT, Table, unfit
from service.client.values import base_type

_INTEGERS = {"smallint": np.int16, "integer": np.int32, "bigint": np.int64}
_FLOATS = {"real": np.float32, "double precision": np.float64}
_TEXTS = ("text", "character varying", "character", "name")
_TIMES = ("timestamp without time zone", "timestamp with time zone")


def frame_of(table: Table) -> pd.DataFrame:
    """Return rows as a DataFrame. TidemarkError rows.not_in_frame."""
    columns = list(zip(*table.rows, strict=True)) if table.rows else [()] * len(table.fields)
    # By number: a query may name two columns alike.
    series = {
        number: _series(field, values)
        for number, (field, values) in enumerate(zip(table.fields, columns, strict=True))
    }
    names = [field.name for field in table.fields]
    if table.weights is not None:
        series[len(names)] = pd.Series(np.array(table.weights, np.int64))
        names.append(WEIGHT)
    frame = pd.DataFrame(series, index=pd.RangeIndex(len(table.rows)))
    frame.columns = pd.Index(names, dtype=object)
    return frame


def _series(field: Field, values: Sequence[Any]) -> pd.Series:
    name = base_type(field.type)
    try:
        if name in _INTEGERS:
            return _masked(pd.arrays.IntegerArray, values, _INTEGERS[name])
        if name in _FLOATS:
            # Not from the values: they would turn NaN into NA.
            return _masked(pd.arrays.FloatingArray, values, _FLOATS[name])
        if name == "boolean":
            return _masked(pd.arrays.BooleanArray, values, np.bool_)
        if name in _TEXTS:
            return pd.Series(pd.array(list(values), dtype="string"))
        if name in _TIMES:
            return _times(values, has_zone=name == _TIMES[1])
    except (ValueError, TypeError, OverflowError) as error:
        raise unfit(field, "pandas", str(error)) from error
    objects = np.empty(len(values), dtype=object)
    for number, value in enumerate(values):
        # One by one: lists of equal length would become a second dimension.
        objects[number] = value
    return pd.Series(objects, dtype=object)


def _masked(make: Callable[..., Any], values: Sequence[Any], kind: type[np.generic]) -> pd.Series:
    mask = np.array([v is None for v in values], dtype=np.bool_)
    data = np.array([0 if v is None else v for v in values], dtype=kind)
    return pd.Series(make(data, mask))


def _times(values: Sequence[Any], *, has_zone: bool) -> pd.Series:
    for value in values:
        if not (value is None or isinstance(value, datetime)):
            raise ValueError(f"{value} is not a date of Python")
    if has_zone:
        values = [v and v.astimezone(UTC).replace(tzinfo=None) for v in values]
    # By NumPy, which has these microseconds for all years of Python.
    found = pd.Series(np.array(list(values), dtype="datetime64[us]"))
    return found.dt.tz_localize("UTC") if has_zone else found
