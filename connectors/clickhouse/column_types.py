"""How values of ClickHouse's types are read, and PostgreSQL's type of each.

Invariant: a value arrives with all its digits, and a time with its zone. A type that has no text is
refused by name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_PLAIN = {
    "Int8": "smallint",
    "Int16": "smallint",
    "Int32": "integer",
    "Int64": "bigint",
    "UInt8": "smallint",
    "UInt16": "integer",
    "UInt32": "bigint",
    "UInt64": "numeric(20,0)",
    "Int128": "numeric(39,0)",
    "UInt128": "numeric(39,0)",
    "Int256": "numeric(77,0)",
    "UInt256": "numeric(78,0)",
    "Float32": "real",
    "Float64": "double precision",
    "Bool": "boolean",
    "String": "text",
    "UUID": "uuid",
    "Date": "date",
    "Date32": "date",
    "IPv4": "text",
    "IPv6": "text",
}
_OF_DECIMAL = {"Decimal32": 9, "Decimal64": 18, "Decimal128": 38, "Decimal256": 76}
_OBJECTS = ("Map", "Tuple", "Nested", "JSON", "Object")
_CALL = re.compile(r"(\w+)(?:\((.*)\))?", re.DOTALL)
MICROSECONDS = 6
_INTEGERS = re.compile(r"U?Int(8|16|32|64)")


@dataclass(frozen=True)
class ColumnType:
    """A type. name: without Nullable and LowCardinality; arguments: as they are written.

    declared: PostgreSQL's type; "" if values of the type cannot be read.
    """

    name: str
    arguments: tuple[str, ...]
    declared: str

    @property
    def is_cursor(self) -> bool:
        """Whether values can be compared with a cursor's."""
        is_time = self.name in ("Date", "Date32", "DateTime", "DateTime64")
        return is_time or _INTEGERS.fullmatch(self.name) is not None


def column_type(text: str) -> ColumnType:
    """Return a type as ClickHouse names it.

    >>> column_type("LowCardinality(Nullable(String))").declared
    'text'
    >>> column_type("Array(DateTime64(3, 'Asia/Tokyo'))").declared
    'timestamptz[]'
    """
    found = _CALL.fullmatch(text.strip())
    if found is None:
        return ColumnType(text, (), "")
    name, arguments = found[1], tuple(_split(found[2] or ""))
    if name in ("Nullable", "LowCardinality", "SimpleAggregateFunction"):
        return column_type(arguments[-1])
    return ColumnType(name, arguments, _declared(name, arguments))


def expression(value: str, type: ColumnType, declared: str) -> str:
    """Return SQL of a value's exact form in JSON. declared: the column's type by the user.

    >>> expression("x", column_type("Array(DateTime)"), "timestamptz[]")
    "arrayMap(v1 -> toString(v1, 'UTC'), x)"
    """
    return _expression(value, type, declared.lower(), 1)


def _expression(value: str, type: ColumnType, declared: str, depth: int) -> str:
    if type.name == "DateTime64" and int(type.arguments[0]) > MICROSECONDS:
        # Cut, not rounded: a cursor must be on the same side of a limit here and there.
        return f"toString(toDateTime64({value}, {MICROSECONDS}), 'UTC')"
    if type.name in ("DateTime", "DateTime64"):
        return f"toString({value}, 'UTC')"
    if type.name in ("String", "FixedString") and declared.startswith("bytea"):
        return f"concat('\\\\x', hex({value}))"
    if type.name == "FixedString":
        return f"toStringCutToZero({value})"
    if type.name == "Array":
        name = f"v{depth}"
        inner = _expression(name, column_type(type.arguments[0]), declared, depth + 1)
        return value if inner == name else f"arrayMap({name} -> {inner}, {value})"
    if type.name not in _PLAIN and type.name not in _OBJECTS and not type.name.startswith("Dec"):
        return f"toString({value})"
    return value


def literal(value: int, type: ColumnType) -> str:
    """Return SQL of a cursor's value. value: days or microseconds since 1970, or the number.

    >>> literal(19723, column_type("Date")), literal(1_500_000, column_type("DateTime"))
    ("toDate('2024-01-01')", 'toDateTime(1)')
    """
    if type.name in ("Date", "Date32"):
        return f"to{type.name}('{_date(value)}')"
    if type.name == "DateTime":
        return f"toDateTime({max(0, value // 1_000_000)})"
    if type.name == "DateTime64":
        return f"fromUnixTimestamp64Micro(toInt64({value}))"
    return str(value)


def _date(days: int) -> str:
    """Return a day of ISO 8601 by its number since 1970."""
    # The days of 400 years are always as many.
    days += 719_468
    era, day = divmod(days, 146_097)
    year = (day - day // 1460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153
    day = day - (153 * month + 2) // 5 + 1
    month = month + 3 if month < 10 else month - 9
    return f"{year + era * 400 + (month <= 2):04}-{month:02}-{day:02}"


def _declared(name: str, arguments: tuple[str, ...]) -> str:
    if name in _PLAIN:
        return _PLAIN[name]
    if name == "Decimal":
        return f"numeric({int(arguments[0])},{int(arguments[1])})"
    if name in _OF_DECIMAL:
        return f"numeric({_OF_DECIMAL[name]},{int(arguments[0])})"
    if name in ("DateTime", "DateTime64"):
        return "timestamptz"
    if name in ("FixedString", "Enum8", "Enum16", "Enum"):
        return "text"
    if name == "Array":
        inner = column_type(arguments[0])
        if inner.declared in ("jsonb", "") or not inner.declared:
            return "jsonb" if inner.declared else ""
        return inner.declared if inner.declared.endswith("[]") else f"{inner.declared}[]"
    if name in _OBJECTS:
        return "jsonb"
    # Times of day, intervals, variants and others have texts; states of aggregates have none.
    return "" if name in ("AggregateFunction", "Nothing") else "text"


def _split(text: str) -> list[str]:
    """Return the arguments of a type, without blanks around them."""
    found, depth, quote, start = [], 0, False, 0
    at = 0
    while at < len(text):
        letter = text[at]
        if quote:
            at += letter == "\\"
            quote = letter != "'"
        elif letter == "'":
            quote = True
        elif letter in "()":
            depth += 1 if letter == "(" else -1
        elif letter == "," and not depth:
            found.append(text[start:at].strip())
            start = at + 1
        at += 1
    last = text[start:].strip()
    return [*found, last] if last else found
