"""Exact Python values from REST's JSON, by the PostgreSQL type of the column, and back.

Integers, floats and booleans are JSON's own, documents are JSON in JSON, all others PostgreSQL's
text (docs/KAFKA_SINK.md).
Invariant: no value is rounded, cut or invented. A value that the Python type cannot represent (an
infinite date, a date BC, 24:00) stays PostgreSQL's text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from functools import cache
from typing import Any, NamedTuple
from uuid import UUID

Reader = Callable[[Any], Any]

_MODIFIER = re.compile(r"\([\d,-]+\)")
_INTERVAL = re.compile(
    r"(?:(?P<years>-?\d+) years? ?)?"
    r"(?:(?P<months>[+-]?\d+) mons? ?)?"
    r"(?:(?P<days>[+-]?\d+) days? ?)?"
    r"(?:(?P<sign>[+-]?)(?P<hours>\d+):(?P<minutes>\d\d):(?P<seconds>\d\d)(?:\.(?P<fraction>\d+))?)?"
)
_ARRAY_PART = re.compile(r'([{}])|"((?:[^"\\]|\\.)*)"|([^{},"]+)')
_BOUNDS = re.compile(r"(?:\[[+-]?\d+:[+-]?\d+\])+=")


class Interval(NamedTuple):
    """An interval as PostgreSQL stores it: months and days have no fixed length.

    >>> Interval(days=1, microseconds=1_500_000).timedelta
    datetime.timedelta(days=1, seconds=1, microseconds=500000)
    """

    months: int = 0
    days: int = 0
    microseconds: int = 0

    @property
    def timedelta(self) -> timedelta:
        """The interval as a timedelta, with days of 24 hours. ValueError if it has months."""
        if self.months:
            raise ValueError(f"{self.months} months have no fixed length")
        return timedelta(days=self.days, microseconds=self.microseconds)


def parse_json(text: str | bytes) -> Any:
    """Parse JSON with integers of any length. ValueError.

    >>> parse_json("7"), parse_json("1" * 5000) == Decimal("1" * 5000)
    (7, True)
    """
    try:
        return json.loads(text)
    except ValueError:
        # Python limits the digits of an int from text.
        return json.loads(text, parse_int=lambda d: int(d) if len(d) < 4000 else Decimal(d))


def base_type(type_name: str) -> str:
    """Return a type without length, precision and scale.

    >>> base_type("timestamp(3) without time zone"), base_type("numeric(12,2)[]")
    ('timestamp without time zone', 'numeric[]')
    """
    return _MODIFIER.sub("", type_name)


@cache
def reader_of(type_name: str) -> Reader | None:
    """Return the function from JSON's value to the Python value; None if they are the same.

    >>> reader_of("numeric(12,2)")("12.50"), reader_of("text")
    (Decimal('12.50'), None)
    >>> reader_of("date[]")("{2024-02-29,infinity,NULL}")
    [datetime.date(2024, 2, 29), 'infinity', None]
    """
    name = base_type(type_name)
    if name in ("real", "double precision"):
        return float
    if name in _JSON_ITSELF:
        return None
    if name == "box[]":
        return None
    if name.endswith("[]"):
        element = _text_reader(name[:-2])
        return lambda text: _array(text, element)
    return _TEXTS.get("interval" if name.startswith("interval") else name)


def _text_reader(name: str) -> Reader:
    """Return the function from an array element's text to the Python value."""
    if name.startswith("interval"):
        name = "interval"
    return _IN_ARRAYS.get(name) or _TEXTS.get(name) or _as_is


def _as_is(text: Any) -> Any:
    return text


def _or_text(read: Callable[[str], Any]) -> Reader:
    """Return a reader that keeps the text if `read` fails."""

    def reader(text: str) -> Any:
        try:
            return read(text)
        except ValueError:
            return text

    return reader


def _decimal(text: str) -> Any:
    try:
        return Decimal(text)
    except InvalidOperation:
        return text


def _time(text: str) -> time:
    if text.startswith("24"):
        raise ValueError("it is the next day's")
    return time.fromisoformat(text)


def _bytes(text: str) -> bytes:
    if not text.startswith("\\x"):
        raise ValueError("it is not in hex")
    return bytes.fromhex(text[2:])


def _interval(text: str) -> Interval:
    """
    >>> _interval("1 year 2 mons -3 days +04:05:06.7")
    Interval(months=14, days=-3, microseconds=14706700000)
    """
    found = _INTERVAL.fullmatch(text)
    if found is None or not text:
        raise ValueError("not an interval")
    part = {name: int(text or 0) for name, text in found.groupdict().items() if name != "sign"}
    part["fraction"] = int((found["fraction"] or "").ljust(6, "0")[:6])
    seconds = (part["hours"] * 60 + part["minutes"]) * 60 + part["seconds"]
    microseconds = seconds * 1_000_000 + part["fraction"]
    signed = -microseconds if found["sign"] == "-" else microseconds
    return Interval(part["years"] * 12 + part["months"], part["days"], signed)


def _array(text: str, element: Reader) -> Any:
    """Return the nested lists of an array's text, without its lower bounds.

    >>> _array('[0:1]={{a,NULL},{"x, \\\\"y\\\\"",""}}', str)
    [['a', None], ['x, "y"', '']]
    """
    outer: list[Any] = []
    open_lists = [outer]
    for brace, quoted, plain in _ARRAY_PART.findall(_BOUNDS.sub("", text, count=1)):
        if brace == "{":
            inner: list[Any] = []
            open_lists[-1].append(inner)
            open_lists.append(inner)
        elif brace == "}":
            open_lists.pop()
        elif plain:
            open_lists[-1].append(None if plain == "NULL" else element(plain))
        else:
            open_lists[-1].append(element(re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL)))
    return outer[0] if outer else text


_JSON_ITSELF = ("boolean", "smallint", "integer", "bigint", "json", "jsonb")
_TEXTS: dict[str, Reader] = {
    "numeric": _decimal,
    "date": _or_text(date.fromisoformat),
    "time without time zone": _or_text(_time),
    "time with time zone": _or_text(_time),
    "timestamp without time zone": _or_text(datetime.fromisoformat),
    "timestamp with time zone": _or_text(datetime.fromisoformat),
    "interval": _or_text(_interval),
    "uuid": UUID,
    "bytea": _or_text(_bytes),
}
_IN_ARRAYS: dict[str, Reader] = {
    "boolean": lambda text: text == "t",
    "smallint": int,
    "integer": int,
    "bigint": int,
    "real": float,
    "double precision": float,
    "json": parse_json,
    "jsonb": parse_json,
}


# --- back to text --------------------------------------------------------------------------------


def text_of(value: Any) -> str:
    """A value as PostgreSQL reads it, whatever its column's type is.

    >>> text_of(Decimal("1E+2")), text_of(True), text_of([1, None, 'a "b"']), text_of(b"\\x01")
    ('100', 'true', '{"1",NULL,"a \\\\"b\\\\""}', '\\\\x01')
    """
    match value:
        case bool():
            return "true" if value else "false"
        case Decimal():
            return format(value, "f")
        case bytes() | bytearray():
            return "\\x" + value.hex()
        case Interval(months, days, microseconds):
            return f"{months} mons {days} days {microseconds} microseconds"
        case timedelta():
            return f"{value.days} days {value.seconds} seconds {value.microseconds} microseconds"
        case datetime():
            return value.isoformat(" ")
        case date() | time():
            return value.isoformat()
        case dict():
            return json.dumps(value, default=text_of)
        case list() | tuple():
            return "{" + ",".join(_in_array(each) for each in value) + "}"
    return str(value)


def _in_array(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, list | tuple) and not isinstance(value, Interval):
        return text_of(value)
    return '"' + re.sub(r'(["\\])', r"\\\1", text_of(value)) + '"'
