"""Compiled loops over dates and timestamps: calendar fields, truncation, month arithmetic.

Days and microseconds since 2000-01-01; infinities pass through. Year 0 is 1 BC inside.
"""

import numpy as np
from numba import njit

from dataflow.time_kernels import date_of, days_of

DAY_US = np.int64(86_400_000_000)
_STAMP_MIN, _STAMP_MAX = np.int64(-(2**63)), np.int64(2**63 - 1)
_FIRST_STAMP, _END_STAMP = np.int64(-211_813_488_000_000_000), np.int64(9_223_371_331_200_000_000)
_FIRST_DAY, _END_DAY = np.int64(-2_451_545), np.int64(2_145_031_949)
_MONTH_DAYS = np.array([31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], np.int64)

YEAR, MONTH, DAY, QUARTER, DOW, ISODOW, DOY, WEEK, ISOYEAR, DECADE = range(10)
CENTURY, MILLENNIUM = 10, 11


@njit(nogil=True, cache=True)
def month_length(year, month):
    """Return the number of days of a month."""
    if month == 2 and (year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)):
        return 29
    return _MONTH_DAYS[month - 1]


@njit(nogil=True, cache=True)
def _add_months(day, months):
    """Return a day moved by months, clamped to the length of the month."""
    year, month, of_month = date_of(day)
    total = year * 12 + month - 1 + months
    year = total // 12
    month = total - year * 12 + 1
    return days_of(year, month, min(of_month, month_length(year, month)))


@njit(nogil=True, cache=True)
def shift(stamps, months, days, micros):
    """Return timestamps plus intervals (one or n of either): (int64[n], bool[n] out of range)."""
    n = max(stamps.shape[0], months.shape[0])
    if stamps.shape[0] == 0 or months.shape[0] == 0:
        n = 0
    s_step = 0 if stamps.shape[0] == 1 else 1
    i_step = 0 if months.shape[0] == 1 else 1
    out = np.zeros(n, np.int64)
    wrong = np.zeros(n, np.bool_)
    for k in range(n):
        stamp = stamps[k * s_step]
        if stamp in (_STAMP_MIN, _STAMP_MAX):
            out[k] = stamp
            continue
        at = k * i_step
        day = stamp // DAY_US
        clock = stamp - day * DAY_US
        if months[at] != 0:
            day = _add_months(day, months[at])
        day += days[at]
        if day < _FIRST_DAY or day > 106_751_990:
            wrong[k] = True
            continue
        more = micros[at] // DAY_US
        clock += micros[at] - more * DAY_US
        day += more + clock // DAY_US
        if day < _FIRST_DAY or day >= 106_751_983:
            wrong[k] = True
            continue
        out[k] = day * DAY_US + clock % DAY_US
        if out[k] < _FIRST_STAMP or out[k] >= _END_STAMP:
            wrong[k] = True
    return out, wrong


@njit(nogil=True, cache=True)
def make_days(years, months, days):
    """Return days of year, month, day (a negative year is BC): (int64[n], bool[n] no such date)."""
    n = years.shape[0]
    out = np.zeros(n, np.int64)
    wrong = np.zeros(n, np.bool_)
    for i in range(n):
        year, month, day = years[i], months[i], days[i]
        if year < 0:
            year += 1
        elif year == 0:
            wrong[i] = True
            continue
        if month < 1 or month > 12 or day < 1 or day > month_length(year, month):
            wrong[i] = True
            continue
        if year < -4713 or year > 5874897:
            wrong[i] = True
            continue
        out[i] = days_of(year, month, day)
        if out[i] < _FIRST_DAY or out[i] >= _END_DAY:
            wrong[i] = True
    return out, wrong


@njit(nogil=True, cache=True)
def _iso_week_start(day):
    """Return the Monday of a day's week."""
    return day - (day + 5) % 7


@njit(nogil=True, cache=True)
def _field(day, which):
    if which == DOW:
        return (day + 6) % 7
    if which == ISODOW:
        return (day + 5) % 7 + 1
    if which in (WEEK, ISOYEAR):
        thursday = _iso_week_start(day) + 3
        year, month, of_month = date_of(thursday)
        if which == ISOYEAR:
            return year if year > 0 else year - 1
        return (thursday - days_of(year, 1, 1)) // 7 + 1
    year, month, of_month = date_of(day)
    if which == YEAR:
        return year if year > 0 else year - 1
    if which == MONTH:
        return month
    if which == DAY:
        return of_month
    if which == QUARTER:
        return (month - 1) // 3 + 1
    if which == DOY:
        return day - days_of(year, 1, 1) + 1
    if which == DECADE:
        return year // 10
    size = 100 if which == CENTURY else 1000
    return (year + size - 1) // size if year > 0 else -((size - 1 - (year - 1)) // size)


@njit(nogil=True, cache=True)
def fields(days, which):
    """Return int64[n]: a calendar field of days that are not infinite."""
    out = np.zeros(days.shape[0], np.int64)
    for i in range(days.shape[0]):
        out[i] = _field(days[i], which)
    return out


@njit(nogil=True, cache=True)
def truncate(stamps, which):
    """Return timestamps cut to YEAR, QUARTER, MONTH, WEEK or DAY; infinities stay."""
    out = np.zeros(stamps.shape[0], np.int64)
    for i in range(stamps.shape[0]):
        stamp = stamps[i]
        if stamp in (_STAMP_MIN, _STAMP_MAX):
            out[i] = stamp
            continue
        day = stamp // DAY_US
        if which == WEEK:
            day = _iso_week_start(day)
        elif which != DAY:
            year, month, _of_month = date_of(day)
            if which == YEAR:
                month = 1
            elif which == QUARTER:
                month = (month - 1) // 3 * 3 + 1
            day = days_of(year, month, 1)
        out[i] = day * DAY_US
    return out
