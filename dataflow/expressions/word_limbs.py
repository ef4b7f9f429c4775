"""Compiled steps on a magnitude of word_kernels: WIDTH limbs to base 2^32 in uint64, least first.

Each step changes its first argument in place and says whether the result still fits.
"""

import numpy as np
from numba import njit

from dataflow.expressions.digit_kernels import TENS

WIDTH = 5
LOW = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)
MAX_DIGITS = 9 * (WIDTH + 2)


@njit(nogil=True, cache=True)
def zeros(n):
    """n numbers that are 0: (signs, words, scales)."""
    return np.zeros(n, np.int8), np.zeros((n, WIDTH), np.uint64), np.zeros(n, np.int64)


@njit(nogil=True, cache=True, inline="always")
def pairs_of(a, b):
    """Return (rows, step of a, step of b) of two arrays, one row of either standing for all."""
    n = max(a.shape[0], b.shape[0])
    if a.shape[0] == 0 or b.shape[0] == 0:
        n = 0
    return n, 0 if a.shape[0] == 1 else 1, 0 if b.shape[0] == 1 else 1


@njit(nogil=True, cache=True, inline="always")
def is_zero(value):
    """Return whether value is 0."""
    bits = np.uint64(0)
    for k in range(WIDTH):
        bits |= value[k]
    return bits == 0


@njit(nogil=True, cache=True, inline="always")
def times_plus(value, factor, plus):
    """value = value * factor + plus, both below 2^31; False when it no longer fits."""
    carry = np.uint64(plus)
    for k in range(WIDTH):
        part = value[k] * np.uint64(factor) + carry
        value[k] = part & LOW
        carry = part >> HALF
    return carry == 0


@njit(nogil=True, cache=True)
def times_ten_to(value, power):
    """value = value * 10^power; False when it no longer fits."""
    if power > MAX_DIGITS:
        return is_zero(value)
    while power > 0:
        step = min(power, np.int64(9))
        if not times_plus(value, TENS[step], np.int64(0)):
            return False
        power -= step
    return True


@njit(nogil=True, cache=True, inline="always")
def over(value, divisor):
    """value = value // divisor, below 2^32; the remainder."""
    rest = np.uint64(0)
    for j in range(WIDTH):
        k = WIDTH - 1 - j
        part = (rest << HALF) | value[k]
        value[k] = part // np.uint64(divisor)
        rest = part % np.uint64(divisor)
    return np.int64(rest)


@njit(nogil=True, cache=True, inline="always")
def order(a, b):
    """Return the sign of a - b."""
    for j in range(WIDTH):
        k = WIDTH - 1 - j
        if a[k] != b[k]:
            return 1 if a[k] > b[k] else -1
    return 0


@njit(nogil=True, cache=True, inline="always")
def copy(value, out):
    """out = value."""
    for k in range(WIDTH):
        out[k] = value[k]


@njit(nogil=True, cache=True, inline="always")
def plus(value, more):
    """value = value + more; False when it no longer fits."""
    carry = np.uint64(0)
    for k in range(WIDTH):
        part = value[k] + more[k] + carry
        value[k] = part & LOW
        carry = part >> HALF
    return carry == 0


@njit(nogil=True, cache=True, inline="always")
def less(value, other):
    """value = value - other, which is not greater."""
    borrow = np.uint64(0)
    for k in range(WIDTH):
        part = (value[k] | (np.uint64(1) << HALF)) - other[k] - borrow
        value[k] = part & LOW
        borrow = np.uint64(1) - (part >> HALF)
