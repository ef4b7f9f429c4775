"""Compiled scans for record boundaries: lines, CSV records, elements of a JSON array.

Every scan takes a block of bytes from the start of a record and returns the records that end in it.
The rest after the last one is scanned again together with the next block.
"""

import numpy as np
from numba import njit

_LINE_FEED, _RETURN, _SPACE, _TAB = 10, 13, 32, 9
_QUOTE, _ESCAPE, _COMMA = 34, 92, 44
_OPEN_LIST, _CLOSE_LIST, _OPEN, _CLOSE = 91, 93, 123, 125

# What may come next between elements.
FIRST, AFTER, NEXT, ENDED = 0, 1, 2, 3


@njit(nogil=True, cache=True)
def csv_records(data, delimiter, quote, escape, limit):
    """Scan CSV records (RFC 4180) in a block, at most `limit`.

    quote: a byte, or -1 for none. escape: the byte before a quote that does not close; it equals
    the quote if quotes are doubled. A quote opens only at the start of a value. Returns (int64[n,
    3] of start, end without the line end, lines before it in the block; where the next record
    starts; lines before that).
    """
    found = np.empty((limit, 3), np.int64)
    n, lines, start, start_line = 0, 0, 0, 0
    is_fresh, is_quoted = True, False
    at, size = 0, len(data)
    while at < size and n < limit:
        byte = data[at]
        if is_quoted:
            if byte == escape and escape != quote:
                at += 1
                if at < size and data[at] == _LINE_FEED:
                    lines += 1
            elif byte == quote:
                if escape == quote and at + 1 < size and data[at + 1] == quote:
                    at += 1
                else:
                    is_quoted = False
            elif byte == _LINE_FEED:
                lines += 1
        elif byte == _LINE_FEED:
            end = at
            if end > start and data[end - 1] == _RETURN:
                end -= 1
            found[n, 0], found[n, 1], found[n, 2] = start, end, start_line
            n += 1
            lines += 1
            start, start_line, is_fresh = at + 1, lines, True
        elif byte == delimiter:
            is_fresh = True
        elif byte == quote and is_fresh:
            is_quoted, is_fresh = True, False
        else:
            is_fresh = False
        at += 1
    return found[:n], start, start_line


@njit(nogil=True, cache=True)
def _is_blank(byte):
    return byte in (_SPACE, _LINE_FEED, _RETURN, _TAB)


@njit(nogil=True, cache=True)
def _element_end(data, at, is_last):
    """Return where the JSON value that starts at `at` ends; -1 if the block ends before."""
    size = len(data)
    byte = data[at]
    if byte != _OPEN and byte != _OPEN_LIST and byte != _QUOTE:
        while at < size:
            byte = data[at]
            if _is_blank(byte) or byte in (_COMMA, _CLOSE_LIST, _CLOSE):
                return at
            at += 1
        return at if is_last else -1
    depth = 0
    is_text = False
    while at < size:
        byte = data[at]
        if is_text:
            if byte == _ESCAPE:
                at += 1
            elif byte == _QUOTE:
                is_text = False
                if depth == 0:
                    return at + 1
        elif byte == _QUOTE:
            is_text = True
        elif byte in (_OPEN, _OPEN_LIST):
            depth += 1
        elif byte in (_CLOSE, _CLOSE_LIST):
            depth -= 1
            if depth == 0:
                return at + 1
        at += 1
    return -1


@njit(nogil=True, cache=True)
def json_elements(data, in_list, state, is_last, limit):
    """Scan values of a JSON array (in_list: after its "[") or consecutive values.

    Returns (int64[n, 2] of start and end; where the rest starts; state; -1 or where the text is not
    JSON). state: FIRST, AFTER, NEXT or ENDED, before the rest.
    """
    found = np.empty((limit, 2), np.int64)
    n, at, size = 0, 0, len(data)
    while at < size and n < limit:
        byte = data[at]
        if _is_blank(byte):
            at += 1
            continue
        if state == ENDED:
            return found[:n], at, state, at
        if in_list and byte == _CLOSE_LIST:
            if state == NEXT:
                return found[:n], at, state, at
            state = ENDED
            at += 1
            continue
        if in_list and byte == _COMMA:
            if state != AFTER:
                return found[:n], at, state, at
            state = NEXT
            at += 1
            continue
        if byte in (_COMMA, _CLOSE_LIST, _CLOSE) or (in_list and state == AFTER):
            return found[:n], at, state, at
        end = _element_end(data, at, is_last)
        if end < 0:
            break
        found[n, 0], found[n, 1] = at, end
        n += 1
        at = end
        state = AFTER if in_list else FIRST
    return found[:n], at, state, -1
