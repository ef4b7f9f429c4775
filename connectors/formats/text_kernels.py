"""Compiled parsers from texts to physical values, for the plain forms.

Every parser takes (offsets, data, valid, ...) of a bytes column; an empty `valid` means no NULLs.
It returns (values, marks): a marked row is not of the plain form and is left to text_values.py,
which knows every form and reports faults. Nothing is guessed here.
"""

import numpy as np
from numba import njit

from dataflow.time_kernels import days_of

_DAY_US = np.int64(86_400_000_000)
_TENS = 10 ** np.arange(19, dtype=np.int64)
_MONTH_DAYS = np.array([31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], np.int64)
_MINUS, _PLUS, _DOT, _COLON, _SPACE, _ZERO = 45, 43, 46, 58, 32, 48
_T, _T_LOWER, _Z, _Z_LOWER = 84, 116, 90, 122


@njit(nogil=True, cache=True)
def read_ints(offsets, data, valid, low, high):
    """Parse decimal integers of at most 18 digits within [low, high]."""
    n = offsets.shape[0] - 1
    out = np.zeros(n, np.int64)
    marks = np.zeros(n, np.bool_)
    nullable = valid.shape[0] > 0
    for i in range(n):
        if nullable and not valid[i]:
            continue
        at, end = offsets[i], offsets[i + 1]
        is_negative = at < end and data[at] == _MINUS
        if is_negative:
            at += 1
        if at >= end or end - at > 18:
            marks[i] = True
            continue
        value = np.int64(0)
        for j in range(at, end):
            digit = np.int64(data[j]) - _ZERO
            if digit < 0 or digit > 9:
                marks[i] = True
                break
            value = value * 10 + digit
        if is_negative:
            value = -value
        if value < low or value > high:
            marks[i] = True
        if not marks[i]:
            out[i] = value
    return out, marks


@njit(nogil=True, cache=True)
def read_fixed(offsets, data, valid, precision, scale):
    """Parse plain decimals as value * 10^scale, rounded half away from zero like numeric(p,s)."""
    n = offsets.shape[0] - 1
    out = np.zeros(n, np.int64)
    marks = np.zeros(n, np.bool_)
    nullable = valid.shape[0] > 0
    limit = _TENS[precision]
    for i in range(n):
        if nullable and not valid[i]:
            continue
        at, end = offsets[i], offsets[i + 1]
        is_negative = at < end and data[at] == _MINUS
        if is_negative:
            at += 1
        value, digits, fraction, up = np.int64(0), 0, -1, np.int64(0)
        ok = True
        for j in range(at, end):
            c = data[j]
            if c == _DOT and fraction < 0:
                fraction = 0
                continue
            digit = np.int64(c) - _ZERO
            if digit < 0 or digit > 9:
                ok = False
                break
            digits += 1
            if fraction >= 0:
                fraction += 1
                if fraction > scale:
                    if fraction == scale + 1 and digit >= 5:
                        up = np.int64(1)
                    continue
            if value > limit // 10:
                ok = False
                break
            value = value * 10 + digit
        missing = scale - min(max(fraction, 0), scale)
        if not ok or digits == 0 or value >= limit // _TENS[missing] + 1:
            marks[i] = True
            continue
        value = value * _TENS[missing] + up
        if value >= limit:
            marks[i] = True
        else:
            out[i] = -value if is_negative else value
    return out, marks


@njit(nogil=True, cache=True)
def read_bools(offsets, data, valid):
    """Parse true, false, t, f."""
    n = offsets.shape[0] - 1
    out = np.zeros(n, np.bool_)
    marks = np.zeros(n, np.bool_)
    nullable = valid.shape[0] > 0
    for i in range(n):
        if nullable and not valid[i]:
            continue
        at = offsets[i]
        size = offsets[i + 1] - at
        if size == 1 and (data[at] == 116 or data[at] == 102):
            out[i] = data[at] == 116
        elif size == 4 and (
            data[at] == 116 and data[at + 1] == 114 and data[at + 2] == 117 and data[at + 3] == 101
        ):
            out[i] = True
        elif not (
            size == 5
            and data[at] == 102
            and data[at + 1] == 97
            and data[at + 2] == 108
            and data[at + 3] == 115
            and data[at + 4] == 101
        ):
            marks[i] = True
    return out, marks


@njit(nogil=True, cache=True)
def _two(data, at, end):
    """Return the number of two digits at `at`, or -1."""
    if at + 2 > end:
        return np.int64(-1)
    high, low = np.int64(data[at]) - _ZERO, np.int64(data[at + 1]) - _ZERO
    if high < 0 or high > 9 or low < 0 or low > 9:
        return np.int64(-1)
    return high * 10 + low


@njit(nogil=True, cache=True)
def _date(data, at, end):
    """Return (days, ok) of YYYY-MM-DD."""
    if end - at < 10 or data[at + 4] != _MINUS or data[at + 7] != _MINUS:
        return np.int64(0), False
    century, rest = _two(data, at, end), _two(data, at + 2, end)
    month, day = _two(data, at + 5, end), _two(data, at + 8, end)
    if century < 0 or rest < 0 or month < 1 or month > 12 or day < 1:
        return np.int64(0), False
    year = century * 100 + rest
    most = _MONTH_DAYS[month - 1]
    if month == 2 and year % 4 == 0 and (year % 100 != 0 or year % 400 == 0):
        most = 29
    if year == 0 or day > most:
        return np.int64(0), False
    return days_of(year, month, day), True


@njit(nogil=True, cache=True)
def _clock(data, at, end):
    """Return (microseconds since midnight, end or -1) of HH:MM:SS with up to six decimals."""
    hour, minute, second = _two(data, at, end), _two(data, at + 3, end), _two(data, at + 6, end)
    if hour < 0 or hour > 23 or minute < 0 or minute > 59 or second < 0 or second > 59:
        return np.int64(0), -1
    if data[at + 2] != _COLON or data[at + 5] != _COLON:
        return np.int64(0), -1
    us = ((hour * 60 + minute) * 60 + second) * 1_000_000
    at += 8
    if at < end and data[at] == _DOT:
        at += 1
        part, digits = np.int64(0), 0
        while at < end and _ZERO <= data[at] <= 57:
            if digits == 6:
                return us, -1
            part = part * 10 + (np.int64(data[at]) - _ZERO)
            digits += 1
            at += 1
        if digits == 0:
            return us, -1
        us += part * _TENS[6 - digits]
    return us, at


@njit(nogil=True, cache=True)
def _zone(data, at, end):
    """Return (microseconds east of UTC, ok) of nothing, Z, +HH, +HHMM or +HH:MM."""
    if at == end:
        return np.int64(0), True
    c = data[at]
    if c in (_Z, _Z_LOWER):
        return np.int64(0), at + 1 == end
    if c != _PLUS and c != _MINUS:
        return np.int64(0), False
    hours, minutes = _two(data, at + 1, end), np.int64(0)
    at += 3
    if at < end:
        if data[at] == _COLON:
            at += 1
        minutes = _two(data, at, end)
        at += 2
    if hours < 0 or hours > 15 or minutes < 0 or minutes > 59 or at != end:
        return np.int64(0), False
    us = (hours * 60 + minutes) * 60_000_000
    return (-us if c == _MINUS else us), True


@njit(nogil=True, cache=True)
def read_dates(offsets, data, valid):
    """Parse YYYY-MM-DD to days since 2000-01-01."""
    n = offsets.shape[0] - 1
    out = np.zeros(n, np.int64)
    marks = np.zeros(n, np.bool_)
    nullable = valid.shape[0] > 0
    for i in range(n):
        if nullable and not valid[i]:
            continue
        days, ok = _date(data, offsets[i], offsets[i + 1])
        if ok and offsets[i + 1] - offsets[i] == 10:
            out[i] = days
        else:
            marks[i] = True
    return out, marks


@njit(nogil=True, cache=True)
def read_times(offsets, data, valid):
    """Parse HH:MM:SS with up to six decimals to microseconds since midnight."""
    n = offsets.shape[0] - 1
    out = np.zeros(n, np.int64)
    marks = np.zeros(n, np.bool_)
    nullable = valid.shape[0] > 0
    for i in range(n):
        if nullable and not valid[i]:
            continue
        us, stop = _clock(data, offsets[i], offsets[i + 1])
        if stop == offsets[i + 1]:
            out[i] = us
        else:
            marks[i] = True
    return out, marks


@njit(nogil=True, cache=True)
def read_stamps(offsets, data, valid, has_zone):
    """Parse an ISO 8601 time to microseconds since 2000-01-01; its offset counts if has_zone."""
    n = offsets.shape[0] - 1
    out = np.zeros(n, np.int64)
    marks = np.zeros(n, np.bool_)
    nullable = valid.shape[0] > 0
    for i in range(n):
        if nullable and not valid[i]:
            continue
        at, end = offsets[i], offsets[i + 1]
        days, ok = _date(data, at, end)
        at += 10
        marks[i] = True
        if not ok or at >= end:
            continue
        if data[at] != _SPACE and data[at] != _T and data[at] != _T_LOWER:
            continue
        us, stop = _clock(data, at + 1, end)
        if stop < 0:
            continue
        east, ok = _zone(data, stop, end)
        if ok:
            out[i] = days * _DAY_US + us - (east if has_zone else 0)
            marks[i] = False
    return out, marks


@njit(nogil=True, cache=True)
def odd_texts(offsets, data, valid, most):
    """Return bool[n]: texts with a NUL byte, or more than `most` bytes if that is not negative."""
    n = offsets.shape[0] - 1
    marks = np.zeros(n, np.bool_)
    nullable = valid.shape[0] > 0
    for i in range(n):
        if nullable and not valid[i]:
            continue
        at, end = offsets[i], offsets[i + 1]
        found = 0 <= most < end - at
        for j in range(at, end):
            found |= data[j] == 0
        marks[i] = found
    return marks


@njit(nogil=True, cache=True)
def odd_numerics(offsets, data, valid, precision, scale):
    """Return bool[n]: texts that numeric(precision, scale) may print differently.

    A negative scale stands for plain numeric.
    """
    n = offsets.shape[0] - 1
    marks = np.zeros(n, np.bool_)
    nullable = valid.shape[0] > 0
    for i in range(n):
        if nullable and not valid[i]:
            continue
        at, end = offsets[i], offsets[i + 1]
        is_negative = at < end and data[at] == _MINUS
        if is_negative:
            at += 1
        whole, fraction, has_value, ok = 0, -1, False, True
        for j in range(at, end):
            c = data[j]
            if c == _DOT and fraction < 0:
                fraction = 0
            elif c < _ZERO or c > 57:
                ok = False
            else:
                has_value |= c != _ZERO
                if fraction >= 0:
                    fraction += 1
                else:
                    whole += 1
        ok &= whole > 0 and fraction != 0 and (data[at] != _ZERO or whole == 1)
        ok &= has_value or not is_negative
        if scale >= 0:
            ok &= max(fraction, 0) == scale and whole <= max(precision - scale, 1)
            if precision == scale and whole == 1 and data[at] != _ZERO:
                ok = False
        else:
            ok &= whole <= 1000 and fraction <= 1000
        marks[i] = not ok
    return marks


@njit(nogil=True, cache=True)
def odd_uuids(offsets, data, valid):
    """Return bool[n]: texts that are not a UUID as PostgreSQL prints it."""
    n = offsets.shape[0] - 1
    marks = np.zeros(n, np.bool_)
    nullable = valid.shape[0] > 0
    for i in range(n):
        if nullable and not valid[i]:
            continue
        at = offsets[i]
        ok = offsets[i + 1] - at == 36
        if ok:
            for j in range(36):
                c = data[at + j]
                if j == 8 or j == 13 or j == 18 or j == 23:
                    ok &= c == _MINUS
                else:
                    ok &= (_ZERO <= c <= 57) or (97 <= c <= 102)
        marks[i] = not ok
    return marks


@njit(nogil=True, cache=True)
def pad_texts(offsets, data, width):
    """Return (offsets, bytes) of texts padded with blanks up to `width` characters."""
    n = offsets.shape[0] - 1
    ends = np.zeros(n + 1, np.int64)
    for i in range(n):
        characters = 0
        for j in range(offsets[i], offsets[i + 1]):
            characters += (data[j] & 0xC0) != 0x80
        size = offsets[i + 1] - offsets[i]
        ends[i + 1] = ends[i] + size + max(width - characters, 0)
    out = np.full(ends[n], _SPACE, np.uint8)
    for i in range(n):
        start = offsets[i]
        for j in range(offsets[i + 1] - start):
            out[ends[i] + j] = data[start + j]
    return ends, out
