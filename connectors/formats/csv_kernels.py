"""Compiled reading of CSV records (RFC 4180, plus escapes by another character).

A record is one row; its line end, if any, is skipped. A cell that starts with the quote is quoted;
then the quote ends it, or is literal if escaped. Elsewhere the quote is an ordinary character.
"""

import numpy as np
from numba import njit

ABSENT, PLAIN, QUOTED, ESCAPED = range(4)
_LF, _CR = 10, 13


@njit(nogil=True, cache=True)
def _quoted_end(data, at, end, quote, escape):
    """Return (position of the closing quote or -1, True if something is escaped); `at`
    is inside.
    """
    has_escape = False
    while at < end:
        c = data[at]
        if c == escape and at + 1 < end and (escape != quote or data[at + 1] == quote):
            has_escape = True
            at += 2
        elif c == quote:
            return at, has_escape
        else:
            at += 1
    return -1, has_escape


@njit(nogil=True, cache=True)
def split_cells(offsets, data, count, delimiter, quote, escape):
    """Return (starts, ends, kinds by [cell, record], cells by record).

    A valid record has `count` cells; otherwise its number of cells differs, or is negative if
    quotes do not match. quote: -1 for none.
    """
    n = offsets.shape[0] - 1
    starts, ends = np.zeros((count, n), np.int64), np.zeros((count, n), np.int64)
    kinds = np.zeros((count, n), np.uint8)
    found = np.zeros(n, np.int64)
    for row in range(n):
        at, end = offsets[row], offsets[row + 1]
        if end > at and data[end - 1] == _LF:
            end -= 1
        if end > at and data[end - 1] == _CR:
            end -= 1
        cell = 0
        while True:
            start, kind = at, PLAIN
            if at < end and data[at] == quote:
                start = at + 1
                stop, has_escape = _quoted_end(data, start, end, quote, escape)
                kind = ESCAPED if has_escape else QUOTED
                at = stop + 1
                if stop < 0 or (at < end and data[at] != delimiter):
                    cell = -2
            else:
                while at < end and data[at] != delimiter:
                    at += 1
                stop = at
            if 0 <= cell < count:
                starts[cell, row], ends[cell, row], kinds[cell, row] = start, stop, kind
            cell += 1
            if cell < 0 or at >= end:
                break
            at += 1
        found[row] = cell
    return starts, ends, kinds, found


@njit(nogil=True, cache=True)
def copy_cells(data, starts, ends, kinds, quote, escape, null):
    """Return (offsets, bytes, valid) of one column's cells without quotes and escapes.

    A plain cell with the text `null` is NULL.
    """
    n = kinds.shape[0]
    offsets = np.zeros(n + 1, np.int64)
    valid = np.zeros(n, np.bool_)
    total = 0
    for i in range(n):
        total += ends[i] - starts[i]
    out = np.empty(total, np.uint8)
    put = 0
    for i in range(n):
        at, end = starts[i], ends[i]
        valid[i] = kinds[i] != ABSENT
        if kinds[i] == PLAIN and end - at == null.shape[0]:
            same = True
            for j in range(end - at):
                same &= data[at + j] == null[j]
            valid[i] = not same
        if valid[i]:
            while at < end:
                is_escape = kinds[i] == ESCAPED and data[at] == escape and at + 1 < end
                if is_escape and (escape != quote or data[at + 1] == quote):
                    at += 1
                out[put] = data[at]
                put += 1
                at += 1
        offsets[i + 1] = put
    return offsets, out[:put].copy(), valid
