"""Encode Python values for PostgreSQL: whole columns at a time, in COPY's text form.

Only the form is made here; PostgreSQL decides whether a text is valid for the column's type.
Invariant: a value is encoded as itself, never as another column or line.
"""

from __future__ import annotations

import datetime
import enum
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from connectors.python.drivers import bson_value, is_bson, is_range, range_text
from dataflow.long_integers import digits_of

NULL = "\\N"
_PLAIN = (int, Decimal, datetime.date, datetime.datetime, datetime.time, uuid.UUID)
_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})
_SPECIAL = ("\\", "\t", "\n", "\r", "\0")

Encoder = Callable[[Sequence[Any]], list[str]]


class BadValue(Exception):
    """A value without a text form. index: its position among the values."""

    def __init__(self, why: str, index: int = 0) -> None:
        super().__init__(why)
        self.index = index


def encoder_of(type_name: str) -> Encoder:
    """Return the encoder for columns of a type, as format_type names it.

    json and jsonb accept any value as JSON, arrays accept lists, all other types scalars.
    """
    if type_name in ("json", "jsonb"):
        return lambda column: _each(column, _json_text)
    if type_name.endswith("[]"):
        element = type_name.rstrip("[]")
        return lambda column: _each(column, lambda v: _array(v, element))
    return _scalars


def lines(columns: Sequence[Sequence[Any]], encoders: Sequence[Encoder], n: int) -> bytes:
    """Return n rows, passed by columns, as lines of COPY's text form. BadValue."""
    if not columns:
        return b"\n" * n
    texts = [encode(c) for c, encode in zip(columns, encoders, strict=True)]
    try:
        return ("\n".join(map("\t".join, zip(*texts, strict=True))) + "\n").encode()
    except UnicodeEncodeError as error:
        raise BadValue(
            f"a string is not valid Unicode: {error.reason}", _not_unicode(texts)
        ) from None


def scalar_text(value: Any) -> str:
    """Return the text of one non-NULL value, before escaping. BadValue.

    >>> [scalar_text(v) for v in (True, 1.5, b"a", datetime.timedelta(days=-1, microseconds=5))]
    ['t', '1.5', '\\\\x61', '-1 days 0.000005 seconds']
    """
    kind = type(value)
    if kind is bool:
        return "t" if value else "f"
    if kind is int:
        return digits_of(value)
    if kind is str:
        return value
    if kind is float:
        return repr(value)
    if isinstance(value, enum.Enum):
        return scalar_text(value.value)
    if is_bson(value):
        value = bson_value(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return "\\x" + bytes(value).hex()
    if isinstance(value, datetime.timedelta):
        seconds = Decimal(value.seconds) + Decimal(value.microseconds) / 1_000_000
        return f"{value.days} days {seconds:f} seconds"
    if isinstance(value, _PLAIN) or kind.__module__ == "ipaddress":
        return str(value)
    if hasattr(value, "tolist") and kind.__module__ == "numpy":
        return scalar_text(value.tolist())
    if isinstance(value, float):
        return repr(float(value))
    if is_range(value):
        return range_text(value)
    raise BadValue(f"a value of type {kind.__name__} has no form in this column")


def is_null(value: Any) -> bool:
    """Return True for None and for pandas' NaT and NA."""
    return value is None or type(value).__name__ in ("NaTType", "NAType")


def _scalars(column: Sequence[Any]) -> list[str]:
    kinds = set(map(type, column))
    has_null = type(None) in kinds
    kinds.discard(type(None))
    if kinds == {int}:
        return _each(column, scalar_text) if has_null else _integers(column)
    if not kinds or (len(kinds) == 1 and kinds <= _BY_STR):
        texts = map(str, column)
    elif kinds == {float}:
        texts = map(repr, column)
    elif kinds == {str}:
        return _texts(column, has_null)
    else:
        return _each(column, scalar_text)
    if has_null:
        return [NULL if v is None else t for v, t in zip(column, texts, strict=True)]
    return list(texts)


def _integers(column: Sequence[int]) -> list[str]:
    try:
        return list(map(str, column))
    except ValueError:
        # It is longer than Python prints.
        return list(map(digits_of, column))


# Exact types whose text is plain: a subclass could print itself differently.
_BY_STR = {Decimal, datetime.date, datetime.datetime, datetime.time, uuid.UUID}


def _texts(column: Sequence[Any], has_null: bool) -> list[str]:
    if has_null:
        return _each(column, scalar_text)
    together = "".join(column)
    if any(c in together for c in _SPECIAL):
        return _each(column, scalar_text)
    return list(column)


def _each(column: Sequence[Any], text_of: Callable[[Any], str]) -> list[str]:
    out = []
    for i, value in enumerate(column):
        if is_null(value):
            out.append(NULL)
            continue
        try:
            text = text_of(value)
        except BadValue as error:
            raise BadValue(str(error), i) from None
        except (TypeError, ValueError, RecursionError) as error:
            raise BadValue(f"a value of type {type(value).__name__}: {error}", i) from None
        if "\0" in text:
            raise BadValue("a string has a NUL character, which PostgreSQL does not store", i)
        out.append(text.translate(_ESCAPES))
    return out


def _json_text(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, default=_json_value)
    except (_HasDecimal, ValueError):
        return _json_with_decimals(value)


class _HasDecimal(Exception):
    """Raised where json has no number: Decimals, and integers too long to print."""


def _json_value(value: Any) -> Any:
    if isinstance(value, Decimal):
        raise _HasDecimal
    if isinstance(value, Mapping):
        return dict(value)
    if is_bson(value) and (plain := bson_value(value)) is not value:
        return plain
    if isinstance(value, set | frozenset):
        return sorted(value)
    fields = fields_of(value)
    if fields is not None:
        return {name: getattr(value, name) for name in fields}
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return scalar_text(value)


def _json_with_decimals(value: Any) -> str:
    """Return the JSON text with all digits of each Decimal."""
    if isinstance(value, Decimal):
        if not value.is_finite():
            raise ValueError(f"{value} is not a JSON number")
        return str(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return digits_of(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_json_with_decimals, value)) + "]"
    if isinstance(value, dict):
        # A key becomes text as in json.
        names = (json.dumps({k: 0}, ensure_ascii=False)[1:-2] for k in value)
        texts = map(_json_with_decimals, value.values())
        return "{" + ", ".join(n + t for n, t in zip(names, texts, strict=True)) + "}"
    if value is None or isinstance(value, str | int | float):
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    return _json_with_decimals(_json_value(value))


def fields_of(value: Any) -> tuple[str, ...] | None:
    """Return the field names of a dataclass, a named tuple, a pydantic model or a class of attrs,
    else None.
    """
    kind = type(value)
    found = getattr(kind, "__dataclass_fields__", None)
    if found is None:
        found = getattr(kind, "model_fields", None)
    if found is None and isinstance(value, tuple):
        found = getattr(kind, "_fields", None)
    if found is None and hasattr(kind, "__attrs_attrs__"):
        found = [attribute.name for attribute in kind.__attrs_attrs__]
    return None if found is None else tuple(found)


def _array(value: Any, element: str) -> str:
    if hasattr(value, "tolist"):
        value = value.tolist()
    if not isinstance(value, list | tuple):
        raise BadValue(f"a value of type {type(value).__name__} is not a list")
    return "{" + ",".join(_element(v, element) for v in value) + "}"


def _element(value: Any, element: str) -> str:
    if is_null(value):
        return "NULL"
    if element in ("json", "jsonb"):
        text = _json_text(value)
    elif isinstance(value, list | tuple):
        return _array(value, element)
    else:
        text = scalar_text(value)
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _not_unicode(texts: Sequence[Sequence[str]]) -> int:
    for i, row in enumerate(zip(*texts, strict=True)):
        try:
            "".join(row).encode()
        except UnicodeEncodeError:
            return i
    return 0
