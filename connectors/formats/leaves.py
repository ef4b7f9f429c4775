"""Convert values that a format has decoded (Avro, Protobuf), column by column.

Each has a natural SQL type (a timestamp of milliseconds is a timestamptz). If another type is
declared, the value is converted through its text, like a cast in PostgreSQL, so that nothing is
truncated or wrapped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from connectors.formats.arrays import array_text
from connectors.formats.columns import Faults, column_of_texts, without
from connectors.formats.declared import DeclaredColumn
from connectors.formats.encoded import bytea_text
from connectors.formats.jsonb_text import Numeral
from connectors.formats.numerals import SCALE_DIGITS
from connectors.formats.times import column_of_integers
from dataflow.delta import KIND_BYTES, KIND_INT, Column
from dataflow.long_integers import digits_of
from dataflow.types import INT8, JSONB, TEXT, SqlType, TypeKind, fixed
from dataflow.values import one_nan, to_text

_TIMES = (TypeKind.DATE, TypeKind.TIME, TypeKind.TIMESTAMP, TypeKind.TIMESTAMPTZ)
_INTS = (TypeKind.INT2, TypeKind.INT4, TypeKind.INT8)
_FLOATS = (TypeKind.FLOAT4, TypeKind.FLOAT8)
_FIXED_DIGITS = 18
# Of the JSON text of one value: few bytes may stand for many long names of a schema.
MOST_CHARACTERS = 64 << 20


@dataclass(frozen=True)
class Leaf:
    """The type of a value at a path of a schema.

    type: the natural SQL type. unit: of integers that count days or time, "" for all others. scale:
    of decimals that are bytes, -1 for all others. plain: converts a non-scalar value to JSON (None,
    bool, str, Numeral, list, dict).
    """

    type: SqlType
    unit: str = ""
    scale: int = -1
    plain: Callable[[Any], Any] | None = None


def column_of_values(
    column: DeclaredColumn, leaf: Leaf, values: Sequence[Any]
) -> tuple[Column, Faults]:
    """Convert decoded values, None for NULL, to the physical form of the declared column."""
    type = column.field.type
    if column.element is not None or leaf.plain is not None:
        return _structures(column, leaf, values)
    if column.unit and leaf.type.kind in _INTS:
        leaf = replace(leaf, type=type, unit=column.unit)
    natural, faults = natural_column(leaf, values)
    if type.kind is leaf.type.kind and type.typmod < 0 and leaf.type.typmod < 0:
        return natural, faults
    if type.kind in _TIMES and leaf.type.kind in _INTS:
        reason = f"an integer where {type.name} is declared without a unit"
        rows = np.flatnonzero(natural.mask()).tolist()
        return Column.nulls(KIND_INT, len(values)), faults | dict.fromkeys(rows, reason)
    answer, more = column_of_texts(type, to_text(leaf.type, natural))
    return answer, more | faults


def natural_column(leaf: Leaf, values: Sequence[Any]) -> tuple[Column, Faults]:
    """Convert values to the physical form of their natural type."""
    kind = leaf.type.kind
    if leaf.scale >= 0:
        return _decimals(leaf, values), {}
    if leaf.unit:
        return column_of_integers(leaf.type, leaf.unit, Column.of(KIND_INT, values))
    if kind in _INTS:
        return _integers(values)
    if kind in _FLOATS or kind is TypeKind.BOOL:
        column = Column.of("b" if kind is TypeKind.BOOL else "f", values)
        return (Column(one_nan(column.values), column.valid) if kind in _FLOATS else column), {}
    if kind is TypeKind.BYTEA:
        return Column.of(
            KIND_BYTES, [None if value is None else bytea_text(bytes(value)) for value in values]
        ), {}
    return column_of_texts(leaf.type, Column.of(KIND_BYTES, values))


def _integers(values: Sequence[Any]) -> tuple[Column, Faults]:
    try:
        return Column.of(KIND_INT, values), {}
    except OverflowError:
        # Unsigned integers of 64 bits.
        texts = [None if value is None else str(value) for value in values]
        return column_of_texts(INT8, Column.of(KIND_BYTES, texts))


def _decimals(leaf: Leaf, values: Sequence[Any]) -> Column:
    """Convert two's complement, most significant byte first, to texts of numeric."""
    numbers = [
        None if value is None else int.from_bytes(value, "big", signed=True) for value in values
    ]
    limit = 10**_FIXED_DIGITS
    if leaf.scale <= _FIXED_DIGITS and all(n is None or -limit < n < limit for n in numbers):
        return to_text(fixed(_FIXED_DIGITS, leaf.scale), Column.of(KIND_INT, numbers))
    return Column.of(
        KIND_BYTES, [None if n is None else decimal_text(n, leaf.scale) for n in numbers]
    )


def decimal_text(unscaled: int, scale: int) -> str:
    """Return unscaled * 10^-scale as numeric prints it; ValueError if it has no such scale.

    >>> decimal_text(-5, 2), decimal_text(12, 0), decimal_text(12, -2)
    ('-0.05', '12', '1200')
    """
    if abs(scale) > SCALE_DIGITS:
        raise ValueError("out of the range of numeric")
    if scale <= 0:
        return digits_of(unscaled * 10**-scale)
    digits = digits_of(abs(unscaled)).rjust(scale + 1, "0")
    return f"{'-' if unscaled < 0 else ''}{digits[:-scale]}.{digits[-scale:]}"


def _structures(column: DeclaredColumn, leaf: Leaf, values: Sequence[Any]) -> tuple[Column, Faults]:
    """Convert records, arrays, maps and unions of several types: JSON, arrays, or texts."""
    plain = leaf.plain or (lambda value: plain_scalar(leaf, value))
    type, faults = column.field.type, Faults()
    texts: list[str | None] = []
    for row, value in enumerate(values):
        texts.append(None)
        if value is None:
            continue
        try:
            texts[row] = _structure_text(column, plain(value))
        except ValueError as error:
            faults[row] = str(error)
    whole = Column.of(KIND_BYTES, texts)
    if column.element is not None:
        return Column(whole.values, without(whole.valid, {}, len(values)), whole.data), faults
    answer, more = column_of_texts(type, whole)
    return answer, more | faults


def _structure_text(column: DeclaredColumn, value: Any) -> str:
    if column.element is not None:
        if not isinstance(value, list):
            raise ValueError(f"not an array, but {column.field.type.name} is declared")
        return array_text(column.element, "hex", value)
    is_json = column.field.type.kind in (TypeKind.JSON, TypeKind.JSONB)
    return value if isinstance(value, str) and not is_json_text(value, is_json) else dump(value)


def is_json_text(value: str, is_json: bool) -> bool:
    """Return True if a string is to be written as JSON; numbers never have quotes."""
    return is_json and not isinstance(value, Numeral)


def dump(value: Any) -> str:
    """Return the JSON text of a `plain` value; numbers are unchanged. ValueError."""
    parts: list[str] = []
    left = MOST_CHARACTERS
    for part in _dumped(value):
        left -= len(part)
        if left < 0:
            raise ValueError(f"its JSON text has more than {MOST_CHARACTERS >> 20} million letters")
        parts.append(part)
    return "".join(parts)


def _dumped(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        yield "["
        for at, one in enumerate(value):
            if at:
                yield ", "
            yield from _dumped(one)
        yield "]"
    elif isinstance(value, dict):
        yield "{"
        for at, (key, one) in enumerate(value.items()):
            yield f"{', ' if at else ''}{json.dumps(key, ensure_ascii=False)}: "
            yield from _dumped(one)
        yield "}"
    else:
        is_number = isinstance(value, Numeral)
        yield str(value) if is_number else json.dumps(value, ensure_ascii=False)


def plain_scalar(leaf: Leaf, value: Any) -> Any:
    """Return a scalar as JSON; ValueError for floats that JSON lacks."""
    if value is None or isinstance(value, bool):
        return value
    column, faults = natural_column(leaf, [value])
    if faults:
        raise ValueError(faults[0])
    text = str(to_text(leaf.type, column).texts()[0])
    kind = leaf.type.kind
    if kind in _FLOATS and text.lstrip("-") in ("NaN", "Infinity"):
        raise ValueError(f"{text}, which JSON does not have")
    is_number = kind in (*_INTS, *_FLOATS, TypeKind.FIXED, TypeKind.DECIMAL)
    return Numeral(text) if is_number else text


ANY_LEAF = Leaf(JSONB)
TEXT_LEAF = Leaf(TEXT)
