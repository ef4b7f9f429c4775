"""Python values of a module or function as JSON records, exact to the last digit.

Invariant: a value whose type has no exact text is refused by name, never rounded or shown as Python
shows it.
"""

from __future__ import annotations

import datetime
import decimal
import math
import uuid
from collections.abc import Sequence
from typing import Any

import orjson

from dataflow.errors import SourceError

_DAY_S = 86_400


def records_of(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[bytes]:
    """Return a JSON object of each row. SourceError source.python_value."""
    plain = (int, str, bool, type(None))
    found = []
    for row in rows:
        values = (v if type(v) in plain and _is_short(v) else text_of(v) for v in row)
        found.append(orjson.dumps(dict(zip(names, values, strict=True))))
    return found


def _is_short(value: Any) -> bool:
    """Return whether JSON's writer takes the value: its numbers have 64 bits."""
    return type(value) is not int or -(1 << 63) <= value < 1 << 63


def text_of(value: Any) -> Any:
    """Return a value as PostgreSQL reads it from a text, lists and objects as JSON.

    >>> text_of(decimal.Decimal("1.10")), text_of(b"\\xff"), text_of(datetime.timedelta(hours=26))
    ('1.10', '\\\\xff', '26:00:00')
    """
    if isinstance(value, str | bool) or value is None:
        return value
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, int | decimal.Decimal | uuid.UUID):
        return str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return "\\x" + bytes(value).hex()
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return _interval(value)
    if isinstance(value, list | tuple):
        return [_inner(one) for one in value]
    if isinstance(value, dict):
        return {str(name): _inner(one) for name, one in value.items()}
    raise SourceError(
        "source.python_value",
        f"a value of Python's type {type(value).__qualname__} cannot be read",
        hint="return a text, a number, or a value that docs/DBAPI.md lists",
    )


def _inner(value: Any) -> Any:
    """Return a value of a list or an object, where a number is another one than its text."""
    is_number = isinstance(value, int) and _is_short(value)
    is_number |= isinstance(value, float) and math.isfinite(value)
    return value if is_number else text_of(value)


def _interval(value: datetime.timedelta) -> str:
    """Return hours, minutes and seconds, as a column of time has them from some modules."""
    sign = "-" if value < datetime.timedelta() else ""
    value = abs(value)
    seconds = value.days * _DAY_S + value.seconds
    fraction = f".{value.microseconds:06}" if value.microseconds else ""
    return f"{sign}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{fraction}"
