"""Compiled division, rounding and order of the wide numerics of word_kernels; see there.

The scale of a quotient is select_div_scale's (numeric.c): at least 16 significant digits.
"""

import numpy as np
from numba import njit

from dataflow.expressions.digit_kernels import NOT_A_NUMBER, TENS
from dataflow.expressions.word_kernels import digits_of
from dataflow.expressions.word_limbs import (
    HALF,
    LOW,
    MAX_DIGITS,
    WIDTH,
    copy,
    is_zero,
    less,
    order,
    over,
    pairs_of,
    times_plus,
    times_ten_to,
    zeros,
)

_NAN = np.int64(2**63 - 1)
_SIGNIFICANT, _GROUP = 16, 4
# select_div_scale allows up to 1,000 digits, which never fit here.
_MAX_SCALE = 100


@njit(nogil=True, cache=True)
def _leading(value, scale, scratch, digits):
    """Return (weight, value) of the first digit to base 10,000, as numeric.c stores a number."""
    first = digits_of(value, scratch, digits)
    count = digits.shape[0] - first
    if count == 0:
        return np.int64(0), np.int64(0)
    weight = np.int64((count - 1 - scale) // _GROUP)
    lead = np.int64(0)
    for k in range(count - scale - weight * _GROUP):
        lead = lead * 10 + (digits[first + k] if k < count else 0)
    return weight, lead


@njit(nogil=True, cache=True)
def _long_division(digits, first, shift, divisor, rest, out):
    """out = digits[first:] * 10^shift // divisor, the remainder in rest; False: it does not fit."""
    for k in range(WIDTH):
        rest[k] = 0
    is_short = divisor[1] < np.uint64(1 << 27)
    for k in range(2, WIDTH):
        is_short = is_short and divisor[k] == 0
    small = np.int64((divisor[1] << HALF) | divisor[0])
    rests, part, buffered = np.int64(0), np.int64(0), 0
    for k in range(first, digits.shape[0] + shift):
        digit = digits[k] if k < digits.shape[0] else np.int64(0)
        if is_short:
            rests = rests * 10 + digit
            digit = rests // small
            rests -= digit * small
        else:
            # The remainder is below the divisor: ten times it must still fit.
            if not times_plus(rest, 10, digit):
                return False
            digit = np.int64(0)
            while order(rest, divisor) >= 0:
                less(rest, divisor)
                digit += 1
        part = part * 10 + digit
        buffered += 1
        if buffered == 9:
            if not times_plus(out, TENS[9], part):
                return False
            part, buffered = np.int64(0), 0
    if is_short:
        rest[0], rest[1] = np.uint64(rests) & LOW, np.uint64(rests) >> HALF
    return times_plus(out, TENS[buffered], part)


@njit(nogil=True, cache=True)
def divide(a_signs, a_words, a_scales, b_signs, b_words, b_scales):
    """a / b, 0 where b is 0: (signs, words, scales, fits)."""
    n, a_step, b_step = pairs_of(a_signs, b_signs)
    signs, words, scales = zeros(n)
    rest = np.zeros(WIDTH, np.uint64)
    scratch = np.zeros(WIDTH, np.uint64)
    digits = np.zeros(MAX_DIGITS, np.int64)
    for i in range(n):
        a, b = i * a_step, i * b_step
        if a_signs[a] == NOT_A_NUMBER or b_signs[b] == NOT_A_NUMBER:
            signs[i] = NOT_A_NUMBER
            continue
        if b_signs[b] == 0:
            continue
        divisor = b_words[b]
        b_weight, b_lead = _leading(divisor, b_scales[b], scratch, digits)
        weight, lead = _leading(a_words[a], a_scales[a], scratch, digits)
        weight -= b_weight
        if lead <= b_lead:
            weight -= 1
        scale = max(_SIGNIFICANT - weight * _GROUP, a_scales[a], b_scales[b], 0)
        shift = scale + b_scales[b] - a_scales[a]
        if scale > _MAX_SCALE or shift < 0:
            return signs, words, scales, False
        scales[i] = scale
        first = digits_of(a_words[a], scratch, digits)
        if not _long_division(digits, first, shift, divisor, rest, words[i]):
            return signs, words, scales, False
        if not times_plus(rest, 2, np.int64(0)):
            return signs, words, scales, False
        if order(rest, divisor) >= 0 and not times_plus(words[i], 1, np.int64(1)):
            return signs, words, scales, False
        if not is_zero(words[i]):
            signs[i] = a_signs[a] * b_signs[b]
    return signs, words, scales, True


@njit(nogil=True, cache=True)
def round_to(signs, words, scales, scale, is_half_up):
    """Return the numbers at `scale` >= 0, rounded half away from zero or cut; int64 units, NaN as
    such.

    (units, fits).
    """
    n = signs.shape[0]
    out = np.zeros(n, np.int64)
    value = np.zeros(WIDTH, np.uint64)
    for i in range(n):
        if signs[i] == NOT_A_NUMBER:
            out[i] = _NAN
            continue
        copy(words[i], value)
        by = scales[i] - scale
        if by < 0 and not times_ten_to(value, -by):
            return out, False
        last = np.int64(0)
        while by > 0:
            # The last digit cut off decides.
            step = 1 if by == 1 else min(by - 1, np.int64(9))
            last = over(value, TENS[step])
            by -= step
        is_up = scales[i] > scale and is_half_up and last >= 5
        if is_up and not times_plus(value, 1, np.int64(1)):
            return out, False
        for k in range(2, WIDTH):
            if value[k] != 0:
                return out, False
        size = (value[1] << HALF) | value[0]
        if size >= np.uint64(_NAN):
            return out, False
        out[i] = -np.int64(size) if signs[i] < 0 else np.int64(size)
    return out, True


@njit(nogil=True, cache=True)
def rank_keys(signs, words, scales, scale):
    """Return (int64[WIDTH + 1, n], fits): keys whose lexical order, first key first, is the
    numbers'.

    NaN is above all. scale: at least every number's own.
    """
    n = signs.shape[0]
    out = np.zeros((WIDTH + 1, n), np.int64)
    value = np.zeros(WIDTH, np.uint64)
    for i in range(n):
        sign = np.int64(signs[i])
        out[0, i] = sign
        if sign == NOT_A_NUMBER:
            continue
        copy(words[i], value)
        if not times_ten_to(value, scale - scales[i]):
            return out, False
        for k in range(WIDTH):
            out[k + 1, i] = sign * np.int64(value[WIDTH - 1 - k])
    return out, True


@njit(nogil=True, cache=True)
def strip(signs, words, scales):
    """Return the same values without zeros at the end of the fraction: (words, scales)."""
    n = signs.shape[0]
    out = words.copy()
    shown = scales.copy()
    value = np.zeros(WIDTH, np.uint64)
    for i in range(n):
        if signs[i] == 0 or signs[i] == NOT_A_NUMBER:
            shown[i] = 0
            continue
        while shown[i] > 0:
            copy(out[i], value)
            if over(value, 10) != 0:
                break
            copy(value, out[i])
            shown[i] -= 1
    return out, shown
