"""Compiled loops over UTF-8 byte strings (offsets, data): comparing, cutting, joining, matching.

A character starts at every byte that is not a continuation byte (10xxxxxx). Of two columns, either
may be one row that stands for all.
"""

import numpy as np
from numba import njit

_BLANK = 32
ANY_RUN, ANY_ONE = -1, -2


@njit(nogil=True, cache=True)
def _rows(a, b):
    if a == 0 or b == 0:
        return 0
    return max(a, b)


@njit(nogil=True, cache=True)
def _end(data, start, end, is_blank_padded):
    if is_blank_padded:
        while end > start and data[end - 1] == _BLANK:
            end -= 1
    return end


@njit(nogil=True, cache=True)
def compare(a_offsets, a_data, b_offsets, b_data, is_blank_padded):
    """Return int8[n]: sign of the byte order of a against b."""
    na, nb = a_offsets.shape[0] - 1, b_offsets.shape[0] - 1
    n = _rows(na, nb)
    out = np.zeros(n, np.int8)
    for k in range(n):
        i = k if na > 1 else 0
        j = k if nb > 1 else 0
        x, y = a_offsets[i], b_offsets[j]
        x_end = _end(a_data, x, a_offsets[i + 1], is_blank_padded)
        y_end = _end(b_data, y, b_offsets[j + 1], is_blank_padded)
        while x < x_end and y < y_end and a_data[x] == b_data[y]:
            x += 1
            y += 1
        if x < x_end and y < y_end:
            out[k] = 1 if a_data[x] > b_data[y] else -1
        else:
            out[k] = (1 if x < x_end else 0) - (1 if y < y_end else 0)
    return out


@njit(nogil=True, cache=True)
def differ(a_offsets, a_data, b_offsets, b_data, is_blank_padded):
    """Return bool[n]: whether a and b are different strings."""
    na, nb = a_offsets.shape[0] - 1, b_offsets.shape[0] - 1
    n = _rows(na, nb)
    out = np.zeros(n, np.bool_)
    for k in range(n):
        i = k if na > 1 else 0
        j = k if nb > 1 else 0
        x, y = a_offsets[i], b_offsets[j]
        x_end = _end(a_data, x, a_offsets[i + 1], is_blank_padded)
        y_end = _end(b_data, y, b_offsets[j + 1], is_blank_padded)
        if x_end - x != y_end - y:
            out[k] = True
            continue
        for t in range(x_end - x):
            if a_data[x + t] != b_data[y + t]:
                out[k] = True
                break
    return out


@njit(nogil=True, cache=True)
def blank(offsets, data, valid):
    """Return the strings with those that are not valid empty: (offsets, data)."""
    n = valid.shape[0]
    out_offsets = np.zeros(n + 1, np.int64)
    total = np.int64(0)
    for i in range(n):
        if valid[i]:
            total += offsets[i + 1] - offsets[i]
        out_offsets[i + 1] = total
    out = np.empty(total, np.uint8)
    for i in range(n):
        if valid[i]:
            at = out_offsets[i]
            for j in range(offsets[i], offsets[i + 1]):
                out[at] = data[j]
                at += 1
    return out_offsets, out


@njit(nogil=True, cache=True)
def not_ascii(offsets, data):
    """Return bool[n]: whether a string holds a character beyond ASCII."""
    n = offsets.shape[0] - 1
    out = np.zeros(n, np.bool_)
    for i in range(n):
        for j in range(offsets[i], offsets[i + 1]):
            if data[j] >= 128:
                out[i] = True
                break
    return out


@njit(nogil=True, cache=True)
def lengths(offsets, data, is_blank_padded):
    """Return int64[n]: characters of each string."""
    n = offsets.shape[0] - 1
    out = np.zeros(n, np.int64)
    for i in range(n):
        end = _end(data, offsets[i], offsets[i + 1], is_blank_padded)
        count = 0
        for j in range(offsets[i], end):
            if data[j] & 0xC0 != 0x80:
                count += 1
        out[i] = count
    return out


@njit(nogil=True, cache=True)
def cut(offsets, data, first, stop):
    """Return characters [first, stop) of each string, from 0; first and stop have one or n rows."""
    n = offsets.shape[0] - 1
    rows = max(n, first.shape[0], stop.shape[0])
    if n == 0 or first.shape[0] == 0 or stop.shape[0] == 0:
        rows = 0
    starts = np.zeros(rows, np.int64)
    out_offsets = np.zeros(rows + 1, np.int64)
    for k in range(rows):
        i = k if n > 1 else 0
        low = first[k if first.shape[0] > 1 else 0]
        high = stop[k if stop.shape[0] > 1 else 0]
        at, end = offsets[i], offsets[i + 1]
        count = 0
        begin = end
        finish = end
        for j in range(at, end):
            if data[j] & 0xC0 != 0x80:
                if count == low:
                    begin = j
                if count == high:
                    finish = j
                    break
                count += 1
        if low <= 0:
            begin = at
        if high <= 0 or high <= low:
            finish = begin
        starts[k] = begin
        out_offsets[k + 1] = out_offsets[k] + max(finish - begin, 0)
    out = np.empty(out_offsets[rows], np.uint8)
    for k in range(rows):
        for j in range(out_offsets[k + 1] - out_offsets[k]):
            out[out_offsets[k] + j] = data[starts[k] + j]
    return out_offsets, out


@njit(nogil=True, cache=True)
def trim(offsets, data, wanted, at_left, at_right):
    """Return strings without the leading or trailing bytes for which bool[256] `wanted` is True."""
    n = offsets.shape[0] - 1
    starts = np.zeros(n, np.int64)
    out_offsets = np.zeros(n + 1, np.int64)
    for i in range(n):
        start, end = offsets[i], offsets[i + 1]
        while at_left and start < end and wanted[data[start]]:
            start += 1
        while at_right and end > start and wanted[data[end - 1]]:
            end -= 1
        starts[i] = start
        out_offsets[i + 1] = out_offsets[i] + end - start
    out = np.empty(out_offsets[n], np.uint8)
    for i in range(n):
        for j in range(out_offsets[i + 1] - out_offsets[i]):
            out[out_offsets[i] + j] = data[starts[i] + j]
    return out_offsets, out


@njit(nogil=True, cache=True)
def join(a_offsets, a_data, b_offsets, b_data):
    """a || b, row by row."""
    na, nb = a_offsets.shape[0] - 1, b_offsets.shape[0] - 1
    n = _rows(na, nb)
    out_offsets = np.zeros(n + 1, np.int64)
    for k in range(n):
        i = k if na > 1 else 0
        j = k if nb > 1 else 0
        size = a_offsets[i + 1] - a_offsets[i] + b_offsets[j + 1] - b_offsets[j]
        out_offsets[k + 1] = out_offsets[k] + size
    out = np.empty(out_offsets[n], np.uint8)
    at = 0
    for k in range(n):
        i = k if na > 1 else 0
        j = k if nb > 1 else 0
        for t in range(a_offsets[i], a_offsets[i + 1]):
            out[at] = a_data[t]
            at += 1
        for t in range(b_offsets[j], b_offsets[j + 1]):
            out[at] = b_data[t]
            at += 1
    return out_offsets, out


@njit(nogil=True, cache=True)
def find(a_offsets, a_data, b_offsets, b_data):
    """Return int64[n]: character position (from 1) of b in a, 0 when it is not there."""
    na, nb = a_offsets.shape[0] - 1, b_offsets.shape[0] - 1
    n = _rows(na, nb)
    out = np.zeros(n, np.int64)
    for k in range(n):
        i = k if na > 1 else 0
        j = k if nb > 1 else 0
        start, end = a_offsets[i], a_offsets[i + 1]
        b_start = b_offsets[j]
        size = b_offsets[j + 1] - b_start
        count = 1
        if size == 0:
            out[k] = 1
            continue
        for at in range(start, end - size + 1):
            same = True
            for t in range(size):
                if a_data[at + t] != b_data[b_start + t]:
                    same = False
                    break
            if same:
                out[k] = count
                break
            if at + 1 < end and a_data[at + 1] & 0xC0 != 0x80:
                count += 1
    return out


@njit(nogil=True, cache=True)
def _step(data, at, end):
    """Return where the next character starts."""
    at += 1
    while at < end and data[at] & 0xC0 == 0x80:
        at += 1
    return at


@njit(nogil=True, cache=True)
def match_like(offsets, data, codes):
    """Return bool[n]: LIKE. codes int64: a byte to match, ANY_RUN for %, ANY_ONE for _."""
    n = offsets.shape[0] - 1
    size = codes.shape[0]
    out = np.zeros(n, np.bool_)
    for i in range(n):
        at, end = offsets[i], offsets[i + 1]
        p = 0
        retry_p = -1
        retry_at = at
        while True:
            if at < end and p < size and codes[p] == ANY_ONE:
                at = _step(data, at, end)
                p += 1
            elif at < end and p < size and codes[p] == np.int64(data[at]):
                at += 1
                p += 1
            elif p < size and codes[p] == ANY_RUN:
                p += 1
                if p == size:
                    out[i] = True
                    break
                retry_p = p
                retry_at = at
            elif at == end and p == size:
                out[i] = True
                break
            elif retry_p >= 0 and retry_at < end:
                retry_at = _step(data, retry_at, end)
                at = retry_at
                p = retry_p
            else:
                break
    return out


@njit(nogil=True, cache=True)
def pad_blank(offsets, data, size):
    """char(size): strings cut or padded with blanks to `size` characters, and which were too long.

    Too long (bool[n]) means that more than blanks were cut.
    """
    n = offsets.shape[0] - 1
    counts = lengths(offsets, data, False)
    ends = offsets[1:].copy()
    too_long = np.zeros(n, np.bool_)
    out_offsets = np.zeros(n + 1, np.int64)
    for i in range(n):
        count = 0
        if counts[i] > size:
            for j in range(offsets[i], offsets[i + 1]):
                if data[j] & 0xC0 != 0x80:
                    if count == size:
                        ends[i] = j
                        break
                    count += 1
            for j in range(ends[i], offsets[i + 1]):
                if data[j] != _BLANK:
                    too_long[i] = True
        out_offsets[i + 1] = out_offsets[i] + ends[i] - offsets[i] + max(size - counts[i], 0)
    out = np.full(out_offsets[n], _BLANK, np.uint8)
    for i in range(n):
        at = out_offsets[i]
        for j in range(offsets[i], ends[i]):
            out[at] = data[j]
            at += 1
    return out_offsets, out, too_long


@njit(nogil=True, cache=True)
def change_case(offsets, data, first, last, by):
    """Return the strings with the bytes first..last moved by `by`."""
    out = data[offsets[0] : offsets[offsets.shape[0] - 1]].copy()
    for j in range(out.shape[0]):
        if first <= out[j] <= last:
            out[j] = np.uint8(np.int64(out[j]) + by)
    return offsets - offsets[0], out
