"""Integers of any length from and to decimal digits.

Python refuses to parse or print integers beyond a few thousand digits; the limit belongs to the
host program (sys.set_int_max_str_digits). It also takes quadratic time for it. PostgreSQL's numeric
has up to 147,455 digits. Invariant: exact, whatever that limit is set to.
"""

from __future__ import annotations

from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal

# 640 is the lowest value that Python accepts for this limit.
_DIGITS = 600
_BITS = 1900
_EXACT = Context(prec=1_000_000, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[])


def int_of(text: str) -> int:
    """Return the integer of decimal digits with an optional sign.

    >>> int_of("-12"), int_of("+7"), int_of("9" * 5000) == 10**5000 - 1
    (-12, 7, True)
    """
    if len(text) <= _DIGITS:
        return int(text)
    if text[0] in "+-":
        return -_natural(text[1:]) if text[0] == "-" else _natural(text[1:])
    return _natural(text)


def _natural(digits: str) -> int:
    if len(digits) <= _DIGITS:
        return int(digits)
    low = len(digits) // 2
    return _natural(digits[:-low]) * 10**low + _natural(digits[-low:])


def digits_of(units: int) -> str:
    """Return an integer in decimal digits.

    >>> digits_of(-12), digits_of(10**5000) == "1" + "0" * 5000
    ('-12', True)
    """
    return str(units) if units.bit_length() <= _BITS else format(decimal_of(units), "f")


def decimal_of(units: int) -> Decimal:
    """Return an integer as a decimal.

    >>> decimal_of(-12), decimal_of(10**5000) == Decimal("1e5000")
    (Decimal('-12'), True)
    """
    if units.bit_length() <= _BITS:
        return Decimal(units)
    found = _decimal(abs(units))
    return found.copy_negate() if units < 0 else found


def _decimal(units: int) -> Decimal:
    bits = units.bit_length()
    if bits <= _BITS:
        return Decimal(units)
    low = bits // 2
    high = _decimal(units >> low)
    power = _EXACT.power(Decimal(2), Decimal(low))
    return _EXACT.fma(high, power, _decimal(units & ((1 << low) - 1)))


def units_of(number: Decimal, scale: int) -> int:
    """Return a finite number in units of 10^-scale, of which it is a multiple.

    >>> units_of(Decimal("-1.50"), 2), units_of(Decimal("1e5000"), 0) == 10**5000
    (-150, True)
    """
    whole = number.scaleb(scale, _EXACT)
    return int(whole) if whole.adjusted() < _DIGITS else int_of(format(whole, ".0f"))
