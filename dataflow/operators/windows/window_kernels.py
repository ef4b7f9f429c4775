"""Compiled loops over the sequence of a window: bounds by value, sums of floats, best rows.

Frames are low, high int64[pieces, n], neither decreasing within a piece. As in PostgreSQL, sums of
floats go from the first row of a frame to its last, in double (or single) precision. The frame's
sum is extended while the frame only grows, and restarted when it loses rows.
"""

import numpy as np
from numba import njit

_INT_MAX = np.int64(2**63 - 1)
_INT_MIN = np.int64(-(2**63))


@njit(nogil=True, cache=True)
def range_ends(values, first, last, distance, is_low):
    """Return int64[n]: the bound among the rows of [first, last), in the order of int64 values, of
    the row's own value plus a distance: the first row not below it, or (is_low False) after the
    last row not above it."""
    n = len(values)
    out = np.empty(n, np.int64)
    for i in range(n):
        value = values[i]
        if distance > 0 and value > _INT_MAX - distance:
            out[i] = last[i]
            continue
        if distance < 0 and value < _INT_MIN - distance:
            out[i] = first[i]
            continue
        target = value + distance
        a, b = first[i], last[i]
        while a < b:
            middle = (a + b) // 2
            if values[middle] < target or (not is_low and values[middle] == target):
                a = middle + 1
            else:
                b = middle
        out[i] = a
    return out


@njit(nogil=True, cache=True)
def sum_floats(values, valid, low, high, is_single):
    """Return (float64[n] sums, int64[n] counts of valid rows, bool[n] overflowed)."""
    pieces, n = low.shape
    sums = np.zeros(n, np.float64)
    counts = np.zeros(n, np.int64)
    failed = np.zeros(n, np.bool_)
    total, count, bad = 0.0, 0, False
    begin, end = np.int64(-1), np.int64(-1)
    for i in range(n):
        grows = pieces == 1 and low[0, i] == begin and high[0, i] >= end
        if not grows:
            total, count, bad = 0.0, 0, False
        for k in range(pieces):
            start = end if grows else low[k, i]
            for j in range(start, high[k, i]):
                if not valid[j]:
                    continue
                value = values[j]
                if count == 0:
                    total = value
                else:
                    before = total
                    total = before + value
                    if is_single:
                        total = np.float64(np.float32(total))
                    if np.isinf(total) and not np.isinf(before) and not np.isinf(value):
                        bad = True
                count += 1
        begin, end = low[0, i], high[0, i]
        sums[i], counts[i], failed[i] = total, count, bad
    return sums, counts, failed


@njit(nogil=True, cache=True)
def average_floats(values, valid, low, high):
    """Like sum_floats, with averages; overflow as in float8_accum, squares included."""
    pieces, n = low.shape
    averages = np.zeros(n, np.float64)
    counts = np.zeros(n, np.int64)
    failed = np.zeros(n, np.bool_)
    total, squares, count, bad = 0.0, 0.0, 0, False
    begin, end = np.int64(-1), np.int64(-1)
    for i in range(n):
        grows = pieces == 1 and low[0, i] == begin and high[0, i] >= end
        if not grows:
            total, squares, count, bad = 0.0, 0.0, 0, False
        for k in range(pieces):
            start = end if grows else low[k, i]
            for j in range(start, high[k, i]):
                if not valid[j]:
                    continue
                value = values[j]
                before = total
                count += 1
                total = before + value
                if count > 1:
                    apart = value * count - total
                    squares += apart * apart / (count * (count - 1.0))
                    if np.isinf(total) or np.isinf(squares):
                        if not np.isinf(before) and not np.isinf(value):
                            bad = True
                        squares = np.nan
                elif np.isnan(value) or np.isinf(value):
                    squares = np.nan
        begin, end = low[0, i], high[0, i]
        averages[i] = total / count if count > 0 else 0.0
        counts[i], failed[i] = count, bad
    return averages, counts, failed


@njit(nogil=True, cache=True)
def best_rows(positions, valid, low, high):
    """Return int64[n]: the position of the greatest rank in each range, the last of equal ones; -1
    where no row is valid. low, high int64[n]: one piece."""
    n = len(low)
    out = np.full(n, -1, np.int64)
    waiting = np.empty(len(positions), np.int64)
    front, back, next_row = 0, 0, np.int64(0)
    for i in range(n):
        if low[i] > next_row:
            next_row = low[i]
        while next_row < high[i]:
            if valid[next_row]:
                while back > front and positions[waiting[back - 1]] <= positions[next_row]:
                    back -= 1
                waiting[back] = next_row
                back += 1
            next_row += 1
        while front < back and waiting[front] < low[i]:
            front += 1
        if front < back and waiting[front] < high[i]:
            out[i] = waiting[front]
    return out


@njit(nogil=True, cache=True)
def tiles(begin, end, buckets, valid):
    """Return (int64[n] ntile numbers, 0 for NULL; bool[n] rows of a bucket count below 1).

    As window_ntile (windowfuncs.c): the first count that is not NULL is the partition's."""
    n = len(begin)
    out = np.zeros(n, np.int64)
    failed = np.zeros(n, np.bool_)
    tile, in_tile, size, larger, bad = 0, 0, 0, 0, False
    for i in range(n):
        if begin[i] == i:
            tile, bad = 0, False
        if tile == 0:
            if not valid[i]:
                continue
            if buckets[i] <= 0:
                bad = True
            if bad:
                failed[i] = True
                continue
            total = end[i] - begin[i]
            tile, in_tile, larger = 1, 0, 0
            size = total // buckets[i]
            if size <= 0:
                size = 1
            else:
                larger = total % buckets[i]
                if larger != 0:
                    size += 1
        in_tile += 1
        if size < in_tile:
            if larger != 0 and tile == larger:
                larger = 0
                size -= 1
            tile += 1
            in_tile = 1
        out[i] = tile
    return out, failed


@njit(nogil=True, cache=True)
def running_floats(values, valid, origin, base, kind):
    """Return sums of floats from each sequence's origin on, resumed from its base.

    origin int64[n]: of each row the first row of its sequence that counts. base float64[4, n]: at
    that row total, squares, count and 1 for an overflow before it. kind: 0 sums, 1 sums in single
    precision, 2 averages. Returns float64[4, n]: the same after each row.
    """
    n = len(values)
    out = np.zeros((4, n), np.float64)
    total, squares, count, bad = 0.0, 0.0, 0.0, 0.0
    for i in range(n):
        if i < origin[i]:
            continue
        if i == origin[i]:
            total, squares, count, bad = base[0, i], base[1, i], base[2, i], base[3, i]
        if valid[i]:
            value, before = values[i], total
            count += 1.0
            if kind == 2:
                total = before + value
                if count > 1.0:
                    apart = value * count - total
                    squares += apart * apart / (count * (count - 1.0))
                    if np.isinf(total) or np.isinf(squares):
                        if not np.isinf(before) and not np.isinf(value):
                            bad = 1.0
                        squares = np.nan
                elif np.isnan(value) or np.isinf(value):
                    squares = np.nan
            elif count == 1.0:
                total = value
            else:
                total = before + value
                if kind == 1:
                    total = np.float64(np.float32(total))
                if np.isinf(total) and not np.isinf(before) and not np.isinf(value):
                    bad = 1.0
        out[0, i], out[1, i], out[2, i], out[3, i] = total, squares, count, bad
    return out
