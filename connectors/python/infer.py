"""Names and types of a function's columns: declared, or inferred from a sample of its rows.

bool is boolean, int bigint, float double precision, Decimal numeric, str text, bytes bytea,
datetime timestamptz (timestamp without a zone), date, time (timetz with a zone), timedelta
interval, UUID uuid; a driver's range has the type of its bounds; of BSON ObjectId is text and
Decimal128 numeric; dict, dataclasses and models are jsonb. A list of equal scalars is an array, any
other list jsonb. int and Decimal together are numeric, with float double precision; an int beyond
64 bits is numeric. A column of only None is text. Values that fit no single type are refused:
nothing is guessed.
Invariant: batches read for the sample are returned with the rest: an iterator loses no row.
"""

from __future__ import annotations

import datetime
import enum
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import chain
from typing import Any

from connectors.python.drivers import bson_value, is_bson, is_range, range_type
from connectors.python.encode import fields_of, is_null
from connectors.python.rows import Batch
from dataflow.errors import TidemarkError

# (name, type) of each.
Columns = tuple[tuple[str, str], ...]

SAMPLE_ROWS = 1_000
_SHOWN = 40
_TYPES: Sequence[tuple[type, str]] = (
    (bool, "boolean"),
    (int, "bigint"),
    (float, "double precision"),
    (Decimal, "numeric"),
    (str, "text"),
    (bytes, "bytea"),
    (bytearray, "bytea"),
    (memoryview, "bytea"),
    (datetime.datetime, "timestamp"),
    (datetime.date, "date"),
    (datetime.time, "time"),
    (datetime.timedelta, "interval"),
    (uuid.UUID, "uuid"),
)
_NUMBERS = ("bigint", "numeric", "double precision")
# Not a range, in which a subclass of int, such as bson's Int64, would be searched for.
_LEAST, _MOST = -(2**63), 2**63 - 1


def column_type(column: str, values: Iterable[Any]) -> str:
    """Return the type of a column with these values. TidemarkError function.mixed_types.

    >>> column_type("a", [1, None, 2.5]), column_type("a", [[1, 2], []]), column_type("a", [None])
    ('double precision', 'bigint[]', 'text')
    """
    found: dict[str, Any] = {}
    for value in values:
        if not is_null(value):
            found.setdefault(_type_of(column, value), value)
    found.pop("", None)
    if not found:
        return "text"
    if len(found) == 1:
        return next(iter(found)).replace("?[]", "text[]")
    if set(found) <= set(_NUMBERS):
        return max(found, key=_NUMBERS.index)
    if "?[]" in found:  # empty lists have no element type
        found.pop("?[]")
        if len(found) == 1:
            return next(iter(found))
    if all(t == "jsonb" or t.endswith("[]") for t in found):
        elements = {t[:-2] for t in found}
        if elements <= set(_NUMBERS):
            return max(elements, key=_NUMBERS.index) + "[]"
        return "jsonb"
    raise TidemarkError(
        "function.mixed_types",
        f'the values of column "{column}" are of several types',
        detail=", ".join(f"{name} such as {_shown(value)}" for name, value in found.items()),
        hint=f'declare its type: columns={{"{column}": "text", ...}}',
    )


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def _type_of(column: str, value: Any) -> str:
    if isinstance(value, enum.Enum):
        value = value.value
    if is_bson(value):
        try:
            value = bson_value(value)
        except TypeError as error:
            raise _unsupported(column, str(error)) from None
    if is_range(value):
        return range_type(value)
    if isinstance(value, Mapping) or fields_of(value) is not None:
        return "jsonb"
    if isinstance(value, list | tuple):
        return _list_type(column, value)
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return _type_of(column, value.tolist())
    if type(value).__module__ == "ipaddress":
        return "inet"
    for kind, name in _TYPES:
        if isinstance(value, kind):
            if name == "bigint" and not _LEAST <= value <= _MOST:
                return "numeric"
            if name in ("timestamp", "time") and value.tzinfo is not None:
                return f"{name}tz"
            return name
    raise _unsupported(column, f"{type(value).__module__}.{type(value).__qualname__}")


def _unsupported(column: str, detail: str) -> TidemarkError:
    return TidemarkError(
        "function.mixed_types",
        f'a value of column "{column}" has an unsupported type',
        detail=detail,
        hint="return one of Python's built-in types instead",
    )


def _list_type(column: str, values: Sequence[Any]) -> str:
    kinds = dict.fromkeys(_type_of(column, v) for v in values if not is_null(v))
    if not kinds:
        return "?[]"
    if len(kinds) == 1:
        (kind,) = kinds
        return "jsonb" if kind == "jsonb" or kind.endswith("[]") else f"{kind}[]"
    if set(kinds) <= set(_NUMBERS):
        return max(kinds, key=_NUMBERS.index) + "[]"
    return "jsonb"


def found_columns(
    name: str, read: Iterator[Batch], names: Sequence[str] | None = None
) -> tuple[Columns, Iterator[Batch]]:
    """Return (name, type) of the columns from the first rows, and an iterator over all rows.

    names: of the columns of plain tuples, or the desired ones of other rows. TidemarkError
    function.no_columns, function.mixed_types.
    """
    sample: list[Batch] = []
    while sum(b.n for b in sample) < SAMPLE_ROWS:
        batch = next(read, None)
        if batch is None:
            break
        sample.append(batch)
    values: dict[str, list[Any]] = {}
    for batch in sample:
        for column, found in zip(_names(name, batch, names), batch.columns, strict=True):
            values.setdefault(column, []).extend(found[:SAMPLE_ROWS])
    chosen = list(values) if names is None else list(names)
    if not chosen or not sample:
        raise _no_columns(name)
    columns = tuple((c, column_type(c, values.get(c, ()))) for c in chosen)
    return columns, chain(sample, read)


def _names(name: str, batch: Batch, names: Sequence[str] | None) -> Sequence[str]:
    if batch.names:
        return batch.names
    if names is None and batch.described:
        return batch.described
    if names is None or len(names) != len(batch.columns):
        raise _no_columns(name)
    return names


def _no_columns(name: str) -> TidemarkError:
    return TidemarkError(
        "function.no_columns",
        f'the columns of function "{name}" are unknown',
        detail="it returned no rows, or tuples without names",
        hint='declare them: columns={"id": "bigint", "name": "text"}',
    )


def declared_columns(name: str, columns: Mapping[str, str]) -> Columns:
    """Return the declared columns. TidemarkError function.no_columns."""
    if not columns:
        raise _no_columns(name)
    return tuple((str(column), str(type_name)) for column, type_name in columns.items())
