"""Sums and averages as PostgreSQL's numeric prints them, from exact integers.

Invariant: digits and display scale are those of numeric_sum and numeric_div (numeric.c,
select_div_scale), for every group the same whichever road computed the sum.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dataflow.delta import KIND_BYTES, Column
from dataflow.expressions.numbers import NAN, Numbers, scaled
from dataflow.types import FIXED_NAN

_SIGNIFICANT_DIGITS = 16
_DIGITS = 4
_MAX_SCALE = 1000
_LOW = 0xFFFFFFFF


def whole_totals(low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, bool]:
    """(totals high * 2^32 + low, True) as int64[n] when all fit, else as object[n] and False."""
    carried = high + (low >> 32)
    if len(carried) == 0 or (carried.min() >= -(2**31) and carried.max() < 2**31 - 1):
        return (carried << 32) | (low & _LOW), True
    wide = carried.astype(object) * 2**32 + (low & _LOW).astype(object)
    return wide, False


def sum_column(low: np.ndarray, high: np.ndarray, scale: int, masks: Sequence) -> Column:
    """Numeric text of each sum; masks: bool[n] valid, bool[n] NaN or None."""
    valid, nan = masks
    totals, fits = whole_totals(low, high)
    if fits:
        if nan is not None:
            totals = np.where(nan, FIXED_NAN, totals)
        return _null_where(Numbers.of_fixed(totals, scale, None).to_text(), valid)
    decimals = [scaled(t, scale) for t in totals.tolist()]
    if nan is not None:
        decimals = [NAN if is_nan else d for d, is_nan in zip(decimals, nan.tolist(), strict=True)]
    return _null_where(Numbers.of_decimals(decimals, None).to_text(), valid)


def average_column(totals: np.ndarray, counts: np.ndarray, scale: int, masks: Sequence) -> Column:
    """Numeric text of total / count; masks: bool[n] valid, bool[n] NaN or None."""
    valid, nan = masks
    texts: list[str | None] = [
        average_text(total, scale, count) if count > 0 else None
        for total, count in zip(totals.tolist(), counts.tolist(), strict=True)
    ]
    if nan is not None:
        for i in np.flatnonzero(nan).tolist():
            texts[i] = "NaN"
    return _null_where(Column.of(KIND_BYTES, texts), valid)


def average_text(total: int, scale: int, count: int) -> str:
    """(total / 10^scale) / count as numeric_div prints it, rounded half away from zero.

    >>> average_text(10, 0, 4), average_text(100, 2, 3), average_text(-5, 0, 2)
    ('2.5000000000000000', '0.33333333333333333333', '-2.5000000000000000')
    """
    quotient, places = divided(abs(total), scale, count)
    return fixed_text(-quotient if total < 0 else quotient, places)


def divided(units: int, scale: int, divisor: int) -> tuple[int, int]:
    """(units, scale) of (units / 10^scale) / divisor as numeric_div rounds it, for units >= 0."""
    places = division_scale(units, scale, divisor, 0)
    quotient, rest = divmod(units * 10 ** (places - scale), divisor)
    return quotient + (2 * rest >= divisor), places


def fixed_text(units: int, scale: int) -> str:
    """units / 10^scale with all its digits.

    >>> fixed_text(-5, 2), fixed_text(7, 0), fixed_text(0, 3)
    ('-0.05', '7', '0.000')
    """
    digits = str(abs(units)).zfill(scale + 1)
    sign = "-" if units < 0 else ""
    return f"{sign}{digits[:-scale]}.{digits[-scale:]}" if scale else sign + digits


def division_scale(units: int, scale: int, divisor: int, divisor_scale: int) -> int:
    """The display scale of a quotient: select_div_scale of numeric.c, for units >= 0."""
    weight, first = _leading(units, scale)
    divisor_weight, divisor_first = _leading(divisor, divisor_scale)
    quotient_weight = weight - divisor_weight - (first <= divisor_first)
    places = max(_SIGNIFICANT_DIGITS - quotient_weight * _DIGITS, scale, divisor_scale, 0)
    return min(places, _MAX_SCALE)


def _leading(units: int, scale: int) -> tuple[int, int]:
    """(weight, value) of the first digit to base 10,000, that stands for value * 10,000^weight."""
    if units == 0:
        return 0, 0
    digits = str(units)
    integral = len(digits) - scale
    weight = (integral - 1) // _DIGITS
    width = integral - weight * _DIGITS
    return weight, int(digits[:width].ljust(width, "0"))


def _null_where(column: Column, valid: np.ndarray) -> Column:
    """The column, NULL where valid is False."""
    if valid.all():
        return column
    pool = Column.concat([column, Column.nulls(KIND_BYTES, 1)])
    return pool.take(np.where(valid, np.arange(len(valid)), len(valid)))
