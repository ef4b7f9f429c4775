"""Values of MySQL as columns of PostgreSQL's types: from bytes of the log, and from query results.

The types are in column_types.py and docs/MYSQL.md. Invariant: both ways give equal columns for
equal values, bit by bit, since a row that a snapshot added is removed by its image in the log. A
value that its declared type cannot hold is a fault of its row, never another value.

Sources: MySQL's strings/decimal.cc (decimal2bin), sql-common/my_time.cc (packed times).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tidemark_native import mysql

from connectors.formats.columns import Faults, column_of_texts, without
from connectors.mysql.charsets import Charsets
from connectors.mysql.options import AS_NULL
from connectors.mysql.shapes import DIGIT_BYTES, STRING, ShapeColumn
from dataflow.delta import KIND_BYTES, Column
from dataflow.types import SqlType, TypeKind

_RANGES = {TypeKind.INT2: 15, TypeKind.INT4: 31, TypeKind.INT8: 63}
_DAY_US = 86_400_000_000
_EPOCH_DAYS = 10_957  # 1970 to 2000
_EPOCH_S = _EPOCH_DAYS * 86_400
_MONTH_DAYS = np.array([0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], np.int64)
_FIXED_DIGITS = 18
ZERO_DATE, NO_DATE = "a zero date", "no such date"

Found = tuple[Column, Faults]


@dataclass(frozen=True)
class LogValues:
    """The values of one column in a buffer of images: where each begins, and its length; less than
    0 for NULL.
    """

    data: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray

    @property
    def valid(self) -> np.ndarray | None:
        """Return the mask of a Column."""
        found = self.lengths >= 0
        return None if found.all() else found

    def matrix(self, width: int) -> np.ndarray:
        """Return uint8[n, width], the bytes of values of one width; zeros for NULL."""
        is_there = self.lengths >= 0
        starts = np.where(is_there, self.starts, 0)
        found = self.data[starts[:, None] + np.arange(width)]
        found[~is_there] = 0
        return found

    def texts(self) -> Column:
        """Return the bytes as they are."""
        offsets, found = mysql.gather(self.data, self.starts, self.lengths)
        return Column(offsets, self.valid, found)


@dataclass(frozen=True)
class Target:
    """What a column becomes. zero_dates: of options.TableOptions. is_key: it is never NULL."""

    type: SqlType
    zero_dates: str
    is_key: bool = False

    def with_dates(self, column: Column, is_zero: np.ndarray, faults: Faults) -> Found:
        """Return a column of dates or times, with zero dates as the option says."""
        zero = np.flatnonzero(is_zero & column.mask()).tolist()
        if not zero and not faults:
            return column, faults
        if self.zero_dates != AS_NULL or self.is_key:
            faults |= dict.fromkeys(zero, ZERO_DATE)
        gaps = {**faults, **dict.fromkeys(zero, "")}
        values = column.values.copy()
        values[list(gaps)] = 0
        return Column(values, without(column.valid, gaps, len(column))), faults


def column_of_log(
    target: Target, column: ShapeColumn, values: LogValues, charsets: Charsets
) -> Found:
    """Return a column from images of the log; its family is one that the type accepts."""
    if column.family in ("text", "enum", "set"):
        return _of_text(target, column, values, charsets)
    return _BY_FAMILY[column.family](target, column, values)


def column_of_query(target: Target, family: str, cells: Sequence[bytes | None]) -> Found:
    """Return a column from what the server sends for a query, texts in UTF-8 and times in UTC."""
    if family == "bytes":
        return _bytea(Column.of(KIND_BYTES, cells))
    if family == "bit":
        texts = Column.of(KIND_BYTES, cells)
        return _bools(texts) if target.type.kind is TypeKind.BOOL else _bytea(texts)
    if family == "time":
        spans = [None if cell is None else _interval_of(cell) for cell in cells]
        return Column.of(KIND_BYTES, spans), {}
    is_date = family in ("date", "datetime", "timestamp")
    if not is_date or target.type.kind is TypeKind.TEXT:
        return column_of_texts(target.type, Column.of(KIND_BYTES, cells))
    zero = np.array([c is not None and _is_zero_date(c) for c in cells], np.bool_)
    plain = [b"2000-01-01" if z else c for c, z in zip(cells, zero.tolist(), strict=True)]
    found, faults = column_of_texts(target.type, Column.of(KIND_BYTES, plain))
    return target.with_dates(found, zero, faults)


def _of_ints(target: Target, column: ShapeColumn, values: LogValues) -> Found:
    bits, matrix = 8 * column.width, values.matrix(column.width)
    found = np.zeros(len(matrix), np.uint64)
    for i in range(column.width):
        found |= matrix[:, i].astype(np.uint64) << np.uint64(8 * i)
    signed = found.astype(np.int64)
    if not column.is_unsigned and bits < 64:
        signed = np.where(signed >> (bits - 1), signed - (1 << bits), signed)
    is_large = column.is_unsigned and bits == 64 and bool((signed < 0).any())
    return _numbers(target, found if is_large else signed, values.valid)


def _numbers(target: Target, numbers: np.ndarray, valid: np.ndarray | None) -> Found:
    """Return integers as a column of any type that they may be declared as."""
    limit = _RANGES.get(target.type.kind)
    if limit is None or numbers.dtype == np.uint64:
        return column_of_texts(target.type, _texts(numbers.tolist(), valid, str))
    bad = np.zeros(len(numbers), np.bool_)
    if limit < 63:
        bad = (numbers < -(1 << limit)) | (numbers >= 1 << limit)
    faults: Faults = dict.fromkeys(np.flatnonzero(bad).tolist(), "out of range")
    if faults:
        numbers = np.where(bad, 0, numbers)
    return Column(numbers, without(valid, faults, len(numbers))), faults


def _of_years(target: Target, column: ShapeColumn, values: LogValues) -> Found:
    years = values.matrix(1)[:, 0].astype(np.int64)
    years = np.where(years > 0, years + 1900, 0)
    valid = values.valid
    if target.type.kind is TypeKind.TEXT:
        return column_of_texts(target.type, _texts(years.tolist(), valid, "{:04d}".format))
    return _numbers(target, years if valid is None else np.where(valid, years, 0), valid)


def _of_floats(target: Target, column: ShapeColumn, values: LogValues) -> Found:
    raw = np.ascontiguousarray(values.matrix(column.width))
    numbers = raw.view("<f4" if column.width == 4 else "<f8")[:, 0].astype(np.float64)
    if target.type.kind is TypeKind.FLOAT4 and column.width == 8:
        return column_of_texts(target.type, _texts(numbers.tolist(), values.valid, repr))
    return Column(numbers, values.valid), {}


def _of_decimals(target: Target, column: ShapeColumn, values: LogValues) -> Found:
    precision, scale = column.digits
    raw = values.matrix(column.width)
    is_negative = raw[:, 0] < 0x80
    raw = raw.copy()
    raw[:, 0] ^= 0x80
    raw[is_negative] ^= 0xFF
    groups = list(_digit_groups(raw, precision - scale, scale))
    valid, kind = values.valid, target.type.kind
    if kind is TypeKind.FIXED and precision <= _FIXED_DIGITS and target.type.scale == scale:
        total = np.zeros(len(raw), np.int64)
        for digits, part in groups:
            total = total * 10**digits + part
        total = np.where(is_negative, -total, total)
        if valid is not None:
            total[~valid] = 0
        most = ((target.type.typmod - 4) >> 16) & 0xFFFF
        bad = np.abs(total) >= 10 ** min(most, _FIXED_DIGITS)
        faults: Faults = dict.fromkeys(np.flatnonzero(bad).tolist(), "out of range")
        total[bad] = 0
        return Column(total, without(valid, faults, len(total))), faults
    rows = zip(*(part.tolist() for _, part in groups), strict=True)
    sizes = [digits for digits, _ in groups]
    texts = []
    for negative, row in zip(is_negative.tolist(), rows, strict=True):
        digits = "".join(f"{part:0{size}d}" for part, size in zip(row, sizes, strict=True))
        point = len(digits) - scale
        fraction = "." + digits[point:] if scale else ""
        texts.append(("-" if negative else "") + (digits[:point] or "0") + fraction)
    return column_of_texts(target.type, _texts(texts, valid, str))


def _digit_groups(raw: np.ndarray, whole: int, scale: int) -> list[tuple[int, np.ndarray]]:
    """Return (number of digits, values) of the groups of a decimal, most significant first."""
    sizes = [whole % 9, *[9] * (whole // 9), *[9] * (scale // 9), scale % 9]
    found, at = [], 0
    for digits in sizes:
        if not digits:
            continue
        width = 4 if digits == 9 else DIGIT_BYTES[digits]
        found.append((digits, _big_endian(raw[:, at : at + width])))
        at += width
    return found


def _big_endian(raw: np.ndarray) -> np.ndarray:
    found = np.zeros(len(raw), np.int64)
    for i in range(raw.shape[1]):
        found = (found << 8) | raw[:, i]
    return found


def _of_text(target: Target, column: ShapeColumn, values: LogValues, charsets: Charsets) -> Found:
    if column.family == "text":
        texts, faults = _decoded(values.texts(), column.collation, charsets)
    else:
        texts, faults = _labels(column, values, charsets)
    found, more = column_of_texts(target.type, texts)
    return found, {**more, **faults}


def _decoded(texts: Column, collation: int, charsets: Charsets) -> Found:
    if charsets.is_utf8(collation):
        return texts, {}
    faults: Faults = {}
    found: list[bytes | None] = []
    for row, raw in enumerate(texts.to_list()):
        text = b"" if raw is not None else None
        try:
            text = raw if raw is None else charsets.decode(raw, collation).encode()
        except ValueError as error:
            faults[row] = str(error)
        found.append(text)
    return Column.of(KIND_BYTES, found), faults


def _labels(column: ShapeColumn, values: LogValues, charsets: Charsets) -> Found:
    """Return the labels of ENUM and SET. An invalid ENUM is '', as is a SET of nothing."""
    names = [charsets.decode(label, column.collation) for label in column.labels]
    matrix = values.matrix(column.width)
    numbers = np.zeros(len(matrix), np.uint64)
    for i in range(column.width):
        numbers |= matrix[:, i].astype(np.uint64) << np.uint64(8 * i)
    different, index = np.unique(numbers, return_inverse=True)
    found, unknown = [], set()
    for position, number in enumerate(different.tolist()):
        text = _label(column, names, number)
        if text is None:
            unknown.add(position)
        found.append(text or "")
    texts = Column.of(KIND_BYTES, found).take(index.astype(np.int64))
    bad = np.flatnonzero(np.isin(index, sorted(unknown))).tolist() if unknown else []
    faults: Faults = dict.fromkeys(bad, "no label of its column")
    if values.valid is None:
        return texts, faults
    return Column.of(
        KIND_BYTES,
        [t if ok else None for t, ok in zip(texts.to_list(), values.valid, strict=True)],
    ), faults


def _label(column: ShapeColumn, names: Sequence[str], number: int) -> str | None:
    if column.family == "enum":
        if number > len(names):
            return None
        return names[number - 1] if number else ""
    if number >> len(names):
        return None
    return ",".join(name for i, name in enumerate(names) if number >> i & 1)


def _of_bytes(target: Target, column: ShapeColumn, values: LogValues) -> Found:
    texts = values.texts()
    if column.type == STRING:
        # The log leaves out the zeros at the end of BINARY(n).
        padded = [
            None if raw is None else raw.ljust(column.length, b"\0") for raw in texts.to_list()
        ]
        texts = Column.of(KIND_BYTES, padded)
    return _bytea(texts)


def _of_bits(target: Target, column: ShapeColumn, values: LogValues) -> Found:
    texts = values.texts()
    return _bools(texts) if target.type.kind is TypeKind.BOOL else _bytea(texts)


def _bytea(texts: Column) -> Found:
    assert texts.data is not None
    offsets, found = mysql.hexed(texts.values, texts.data)
    column = Column(offsets, texts.valid, found)
    if texts.valid is None:
        return column, {}
    # A NULL has no bytes.
    cells = [c if ok else None for c, ok in zip(column.to_list(), texts.valid, strict=True)]
    return Column.of(KIND_BYTES, cells), {}


def _bools(texts: Column) -> Found:
    found = [bool(raw and raw[-1] & 1) for raw in texts.to_list()]
    return Column(np.array(found, np.bool_), texts.valid), {}


def _of_dates(target: Target, column: ShapeColumn, values: LogValues) -> Found:
    packed = values.matrix(3).astype(np.int64)
    packed = packed[:, 0] | packed[:, 1] << 8 | packed[:, 2] << 16
    year, month, day = packed >> 9, packed >> 5 & 15, packed & 31
    if target.type.kind is TypeKind.TEXT:
        parts = zip(year.tolist(), month.tolist(), day.tolist(), strict=True)
        return column_of_texts(target.type, _texts(parts, values.valid, _date_text))
    days, is_zero, faults = _days(year, month, day, values.valid)
    return target.with_dates(Column(days, values.valid), is_zero, faults)


def _of_datetimes(target: Target, column: ShapeColumn, values: LogValues) -> Found:
    raw = values.matrix(column.width)
    packed = _big_endian(raw[:, :5]) - 0x8000000000
    fraction_us = _fraction_us(raw[:, 5:])
    months, day = packed >> 22, packed >> 17 & 31
    year, month = months // 13, months % 13
    hour, minute, second = packed >> 12 & 31, packed >> 6 & 63, packed & 63
    if target.type.kind is TypeKind.TEXT:
        parts = zip(*(p.tolist() for p in (year, month, day, hour, minute, second)), strict=True)
        texts = [
            f"{_date_text(p[:3])} {p[3]:02d}:{p[4]:02d}:{p[5]:02d}"
            + (f".{us:06d}"[: column.fraction + 1] if column.fraction else "")
            for p, us in zip(parts, fraction_us.tolist(), strict=True)
        ]
        return column_of_texts(target.type, _texts(texts, values.valid, str))
    days, is_zero, faults = _days(year, month, day, values.valid)
    stamps = days * _DAY_US + ((hour * 60 + minute) * 60 + second) * 1_000_000 + fraction_us
    if values.valid is not None:
        stamps[~values.valid] = 0
    return target.with_dates(Column(stamps, values.valid), is_zero, faults)


def _of_timestamps(target: Target, column: ShapeColumn, values: LogValues) -> Found:
    raw = values.matrix(column.width)
    seconds, fraction_us = _big_endian(raw[:, :4]), _fraction_us(raw[:, 4:])
    is_zero = (seconds == 0) & (fraction_us == 0)
    stamps = (seconds - _EPOCH_S) * 1_000_000 + fraction_us
    if values.valid is not None:
        stamps[~values.valid] = 0
    return target.with_dates(Column(stamps, values.valid), is_zero, {})


def _of_times(target: Target, column: ShapeColumn, values: LogValues) -> Found:
    raw = values.matrix(column.width)
    bits = 8 * (column.width - 3)
    packed = _big_endian(raw) - (0x800000 << bits)
    if values.valid is not None:
        packed[~values.valid] = 0
    whole, rest = np.abs(packed) >> bits, np.abs(packed) & ((1 << bits) - 1)
    us = rest * 100 ** (3 - bits // 8)
    seconds = ((whole >> 12 & 1023) * 60 + (whole >> 6 & 63)) * 60 + (whole & 63)
    spans = np.where(packed < 0, -1, 1) * (seconds * 1_000_000 + us)
    return _texts(spans.tolist(), values.valid, interval_text), {}


def interval_text(span_us: int) -> str:
    """Return microseconds as PostgreSQL prints an interval of hours.

    >>> interval_text(-3_020_399_000_000), interval_text(1_500_000)
    ('-838:59:59', '00:00:01.5')
    """
    seconds, us = divmod(abs(span_us), 1_000_000)
    minutes, second = divmod(seconds, 60)
    text = f"{'-' if span_us < 0 else ''}{minutes // 60:02d}:{minutes % 60:02d}:{second:02d}"
    return text + (f".{us:06d}".rstrip("0") if us else "")


def _interval_of(cell: bytes) -> str:
    hours, minutes, seconds = cell.decode().lstrip("-").split(":")
    whole, _, part = seconds.partition(".")
    us = ((int(hours) * 60 + int(minutes)) * 60 + int(whole)) * 1_000_000 + int(part.ljust(6, "0"))
    return interval_text(-us if cell.startswith(b"-") else us)


def _of_json(target: Target, column: ShapeColumn, values: LogValues) -> Found:
    """Return MySQL's binary JSON as text; MariaDB's is a text already."""
    from pymysqlreplication.json_binary import parse_json

    faults: Faults = {}
    texts: list[str | None] = []
    for row, raw in enumerate(values.texts().to_list()):
        text = None if raw is None else "null"
        try:
            # A value that became '' by ALTER TABLE is the literal null, as the server shows it.
            text = json.dumps(_plain(parse_json(raw[0], raw[1:]))) if raw else text
        except (ValueError, IndexError, KeyError, TypeError) as error:
            faults[row] = f"no binary JSON: {error}"
        texts.append(text)
    found, more = column_of_texts(target.type, Column.of(KIND_BYTES, texts))
    return found, {**more, **faults}


def _plain(value: Any) -> Any:
    """Return what the library parsed with texts for bytes. TypeError for what has no JSON."""
    if isinstance(value, dict):
        return {key.decode(): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, bytes):
        return value.decode()
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise TypeError(f"a value of type {type(value).__name__}")


def _fraction_us(raw: np.ndarray) -> np.ndarray:
    return _big_endian(raw) * 100 ** (3 - raw.shape[1])


def _days(
    year: np.ndarray, month: np.ndarray, day: np.ndarray, valid: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, Faults]:
    """Return (days since 2000, rows with a zero date, rows with a date that is none)."""
    is_zero = (year == 0) | (month == 0) | (day == 0)
    is_leap = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
    most = _MONTH_DAYS[np.minimum(month, 12)] - ((month == 2) & ~is_leap)
    is_bad = ~is_zero & ((month > 12) | (day > most))
    is_odd = is_zero | is_bad
    year, month, day = (
        np.where(is_odd, base, x) for base, x in ((2000, year), (1, month), (1, day))
    )
    # Days from the civil calendar: years begin in March (Hinnant, "chrono-compatible low-level
    # date algorithms").
    shifted = year - (month <= 2)
    era, of_era = shifted // 400, shifted % 400
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    days = era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468
    days = days - _EPOCH_DAYS
    if valid is not None:
        is_zero, is_bad = is_zero & valid, is_bad & valid
        days[~valid] = 0
    return days, is_zero, dict.fromkeys(np.flatnonzero(is_bad).tolist(), NO_DATE)


def _date_text(parts: tuple[int, int, int]) -> str:
    return f"{parts[0]:04d}-{parts[1]:02d}-{parts[2]:02d}"


def _is_zero_date(text: bytes) -> bool:
    return text.startswith(b"0000") or text[4:7] == b"-00" or text[7:10] == b"-00"


def _texts(items: Any, valid: np.ndarray | None, form: Callable[[Any], str]) -> Column:
    """Return the items as texts; NULL where valid is False."""
    if valid is None:
        return Column.of(KIND_BYTES, [form(item) for item in items])
    pairs = zip(items, valid.tolist(), strict=True)
    return Column.of(KIND_BYTES, [form(item) if ok else None for item, ok in pairs])


_BY_FAMILY: dict[str, Callable[[Target, ShapeColumn, LogValues], Found]] = {
    "int": _of_ints,
    "year": _of_years,
    "float": _of_floats,
    "decimal": _of_decimals,
    "bytes": _of_bytes,
    "bit": _of_bits,
    "date": _of_dates,
    "datetime": _of_datetimes,
    "timestamp": _of_timestamps,
    "time": _of_times,
    "json": _of_json,
}
