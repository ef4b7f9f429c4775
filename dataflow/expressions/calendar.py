"""EXTRACT, date_part, date_trunc and date_bin over dates and timestamps.

EXTRACT gives numeric with PostgreSQL's scales, date_part the same as double precision. A field
that is not listed here (julian, timezone, a wrong name ...) is left to PostgreSQL, row by row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tidemark_native import expressions as kernels

from dataflow.delta import Column
from dataflow.expressions.frame import Frame, Value, in_postgres, rows_in_postgres
from dataflow.expressions.intervals import DAY_US, parts_of
from dataflow.expressions.kernel import Kernel, at_valid, both_valid, fixed_width
from dataflow.expressions.numbers import Numbers
from dataflow.expressions.stamps import (
    DATE_MAX,
    DATE_MIN,
    FIRST_STAMP,
    STAMP_MAX,
    STAMP_MIN,
    STAMPS,
)
from dataflow.types import TEXT, SqlType, TypeKind

DAY_FIELDS = {
    "year": kernels.YEAR,
    "month": kernels.MONTH,
    "day": kernels.DAY,
    "quarter": kernels.QUARTER,
    "dow": kernels.DOW,
    "isodow": kernels.ISODOW,
    "doy": kernels.DOY,
    "week": kernels.WEEK,
    "isoyear": kernels.ISOYEAR,
    "decade": kernels.DECADE,
    "century": kernels.CENTURY,
    "millennium": kernels.MILLENNIUM,
}
# Units of the time of day: (microseconds of the unit, units in the next larger one, display scale).
CLOCK_FIELDS = {
    "hour": (3_600_000_000, 24, 0),
    "minute": (60_000_000, 60, 0),
    "second": (1, 60_000_000, 6),
    "milliseconds": (1, 60_000_000, 3),
    "microseconds": (1, 60_000_000, 0),
}
_UNIX_EPOCH_DAYS = 10_957
TRUNCATIONS = {
    "year": kernels.YEAR,
    "quarter": kernels.QUARTER,
    "month": kernels.MONTH,
    "week": kernels.WEEK,
    "day": kernels.DAY,
}
CLOCK_TRUNCATIONS = {
    "hour": 3_600_000_000,
    "minute": 60_000_000,
    "second": 1_000_000,
    "milliseconds": 1_000,
    "microseconds": 1,
}


def find(function: str, types: tuple[SqlType, ...], result: SqlType) -> Kernel | None:
    """Return the kernel of a calendar function, if it is one."""
    if function == "date_bin":
        return _bins(types, result)
    if len(types) != 2 or types[0].kind is not TypeKind.TEXT:
        return None
    kind = types[1].kind
    if function == "date_trunc" and kind in STAMPS and result.kind is kind:
        return _truncation(types[1])
    if kind is TypeKind.INTERVAL and (function, result.kind) in _INTERVAL_RESULTS:
        return _interval_extraction(types[1], result)
    if kind not in (TypeKind.DATE, *STAMPS):
        return None
    if function == "extract" and result.kind is TypeKind.DECIMAL:
        return _extraction(types[1], result)
    if function == "date_part" and result.kind is TypeKind.FLOAT8 and kind in STAMPS:
        return _extraction(types[1], result)
    return None


def _extraction(type: SqlType, result: SqlType) -> Kernel:
    is_date = type.kind is TypeKind.DATE
    is_float = result.kind is TypeKind.FLOAT8
    low, high = (DATE_MIN, DATE_MAX) if is_date else (STAMP_MIN, STAMP_MAX)

    def run(frame: Frame, values: Sequence[Value]) -> Value:
        name = constant_text(values[0])
        value = values[1]
        assert isinstance(value, Column)
        sql = f"date_part('{name}', $1)" if is_float else f"EXTRACT({name} FROM $1)"
        found = None if name is None else _extract(name, value.values, is_date)
        if found is None:
            if name is None or not name.isalpha():
                sql = "date_part($1, $2)" if is_float else 'pg_catalog."extract"($1, $2)'
                return in_postgres(frame, sql, (TEXT, type), values, result)
            return in_postgres(frame, sql, (type,), (value,), result)
        units, scale = found
        valid = both_valid(values)
        answer: Value
        if is_float:
            answer = fixed_width(units / 10.0**scale, valid)
        else:
            answer = Numbers(units, np.array([scale], np.int64), value.valid)
        infinite = (value.values == high) | (value.values == low)
        if value.valid is not None:
            infinite &= value.valid
        if not infinite.any():
            return answer
        return rows_in_postgres(frame, infinite, answer, (sql, (type,), (value,), result))

    return Kernel(run, can_fail=True)


def _extract(name: str, values: np.ndarray, is_date: bool) -> tuple[np.ndarray, int] | None:
    """Return (int64 units, scale) of a field; None when PostgreSQL must compute it."""
    if name in DAY_FIELDS:
        return kernels.fields(values if is_date else values // DAY_US, DAY_FIELDS[name]), 0
    if name == "epoch":
        if is_date:
            return (values + _UNIX_EPOCH_DAYS) * 86_400, 0
        too_far = STAMP_MAX - _UNIX_EPOCH_DAYS * DAY_US
        if ((values > too_far) & (values != STAMP_MAX)).any():
            return None
        return values + _UNIX_EPOCH_DAYS * DAY_US, 6
    if is_date or name not in CLOCK_FIELDS:
        return None
    size, modulus, scale = CLOCK_FIELDS[name]
    return values % DAY_US // size % modulus, scale


_FAR_MONTHS, _FAR_DAYS = 1_000_000, 30_000_000
_INTERVAL_RESULTS = {("extract", TypeKind.DECIMAL), ("date_part", TypeKind.FLOAT8)}


def _interval_extraction(type: SqlType, result: SqlType) -> Kernel:
    is_float = result.kind is TypeKind.FLOAT8
    sql = "date_part($1, $2)" if is_float else 'pg_catalog."extract"($1, $2)'

    def run(frame: Frame, values: Sequence[Value]) -> Value:
        name = constant_text(values[0])
        months, days, micros, finite = parts_of(values[1])
        # Beyond this the microseconds of an epoch may not fit int64.
        is_far = (np.abs(months) > _FAR_MONTHS).any() or (np.abs(days) > _FAR_DAYS).any()
        if name not in _INTERVAL_FIELDS or is_far or not finite.all():
            return in_postgres(frame, sql, (TEXT, type), values, result)
        compute, scale = _INTERVAL_FIELDS[name]
        units = compute(months, days, micros)
        if is_float:
            return fixed_width(units / 10.0**scale, both_valid(values))
        return Numbers(units, np.array([scale], np.int64), values[1].valid)

    return Kernel(run, can_fail=True)


def _toward_zero(values: np.ndarray, size: int) -> np.ndarray:
    return np.sign(values) * (np.abs(values) // size)


def _interval_epoch(months: np.ndarray, days: np.ndarray, micros: np.ndarray) -> np.ndarray:
    """Return the epoch of an interval: a year is 365.25 days, a further month 30 days
    (interval_part_common)."""
    quarter_days = _toward_zero(months, 12) * 1461 + np.fmod(months, 12) * 120 + days * 4
    return quarter_days * (DAY_US // 4) + micros


# Fields of an interval's months, days and microseconds: (units, display scale).
_INTERVAL_FIELDS = {
    "epoch": (_interval_epoch, 6),
    "year": (lambda months, days, micros: _toward_zero(months, 12), 0),
    "month": (lambda months, days, micros: np.fmod(months, 12), 0),
    "day": (lambda months, days, micros: days, 0),
    "hour": (lambda months, days, micros: _toward_zero(micros, 3_600_000_000), 0),
    "minute": (lambda months, days, micros: np.fmod(_toward_zero(micros, 60_000_000), 60), 0),
    "second": (lambda months, days, micros: np.fmod(micros, 60_000_000), 6),
}


def _truncation(type: SqlType) -> Kernel:
    def run(frame: Frame, values: Sequence[Value]) -> Value:
        name = constant_text(values[0])
        value = values[1]
        assert isinstance(value, Column)
        if name in TRUNCATIONS:
            return Column(kernels.truncate(value.values, TRUNCATIONS[name]), value.valid)
        if name in CLOCK_TRUNCATIONS:
            size = CLOCK_TRUNCATIONS[name]
            stamps = value.values
            infinite = (stamps == STAMP_MAX) | (stamps == STAMP_MIN)
            return Column(np.where(infinite, stamps, stamps // size * size), value.valid)
        return in_postgres(frame, "date_trunc($1, $2)", (TEXT, type), values, type)

    return Kernel(run, can_fail=True)


# Microseconds below which sums of two do not overflow: about 73,000 years.
_FAR_STAMP = 1 << 61


def _bins(types: tuple[SqlType, ...], result: SqlType) -> Kernel | None:
    """Return date_bin(stride, timestamp, origin), timestamp_bin in PostgreSQL's timestamp.c.

    PostgreSQL computes what is an error there, and the moments before the origin that begin a bin,
    for which releases differ.
    """
    if len(types) != 3 or types[0].kind is not TypeKind.INTERVAL or result.kind not in STAMPS:
        return None
    if types[1].kind is not result.kind or types[2].kind is not result.kind:
        return None

    def run(frame: Frame, values: Sequence[Value]) -> Value:
        months, days, micros, finite = parts_of(values[0])
        stamps, origin = (v.values for v in values[1:])  # type: ignore[union-attr]
        valid = both_valid(values)
        is_near = finite & (months == 0) & _is_within(micros, _FAR_STAMP)
        is_near &= _is_within(days, _FAR_STAMP // DAY_US)
        stride = np.where(is_near, days * DAY_US + micros, 0)
        is_near = is_near & (stride > 0) & _is_within(origin, _FAR_STAMP)
        infinite = (stamps == STAMP_MAX) | (stamps == STAMP_MIN)
        within = is_near & _is_within(stamps, _FAR_STAMP)
        offset = np.where(within, stamps - origin, 0)
        into = offset % np.where(within, stride, 1)
        begins = np.where(within, stamps - into, stamps)
        answer = fixed_width(begins, valid)
        is_open = (begins < FIRST_STAMP) | ((offset < 0) & (into == 0))
        doubtful = ~infinite & (~within | is_open)
        doubtful = at_valid(np.broadcast_to(doubtful, len(answer)), valid)
        call = ("date_bin($1, $2, $3)", types, values, result)
        return rows_in_postgres(frame, doubtful, answer, call)

    return Kernel(run, can_fail=True)


def _is_within(values: np.ndarray, limit: int) -> np.ndarray:
    return (values > -limit) & (values < limit)


def constant_text(value: Value, *, is_lowered: bool = True) -> str | None:
    """Return the text that a value is in every row, in lower case unless specified.

    None when it varies or is NULL.
    """
    assert isinstance(value, Column)
    texts = value.texts()
    if not texts or texts[0] is None or any(t != texts[0] for t in texts[1:]):
        return None
    return texts[0].lower() if is_lowered else texts[0]
