"""Compiled reading of JSON records: positions of the declared values in the bytes.

`scan` walks each record once and checks all of it (RFC 8259). Anything that is not plain (a key
with an escape, a value nested more than MAX_DEPTH deep, malformed text) is marked and left to
json_reader.py, which alone rejects a record. Bytes must be valid UTF-8. Declared paths are a tree:
node 0 is the record; each node has its key's bytes and its parent.
"""

import numpy as np
from numba import njit

ABSENT, NULL, STRING, ESCAPED, NUMBER, FALSE, TRUE, OBJECT, ARRAY = range(9)
MAX_DEPTH = 60

_QUOTE, _BACKSLASH, _COMMA, _COLON = 34, 92, 44, 58
_OPEN, _CLOSE, _OPEN_LIST, _CLOSE_LIST = 123, 125, 91, 93
_MINUS, _PLUS, _DOT, _ZERO = 45, 43, 46, 48
_WORDS = np.frombuffer(b"truefalsenull", np.uint8).copy()

# Characters that a string may hold unescaped: all but ", \ and control characters.
_PLAIN = np.ones(256, np.bool_)
_PLAIN[:32] = False
_PLAIN[_QUOTE] = _PLAIN[_BACKSLASH] = False
_BLANK = np.zeros(256, np.bool_)
_BLANK[[32, 9, 10, 13]] = True
_HEX = np.full(256, -1, np.int64)
_HEX[48:58] = np.arange(10)
_HEX[65:71] = _HEX[97:103] = np.arange(10, 16)


@njit(nogil=True, cache=True, inline="always")
def _skip_blanks(data, at, end):
    while at < end and _BLANK[data[at]]:
        at += 1
    return at


@njit(nogil=True, cache=True)
def _string_end(data, at, end):
    """Return (position after the closing quote or -1, True if there are escapes); `at`
    is inside.
    """
    has_escape = False
    while True:
        while at < end and _PLAIN[data[at]]:
            at += 1
        if at >= end or data[at] < 32:
            return -1, has_escape
        if data[at] == _QUOTE:
            return at + 1, has_escape
        has_escape = True
        at += 1
        if at >= end:
            return -1, True
        c = data[at]
        if c == 117:
            if at + 4 >= end:
                return -1, True
            for j in range(at + 1, at + 5):
                if _HEX[data[j]] < 0:
                    return -1, True
            at += 5
        elif c in (_QUOTE, _BACKSLASH, 47, 98, 102, 110, 114, 116):
            at += 1
        else:
            return -1, True


@njit(nogil=True, cache=True)
def _number_end(data, at, end):
    """Return the position after the number, or -1."""
    if data[at] == _MINUS:
        at += 1
    start = at
    while at < end and _ZERO <= data[at] <= 57:
        at += 1
    if at == start or (data[start] == _ZERO and at - start > 1):
        return -1
    if at < end and data[at] == _DOT:
        at += 1
        start = at
        while at < end and _ZERO <= data[at] <= 57:
            at += 1
        if at == start:
            return -1
    if at < end and (data[at] == 101 or data[at] == 69):
        at += 1
        if at < end and (data[at] == _PLUS or data[at] == _MINUS):
            at += 1
        start = at
        while at < end and _ZERO <= data[at] <= 57:
            at += 1
        if at == start:
            return -1
    return at


@njit(nogil=True, cache=True)
def _word_end(data, at, end, first, size):
    if end - at < size:
        return -1
    for j in range(size):
        if data[at + j] != _WORDS[first + j]:
            return -1
    return at + size


@njit(nogil=True, cache=True)
def _scalar(data, at, end):
    """Return (kind, position after it or -1) of a scalar."""
    c = data[at]
    if c == _QUOTE:
        stop, has_escape = _string_end(data, at + 1, end)
        return (ESCAPED if has_escape else STRING), stop
    if c == 116:
        return TRUE, _word_end(data, at, end, 0, 4)
    if c == 102:
        return FALSE, _word_end(data, at, end, 4, 5)
    if c == 110:
        return NULL, _word_end(data, at, end, 9, 4)
    if c == _MINUS or _ZERO <= c <= 57:
        return NUMBER, _number_end(data, at, end)
    return ABSENT, -1


@njit(nogil=True, cache=True)
def _child(data, at, stop, parent, guess, nodes, key_ends, keys):
    """Return the node below `parent` whose key is data[at:stop], or -1; `guess` is tried first."""
    count = nodes.shape[0]
    size = stop - at
    for step in range(count):
        node = guess + step
        if node >= count:
            node -= count
        if nodes[node] != parent:
            continue
        first = key_ends[node]
        if key_ends[node + 1] - first != size:
            continue
        same = True
        for j in range(size):
            if keys[first + j] != data[at + j]:
                same = False
                break
        if same:
            return node
    return -1


@njit(nogil=True, cache=True)
def _put(row, node, kind, start, stop, starts, ends, kinds):
    """Store a value; a later value of the same key overwrites it, as in jsonb."""
    kinds[node, row] = kind
    is_text = kind in (STRING, ESCAPED)
    starts[node, row] = start + 1 if is_text else start
    ends[node, row] = stop - 1 if is_text else stop


@njit(nogil=True, cache=True)
def _key(data, at, end, parent, guess, nodes, key_ends, keys):
    """Return (node of the key at `at` or -1, position after its colon or -1)."""
    if data[at] != _QUOTE:
        return -1, -1
    stop, has_escape = _string_end(data, at + 1, end)
    if stop < 0 or has_escape:
        return -1, -1
    node = -1
    if parent >= 0:
        node = _child(data, at + 1, stop - 1, parent, guess, nodes, key_ends, keys)
    at = _skip_blanks(data, stop, end)
    if at >= end or data[at] != _COLON:
        return node, -1
    return node, at + 1


@njit(nogil=True, cache=True)
def _close(row, data, at, end, depth, opened, is_object, ends):
    """Return (position or -1, depth) after a value; at a depth above 0 a comma precedes it."""
    while depth > 0:
        at = _skip_blanks(data, at, end)
        if at >= end:
            return -1, depth
        c = data[at]
        at += 1
        if c == _COMMA:
            return at, depth
        if c != (_CLOSE if is_object[depth] else _CLOSE_LIST):
            return -1, depth
        if opened[depth] >= 0:
            ends[opened[depth], row] = at
        depth -= 1
    return at, depth


@njit(nogil=True, cache=True)
def _scan_record(row, data, at, end, nodes, key_ends, keys, starts, ends, kinds):
    """Return True if the record is plain JSON; then the positions of its declared
    values are set.
    """
    # By depth: the node of the open object or array, and which of the two it is.
    opened = np.full(MAX_DEPTH + 1, -1, np.int64)
    is_object = np.zeros(MAX_DEPTH + 1, np.bool_)
    depth, node, guess, expects_key = 0, np.int64(0), np.int64(1), False
    while True:
        at = _skip_blanks(data, at, end)
        if at >= end:
            return False
        if expects_key:
            node, at = _key(data, at, end, opened[depth], guess, nodes, key_ends, keys)
            if at < 0:
                return False
            guess = node + 1 if node >= 0 else guess
            at = _skip_blanks(data, at, end)
            if at >= end:
                return False
        if node >= 0 and kinds[node, row] != ABSENT:
            _forget(row, node, nodes, kinds)
        c = data[at]
        if c in (_OPEN, _OPEN_LIST):
            depth += 1
            if depth > MAX_DEPTH:
                return False
            opened[depth], is_object[depth] = node, c == _OPEN
            if node >= 0:
                kinds[node, row], starts[node, row] = OBJECT if c == _OPEN else ARRAY, at
            at = _skip_blanks(data, at + 1, end)
            if at >= end:
                return False
            if data[at] != (_CLOSE if c == _OPEN else _CLOSE_LIST):
                expects_key, node = c == _OPEN, np.int64(-1)
                continue
        else:
            kind, stop = _scalar(data, at, end)
            if stop < 0:
                return False
            if node >= 0:
                _put(row, node, kind, at, stop, starts, ends, kinds)
            at = stop
        at, depth = _close(row, data, at, end, depth, opened, is_object, ends)
        if at < 0:
            return False
        if depth == 0:
            return _skip_blanks(data, at, end) == end
        expects_key, node = is_object[depth], np.int64(-1)


@njit(nogil=True, cache=True)
def scan(offsets, data, nodes, key_ends, keys):
    """Return (starts, ends, kinds by [node, record], marks by record).

    nodes: int64[m], each node's parent, -1 for node 0. The bytes of record i end before offsets[i +
    1] - 1, which is a separator. starts and ends of strings exclude the quotes. A node below a
    non-object is ABSENT.
    """
    n, m = offsets.shape[0] - 1, nodes.shape[0]
    starts, ends = np.zeros((m, n), np.int64), np.zeros((m, n), np.int64)
    kinds = np.zeros((m, n), np.uint8)
    marks = np.zeros(n, np.bool_)
    for row in range(n):
        at, end = offsets[row], offsets[row + 1] - 1
        marks[row] = not _scan_record(
            row, data, at, end, nodes, key_ends, keys, starts, ends, kinds
        )
        if marks[row]:
            kinds[:, row] = ABSENT
    return starts, ends, kinds, marks


@njit(nogil=True, cache=True)
def _forget(row, node, nodes, kinds):
    """Clear the values below a repeated node."""
    for other in range(node + 1, nodes.shape[0]):
        parent = nodes[other]
        if parent == node or (parent > node and kinds[parent, row] == ABSENT):
            kinds[other, row] = ABSENT


@njit(nogil=True, cache=True)
def gather(data, starts, ends, kinds, selected):
    """Return (offsets, bytes) of the values whose kind is wanted (bool[9]); others are empty."""
    n = kinds.shape[0]
    offsets = np.zeros(n + 1, np.int64)
    for i in range(n):
        offsets[i + 1] = offsets[i] + (ends[i] - starts[i] if selected[kinds[i]] else 0)
    out = np.empty(offsets[n], np.uint8)
    for i in range(n):
        if selected[kinds[i]]:
            start, at = starts[i], offsets[i]
            for j in range(offsets[i + 1] - at):
                out[at + j] = data[start + j]
    return offsets, out


@njit(nogil=True, cache=True)
def _unit(data, at):
    """Return the UTF-16 unit of four hexadecimal digits."""
    value = np.int64(0)
    for j in range(at, at + 4):
        value = value * 16 + _HEX[data[j]]
    return value


@njit(nogil=True, cache=True)
def unescape(offsets, data, is_escaped):
    """Return (offsets, bytes, marks) of contents of JSON strings without their escapes.

    A marked one has half of a surrogate pair, so it is not text.
    """
    n = offsets.shape[0] - 1
    out = np.empty(data.shape[0], np.uint8)
    ends = np.zeros(n + 1, np.int64)
    marks = np.zeros(n, np.bool_)
    put = np.int64(0)
    for i in range(n):
        at, end = offsets[i], offsets[i + 1]
        while at < end:
            c = data[at]
            if c != _BACKSLASH or not is_escaped[i]:
                out[put] = c
                put += 1
                at += 1
                continue
            c = data[at + 1]
            at += 2
            if c != 117:
                if c == 98:
                    c = 8
                elif c == 102:
                    c = 12
                elif c == 110:
                    c = 10
                elif c == 114:
                    c = 13
                elif c == 116:
                    c = 9
                out[put] = c
                put += 1
                continue
            code = _unit(data, at)
            at += 4
            if 0xD800 <= code < 0xE000:
                low = np.int64(0)
                if at + 6 <= end and data[at] == _BACKSLASH and data[at + 1] == 117:
                    low = _unit(data, at + 2)
                if code >= 0xDC00 or low < 0xDC00 or low >= 0xE000:
                    marks[i] = True
                    continue
                at += 6
                code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
            put = _put_utf8(out, put, code)
        ends[i + 1] = put
    return ends, out[:put].copy(), marks


@njit(nogil=True, cache=True)
def _put_utf8(out, put, code):
    if code < 0x80:
        out[put] = code
        return put + 1
    if code < 0x800:
        out[put] = 0xC0 | (code >> 6)
        out[put + 1] = 0x80 | (code & 0x3F)
        return put + 2
    if code < 0x10000:
        out[put] = 0xE0 | (code >> 12)
        out[put + 1] = 0x80 | ((code >> 6) & 0x3F)
        out[put + 2] = 0x80 | (code & 0x3F)
        return put + 3
    out[put] = 0xF0 | (code >> 18)
    out[put + 1] = 0x80 | ((code >> 12) & 0x3F)
    out[put + 2] = 0x80 | ((code >> 6) & 0x3F)
    out[put + 3] = 0x80 | (code & 0x3F)
    return put + 4


@njit(nogil=True, cache=True)
def count_openings(data):
    """Return how many commas and opening brackets are outside of the strings of a JSON text."""
    found, at, in_string = 0, 0, False
    while at < data.shape[0]:
        c = data[at]
        if in_string:
            if c == _BACKSLASH:
                at += 1
            elif c == _QUOTE:
                in_string = False
        elif c == _QUOTE:
            in_string = True
        elif c in (_COMMA, 91, 123):
            found += 1
        at += 1
    return found
