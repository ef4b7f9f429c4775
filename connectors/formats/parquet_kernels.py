"""Compiled scans of what a page of a Parquet file claims: lengths of values, and rows of lists.

Each reads the encoded bytes only; what they stand for is counted and never made. An encoding ends
early if its bytes do: then BROKEN is returned.
"""

import numpy as np
from numba import njit

BROKEN = -1
_MOST_WIDTH = 64
# Of the head of a run, and of a block of lengths.
_MOST_HEAD, _MOST_BLOCK = 0xFFFFFFFF, 1 << 24


@njit(nogil=True, cache=True)
def longest_plain(data):
    """Return (number of values, bytes of the longest) of byte arrays in PLAIN encoding."""
    at, size, count, longest = 0, len(data), 0, 0
    while at + 4 <= size:
        length = (
            np.int64(data[at])
            | np.int64(data[at + 1]) << 8
            | np.int64(data[at + 2]) << 16
            | np.int64(data[at + 3]) << 24
        )
        if length > size - at - 4:
            return BROKEN, 0
        longest = max(longest, length)
        at += 4 + length
        count += 1
    return count, longest


@njit(nogil=True, cache=True)
def _varint(data, at):
    """Return (an unsigned LEB128 number, where it ends or BROKEN)."""
    found, shift = np.int64(0), 0
    while at < len(data) and shift < 64:
        byte = np.int64(data[at])
        found |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return found, at
        shift += 7
    return found, BROKEN


@njit(nogil=True, cache=True)
def list_rows(data, width, count, open_levels, is_packed):
    """Count the rows that begin among repetition levels; level 0 begins a row.

    width: bits of a level. open_levels: levels of the row that was open before. is_packed: levels
    in the deprecated encoding BIT_PACKED, else runs. Returns (rows that begin, levels of the
    longest row, levels of the row that stays open; whether the first level begins a row).
    """
    rows, longest, left, at, is_first = 0, open_levels, count, 0, False
    while left > 0:
        repeated = np.int64(-1)
        if is_packed:
            run = left
            at_bit = 0
        else:
            head, at = _varint(data, at)
            if at == BROKEN or head < 0 or head > _MOST_HEAD:
                return BROKEN, 0, 0, False
            run = min(head >> 1, left) if head & 1 == 0 else min((head >> 1) * 8, left)
            at_bit = at * 8
            if head & 1 == 0:
                if at + (width + 7) // 8 > len(data):
                    return BROKEN, 0, 0, False
                repeated = np.int64(0)
                for byte in range((width + 7) // 8):
                    repeated |= np.int64(data[at + byte]) << (8 * byte)
                at += (width + 7) // 8
            else:
                at = min(at + (head >> 1) * width, len(data))
            if run == 0 and head >> 1 == 0:
                # Nothing is said; the next run follows.
                continue
        if left == count:
            is_first = repeated == 0
        if repeated >= 0:
            if repeated == 0:
                longest = max(longest, open_levels, 1)
                rows += run
                open_levels = np.int64(1)
            else:
                open_levels += run
            left -= run
            continue
        for n in range(run):
            value = 0
            for bit in range(width):
                place = at_bit + n * width + bit
                if place >> 3 >= len(data):
                    return BROKEN, 0, 0, False
                shift = 7 - (place & 7) if is_packed else place & 7
                value |= (data[place >> 3] >> shift) & 1
            if left == count and n == 0:
                is_first = value == 0
            if value == 0:
                longest = max(longest, open_levels)
                rows += 1
                open_levels = np.int64(1)
            else:
                open_levels += 1
        left -= run
    return rows, max(longest, open_levels), open_levels, is_first


@njit(nogil=True, cache=True)
def packed_lengths(data, at, most):
    """Sum up lengths in encoding DELTA_BINARY_PACKED that begin at a byte, at most `most`.

    Returns (their number, their sum, the longest, where they end or BROKEN).
    """
    block, at = _varint(data, at)
    parts, at = _varint(data, at) if at != BROKEN else (block, at)
    count, at = _varint(data, at) if at != BROKEN else (block, at)
    first, at = _varint(data, at) if at != BROKEN else (block, at)
    if at == BROKEN or count < 0 or count > most:
        return 0, 0, 0, BROKEN
    if parts <= 0 or block <= 0 or block > _MOST_BLOCK or block % parts:
        return 0, 0, 0, BROKEN
    if count == 0:
        return 0, 0, 0, at
    each = block // parts
    value = _as_int32((first >> 1) & 0x7FFFFFFFFFFFFFFF ^ -(first & 1))
    if value < 0:
        return 0, 0, 0, BROKEN
    total, longest, left = value, value, count - 1
    while left > 0:
        least, at = _varint(data, at)
        if at == BROKEN or at + parts > len(data):
            return 0, 0, 0, BROKEN
        least = (least >> 1) & 0x7FFFFFFFFFFFFFFF ^ -(least & 1)
        widths, at = at, at + parts
        for part in range(parts):
            if left <= 0:
                break
            width = np.int64(data[widths + part])
            if width > _MOST_WIDTH or at + (min(each, left) * width + 7) // 8 > len(data):
                return 0, 0, 0, BROKEN
            for n in range(min(each, left)):
                delta = least
                for bit in range(width):
                    place = at * 8 + n * width + bit
                    delta += np.int64((data[place >> 3] >> (place & 7)) & 1) << bit
                value = _as_int32(value + delta)
                if value < 0:
                    return 0, 0, 0, BROKEN
                total += value
                longest = max(longest, value)
            left -= min(each, left)
            at += each * width // 8
    return count, total, longest, at


@njit(nogil=True, cache=True)
def _as_int32(value):
    value &= 0xFFFFFFFF
    return value - 0x100000000 if value >= 0x80000000 else value
