"""Compiled loops between text and numbers: integers, fixed point, booleans, plain floats.

Every parser takes (offsets, data, valid, ...) of a bytes column, an empty `valid` meaning no NULLs,
and returns (values, row): row is the first one that is not of the type, or -1. Every printer
returns (offsets, bytes). Offsets need not start at 0. Invariant: no parser or printer guesses:
floats outside the exact range are marked for the caller.
"""

import numpy as np
from numba import njit

_FIXED_NAN = np.int64(2**63 - 1)
_POWERS = 10.0 ** np.arange(23)
_TENS = 10 ** np.arange(19, dtype=np.int64)
_FIXED_LIMIT = np.int64(10**18)
_INT_MIN = np.int64(-(2**63))

_MINUS, _PLUS, _DOT, _ZERO = 45, 43, 46, 48
_E_LOWER, _E_UPPER = 101, 69

FLOAT_WIDTH = 26


@njit(nogil=True, cache=True, inline="always")
def _is_digit(c):
    return _ZERO <= c <= 57


@njit(nogil=True, cache=True)
def put_digits(out, at, value, width):
    """Write value >= 0 with at least `width` digits at out[at:]; returns the end."""
    digits = 1
    rest = value // 10
    while rest > 0:
        digits += 1
        rest //= 10
    if digits < width:
        digits = width
    for j in range(at + digits - 1, at - 1, -1):
        out[j] = _ZERO + value % 10
        value //= 10
    return at + digits


@njit(nogil=True, cache=True)
def parse_ints(offsets, data, valid, low, high):
    """Return decimal integers within [low, high]."""
    n = offsets.shape[0] - 1
    out = np.zeros(n, np.int64)
    nullable = valid.shape[0] > 0
    for i in range(n):
        if nullable and not valid[i]:
            continue
        at, end = offsets[i], offsets[i + 1]
        negative = at < end and data[at] == _MINUS
        if negative:
            at += 1
        if at >= end or end - at > 19:
            return out, i
        # Sum downwards, since the lowest integer has no positive counterpart.
        value = np.int64(0)
        for j in range(at, end):
            if not _is_digit(data[j]):
                return out, i
            digit = np.int64(data[j]) - _ZERO
            if value < (_INT_MIN + digit) // 10 + (1 if (_INT_MIN + digit) % 10 else 0):
                return out, i
            value = value * 10 - digit
        if not negative:
            if value == _INT_MIN:
                return out, i
            value = -value
        if value < low or value > high:
            return out, i
        out[i] = value
    return out, -1


@njit(nogil=True, cache=True)
def print_ints(values, valid):
    """Return decimal integers."""
    n = values.shape[0]
    out = np.empty(20 * n, np.uint8)
    offsets = np.empty(n + 1, np.int64)
    nullable = valid.shape[0] > 0
    at = 0
    for i in range(n):
        offsets[i] = at
        if nullable and not valid[i]:
            continue
        value = values[i]
        if value < 0:
            out[at] = _MINUS
            at += 1
            last = np.int64(-(value % -10))
            value = -(value // 10 + (1 if value % 10 else 0))
            if value > 0:
                at = put_digits(out, at, value, 1)
            out[at] = _ZERO + last
            at += 1
        else:
            at = put_digits(out, at, value, 1)
    offsets[n] = at
    return offsets, out[:at].copy()


@njit(nogil=True, cache=True)
def _parse_fixed(data, at, end, scale):
    """Return (value, ok) of one numeric text at a scale; no digit may be lost."""
    if end - at == 3 and data[at] == 78 and data[at + 1] == 97 and data[at + 2] == 78:
        return _FIXED_NAN, True
    negative = at < end and data[at] == _MINUS
    if negative:
        at += 1
    value, digits, fraction = np.int64(0), 0, -1
    for j in range(at, end):
        c = data[j]
        if c == _DOT and fraction < 0:
            fraction = 0
            continue
        if not _is_digit(c):
            return np.int64(0), False
        digits += 1
        if fraction >= 0:
            if fraction == scale:
                if c != _ZERO:
                    return np.int64(0), False
                continue
            fraction += 1
        value = value * 10 + (np.int64(c) - _ZERO)
        if value >= _FIXED_LIMIT:
            return np.int64(0), False
    missing = scale - max(fraction, 0)
    if digits == 0 or value > (_FIXED_LIMIT - 1) // _TENS[missing]:
        return np.int64(0), False
    value *= _TENS[missing]
    return (-value if negative else value), True


@njit(nogil=True, cache=True)
def parse_fixed(offsets, data, valid, scale):
    """numeric(p, scale) texts as value * 10^scale, NaN as FIXED_NAN."""
    n = offsets.shape[0] - 1
    out = np.zeros(n, np.int64)
    nullable = valid.shape[0] > 0
    for i in range(n):
        if nullable and not valid[i]:
            continue
        out[i], ok = _parse_fixed(data, offsets[i], offsets[i + 1], scale)
        if not ok:
            return out, i
    return out, -1


@njit(nogil=True, cache=True)
def print_fixed(values, valid, scale):
    """value * 10^-scale with exactly `scale` digits after the point."""
    n = values.shape[0]
    out = np.empty(22 * n, np.uint8)
    offsets = np.empty(n + 1, np.int64)
    nullable = valid.shape[0] > 0
    unit = _TENS[scale]
    at = 0
    for i in range(n):
        offsets[i] = at
        if nullable and not valid[i]:
            continue
        value = values[i]
        if value == _FIXED_NAN:
            out[at], out[at + 1], out[at + 2] = 78, 97, 78
            at += 3
            continue
        if value < 0:
            out[at] = _MINUS
            at += 1
            value = -value
        at = put_digits(out, at, value // unit, 1)
        if scale > 0:
            out[at] = _DOT
            at = put_digits(out, at + 1, value % unit, scale)
    offsets[n] = at
    return offsets, out[:at].copy()


@njit(nogil=True, cache=True)
def parse_bools(offsets, data, valid):
    """t, f, true, false."""
    n = offsets.shape[0] - 1
    out = np.zeros(n, np.bool_)
    nullable = valid.shape[0] > 0
    for i in range(n):
        if nullable and not valid[i]:
            continue
        at = offsets[i]
        size = offsets[i + 1] - at
        if size == 1 and (data[at] == 116 or data[at] == 102):
            out[i] = data[at] == 116
        elif size == 4 and (
            data[at] == 116 and data[at + 1] == 114 and data[at + 2] == 117 and data[at + 3] == 101
        ):
            out[i] = True
        elif not (
            size == 5
            and data[at] == 102
            and data[at + 1] == 97
            and data[at + 2] == 108
            and data[at + 3] == 115
            and data[at + 4] == 101
        ):
            return out, i
    return out, -1


@njit(nogil=True, cache=True)
def print_bools(values, valid):
    """t and f."""
    n = values.shape[0]
    out = np.empty(n, np.uint8)
    offsets = np.empty(n + 1, np.int64)
    nullable = valid.shape[0] > 0
    at = 0
    for i in range(n):
        offsets[i] = at
        if not nullable or valid[i]:
            out[at] = 116 if values[i] else 102
            at += 1
    offsets[n] = at
    return offsets, out[:at].copy()


@njit(nogil=True, cache=True)
def _parse_float(data, at, end):
    """Return (value, ok): a mantissa up to 2^53 times or over 10^22 at most rounds once
    (Clinger)."""
    negative = at < end and data[at] == _MINUS
    if negative:
        at += 1
    mantissa, digits, exponent, seen_dot = np.int64(0), 0, 0, False
    while at < end and (_is_digit(data[at]) or (data[at] == _DOT and not seen_dot)):
        if data[at] == _DOT:
            seen_dot = True
        else:
            mantissa = mantissa * 10 + (np.int64(data[at]) - _ZERO)
            digits += 1
            exponent -= 1 if seen_dot else 0
            if mantissa > 9007199254740992:
                return 0.0, False
        at += 1
    if digits == 0:
        return 0.0, False
    if at < end:
        if data[at] != _E_LOWER and data[at] != _E_UPPER:
            return 0.0, False
        at += 1
        down = at < end and data[at] == _MINUS
        if at < end and (down or data[at] == _PLUS):
            at += 1
        power = 0
        if at >= end or end - at > 3:
            return 0.0, False
        for j in range(at, end):
            if not _is_digit(data[j]):
                return 0.0, False
            power = power * 10 + (np.int64(data[j]) - _ZERO)
        exponent += -power if down else power
    if exponent < -22 or exponent > 22:
        return 0.0, False
    value = float(mantissa)
    if exponent < 0:
        value /= _POWERS[-exponent]
    else:
        value *= _POWERS[exponent]
    return (-value if negative else value), True


@njit(nogil=True, cache=True)
def parse_floats(offsets, data, valid):
    """Return (float64 values, bool marks): a marked row needs the slow, exact path."""
    n = offsets.shape[0] - 1
    out = np.zeros(n, np.float64)
    marks = np.zeros(n, np.bool_)
    nullable = valid.shape[0] > 0
    for i in range(n):
        if nullable and not valid[i]:
            continue
        out[i], ok = _parse_float(data, offsets[i], offsets[i + 1])
        marks[i] = not ok
    return out, marks


@njit(nogil=True, cache=True)
def _put_decimal(out, at, mantissa, places, switch):
    """mantissa * 10^-places as PostgreSQL prints floats (ryu, to_chars); returns the end."""
    digits = 1
    while digits < 18 and _TENS[digits] <= mantissa:
        digits += 1
    exponent = digits - 1 - places
    if -4 <= exponent < switch:
        unit = _TENS[places]
        at = put_digits(out, at, mantissa // unit, 1)
        if places > 0:
            out[at] = _DOT
            at = put_digits(out, at + 1, mantissa % unit, places)
        return at
    while mantissa % 10 == 0:
        mantissa //= 10
        digits -= 1
    at = put_digits(out, at, mantissa // _TENS[digits - 1], 1)
    if digits > 1:
        out[at] = _DOT
        at = put_digits(out, at + 1, mantissa % _TENS[digits - 1], digits - 1)
    out[at] = _E_LOWER
    out[at + 1] = _MINUS if exponent < 0 else _PLUS
    return put_digits(out, at + 2, abs(exponent), 2)


@njit(nogil=True, cache=True)
def print_floats(values, valid, is_single):
    """Return (slots uint8[n, FLOAT_WIDTH], lengths, marks) of floats; a marked row is left to the
    caller.

    Found here are the values whose shortest decimal has at most 15 (single: 6) digits: that
    decimal is the only one of so few digits that reads back as the value.
    """
    n = values.shape[0]
    slots = np.empty((n, FLOAT_WIDTH), np.uint8)
    lengths = np.zeros(n, np.int64)
    marks = np.zeros(n, np.bool_)
    nullable = valid.shape[0] > 0
    limit, most, switch = 1e15, 18, 15
    if is_single:
        limit, most, switch = 1e6, 11, 6
    for i in range(n):
        if nullable and not valid[i]:
            continue
        value = abs(values[i])
        marks[i] = True
        if value == 0.0:
            value = 0.0
        elif not value < limit:
            continue
        for places in range(most + 1):
            mantissa = np.rint(value * _POWERS[places])
            if mantissa >= limit:
                break
            back = mantissa / _POWERS[places]
            if (np.float64(np.float32(back)) if is_single else back) == value:
                at = 0
                if np.signbit(values[i]):
                    slots[i, 0] = _MINUS
                    at = 1
                lengths[i] = _put_decimal(slots[i], at, np.int64(mantissa), places, switch)
                marks[i] = False
                break
    return slots, lengths, marks


@njit(nogil=True, cache=True)
def join_slots(slots, lengths):
    """Return (offsets, bytes) of fixed-width slots."""
    n = lengths.shape[0]
    offsets = np.empty(n + 1, np.int64)
    offsets[0] = 0
    for i in range(n):
        offsets[i + 1] = offsets[i] + lengths[i]
    out = np.empty(offsets[n], np.uint8)
    for i in range(n):
        for j in range(lengths[i]):
            out[offsets[i] + j] = slots[i, j]
    return offsets, out
