"""Compiled loops over narrow numerics: int64 units with a scale for each row or one for all.

Each returns whether everything fitted into int64; if not, the caller computes the batch with wide
decimals. Invariant: nothing wraps silently. NaN is the greatest int64, as in fixed columns.
"""

import numpy as np
from numba import njit

NAN = 2**63 - 1
_MAX = 2**63 - 2
_POW = np.array([10**i for i in range(19)], np.int64)

ADD, SUBTRACT, MULTIPLY = 0, 1, 2


@njit(nogil=True, cache=True)
def parse(offsets, data):
    """Units, scales and whether all fit, from numeric text; an empty (NULL) string is 0."""
    n = offsets.shape[0] - 1
    units = np.zeros(n, np.int64)
    scales = np.zeros(n, np.int64)
    for i in range(n):
        at, end = offsets[i], offsets[i + 1]
        if at == end:
            continue
        negative = data[at] == 45
        if negative:
            at += 1
        if data[at] > 57:
            if data[at] != 78:
                return units, scales, False
            units[i] = NAN
            continue
        if end - at > 19:
            return units, scales, False
        value = np.int64(0)
        digits = 0
        point = -1
        for j in range(at, end):
            if data[j] == 46:
                point = j
            else:
                value = value * 10 + np.int64(data[j] - 48)
                digits += 1
        if digits > 18:
            return units, scales, False
        units[i] = -value if negative else value
        scales[i] = 0 if point < 0 else end - point - 1
    return units, scales, True


@njit(nogil=True, cache=True)
def format(units, scales, valid):
    """Numeric text (offsets, data); rows that are not valid are empty."""
    n = units.shape[0]
    step = 0 if scales.shape[0] == 1 else 1
    nullable = valid.shape[0] > 0
    offsets = np.zeros(n + 1, np.int64)
    data = np.empty(n * 24, np.uint8)
    buffer = np.empty(48, np.uint8)
    at = 0
    for i in range(n):
        if nullable and not valid[i]:
            offsets[i + 1] = at
            continue
        value = units[i]
        if value == NAN:
            data[at], data[at + 1], data[at + 2] = 78, 97, 78
            at += 3
            offsets[i + 1] = at
            continue
        scale = scales[i * step]
        negative = value < 0
        rest = np.uint64(-value) if negative else np.uint64(value)
        k = 0
        while rest > 0 or k <= scale:
            buffer[k] = np.uint8(48 + rest % np.uint64(10))
            rest = rest // np.uint64(10)
            k += 1
        if negative:
            data[at] = 45
            at += 1
        for j in range(k - 1, -1, -1):
            data[at] = buffer[j]
            at += 1
            if j == scale and scale > 0:
                data[at] = 46
                at += 1
        offsets[i + 1] = at
    return offsets, data[:at].copy()


@njit(nogil=True, cache=True)
def rescale(units, scales, scale, valid):
    """Return units brought to one scale exactly, and whether all fit (NULL rows do not matter)."""
    n = units.shape[0]
    step = 0 if scales.shape[0] == 1 else 1
    out = np.zeros(n, np.int64)
    for i in range(n):
        value = units[i]
        if not valid[i]:
            continue
        if value == NAN:
            out[i] = NAN
            continue
        by = scale - scales[i * step]
        if by >= 0:
            if by > 18 or abs(value) > _MAX // _POW[by]:
                if value != 0:
                    return out, False
            else:
                out[i] = value * _POW[by]
        else:
            if -by > 18 or value % _POW[-by] != 0:
                return out, False
            out[i] = value // _POW[-by]
    return out, True


@njit(nogil=True, cache=True)
def combine(operation, a, a_scales, b, b_scales):
    """a + b, a - b or a * b with PostgreSQL's scales: (units, scales, fits)."""
    n = max(a.shape[0], b.shape[0])
    if a.shape[0] == 0 or b.shape[0] == 0:
        n = 0
    a_step = 0 if a.shape[0] == 1 else 1
    b_step = 0 if b.shape[0] == 1 else 1
    as_step = 0 if a_scales.shape[0] == 1 else 1
    bs_step = 0 if b_scales.shape[0] == 1 else 1
    units = np.zeros(n, np.int64)
    k = n if as_step + bs_step > 0 else 1
    scales = np.zeros(k, np.int64)
    for i in range(n):
        x, y = a[i * a_step], b[i * b_step]
        xs, ys = a_scales[i * as_step], b_scales[i * bs_step]
        scale = xs + ys if operation == MULTIPLY else max(xs, ys)
        if scale > 18:
            return units, scales, False
        scales[i if k == n else 0] = scale
        if x == NAN or y == NAN:
            units[i] = NAN
            continue
        if operation == MULTIPLY:
            if x != 0 and y != 0:
                if abs(x) > _MAX // abs(y):
                    return units, scales, False
                units[i] = x * y
            continue
        if abs(x) > _MAX // _POW[scale - xs] or abs(y) > _MAX // _POW[scale - ys]:
            return units, scales, False
        x *= _POW[scale - xs]
        y *= _POW[scale - ys]
        if operation == SUBTRACT:
            y = -y
        if (y > 0 and x > _MAX - y) or (y < 0 and x < -_MAX - y):
            return units, scales, False
        units[i] = x + y
    if n == 0:
        scales[:] = 0
    return units, scales, True


@njit(nogil=True, cache=True)
def compare(a, a_scales, b, b_scales):
    """Return int8[n]: sign of a - b; NaN equals NaN and is above all."""
    n = max(a.shape[0], b.shape[0])
    if a.shape[0] == 0 or b.shape[0] == 0:
        n = 0
    a_step = 0 if a.shape[0] == 1 else 1
    b_step = 0 if b.shape[0] == 1 else 1
    as_step = 0 if a_scales.shape[0] == 1 else 1
    bs_step = 0 if b_scales.shape[0] == 1 else 1
    out = np.zeros(n, np.int8)
    for i in range(n):
        x, y = a[i * a_step], b[i * b_step]
        if x == NAN or y == NAN:
            out[i] = (1 if x == NAN else 0) - (1 if y == NAN else 0)
            continue
        xs, ys = a_scales[i * as_step], b_scales[i * bs_step]
        if xs < ys:
            # A number beyond int64 is larger in magnitude than any other here: its sign decides.
            if ys - xs > 18 or abs(x) > _MAX // _POW[ys - xs]:
                out[i] = (1 if x > 0 else 0) - (1 if x < 0 else 0)
                if x == 0:
                    out[i] = (1 if y < 0 else 0) - (1 if y > 0 else 0)
                continue
            x *= _POW[ys - xs]
        elif ys < xs:
            if xs - ys > 18 or abs(y) > _MAX // _POW[xs - ys]:
                out[i] = (1 if y < 0 else 0) - (1 if y > 0 else 0)
                if y == 0:
                    out[i] = (1 if x > 0 else 0) - (1 if x < 0 else 0)
                continue
            y *= _POW[xs - ys]
        out[i] = (1 if x > y else 0) - (1 if x < y else 0)
    return out


@njit(nogil=True, cache=True)
def round_to(units, scales, scale, is_half_up, valid):
    """Return units at scale `scale` (0..18), rounded half away from zero or cut: (units, fits)."""
    n = units.shape[0]
    step = 0 if scales.shape[0] == 1 else 1
    out = np.zeros(n, np.int64)
    for i in range(n):
        value = units[i]
        if not valid[i]:
            continue
        if value == NAN:
            out[i] = NAN
            continue
        by = scales[i * step] - scale
        if by <= 0:
            if abs(value) > _MAX // _POW[-by]:
                return out, False
            out[i] = value * _POW[-by]
            continue
        size = _POW[by]
        whole = abs(value) // size
        if is_half_up and abs(value) - whole * size >= size - size // 2:
            whole += 1
        out[i] = -whole if value < 0 else whole
    return out, True


@njit(nogil=True, cache=True)
def floor_or_ceil(units, scales, up):
    """Return units at scale 0, rounded down (up False) or up."""
    n = units.shape[0]
    step = 0 if scales.shape[0] == 1 else 1
    out = np.zeros(n, np.int64)
    for i in range(n):
        value = units[i]
        if value == NAN:
            out[i] = NAN
            continue
        size = _POW[scales[i * step]]
        low = value // size
        if up and low * size != value:
            low += 1
        out[i] = low
    return out


@njit(nogil=True, cache=True)
def strip(units, scales):
    """Return the same values without trailing zeros after the point: (units, scales[n])."""
    n = units.shape[0]
    step = 0 if scales.shape[0] == 1 else 1
    out = units.copy()
    out_scales = np.zeros(n, np.int64)
    for i in range(n):
        scale = scales[i * step]
        value = units[i]
        if value == NAN:
            continue
        while scale > 0 and value % 10 == 0:
            value //= 10
            scale -= 1
        out[i] = value
        out_scales[i] = scale
    return out, out_scales
