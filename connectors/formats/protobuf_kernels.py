"""Compiled walking over Protobuf records: how many fields their messages have, before parsing.

The parser makes a whole message, with room for all fields of its type, out of two bytes. Invariant:
what is counted is what the parser would make, so a record that passes has no more than allowed.
"""

import numpy as np
from numba import njit

VARINT, WORD, SIZED, GROUP, GROUP_END, HALF_WORD = range(6)
TOO_MANY = -1
_MOST_BYTES = 10


@njit(nogil=True, cache=True)
def _varint(raw, at, end):
    """Return (value, position after it); a position of -1 if there is none."""
    value, shift = np.uint64(0), 0
    while at < end and shift < 7 * _MOST_BYTES:
        byte = np.uint64(raw[at])
        if shift < 64:
            value |= (byte & np.uint64(0x7F)) << np.uint64(shift)
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
    return np.uint64(0), np.int64(-1)


@njit(nogil=True, cache=True)
def _message_of(message, field, kind, starts, fields):
    """Return the message in a field of this wire type; -1 if it holds none, or is unknown."""
    if message < 0:
        return np.int64(-1)
    low, high = starts[message], starts[message + 1]
    while low < high:
        middle = (low + high) // 2
        if fields[middle, 0] < field:
            low = middle + 1
        else:
            high = middle
    if low < starts[message + 1] and fields[low, 0] == field and fields[low, 1] == kind:
        return fields[low, 2]
    return np.int64(-1)


@njit(nogil=True, cache=True)
def count_fields(offsets, raw, starts, fields, sizes, most, most_depth):
    """Return int64[records]: the fields of all messages of each record, or TOO_MANY.

    starts: int64[messages + 1], where the fields of a message are that hold messages. fields:
    int64[n, 3] of number, wire type and message, by number within each message. sizes: int64, how
    many fields a message has, with itself. A record that is broken, or deeper than most_depth, is
    counted up to there: the parser refuses it.
    """
    found = np.zeros(offsets.shape[0] - 1, np.int64)
    open_messages, ends = np.zeros(most_depth, np.int64), np.zeros(most_depth, np.int64)
    for row in range(found.shape[0]):
        at = offsets[row]
        open_messages[0], ends[0], depth = 0, offsets[row + 1], 1
        values = sizes[0]
        while depth > 0:
            end, message = ends[depth - 1], open_messages[depth - 1]
            if at >= end:
                depth -= 1
                continue
            tag, at = _varint(raw, at, end)
            if at < 0:
                break
            kind, field = np.int64(tag & np.uint64(7)), np.int64(tag >> np.uint64(3))
            if kind == VARINT:
                _, at = _varint(raw, at, end)
                if at < 0:
                    break
            elif kind in (WORD, HALF_WORD):
                at += 8 if kind == WORD else 4
            elif kind == GROUP_END:
                depth -= 1
                continue
            elif kind in (SIZED, GROUP):
                inner_end = end
                if kind == SIZED:
                    size, at = _varint(raw, at, end)
                    if at < 0 or size > np.uint64(end - at):
                        break
                    inner_end = at + np.int64(size)
                target = _message_of(message, field, kind, starts, fields)
                if target < 0 and kind == SIZED:
                    at = inner_end
                    continue
                if depth == most_depth:
                    break
                open_messages[depth], ends[depth] = target, inner_end
                depth += 1
                if target >= 0:
                    values += sizes[target]
                    if values > most:
                        values = np.int64(TOO_MANY)
                        break
            else:
                break
        found[row] = values
    return found
