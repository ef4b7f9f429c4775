"""Compiled loops between numeric text and limbs, and from sums of limbs to text.

A number of up to 32 * L - 1 bits is L limbs to base 2^32: all but the last between 0 and 2^32,
the last one signed. Limbs of many rows add up in int64 without carrying; the sums are carried
when they are printed. Invariant: exact, and text has numeric_out's digits; averages have the
scale of numeric_div (select_div_scale of numeric.c).
"""

import numpy as np
from numba import njit

from dataflow.expressions.digit_kernels import (
    NOT_A_NUMBER,
    TENS,
    read_digits,
    sign_of,
    times_plus_all,
)

_MASK = np.int64(0xFFFFFFFF)
_BILLION = np.uint64(10**9)
_MINUS, _DOT, _ZERO = 45, 46, 48
_GROUP = 4
_SIGNIFICANT, _MAX_PLACES = 16, 1000
# Digits of a quotient beyond those of its dividend: places of the smallest over the greatest.
_SPARE = 120


@njit(nogil=True, cache=True)
def parse_limbs(offsets, data, valid, scale, limbs):
    """Numeric texts as units of 10^-scale: (int64[limbs, n], NaN bool[n], own scale int64[n], row).

    valid: bool[n], empty for no NULLs. row: the first one that does not fit, or -1.
    """
    n = offsets.shape[0] - 1
    out = np.zeros((limbs, n), np.int64)
    nan = np.zeros(n, np.bool_)
    own = np.zeros(n, np.int64)
    acc = np.zeros(limbs, np.uint64)
    nullable = valid.shape[0] > 0
    for i in range(n):
        if nullable and not valid[i]:
            continue
        at, end = offsets[i], offsets[i + 1]
        sign = sign_of(data, at, end)
        if sign == NOT_A_NUMBER:
            nan[i] = True
            continue
        at += sign < 0
        acc[:] = 0
        own[i], fits = read_digits(data, at, end, acc)
        missing = scale - own[i]
        if at >= end or missing < 0:
            return out, nan, own, i
        while missing > 0:
            step = min(missing, 9)
            fits &= times_plus_all(acc, TENS[step], np.int64(0))
            missing -= step
        if not fits or acc[limbs - 1] >= np.uint64(1 << 31):
            return out, nan, own, i
        if sign < 0:
            carry = np.uint64(1)
            for k in range(limbs):
                flipped = (acc[k] ^ np.uint64(0xFFFFFFFF)) + carry
                acc[k] = flipped & np.uint64(0xFFFFFFFF)
                carry = flipped >> np.uint64(32)
        for k in range(limbs):
            out[k, i] = np.int64(acc[k])
        # The last limb carries the sign.
        if out[limbs - 1, i] >= 1 << 31:
            out[limbs - 1, i] -= 1 << 32
    return out, nan, own, -1


@njit(nogil=True, cache=True)
def _digits_of(sums, i, scratch, digits):
    """Return (negative, first): |sum i| in decimal digits, 0 to 9 each, from digits[first] to the
    end."""
    limbs = sums.shape[0]
    carry = np.int64(0)
    for k in range(limbs - 1):
        value = sums[k, i] + carry
        scratch[k] = np.uint64(value & _MASK)
        carry = value >> 32
    top = sums[limbs - 1, i] + carry
    scratch[limbs - 1] = np.uint64(top & _MASK)
    scratch[limbs] = np.uint64((top >> 32) & _MASK)
    negative = top < 0
    if negative:
        one = np.uint64(1)
        for k in range(limbs + 1):
            flipped = (scratch[k] ^ np.uint64(0xFFFFFFFF)) + one
            scratch[k] = flipped & np.uint64(0xFFFFFFFF)
            one = flipped >> np.uint64(32)
    high, first = limbs, digits.shape[0]
    while high >= 0:
        if scratch[high] == 0:
            high -= 1
            continue
        rest = np.uint64(0)
        for k in range(high, -1, -1):
            value = (rest << np.uint64(32)) | scratch[k]
            scratch[k] = value // _BILLION
            rest = value % _BILLION
        low = np.int64(rest)
        for _ in range(9):
            first -= 1
            digits[first] = low % 10
            low //= 10
    while first < digits.shape[0] and digits[first] == 0:
        first += 1
    return negative, first


@njit(nogil=True, cache=True, inline="always")
def _floor_quarter(value):
    return value // _GROUP


@njit(nogil=True, cache=True)
def _leading(digits, first, last, scale):
    """Return (weight, value) of the first digit to base 10,000 of digits[first:last] / 10^scale."""
    if first >= last:
        return np.int64(0), np.int64(0)
    integral = last - first - scale
    weight = _floor_quarter(integral - 1)
    value = np.int64(0)
    for k in range(integral - weight * _GROUP):
        at = first + k
        value = value * 10 + (digits[at] if at < last else 0)
    return np.int64(weight), value


@njit(nogil=True, cache=True)
def _leading_of_count(count):
    weight, value = np.int64(0), count
    while value >= 10_000:
        value //= 10_000
        weight += 1
    return weight, value


@njit(nogil=True, cache=True)
def _divide(digits, first, last, scale, count, quotient):
    """Return (places, begin, end): digits[first:last] / 10^scale / count as quotient[begin:end]."""
    weight, value = _leading(digits, first, last, scale)
    count_weight, count_value = _leading_of_count(count)
    weight -= count_weight
    if value <= count_value:
        weight -= 1
    places = min(max(_SIGNIFICANT - weight * _GROUP, scale, 0), _MAX_PLACES)
    # quotient[0] is stored for what rounding carries out of the first digit.
    quotient[0] = 0
    end, rest = 1, np.int64(0)
    for k in range(first, last + places - scale):
        rest = rest * 10 + (digits[k] if k < last else 0)
        quotient[end] = rest // count
        rest %= count
        end += 1
    if 2 * rest >= count:
        at = end - 1
        while quotient[at] == 9:
            quotient[at] = 0
            at -= 1
        quotient[at] += 1
    return places, 0, end


@njit(nogil=True, cache=True)
def _print(out, at, negative, digits, begin, end, scale):
    """Write digits[begin:end] / 10^scale at out[at:]; returns the end."""
    while begin < end and digits[begin] == 0:
        begin += 1
    if negative and begin < end:
        out[at] = _MINUS
        at += 1
    whole = end - begin - scale
    if whole <= 0:
        out[at] = _ZERO
        at += 1
    for k in range(whole):
        out[at] = _ZERO + digits[begin + k]
        at += 1
    if scale > 0:
        out[at] = _DOT
        at += 1
        for k in range(end - scale, end):
            out[at] = _ZERO + (digits[k] if k >= begin else 0)
            at += 1
    return at


@njit(nogil=True, cache=True)
def print_limbs(sums, scale, shown, counts, valid, nan):
    """Return (offsets, bytes) of int64[limbs, n] sums of units of 10^-scale, as numeric prints
    them.

    shown int64[n] or [1]: the display scale of each, at most `scale`. counts int64[n]: what each
    sum is divided by; empty: by nothing. valid bool[n]; nan bool[n], empty for none.
    """
    limbs, n = sums.shape
    scratch = np.zeros(limbs + 1, np.uint64)
    digits = np.zeros(9 * (limbs + 3), np.int64)
    quotient = np.zeros(len(digits) + _SPARE + scale, np.int64)
    offsets = np.zeros(n + 1, np.int64)
    most = len(quotient) + scale + 4
    out = np.empty(most + 24 * n, np.uint8)
    has_nan, divides = nan.shape[0] > 0, counts.shape[0] > 0
    step = 0 if shown.shape[0] == 1 else 1
    at = 0
    for i in range(n):
        if valid[i] and at + most > out.shape[0]:
            grown = np.empty(2 * out.shape[0] + most, np.uint8)
            grown[:at] = out[:at]
            out = grown
        if valid[i] and has_nan and nan[i]:
            out[at], out[at + 1], out[at + 2] = 78, 97, 78
            at += 3
        elif valid[i]:
            negative, first = _digits_of(sums, i, scratch, digits)
            places = shown[i * step]
            # Digits beyond the greatest scale of what was added up are zeros.
            last = len(digits) - (scale - places)
            if divides:
                first = min(first, last)
                places, begin, end = _divide(digits, first, last, places, counts[i], quotient)
                at = _print(out, at, negative, quotient, begin, end, places)
            else:
                at = _print(out, at, negative, digits, min(first, last), last, places)
        offsets[i + 1] = at
    return offsets, out[:at].copy()
