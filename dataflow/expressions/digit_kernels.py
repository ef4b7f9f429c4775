"""Compiled reading of numeric text: a sign, then digits into limbs to base 2^32, least first.

Used by the kernels of fixed-width numbers and of sums of any width. Invariant: a parsed number is
exact, or reported as not fitting. Only text that numeric_out prints is accepted.
"""

import numpy as np
from numba import njit

NOT_A_NUMBER = 2
TENS = 10 ** np.arange(19, dtype=np.int64)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_MINUS, _DOT, _ZERO, _NINE, _N = 45, 46, 48, 57, 78


@njit(nogil=True, cache=True, inline="always")
def times_plus_all(limbs, factor, plus):
    """limbs = limbs * factor + plus, both below 2^31; False when it no longer fits."""
    carry = np.uint64(plus)
    for k in range(limbs.shape[0]):
        part = limbs[k] * np.uint64(factor) + carry
        limbs[k] = part & _LOW
        carry = part >> _HALF
    return carry == 0


@njit(nogil=True, cache=True, inline="always")
def sign_of(data, at, end):
    """Return NOT_A_NUMBER, or -1 or 1 by whether the text data[at:end] begins with a minus."""
    if end - at == 3 and data[at] == _N:
        return NOT_A_NUMBER
    return -1 if at < end and data[at] == _MINUS else 1


@njit(nogil=True, cache=True, inline="always")
def read_digits(data, at, end, limbs):
    """Set limbs, which must be zero, to the digits of data[at:end]; return (digits after the dot,
    fits).

    fits is also False for text that is not a number.
    """
    part, digits, fraction, fits = np.int64(0), 0, np.int64(-1), True
    for j in range(at, end):
        c = data[j]
        if c == _DOT and fraction < 0:
            fraction = 0
            continue
        if c < _ZERO or c > _NINE:
            return np.int64(0), False
        part = part * 10 + (np.int64(c) - _ZERO)
        digits += 1
        if fraction >= 0:
            fraction += 1
        if digits == 9:
            fits &= times_plus_all(limbs, TENS[9], part)
            part, digits = np.int64(0), 0
    fits &= times_plus_all(limbs, TENS[digits], part)
    return max(fraction, np.int64(0)), fits
