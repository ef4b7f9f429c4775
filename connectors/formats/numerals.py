"""Decimal numbers as digits, as PostgreSQL's numeric reads them; no value is ever a float here.

The limits are numeric's: 131,072 digits before the point, 16,383 after it.
"""

from __future__ import annotations

import re

WHOLE_DIGITS, SCALE_DIGITS = 131_072, 16_383
_NUMERAL = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]+))?")
_FAR = 10**8


def split_numeral(text: str) -> tuple[bool, str, str]:
    """Return (is negative, digits before the point, digits after it) without exponent.

    The first part has no leading zeros and may be empty; zero is not negative. ValueError.

    >>> split_numeral("-1.50e1"), split_numeral("5E-3"), split_numeral("-0.0")
    ((True, '15', '0'), (False, '', '005'), (False, '', '0'))
    """
    found = _NUMERAL.fullmatch(text)
    if found is None or not (found[2] or found[3]):
        raise ValueError("not a number")
    whole, fraction, exponent = found[2], found[3] or "", found[4] or "0"
    power = int(exponent) if len(exponent) < 9 else (-_FAR if exponent[0] == "-" else _FAR)
    is_zero = not (whole + fraction).strip("0")
    if is_zero:
        whole, fraction = "", "0" * min(max(len(fraction) - power, 0), SCALE_DIGITS + 1)
    elif abs(power) > 2 * WHOLE_DIGITS:
        raise ValueError("out of the range of numeric")
    elif power > 0:
        fraction = fraction.ljust(power, "0")
        whole, fraction = whole + fraction[:power], fraction[power:]
    elif power < 0:
        whole = whole.rjust(-power, "0")
        cut = len(whole) + power
        whole, fraction = whole[:cut], whole[cut:] + fraction
    whole = whole.lstrip("0")
    if len(whole) > WHOLE_DIGITS:
        raise ValueError("out of the range of numeric")
    return found[1] == "-" and not is_zero, whole, fraction


def join_numeral(is_negative: bool, whole: str, fraction: str) -> str:
    """Return the text that numeric prints, with its full scale; ValueError beyond the largest
    scale.
    """
    if len(fraction) > SCALE_DIGITS:
        raise ValueError("out of the range of numeric")
    shown = f"{'-' if is_negative else ''}{whole or '0'}"
    return f"{shown}.{fraction}" if fraction else shown
