"""Sums and averages as PostgreSQL's numeric prints them, from exact integers.

Invariant: digits and display scale are those of numeric_sum and numeric_div (numeric.c,
select_div_scale), for every group the same whichever path computed the sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tidemark_native.aggregates import print_limbs

from dataflow.delta import Column
from dataflow.long_integers import digits_of

_SIGNIFICANT_DIGITS = 16
_DIGITS = 4
_MAX_SCALE = 1000
_LOW = 0xFFFFFFFF
_NONE = np.empty(0, np.int64)
_NO_MASK = np.empty(0, np.bool_)

Shown = int | np.ndarray


@dataclass(frozen=True)
class Masks:
    """bool[n]: where there is a result, and where it is NaN (None: nowhere)."""

    valid: np.ndarray
    nan: np.ndarray | None = None


def sum_column(limbs: Sequence[np.ndarray], scale: int, shown: Shown, masks: Masks) -> Column:
    """Numeric text of each sum: int64[n] sums of each limb, in units of 10^-scale.

    shown: the display scale, of each sum or of all of them.
    """
    return _column(limbs, scale, shown, _NONE, masks)


def average_column(
    limbs: Sequence[np.ndarray], counts: np.ndarray, scale: int, shown: Shown, masks: Masks
) -> Column:
    """Numeric text of each sum over its int64[n] count, not zero where valid."""
    return _column(limbs, scale, shown, counts, masks)


def limbs_of(totals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return int64[n] as two limbs."""
    return totals & _LOW, totals >> 32


def _column(
    limbs: Sequence[np.ndarray], scale: int, shown: Shown, counts: np.ndarray, masks: Masks
) -> Column:
    scales = np.array([shown], np.int64) if isinstance(shown, int) else shown
    nan = _NO_MASK if masks.nan is None else masks.nan
    sums = np.stack(limbs)
    offsets, data = print_limbs(sums, scale, scales, counts, masks.valid, nan)
    return Column(offsets, None if masks.valid.all() else masks.valid, data)


def average_text(total: int, scale: int, count: int) -> str:
    """Return (total / 10^scale) / count as numeric_div prints it, rounded half away from zero.

    >>> average_text(10, 0, 4), average_text(100, 2, 3), average_text(-5, 0, 2)
    ('2.5000000000000000', '0.33333333333333333333', '-2.5000000000000000')
    """
    quotient, places = divided(abs(total), scale, count)
    return fixed_text(-quotient if total < 0 else quotient, places)


def divided(units: int, scale: int, divisor: int) -> tuple[int, int]:
    """Return (units, scale) of (units / 10^scale) / divisor as numeric_div rounds it, for units >=
    0."""
    places = division_scale(units, scale, divisor, 0)
    # The result has a smaller scale than its rows if theirs exceeds that of any quotient.
    divisor *= 10 ** max(scale - places, 0)
    quotient, rest = divmod(units * 10 ** max(places - scale, 0), divisor)
    return quotient + (2 * rest >= divisor), places


def fixed_text(units: int, scale: int) -> str:
    """units / 10^scale with all its digits.

    >>> fixed_text(-5, 2), fixed_text(7, 0), fixed_text(0, 3)
    ('-0.05', '7', '0.000')
    """
    digits = digits_of(abs(units)).zfill(scale + 1)
    sign = "-" if units < 0 else ""
    return f"{sign}{digits[:-scale]}.{digits[-scale:]}" if scale else sign + digits


def division_scale(units: int, scale: int, divisor: int, divisor_scale: int) -> int:
    """Return the display scale of a quotient: select_div_scale of numeric.c, for units >= 0."""
    weight, first = _leading(units, scale)
    divisor_weight, divisor_first = _leading(divisor, divisor_scale)
    quotient_weight = weight - divisor_weight - (first <= divisor_first)
    places = max(_SIGNIFICANT_DIGITS - quotient_weight * _DIGITS, scale, divisor_scale, 0)
    return min(places, _MAX_SCALE)


def _leading(units: int, scale: int) -> tuple[int, int]:
    """Return (weight, value) of the first digit to base 10,000, that stands for value *
    10,000^weight."""
    if units == 0:
        return 0, 0
    digits = digits_of(units)
    integral = len(digits) - scale
    weight = (integral - 1) // _DIGITS
    width = integral - weight * _DIGITS
    return weight, int(digits[:width].ljust(width, "0"))
