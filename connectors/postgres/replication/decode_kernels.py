"""Compiled loops over the wire: pgoutput tuples and COPY BINARY rows to offsets, offsets to
columns.

A walk records, for each used column and row, where the value starts and its length (NULL and
UNCHANGED are negative lengths). A reader then turns one column of offsets into values. The buffers
come whole from PostgreSQL: nothing here checks that they are well formed. Formats: PostgreSQL
manual, "Logical Replication Message Formats" and COPY, "Binary Format".
"""

from __future__ import annotations

import numpy as np
from numba import njit

NULL = -1
UNCHANGED = -2

_TEXT, _NULL_TAG = ord("t"), ord("n")
_INSERT, _UPDATE = ord("I"), ord("U")
_NEW, _OLD = ord("N"), ord("O")
_ROW_INSERT, _ROW_NEW, _ROW_OLD = ord("I"), ord("N"), ord("O")
_ROW_OLD_KEY, _ROW_DELETE, _ROW_DELETE_KEY = ord("K"), ord("D"), ord("E")
_QUIET_NAN = np.float64("nan")


@njit(nogil=True, cache=True, inline="always")
def _unsigned16(data, at):
    return (np.int64(data[at]) << 8) | np.int64(data[at + 1])


@njit(nogil=True, cache=True, inline="always")
def _unsigned32(data, at):
    return (_unsigned16(data, at) << 16) | _unsigned16(data, at + 2)


@njit(nogil=True, cache=True, inline="always")
def _signed32(data, at):
    return np.int64(np.int32(_unsigned32(data, at)))


@njit(nogil=True, cache=True, inline="always")
def _signed64(data, at):
    return (_unsigned32(data, at) << 32) | _unsigned32(data, at + 4)


@njit(nogil=True, cache=True)
def heads(data, ends):
    """Return the tag and the 32-bit word after it of each payload: (uint8[n], int64[n])."""
    n = ends.shape[0]
    tags = np.empty(n, np.uint8)
    words = np.empty(n, np.int64)
    start = np.int64(0)
    for i in range(n):
        tags[i] = data[start]
        words[i] = _unsigned32(data, start + 1) if ends[i] - start >= 5 else -1
        start = ends[i]
    return tags, words


@njit(nogil=True, cache=True)
def walk_tuples(data, starts, slots, width):
    """Walk the rows of insert, update and delete payloads of one relation.

    starts int64[m]: where each payload begins. slots int64[columns on the wire]: the number of the
    used column, or -1. Returns (starts int64[width, rows], lengths int64[width, rows], kinds
    uint8[rows], unchanged bool[width]: whether the column has UNCHANGED values). A value that an
    update omits is taken from its whole old row, if sent.
    """
    capacity = 0
    for m in range(starts.shape[0]):
        capacity += 2 if data[starts[m]] == _UPDATE else 1
    at_value = np.zeros((width, capacity), np.int64)
    lengths = np.full((width, capacity), NULL, np.int64)
    kinds = np.empty(capacity, np.uint8)
    unchanged = np.zeros(width, np.bool_)
    row = 0
    for m in range(starts.shape[0]):
        tag = data[starts[m]]
        at = starts[m] + 5
        while True:
            part = data[at]
            count = _unsigned16(data, at + 1)
            at += 3
            for c in range(count):
                form = data[at]
                at += 1
                slot = slots[c]
                if form == _TEXT:
                    size = _unsigned32(data, at)
                    at += 4
                    if slot >= 0:
                        at_value[slot, row] = at
                        lengths[slot, row] = size
                    at += size
                elif slot >= 0 and form != _NULL_TAG:
                    if row > 0 and tag == _UPDATE and kinds[row - 1] == _ROW_OLD:
                        at_value[slot, row] = at_value[slot, row - 1]
                        lengths[slot, row] = lengths[slot, row - 1]
                    else:
                        lengths[slot, row] = UNCHANGED
                        unchanged[slot] = True
            if tag == _INSERT:
                kinds[row] = _ROW_INSERT
            elif tag == _UPDATE:
                if part == _NEW:
                    kinds[row] = _ROW_NEW
                else:
                    kinds[row] = _ROW_OLD if part == _OLD else _ROW_OLD_KEY
            else:
                kinds[row] = _ROW_DELETE if part == _OLD else _ROW_DELETE_KEY
            row += 1
            if tag != _UPDATE or part == _NEW:
                break
    return at_value[:, :row], lengths[:, :row], kinds[:row], unchanged


@njit(nogil=True, cache=True)
def walk_copy(data, start, rows, width):
    """Walk rows of COPY BINARY: (starts int64[width, rows], lengths int64[width, rows])."""
    at_value = np.zeros((width, rows), np.int64)
    lengths = np.full((width, rows), NULL, np.int64)
    at = start
    for row in range(rows):
        at += 2
        for c in range(width):
            size = _signed32(data, at)
            at += 4
            if size >= 0:
                at_value[c, row] = at
                lengths[c, row] = size
                at += size
    return at_value, lengths


@njit(nogil=True, cache=True)
def gather_bytes(data, starts, lengths):
    """Return (offsets int64[n + 1], bytes, valid bool[n], nulls) of the values at starts."""
    n = starts.shape[0]
    offsets = np.empty(n + 1, np.int64)
    valid = np.empty(n, np.bool_)
    total = np.int64(0)
    nulls = 0
    offsets[0] = 0
    for i in range(n):
        valid[i] = lengths[i] >= 0
        if valid[i]:
            total += lengths[i]
        else:
            nulls += 1
        offsets[i + 1] = total
    out = np.empty(total, np.uint8)
    for i in range(n):
        at = offsets[i]
        start = starts[i]
        for j in range(offsets[i + 1] - at):
            out[at + j] = data[start + j]
    return offsets, out, valid, nulls


@njit(nogil=True, cache=True)
def read_ints(data, starts, lengths):
    """Read signed integers of 2, 4 or 8 bytes: (int64[n], valid bool[n], nulls); NULL is 0."""
    n = starts.shape[0]
    out = np.zeros(n, np.int64)
    valid = np.empty(n, np.bool_)
    nulls = 0
    for i in range(n):
        size = lengths[i]
        valid[i] = size >= 0
        if size == 4:
            out[i] = _signed32(data, starts[i])
        elif size == 8:
            out[i] = _signed64(data, starts[i])
        elif size == 2:
            out[i] = np.int64(np.int16(_unsigned16(data, starts[i])))
        else:
            nulls += 1
    return out, valid, nulls


@njit(nogil=True, cache=True)
def read_bools(data, starts, lengths):
    """Read booleans: (bool[n], valid bool[n], nulls)."""
    n = starts.shape[0]
    out = np.zeros(n, np.bool_)
    valid = np.empty(n, np.bool_)
    nulls = 0
    for i in range(n):
        valid[i] = lengths[i] >= 0
        if valid[i]:
            out[i] = data[starts[i]] != 0
        else:
            nulls += 1
    return out, valid, nulls


@njit(nogil=True, cache=True)
def read_numerics(data, starts, lengths, scale, not_a_number):
    """Read numerics of up to 18 digits as value * 10^scale: (int64[n], valid bool[n], nulls).

    Layout: numeric_send in PostgreSQL's numeric.c (digits of base 10,000, weight of the first).
    """
    n = starts.shape[0]
    out = np.zeros(n, np.int64)
    valid = np.empty(n, np.bool_)
    nulls = 0
    for i in range(n):
        valid[i] = lengths[i] >= 0
        if not valid[i]:
            nulls += 1
            continue
        at = starts[i]
        digits = _unsigned16(data, at)
        weight = np.int64(np.int16(_unsigned16(data, at + 2)))
        sign = _unsigned16(data, at + 4)
        if sign == 0xC000:
            out[i] = not_a_number
            continue
        value = np.int64(0)
        for d in range(digits):
            digit = _unsigned16(data, at + 8 + 2 * d)
            # This digit counts 10000^(weight - d), which is 10^power of our unit.
            power = 4 * (weight - d) + scale
            while power > 0:
                digit *= 10
                power -= 1
            while power < 0:
                digit //= 10
                power += 1
            value += digit
        out[i] = -value if sign == 0x4000 else value
    return out, valid, nulls


def read_floats(
    data: np.ndarray, starts: np.ndarray, lengths: np.ndarray, size: int
) -> tuple[np.ndarray, np.ndarray, int]:
    """Read floats of 4 or 8 bytes: (float64[n], valid bool[n], nulls). Every NaN is one NaN."""
    bits, valid, nulls = read_ints(data, starts, lengths)
    if size == 4:
        values = bits.astype(np.int32).view(np.float32).astype(np.float64)
    else:
        values = bits.view(np.float64)
    is_nan = np.isnan(values)
    if is_nan.any():
        values[is_nan] = _QUIET_NAN
    return values, valid, nulls
