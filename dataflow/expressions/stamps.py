"""Arithmetic and conversion of dates and timestamps, as in PostgreSQL's date.c and timestamp.c.

Days and microseconds since 2000-01-01; the extreme integers are the infinities and stay what
they are. The session is in UTC, so that timestamp and timestamptz are the same number.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tidemark_native.expressions import make_days, shift

from dataflow.delta import Column
from dataflow.expressions.frame import Frame, Value, rows_in_postgres
from dataflow.expressions.intervals import DAY_US, parts_of, print_spans
from dataflow.expressions.kernel import (
    Kernel,
    at_valid,
    both_valid,
    bytes_column,
    fixed_width,
)
from dataflow.types import INTERVAL, SqlType, TypeKind

DATE_MIN, DATE_MAX = -(2**31), 2**31 - 1
STAMP_MIN, STAMP_MAX = -(2**63), 2**63 - 1
FIRST_DAY, END_DAY = -2_451_545, 2_145_031_949
FIRST_STAMP, END_STAMP = -211_813_488_000_000_000, 9_223_371_331_200_000_000
# The first day after the last timestamp.
END_STAMP_DAY = 106_751_983
# A date that no timestamp equals: above all of them, below infinity.
BEYOND = STAMP_MAX - 1
OUT_OF_RANGE = "22008"
STAMPS = (TypeKind.TIMESTAMP, TypeKind.TIMESTAMPTZ)
_INT_ARGUMENTS = (TypeKind.INT2, TypeKind.INT4)


def find(function: str, types: tuple[SqlType, ...], result: SqlType) -> Kernel | None:
    """Return the kernel of a sum or difference with a date or timestamp in it, if it is one."""
    kinds = tuple(t.kind for t in types)
    if function == "make_date" and len(kinds) == 3 and all(k in _INT_ARGUMENTS for k in kinds):
        return _make_date(types, result)
    if function not in ("+", "-") or len(kinds) != 2:
        return None
    if function == "+" and kinds[1] in (TypeKind.DATE, *STAMPS):
        flipped = find(function, (types[1], types[0]), result)
        if flipped is None or kinds[0] not in (TypeKind.INTERVAL, *_INT_ARGUMENTS):
            return None
        run = flipped.run
        return Kernel(lambda frame, values: run(frame, (values[1], values[0])), can_fail=True)
    if kinds[0] is TypeKind.DATE and kinds[1] in _INT_ARGUMENTS:
        return _add_days(1 if function == "+" else -1)
    if kinds == (TypeKind.DATE, TypeKind.DATE) and function == "-":
        return Kernel(_date_difference, can_fail=True)
    if function == "-" and kinds[0] in STAMPS and kinds[0] is kinds[1]:
        return _stamp_difference(types, result)
    if kinds[0] in (TypeKind.DATE, *STAMPS) and kinds[1] is TypeKind.INTERVAL:
        return _add_interval(types[0], function, result)
    return None


def days_to_stamps(days: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return timestamps of the first microsecond of days, and which days are beyond all
    timestamps."""
    beyond = (days >= END_STAMP_DAY) & (days != DATE_MAX)
    stamps = np.where(beyond, 0, days) * DAY_US
    stamps = np.where(days == DATE_MAX, STAMP_MAX, stamps)
    return np.where(days == DATE_MIN, STAMP_MIN, stamps), beyond


def stamps_of(value: Value, type: SqlType) -> np.ndarray:
    """Return int64 that compares as a timestamp, of a date or timestamp; never fails."""
    assert isinstance(value, Column)
    if type.kind is not TypeKind.DATE:
        return value.values
    stamps, beyond = days_to_stamps(value.values)
    return np.where(beyond, BEYOND, stamps)


def stamps_to_days(stamps: np.ndarray) -> np.ndarray:
    """Return the date that each timestamp is in."""
    days = stamps // DAY_US
    days = np.where(stamps == STAMP_MAX, DATE_MAX, days)
    return np.where(stamps == STAMP_MIN, DATE_MIN, days)


def _add_days(sign: int) -> Kernel:
    def run(frame: Frame, values: Sequence[Value]) -> Value:
        days, shift_by = (v.values for v in values)  # type: ignore[union-attr]
        valid = both_valid(values)
        infinite = (days == DATE_MAX) | (days == DATE_MIN)
        out = np.where(infinite, days, days + sign * shift_by)
        wrong = ~infinite & ((out < FIRST_DAY) | (out >= END_DAY))
        if wrong.any():
            frame.fail(at_valid(wrong, valid), OUT_OF_RANGE, "date out of range")
        return fixed_width(out, valid)

    return Kernel(run, can_fail=True)


def _date_difference(frame: Frame, values: Sequence[Value]) -> Value:
    a, b = (v.values for v in values)  # type: ignore[union-attr]
    valid = both_valid(values)
    infinite = (a == DATE_MAX) | (a == DATE_MIN) | (b == DATE_MAX) | (b == DATE_MIN)
    if infinite.any():
        frame.fail(at_valid(infinite, valid), OUT_OF_RANGE, "cannot subtract infinite dates")
    return fixed_width(a - b, valid)


def _add_interval(left: SqlType, function: str, result: SqlType) -> Kernel:
    sign = 1 if function == "+" else -1
    sql = f"($1 {function} $2)"

    def run(frame: Frame, values: Sequence[Value]) -> Value:
        value, interval = values
        assert isinstance(value, Column)
        valid = both_valid(values)
        stamps = value.values
        if left.kind is TypeKind.DATE:
            stamps, beyond = days_to_stamps(stamps)
            if beyond.any():
                wrong = np.broadcast_to(beyond, max(len(stamps), len(interval)))
                frame.fail(at_valid(wrong, valid), OUT_OF_RANGE, "date out of range for timestamp")
        months, days, micros, finite = parts_of(interval)
        out, wrong = shift(stamps, sign * months, sign * days, sign * micros)
        if wrong.any():
            frame.fail(at_valid(wrong, valid), OUT_OF_RANGE, "timestamp out of range")
        answer = fixed_width(out, valid)
        if finite.all():
            return answer
        doubtful = np.broadcast_to(~finite, len(answer))
        return rows_in_postgres(frame, doubtful, answer, (sql, (left, INTERVAL), values, result))

    return Kernel(run, can_fail=True)


def _stamp_difference(types: tuple[SqlType, ...], result: SqlType) -> Kernel:
    """Subtract timestamps. PostgreSQL computes infinities and differences beyond int64, since
    releases differ."""

    def run(frame: Frame, values: Sequence[Value]) -> Value:
        a, b = (v.values for v in values)  # type: ignore[union-attr]
        valid = both_valid(values)
        spans = a - b
        wrapped = ((a ^ b) & (a ^ spans)) < 0
        infinite = (a == STAMP_MAX) | (a == STAMP_MIN) | (b == STAMP_MAX) | (b == STAMP_MIN)
        texts = Column.of("s", print_spans(spans))
        native = bytes_column(texts.values, texts.data, valid)
        doubtful = at_valid(np.broadcast_to(wrapped | infinite, len(native)), valid)
        return rows_in_postgres(frame, doubtful, native, ("($1 - $2)", types, values, result))

    return Kernel(run, can_fail=True)


def _make_date(types: tuple[SqlType, ...], result: SqlType) -> Kernel:
    """Make a date; PostgreSQL computes a date that does not exist, for its error message."""

    def run(frame: Frame, values: Sequence[Value]) -> Value:
        parts = np.broadcast_arrays(*(v.values for v in values))  # type: ignore[union-attr]
        days, wrong = make_days(*(np.ascontiguousarray(p) for p in parts))
        native = fixed_width(days, both_valid(values))
        doubtful = at_valid(np.broadcast_to(wrong, len(native)), native.valid)
        call = ("make_date($1, $2, $3)", types, values, result)
        return rows_in_postgres(frame, doubtful, native, call)

    return Kernel(run, can_fail=True)


def trim_stamp(stamps: np.ndarray, typmod: int) -> np.ndarray:
    """Return timestamps rounded to typmod (0..6) digits of a second, half away from zero."""
    if typmod < 0 or typmod >= 6:
        return stamps
    size = 10 ** (6 - typmod)
    infinite = (stamps == STAMP_MAX) | (stamps == STAMP_MIN)
    finite = np.where(infinite, 0, stamps)
    out = np.sign(finite) * ((np.abs(finite) + size // 2) // size * size)
    return np.where(infinite, stamps, out)
