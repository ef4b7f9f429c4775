"""Values that drivers of databases return and Python itself does not have.

psycopg's and asyncpg's ranges, and the types of BSON. They are recognized by their classes' names
and attributes, because no driver is imported here.
"""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

# By the name of a class of psycopg2, where the bounds do not tell the type.
_RANGES = {
    "DateRange": "daterange",
    "DateTimeRange": "tsrange",
    "DateTimeTZRange": "tstzrange",
}
# Those that have a form here; any other is refused by its name.
_BSON = ("Binary", "Code", "Decimal128", "Int64", "ObjectId", "SON")


def is_range(value: Any) -> bool:
    """Return True for a range of psycopg2, psycopg or asyncpg."""
    return hasattr(value, "isempty") and hasattr(value, "lower_inc")


def range_type(value: Any) -> str:
    """Return PostgreSQL's type of a range; "" if neither its class nor its bounds tell it."""
    found = _RANGES.get(type(value).__name__)
    bound = value.lower if value.lower is not None else value.upper
    if found is not None or bound is None:
        return found or ""
    if isinstance(bound, datetime.datetime):
        return "tsrange" if bound.tzinfo is None else "tstzrange"
    if isinstance(bound, datetime.date):
        return "daterange"
    return "int8range" if isinstance(bound, int) else "numrange"


def range_text(value: Any) -> str:
    """Return a range as PostgreSQL reads it."""
    if value.isempty:
        return "empty"
    lower, upper = ("" if v is None else f'"{v}"' for v in (value.lower, value.upper))
    return f"{'[' if value.lower_inc else '('}{lower},{upper}{']' if value.upper_inc else ')'}"


def is_bson(value: Any) -> bool:
    """Return True for a value of a type of the package bson."""
    return type(value).__module__.startswith("bson.")


def bson_value(value: Any) -> Any:
    """Return what PostgreSQL has for a value of BSON. TypeError for a type that it has not."""
    kind = type(value).__name__
    if kind not in _BSON:
        raise TypeError(f"a value of type bson.{kind} has no form in PostgreSQL")
    if kind == "Decimal128":
        found: Decimal = value.to_decimal()
        return found
    return str(value) if kind == "ObjectId" else value
