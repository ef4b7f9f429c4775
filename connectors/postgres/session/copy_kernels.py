"""Compiled loops over PostgreSQL's two bulk text forms: COPY text lines and array literals.

All work on bytes columns (offsets, data, valid; an empty `valid` means no NULLs) as
`dataflow.values.to_text` produces them. Escaping follows the manual, chapters COPY ("Text Format")
and Arrays ("Array Input and Output Syntax"). Invariant: PostgreSQL reads back unchanged what these
loops write.
"""

import numpy as np
from numba import njit

_TAB, _NEWLINE, _RETURN, _BACKSLASH, _QUOTE, _APOSTROPHE = 9, 10, 13, 92, 34, 39
_LETTER_N, _LETTER_R, _LETTER_T, _NULL_LETTER = 110, 114, 116, 78


def _letters(text):
    """Return bool[256]: which bytes are in text."""
    found = np.zeros(256, np.bool_)
    found[np.frombuffer(text, np.uint8)] = True
    return found


_ESCAPED_IN_LINES = _letters(b"\t\n\r\\")
_ENDS = _letters(b"\t\n")
_DOUBLED_IN_ARRAYS = _letters(b"\"\\'")
_BACKSLASHED_IN_ARRAYS = _letters(b'"\\')


@njit(nogil=True, cache=True)
def add_sizes(sizes, offsets, data, valid):
    """Add to int64 sizes[i] the bytes of value i in a COPY line, with its delimiter."""
    nullable = valid.shape[0] > 0
    for i in range(sizes.shape[0]):
        if nullable and not valid[i]:
            sizes[i] += 3
            continue
        extra = 1
        for j in range(offsets[i], offsets[i + 1]):
            if _ESCAPED_IN_LINES[data[j]]:
                extra += 1
        sizes[i] += offsets[i + 1] - offsets[i] + extra


@njit(nogil=True, cache=True)
def put_values(out, at, offsets, data, valid, delimiter):
    """Write value i and the delimiter at out[at[i]:] and advance at[i] past them."""
    nullable = valid.shape[0] > 0
    for i in range(at.shape[0]):
        k = at[i]
        if nullable and not valid[i]:
            out[k], out[k + 1] = _BACKSLASH, _NULL_LETTER
            k += 2
        else:
            for j in range(offsets[i], offsets[i + 1]):
                c = data[j]
                if _ESCAPED_IN_LINES[c]:
                    out[k] = _BACKSLASH
                    k += 1
                    if c == _TAB:
                        c = _LETTER_T
                    elif c == _NEWLINE:
                        c = _LETTER_N
                    elif c == _RETURN:
                        c = _LETTER_R
                out[k] = c
                k += 1
        out[k] = delimiter
        at[i] = k + 1


@njit(nogil=True, cache=True)
def array_literal(offsets, data, valid):
    """Return uint8 of '{"...",NULL,...}': an SQL literal, for standard_conforming_strings = on."""
    n = offsets.shape[0] - 1
    nullable = valid.shape[0] > 0
    size = 4 + 7 * n
    for j in range(offsets[0], offsets[n]):
        c = data[j]
        size += 2 if _DOUBLED_IN_ARRAYS[c] else 1
    out = np.empty(size, np.uint8)
    out[0], out[1] = _APOSTROPHE, 123
    k = 2
    for i in range(n):
        if i > 0:
            out[k] = 44
            k += 1
        if nullable and not valid[i]:
            out[k], out[k + 1], out[k + 2], out[k + 3] = 78, 85, 76, 76
            k += 4
            continue
        out[k] = _QUOTE
        k += 1
        for j in range(offsets[i], offsets[i + 1]):
            c = data[j]
            if _BACKSLASHED_IN_ARRAYS[c]:
                out[k] = _BACKSLASH
                k += 1
            elif c == _APOSTROPHE:
                out[k] = _APOSTROPHE
                k += 1
            out[k] = c
            k += 1
        out[k] = _QUOTE
        k += 1
    out[k], out[k + 1] = 125, _APOSTROPHE
    return out[: k + 2]


@njit(nogil=True, cache=True)
def split_lines(data, columns):
    """Return (starts, ends int64[columns, n], torn): the values of n whole COPY lines.

    torn is the first line with another number of values, or -1.
    """
    lines = 0
    for j in range(data.shape[0]):
        if data[j] == _NEWLINE:
            lines += 1
    starts = np.empty((columns, lines), np.int64)
    ends = np.empty((columns, lines), np.int64)
    row, column, start = 0, 0, 0
    for j in range(data.shape[0]):
        c = data[j]
        if _ENDS[c]:
            # A line of no columns is an empty line.
            if column < columns:
                starts[column, row] = start
                ends[column, row] = j
            column += 1
            start = j + 1
            if c == _NEWLINE:
                if column != max(columns, 1):
                    return starts, ends, row
                row += 1
                column = 0
    return starts, ends, -1


@njit(nogil=True, cache=True)
def gather_values(data, starts, ends):
    """Return (offsets, bytes, valid) of one column of split lines, unescaped."""
    n = starts.shape[0]
    size = 0
    for i in range(n):
        size += ends[i] - starts[i]
    out = np.empty(size, np.uint8)
    offsets = np.empty(n + 1, np.int64)
    valid = np.ones(n, np.bool_)
    k = 0
    for i in range(n):
        offsets[i] = k
        j, end = starts[i], ends[i]
        if end - j == 2 and data[j] == _BACKSLASH and data[j + 1] == _NULL_LETTER:
            valid[i] = False
            continue
        while j < end:
            c = data[j]
            if c == _BACKSLASH and j + 1 < end:
                j += 1
                c = data[j]
                if c == _LETTER_T:
                    c = _TAB
                elif c == _LETTER_N:
                    c = _NEWLINE
                elif c == _LETTER_R:
                    c = _RETURN
                elif c == 98:
                    c = 8
                elif c == 102:
                    c = 12
                elif c == 118:
                    c = 11
            out[k] = c
            k += 1
            j += 1
    offsets[n] = k
    return offsets, out[:k].copy(), valid
