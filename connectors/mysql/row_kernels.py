"""Compiled loops over the row images of a binary log: where each value is, and its bytes.

An image is a bitmap of NULLs, one bit for each column that it has, and the values one after the
other (MySQL: sql/rpl_record.cc). Invariant: nothing outside of an event is read; an image that does
not end where its event ends is reported, never guessed at.
"""

import numpy as np
from numba import njit

# The width of a value of variable length is minus the bytes of its length.
NULL, ABSENT = -1, -2


@njit(nogil=True, cache=True)
def walk(data, begin, end, widths, present, slots, starts, lengths, image):
    """Find the values of the images in data[begin:end]; return the number of images before `end`.

    present: bool[2, columns], the columns of an image, by turns (an update has two images a row).
    slots: int64[columns], where a column is in starts and lengths (int64[images, slots]), or -1.
    image: number of the first one; those beyond starts are only counted. -1: the event is broken.
    """
    n = widths.shape[0]
    at, turn = begin, 0
    while at < end:
        bits = 0
        for c in range(n):
            if present[turn, c]:
                bits += 1
        nulls = at
        at += (bits + 7) // 8
        if at > end:
            return -1
        bit = 0
        for c in range(n):
            start, length = at, ABSENT
            if present[turn, c]:
                if (data[nulls + bit // 8] >> (bit % 8)) & 1:
                    length = NULL
                else:
                    length = widths[c]
                    if length < 0:
                        prefix = -length
                        if at + prefix > end:
                            return -1
                        length = 0
                        for j in range(prefix):
                            length |= np.int64(data[at + j]) << (8 * j)
                        at += prefix
                        start = at
                    at += length
                    if at > end:
                        return -1
                bit += 1
            if slots[c] >= 0 and image < starts.shape[0]:
                starts[image, slots[c]] = start
                lengths[image, slots[c]] = length
        image += 1
        turn = 1 - turn
    return image


@njit(nogil=True, cache=True)
def gather(data, starts, lengths):
    """Return (offsets, bytes) of values; one of negative length is empty."""
    n = starts.shape[0]
    offsets = np.zeros(n + 1, np.int64)
    for i in range(n):
        offsets[i + 1] = offsets[i] + max(lengths[i], 0)
    found = np.empty(offsets[n], np.uint8)
    for i in range(n):
        at = offsets[i]
        for j in range(offsets[i + 1] - at):
            found[at + j] = data[starts[i] + j]
    return offsets, found


@njit(nogil=True, cache=True)
def hexed(offsets, data):
    """Return (offsets, bytes) of the values in PostgreSQL's form of bytea, \\x0123."""
    n = offsets.shape[0] - 1
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    ends = np.zeros(n + 1, np.int64)
    for i in range(n):
        ends[i + 1] = ends[i] + 2 + 2 * (offsets[i + 1] - offsets[i])
    found = np.empty(ends[n], np.uint8)
    for i in range(n):
        at = ends[i]
        found[at] = 92
        found[at + 1] = 120
        at += 2
        for j in range(offsets[i], offsets[i + 1]):
            found[at] = digits[data[j] >> 4]
            found[at + 1] = digits[data[j] & 15]
            at += 2
    return ends, found
