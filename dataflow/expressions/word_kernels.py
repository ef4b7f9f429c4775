"""Compiled arithmetic of numerics too wide for an int64: up to 160 bits, 48 digits.

A number is a sign (-1, 0, 1; NOT_A_NUMBER), its magnitude in WIDTH limbs to base 2^32, least first,
and its display scale: (int8[k], uint64[k, WIDTH], int64[k]). k may be 1, one row that stands for
all. Every result is exact; where one does not fit, `fits` is False and the rest is undefined.
Invariant: digits and scales are those of numeric.c.
"""

import numpy as np
from numba import njit

from dataflow.expressions.digit_kernels import NOT_A_NUMBER, read_digits, sign_of
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
    plus,
    times_ten_to,
    zeros,
)

ADD, SUBTRACT, MULTIPLY = 0, 1, 2
_NAN = np.int64(2**63 - 1)
_BILLION = 10**9
_MINUS, _DOT, _ZERO = 45, 46, 48


@njit(nogil=True, cache=True)
def of_units(units, scales):
    """Return numbers of int64 units and scales (one for all, or one each)."""
    n = units.shape[0]
    step = 0 if scales.shape[0] == 1 else 1
    signs, words, out = zeros(n)
    for i in range(n):
        value = units[i]
        if value == _NAN:
            signs[i] = NOT_A_NUMBER
            continue
        out[i] = scales[i * step]
        signs[i] = (1 if value > 0 else 0) - (1 if value < 0 else 0)
        size = np.uint64(value) if value >= 0 else ~np.uint64(value) + np.uint64(1)
        words[i, 0] = size & LOW
        words[i, 1] = size >> HALF
    return signs, words, out


@njit(nogil=True, cache=True)
def parse(offsets, data):
    """Return numbers of numeric_out's text, empty text as 0: (signs, words, scales, fits)."""
    n = offsets.shape[0] - 1
    signs, words, scales = zeros(n)
    for i in range(n):
        at, end = offsets[i], offsets[i + 1]
        sign = sign_of(data, at, end)
        if sign == NOT_A_NUMBER:
            signs[i] = sign
            continue
        scales[i], fits = read_digits(data, at + (sign < 0), end, words[i])
        if not fits:
            return signs, words, scales, False
        if not is_zero(words[i]):
            signs[i] = sign
    return signs, words, scales, True


@njit(nogil=True, cache=True)
def digits_of(value, scratch, digits):
    """Return the decimal digits of value at the end of digits; where they begin."""
    copy(value, scratch)
    first = digits.shape[0]
    while not is_zero(scratch):
        low = over(scratch, _BILLION)
        for _ in range(9):
            first -= 1
            digits[first] = low % 10
            low //= 10
    while first < digits.shape[0] and digits[first] == 0:
        first += 1
    return first


@njit(nogil=True, cache=True)
def format(signs, words, scales, valid):
    """Return (offsets, bytes) of numeric_out's text; an empty `valid` means no NULLs."""
    n = signs.shape[0]
    nullable = valid.shape[0] > 0
    scratch = np.zeros(WIDTH, np.uint64)
    digits = np.zeros(MAX_DIGITS, np.int64)
    offsets = np.zeros(n + 1, np.int64)
    size = 0
    for i in range(n):
        size += MAX_DIGITS + scales[i] + 3
    out = np.empty(size, np.uint8)
    at = 0
    for i in range(n):
        if nullable and not valid[i]:
            offsets[i + 1] = at
            continue
        if signs[i] == NOT_A_NUMBER:
            out[at], out[at + 1], out[at + 2] = 78, 97, 78
            at += 3
            offsets[i + 1] = at
            continue
        if signs[i] < 0:
            out[at] = _MINUS
            at += 1
        first, end, scale = digits_of(words[i], scratch, digits), digits.shape[0], scales[i]
        if end - scale <= first:
            out[at] = _ZERO
            at += 1
        for k in range(first, end - scale):
            out[at] = _ZERO + digits[k]
            at += 1
        if scale > 0:
            out[at] = _DOT
            at += 1
            for k in range(end - scale, end):
                out[at] = _ZERO + (digits[k] if k >= first else 0)
                at += 1
        offsets[i + 1] = at
    return offsets, out[:at].copy()


@njit(nogil=True, cache=True)
def _product(a, b, out):
    """out = a * b; False when it does not fit."""
    for k in range(WIDTH):
        out[k] = 0
    for i in range(WIDTH):
        if a[i] == 0:
            continue
        carry = np.uint64(0)
        for j in range(WIDTH):
            if i + j >= WIDTH:
                if b[j] != 0 or carry != 0:
                    return False
                continue
            part = a[i] * b[j] + out[i + j] + carry
            out[i + j] = part & LOW
            carry = part >> HALF
        if carry != 0:
            return False
    return True


@njit(nogil=True, cache=True)
def _sum(x, x_sign, y, y_sign):
    """x = x + y with their signs: (sign, fits)."""
    if x_sign == 0:
        copy(y, x)
        return y_sign, True
    if y_sign == 0:
        return x_sign, True
    if x_sign == y_sign:
        return x_sign, plus(x, y)
    sign = order(x, y)
    if sign == 0:
        for k in range(WIDTH):
            x[k] = 0
        return 0, True
    if sign > 0:
        less(x, y)
        return x_sign, True
    less(y, x)
    copy(y, x)
    return y_sign, True


@njit(nogil=True, cache=True)
def combine(operation, a_signs, a_words, a_scales, b_signs, b_words, b_scales):
    """a + b, a - b or a * b: (signs, words, scales, fits)."""
    n, a_step, b_step = pairs_of(a_signs, b_signs)
    signs, words, scales = zeros(n)
    other = np.zeros(WIDTH, np.uint64)
    for i in range(n):
        a, b = i * a_step, i * b_step
        if a_signs[a] == NOT_A_NUMBER or b_signs[b] == NOT_A_NUMBER:
            signs[i] = NOT_A_NUMBER
            continue
        if operation == MULTIPLY:
            scales[i] = a_scales[a] + b_scales[b]
            signs[i] = a_signs[a] * b_signs[b]
            if not _product(a_words[a], b_words[b], words[i]):
                return signs, words, scales, False
            continue
        scale = max(a_scales[a], b_scales[b])
        scales[i] = scale
        copy(a_words[a], words[i])
        copy(b_words[b], other)
        if not (
            times_ten_to(words[i], scale - a_scales[a]) and times_ten_to(other, scale - b_scales[b])
        ):
            return signs, words, scales, False
        b_sign = -b_signs[b] if operation == SUBTRACT else b_signs[b]
        sign, fits = _sum(words[i], a_signs[a], other, b_sign)
        signs[i] = sign
        if not fits:
            return signs, words, scales, False
    return signs, words, scales, True


@njit(nogil=True, cache=True)
def compare(a_signs, a_words, a_scales, b_signs, b_words, b_scales):
    """Return (int8[n] signs of a - b, fits); NaN equals NaN and is above all."""
    n, a_step, b_step = pairs_of(a_signs, b_signs)
    out = np.zeros(n, np.int8)
    x = np.zeros(WIDTH, np.uint64)
    y = np.zeros(WIDTH, np.uint64)
    for i in range(n):
        a, b = i * a_step, i * b_step
        sign = a_signs[a]
        if sign != b_signs[b]:
            out[i] = 1 if sign > b_signs[b] else -1
            continue
        if sign == NOT_A_NUMBER or sign == 0:
            continue
        scale = max(a_scales[a], b_scales[b])
        copy(a_words[a], x)
        copy(b_words[b], y)
        if not times_ten_to(x, scale - a_scales[a]) or not times_ten_to(y, scale - b_scales[b]):
            return out, False
        out[i] = sign * order(x, y)
    return out, True
