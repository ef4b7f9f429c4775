"""Compiled steps between days and dates, for the loops that are not native yet.

Days count from 2000-01-01 in the proleptic Gregorian calendar (as PostgreSQL's j2date and date2j
do); year 1 BC is year 0.
"""

from numba import njit

_EPOCH_DAYS = 730_425  # 0000-03-01 to 2000-01-01


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
