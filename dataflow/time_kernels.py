"""A compiled step from dates to days, for the loops that are not native yet.

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
