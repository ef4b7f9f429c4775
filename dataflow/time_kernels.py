"""Compiled loops between text and dates, times and timestamps in PostgreSQL's ISO style.

Days and microseconds count from 2000-01-01 in the proleptic Gregorian calendar (as PostgreSQL's
j2date and date2j do); year 1 BC is year 0. Signatures are those of value_kernels: parsers give
(values, first bad row or -1), printers (offsets, bytes). Sessions run in UTC, yet a parser takes
any offset that a timestamptz text names.
"""

import numpy as np
from numba import njit

from dataflow.value_kernels import put_digits

_DAY_US = np.int64(86_400_000_000)
_DATE_MAX, _DATE_MIN = np.int64(2**31 - 1), np.int64(-(2**31))
_STAMP_MAX, _STAMP_MIN = np.int64(2**63 - 1), np.int64(-(2**63))
_EPOCH_DAYS = 730_425  # 0000-03-01 to 2000-01-01
_INFINITY = np.frombuffer(b"infinity", np.uint8).copy()
_MONTH_DAYS = np.array([31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], np.int64)

_MINUS, _PLUS, _DOT, _COLON, _SPACE = 45, 43, 46, 58, 32


@njit(nogil=True, cache=True)
def days_of(year, month, day):
    """Return days since 2000-01-01 of a date, year 0 being 1 BC."""
    y = year - (1 if month <= 2 else 0)
    era = y // 400
    of_era = y - era * 400
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - _EPOCH_DAYS


@njit(nogil=True, cache=True)
def date_of(days):
    """Return (year, month, day) of days since 2000-01-01, year 0 being 1 BC."""
    days += _EPOCH_DAYS
    era = days // 146_097
    of_era = days - era * 146_097
    y = (of_era - of_era // 1_460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * y + y // 4 - y // 100)
    m = (5 * of_year + 2) // 153
    month = m + (3 if m < 10 else -9)
    return y + era * 400 + (1 if month <= 2 else 0), month, of_year - (153 * m + 2) // 5 + 1


@njit(nogil=True, cache=True)
def _number(data, at, end):
    """Return (value, end of the digits) of at most seven digits."""
    value = np.int64(0)
    stop = min(end, at + 7)
    while at < stop and 48 <= data[at] <= 57:
        value = value * 10 + (np.int64(data[at]) - 48)
        at += 1
    return value, at


@njit(nogil=True, cache=True)
def _infinity(data, at, end):
    """1 for infinity, -1 for -infinity, else 0."""
    sign = 1
    if at < end and data[at] == _MINUS:
        sign = -1
        at += 1
    if end - at != 8:
        return 0
    for j in range(8):
        if data[at + j] != _INFINITY[j]:
            return 0
    return sign


@njit(nogil=True, cache=True)
def _bc(data, at, end):
    """Return where the text ends without " BC", and whether it had one."""
    if end - at > 3 and data[end - 3] == _SPACE and data[end - 2] == 66 and data[end - 1] == 67:
        return end - 3, True
    return end, False


@njit(nogil=True, cache=True)
def _date(data, at, end, is_bc):
    """(days, end of the date or -1)."""
    year, stop = _number(data, at, end)
    if stop - at < 4 or stop >= end or data[stop] != _MINUS or year == 0:
        return np.int64(0), -1
    at = stop + 1
    month, stop = _number(data, at, end)
    if stop - at != 2 or stop >= end or data[stop] != _MINUS or month < 1 or month > 12:
        return np.int64(0), -1
    at = stop + 1
    day, stop = _number(data, at, end)
    year = 1 - year if is_bc else year
    most = _MONTH_DAYS[month - 1]
    if month == 2 and year % 4 == 0 and (year % 100 != 0 or year % 400 == 0):
        most = 29
    if stop - at != 2 or day < 1 or day > most:
        return np.int64(0), -1
    return days_of(year, month, day), stop


@njit(nogil=True, cache=True)
def _clock(data, at, end):
    """(microseconds since midnight, end of the time or -1)."""
    us = np.int64(0)
    for part in range(3):
        value, stop = _number(data, at, end)
        if stop - at != 2 or value > (24 if part == 0 else 60):
            return us, -1
        us = us * 60 + value
        if part < 2:
            if stop >= end or data[stop] != _COLON:
                return us, -1
            stop += 1
        at = stop
    us *= 1_000_000
    if at < end and data[at] == _DOT:
        value, stop = _number(data, at + 1, end)
        digits = stop - at - 1
        if digits < 1 or digits > 6:
            return us, -1
        for _ in range(6 - digits):
            value *= 10
        us += value
        at = stop
    return us, at if us <= _DAY_US else -1


@njit(nogil=True, cache=True)
def _zone(data, at, end):
    """Return (microseconds east of UTC, ok) of +HH[:MM[:SS]]."""
    if at >= end or (data[at] != _PLUS and data[at] != _MINUS):
        return np.int64(0), False
    sign = -1 if data[at] == _MINUS else 1
    at += 1
    seconds, unit = np.int64(0), np.int64(3600)
    while unit > 0:
        value, stop = _number(data, at, end)
        if stop - at != 2:
            return np.int64(0), False
        seconds += value * unit
        unit //= 60
        at = stop
        if at == end:
            return sign * seconds * 1_000_000, True
        if data[at] != _COLON:
            return np.int64(0), False
        at += 1
    return np.int64(0), False


@njit(nogil=True, cache=True)
def parse_dates(offsets, data, valid):
    """Return days since 2000-01-01."""
    n = offsets.shape[0] - 1
    out = np.zeros(n, np.int64)
    nullable = valid.shape[0] > 0
    for i in range(n):
        if nullable and not valid[i]:
            continue
        at, end = offsets[i], offsets[i + 1]
        sign = _infinity(data, at, end)
        if sign != 0:
            out[i] = _DATE_MAX if sign > 0 else _DATE_MIN
            continue
        end, is_bc = _bc(data, at, end)
        out[i], stop = _date(data, at, end, is_bc)
        if stop != end:
            return out, i
    return out, -1


@njit(nogil=True, cache=True)
def parse_times(offsets, data, valid):
    """Return microseconds since midnight, 24:00:00 included."""
    n = offsets.shape[0] - 1
    out = np.zeros(n, np.int64)
    nullable = valid.shape[0] > 0
    for i in range(n):
        if nullable and not valid[i]:
            continue
        out[i], stop = _clock(data, offsets[i], offsets[i + 1])
        if stop != offsets[i + 1]:
            return out, i
    return out, -1


@njit(nogil=True, cache=True)
def parse_stamps(offsets, data, valid, has_zone):
    """Return microseconds since 2000-01-01; with has_zone an offset must follow the time."""
    n = offsets.shape[0] - 1
    out = np.zeros(n, np.int64)
    nullable = valid.shape[0] > 0
    for i in range(n):
        if nullable and not valid[i]:
            continue
        at, end = offsets[i], offsets[i + 1]
        sign = _infinity(data, at, end)
        if sign != 0:
            out[i] = _STAMP_MAX if sign > 0 else _STAMP_MIN
            continue
        end, is_bc = _bc(data, at, end)
        days, stop = _date(data, at, end, is_bc)
        if stop < 0 or stop >= end or data[stop] != _SPACE:
            return out, i
        us, stop = _clock(data, stop + 1, end)
        if stop < 0:
            return out, i
        if has_zone:
            east, ok = _zone(data, stop, end)
            if not ok:
                return out, i
            us -= east
        elif stop != end:
            return out, i
        out[i] = days * _DAY_US + us
    return out, -1


@njit(nogil=True, cache=True)
def _put_infinity(out, at, is_negative):
    if is_negative:
        out[at] = _MINUS
        at += 1
    for j in range(8):
        out[at + j] = _INFINITY[j]
    return at + 8


@njit(nogil=True, cache=True)
def _put_date(out, at, days):
    """YYYY-MM-DD without the era; returns (end, is BC)."""
    year, month, day = date_of(days)
    is_bc = year <= 0
    at = put_digits(out, at, 1 - year if is_bc else year, 4)
    out[at] = _MINUS
    at = put_digits(out, at + 1, month, 2)
    out[at] = _MINUS
    return put_digits(out, at + 1, day, 2), is_bc


@njit(nogil=True, cache=True)
def _put_bc(out, at):
    out[at], out[at + 1], out[at + 2] = _SPACE, 66, 67
    return at + 3


@njit(nogil=True, cache=True)
def _put_clock(out, at, us):
    """HH:MM:SS and the fraction without trailing zeros."""
    seconds = us // 1_000_000
    at = put_digits(out, at, seconds // 3600, 2)
    out[at] = _COLON
    at = put_digits(out, at + 1, seconds // 60 % 60, 2)
    out[at] = _COLON
    at = put_digits(out, at + 1, seconds % 60, 2)
    fraction = us % 1_000_000
    if fraction:
        out[at] = _DOT
        width = 6
        while fraction % 10 == 0:
            fraction //= 10
            width -= 1
        at = put_digits(out, at + 1, fraction, width)
    return at


@njit(nogil=True, cache=True)
def print_dates(values, valid):
    """Return dates from days since 2000-01-01."""
    n = values.shape[0]
    out = np.empty(16 * n, np.uint8)
    offsets = np.empty(n + 1, np.int64)
    nullable = valid.shape[0] > 0
    at = 0
    for i in range(n):
        offsets[i] = at
        if nullable and not valid[i]:
            continue
        if values[i] >= _DATE_MAX or values[i] <= _DATE_MIN:
            at = _put_infinity(out, at, values[i] < 0)
            continue
        at, is_bc = _put_date(out, at, values[i])
        if is_bc:
            at = _put_bc(out, at)
    offsets[n] = at
    return offsets, out[:at].copy()


@njit(nogil=True, cache=True)
def print_times(values, valid):
    """Times from microseconds since midnight."""
    n = values.shape[0]
    out = np.empty(16 * n, np.uint8)
    offsets = np.empty(n + 1, np.int64)
    nullable = valid.shape[0] > 0
    at = 0
    for i in range(n):
        offsets[i] = at
        if not nullable or valid[i]:
            at = _put_clock(out, at, values[i])
    offsets[n] = at
    return offsets, out[:at].copy()


@njit(nogil=True, cache=True)
def print_stamps(values, valid, has_zone):
    """Return timestamps from microseconds since 2000-01-01; with has_zone in UTC, "+00"."""
    n = values.shape[0]
    out = np.empty(36 * n, np.uint8)
    offsets = np.empty(n + 1, np.int64)
    nullable = valid.shape[0] > 0
    at = 0
    for i in range(n):
        offsets[i] = at
        if nullable and not valid[i]:
            continue
        if values[i] == _STAMP_MAX or values[i] == _STAMP_MIN:
            at = _put_infinity(out, at, values[i] < 0)
            continue
        days = values[i] // _DAY_US
        at, is_bc = _put_date(out, at, days)
        out[at] = _SPACE
        at = _put_clock(out, at + 1, values[i] - days * _DAY_US)
        if has_zone:
            out[at], out[at + 1], out[at + 2] = _PLUS, 48, 48
            at += 3
        if is_bc:
            at = _put_bc(out, at)
    offsets[n] = at
    return offsets, out[:at].copy()
