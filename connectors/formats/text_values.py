"""Parse texts of single values like PostgreSQL's input functions, in every accepted form.

This is the exact, slow path: one value at a time, for values that the kernels leave over. Its
oracle is a cast of the same text in PostgreSQL under dataflow.types.SESSION_SETTINGS. Rejected,
because they depend on settings or the server's version: dates and times in words or not in ISO 8601
order, hexadecimal numbers, and numbers with underscores.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from tidemark_native.values import days_of

from connectors.formats.jsonb_text import check_json, jsonb_text
from connectors.formats.numerals import join_numeral, split_numeral
from dataflow import float_text
from dataflow.types import FIXED_NAN, SqlType, TypeKind

Physical = int | float | bool | bytes

_SPACES = " \t\n\r\v\f"
_INTEGER = re.compile(r"[+-]?[0-9]+")
_TRUE = {"t", "tr", "tru", "true", "y", "ye", "yes", "on", "1"}
_FALSE = {"f", "fa", "fal", "fals", "false", "n", "no", "of", "off", "0"}
_RANGES = {TypeKind.INT2: 15, TypeKind.INT4: 31, TypeKind.INT8: 63}
_STAMP = re.compile(
    r"(?P<date>(?P<year>[0-9]{4,7})-(?P<month>[0-9]{1,2})-(?P<day>[0-9]{1,2}))?"
    r"(?:(?(date)(?:[ ]+|[Tt]))(?P<hour>[0-9]{1,2}):(?P<minute>[0-9]{2})"
    r"(?::(?P<second>[0-9]{2})(?P<part>\.[0-9]*)?)?"
    r"(?:[ ]*(?P<zone>[Zz]|UTC|GMT|[+-][0-9]{2}(?::?[0-9]{2}(?::?[0-9]{2})?)?))?)?(?P<bc> BC)?"
)
_DAY_US = 86_400_000_000
_MONTH_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_DATE_LEAST, _DATE_END = -2_451_545, 2_145_031_949
_STAMP_LEAST, _STAMP_END = -211_813_488_000_000_000, 9_223_371_331_200_000_000
_DATE_INFINITY, _STAMP_INFINITY = 2**31 - 1, 2**63 - 1
_UUID = re.compile(r"([0-9a-fA-F]{4}-?){7}[0-9a-fA-F]{4}")
_ESCAPED = re.compile(rb"\\\\|\\([0-3][0-7][0-7])|[^\\]", re.DOTALL)


def parse_value(type: SqlType, text: bytes) -> Physical:
    """Return the physical value of one text; ValueError gives the reason, without the text.

    >>> from dataflow.types import INT4, fixed
    >>> parse_value(INT4, b" +12 "), parse_value(fixed(5, 2), b"1.005e1")
    (12, 1005)
    """
    try:
        decoded = text.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}") from None
    if "\0" in decoded:
        raise ValueError("holds a NUL character, which PostgreSQL's text cannot")
    return _PARSERS[type.kind](type, decoded)


def _parse_int(type: SqlType, text: str) -> int:
    stripped = text.strip(_SPACES)
    if _INTEGER.fullmatch(stripped) is None:
        raise ValueError("not an integer")
    limit = 2 ** _RANGES[type.kind]
    value = int(stripped) if len(stripped) < 4000 else int(stripped.lstrip("+-0")[:30] or 0)
    if not -limit <= value < limit:
        raise ValueError("out of range")
    return value


def _parse_float(type: SqlType, text: str) -> float:
    stripped = text.strip(_SPACES)
    if stripped[:1] == "+" and stripped[1:2] != "-":
        stripped = stripped[1:]
    value = float_text.parse_float(stripped.encode(), type.kind is TypeKind.FLOAT4)
    if value == 0.0 and re.search("[1-9]", stripped.lower().partition("e")[0]):
        raise ValueError("out of range")
    return value


def _parse_bool(type: SqlType, text: str) -> bool:
    stripped = text.strip(_SPACES).lower()
    if stripped not in _TRUE and stripped not in _FALSE:
        raise ValueError("not a boolean")
    return stripped in _TRUE


def _parse_numeric(type: SqlType, text: str) -> int | bytes:
    stripped = text.strip(_SPACES)
    special = _special_numeric(type, stripped.lower())
    if special is not None:
        return special
    is_negative, whole, fraction = split_numeral(stripped)
    if type.typmod < 0:
        return join_numeral(is_negative, whole, fraction).encode()
    return _constrained(type, is_negative, whole, fraction)


def _special_numeric(type: SqlType, name: str) -> int | bytes | None:
    if name == "nan":
        return FIXED_NAN if type.kind is TypeKind.FIXED else b"NaN"
    if name.lstrip("+-") in ("inf", "infinity") and len(name) - len(name.lstrip("+-")) <= 1:
        if type.typmod >= 0:
            raise ValueError(f"{type.name} cannot hold an infinite value")
        return b"-Infinity" if name[0] == "-" else b"Infinity"
    return None


def _constrained(type: SqlType, is_negative: bool, whole: str, fraction: str) -> int | bytes:
    """Return the value rounded half away from zero to the declared scale, and check the
    precision.
    """
    precision = ((type.typmod - 4) >> 16) & 0xFFFF
    scale = (type.typmod - 4) & 0x7FF
    scale = scale - 2048 if scale >= 1024 else scale
    if scale >= 0:
        digits, rest = whole + fraction[:scale].ljust(scale, "0"), fraction[scale:]
    else:
        padded = whole.rjust(-scale + 1, "0")
        digits, rest = padded[:scale], padded[scale:] + fraction
    digits = digits.lstrip("0")
    scaled = 10**precision
    if len(digits) <= precision:
        scaled = int(digits or 0) + (1 if rest[:1] >= "5" else 0)
    if scaled >= 10**precision:
        raise ValueError(f"out of the range of {type.name}")
    if type.kind is TypeKind.FIXED:
        return -scaled if is_negative else scaled
    is_negative = is_negative and scaled > 0
    if scale <= 0:
        return join_numeral(is_negative, str(scaled * 10**-scale), "").encode()
    digits = str(scaled).rjust(scale + 1, "0")
    return join_numeral(is_negative, digits[:-scale], digits[-scale:]).encode()


def _parse_text(type: SqlType, text: str) -> bytes:
    if type.typmod >= 4:
        most = type.typmod - 4
        if len(text) > most:
            if text[most:].strip(" "):
                raise ValueError(f"too long for {type.name}")
            text = text[:most]
        if type.kind is TypeKind.BPCHAR:
            text = text.ljust(most)
    return text.encode()


def _parse_date(type: SqlType, text: str) -> int:
    stripped = text.strip(_SPACES)
    infinity = _infinity(stripped)
    if infinity:
        return _DATE_INFINITY if infinity > 0 else -_DATE_INFINITY - 1
    found = _STAMP.fullmatch(stripped)
    if found is None or found["date"] is None:
        raise ValueError("not a date of the form YYYY-MM-DD")
    _clock_us(found)
    _east_us(found["zone"])
    days = _days(found)
    if not _DATE_LEAST <= days < _DATE_END:
        raise ValueError("out of the range of date")
    return days


def _parse_time(type: SqlType, text: str) -> int:
    found = _STAMP.fullmatch(text.strip(_SPACES))
    if found is None or found["hour"] is None or found["date"] is not None or found["bc"]:
        raise ValueError("not a time of the form HH:MM:SS")
    _east_us(found["zone"])
    return _clock_us(found)


def _parse_stamp(type: SqlType, text: str) -> int:
    stripped = text.strip(_SPACES)
    infinity = _infinity(stripped)
    if infinity:
        return _STAMP_INFINITY if infinity > 0 else -_STAMP_INFINITY - 1
    found = _STAMP.fullmatch(stripped)
    if found is None or found["date"] is None:
        raise ValueError("not a time of the form YYYY-MM-DD HH:MM:SS")
    east = _east_us(found["zone"])
    us = _days(found) * _DAY_US + _clock_us(found)
    if type.kind is TypeKind.TIMESTAMPTZ:
        us -= east
    if not _STAMP_LEAST <= us < _STAMP_END:
        raise ValueError("out of the range of timestamps")
    return us


def _infinity(text: str) -> int:
    name = text.lower()
    if name == "infinity":
        return 1
    return -1 if name == "-infinity" else 0


def _days(found: re.Match[str]) -> int:
    year, month, day = int(found["year"]), int(found["month"]), int(found["day"])
    if year == 0 or not 1 <= month <= 12:
        raise ValueError("no such date")
    year = 1 - year if found["bc"] else year
    most = _MONTH_DAYS[month - 1]
    if month == 2 and year % 4 == 0 and (year % 100 != 0 or year % 400 == 0):
        most = 29
    if not 1 <= day <= most:
        raise ValueError("no such date")
    return days_of(year, month, day)


def _clock_us(found: re.Match[str]) -> int:
    if found["hour"] is None:
        return 0
    hour, minute, second = int(found["hour"]), int(found["minute"]), int(found["second"] or 0)
    part = found["part"] or ""
    # PostgreSQL rounds the fraction in a double, which therefore decides ties here as well.
    us = round(float("0" + part) * 1e6) if len(part) > 1 else 0
    total = ((hour * 60 + minute) * 60 + second) * 1_000_000 + us
    if minute > 59 or second > 60 or total > _DAY_US:
        raise ValueError("no such time of the day")
    return total


def _east_us(zone: str | None) -> int:
    if zone is None or zone[0] not in "+-":
        return 0
    digits = zone[1:].replace(":", "").ljust(6, "0")
    hours, minutes, seconds = int(digits[:2]), int(digits[2:4]), int(digits[4:])
    if hours > 15 or minutes > 59 or seconds > 59:
        raise ValueError("no such offset from UTC")
    us = ((hours * 60 + minutes) * 60 + seconds) * 1_000_000
    return -us if zone[0] == "-" else us


def _parse_uuid(type: SqlType, text: str) -> bytes:
    inner = text[1:-1] if text[:1] == "{" and text[-1:] == "}" else text
    if _UUID.fullmatch(inner) is None:
        raise ValueError("not a UUID")
    digits = inner.replace("-", "").lower()
    parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    return "-".join(parts).encode()


def _parse_bytea(type: SqlType, text: str) -> bytes:
    raw = text.encode()
    if raw[:2] == b"\\x":
        # bytes.fromhex accepts white space between pairs only, as PostgreSQL does.
        try:
            return b"\\x" + bytes.fromhex(text[2:]).hex().encode()
        except ValueError:
            raise ValueError("not a bytea of the form \\x0123") from None
    parts, at = [], 0
    while at < len(raw):
        found = _ESCAPED.match(raw, at)
        if found is None:
            raise ValueError("not a bytea: a \\ that escapes nothing")
        part = found[0]
        parts.append(bytes([int(found[1], 8)]) if found[1] else part[:1])
        at = found.end()
    return b"\\x" + b"".join(parts).hex().encode()


def _parse_json(type: SqlType, text: str) -> bytes:
    check_json(text)
    return text.encode()


def _parse_jsonb(type: SqlType, text: str) -> bytes:
    return jsonb_text(text)


_PARSERS: dict[TypeKind, Callable[[SqlType, str], Physical]] = {
    TypeKind.BOOL: _parse_bool,
    TypeKind.INT2: _parse_int,
    TypeKind.INT4: _parse_int,
    TypeKind.INT8: _parse_int,
    TypeKind.FLOAT4: _parse_float,
    TypeKind.FLOAT8: _parse_float,
    TypeKind.FIXED: _parse_numeric,
    TypeKind.DECIMAL: _parse_numeric,
    TypeKind.TEXT: _parse_text,
    TypeKind.BPCHAR: _parse_text,
    TypeKind.DATE: _parse_date,
    TypeKind.TIME: _parse_time,
    TypeKind.TIMESTAMP: _parse_stamp,
    TypeKind.TIMESTAMPTZ: _parse_stamp,
    TypeKind.UUID: _parse_uuid,
    TypeKind.BYTEA: _parse_bytea,
    TypeKind.JSON: _parse_json,
    TypeKind.JSONB: _parse_jsonb,
}
