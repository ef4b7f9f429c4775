"""Compiled loops that make page images and take rows out of them.

Rows are named by hits: int64[k, 3] of (index, page address, row). Invariant: the caller keeps
every image alive for the whole call, and a loop writes only to the arrays it is given to fill.
"""

import numpy as np
from numba import njit

from storage.kernels import fold, fold_null, splitmix, xxh64
from storage.page_access import HASHES, HEADER, byte_at, cell, row_count


@njit(nogil=True, cache=True)
def pack_bytes(offsets, base, out):
    """Write start << 32 | length of each byte string into out; the first one starts at base."""
    shift = base - offsets[0]
    for i in range(out.shape[0]):
        start = np.uint64(offsets[i] + shift)
        out[i] = (start << np.uint64(32)) | np.uint64(offsets[i + 1] - offsets[i])


@njit(nogil=True, cache=True)
def _fold_bytes(out, packed, nulls, bit, heap, seed):
    for i in range(out.shape[0]):
        if (nulls[i] >> bit) & np.uint64(1):
            out[i] = fold_null(out[i])
            continue
        start = np.int64(packed[i] >> np.uint64(32))
        stop = start + np.int64(packed[i] & np.uint64(0xFFFFFFFF))
        out[i] = fold(out[i], xxh64(heap, start, stop, seed))


@njit(nogil=True, cache=True)
def _fold_fixed(out, values, nulls, bit):
    for i in range(out.shape[0]):
        if (nulls[i] >> bit) & np.uint64(1):
            out[i] = fold_null(out[i])
        else:
            out[i] = fold(out[i], splitmix(values[i]))


@njit(nogil=True, cache=True)
def _hash_columns(out, words, heap, columns, masks, is_bytes, seed):
    out[:] = seed
    for c in columns:
        values = words[HASHES + masks + c]
        nulls = words[HASHES + (c >> 6)]
        bit = np.uint64(c & 63)
        if is_bytes[c]:
            _fold_bytes(out, values, nulls, bit, heap, seed)
        else:
            _fold_fixed(out, values, nulls, bit)


@njit(nogil=True, cache=True)
def hash_rows(words, heap, key, masks, is_bytes, seeds):
    """Fill words[0] with the hash of the key columns, words[1] and [2] with those of the row.

    The same values as `storage.delta.hash_columns` with the two seeds.
    """
    columns = np.arange(is_bytes.shape[0])
    _hash_columns(words[0], words, heap, key, masks, is_bytes, seeds[0])
    _hash_columns(words[1], words, heap, columns, masks, is_bytes, seeds[0])
    _hash_columns(words[2], words, heap, columns, masks, is_bytes, seeds[1])


@njit(nogil=True, cache=True, inline="always")
def _is_before(words, a, b):
    return words[1, a] < words[1, b] or (words[1, a] == words[1, b] and words[2, a] < words[2, b])


@njit(nogil=True, cache=True)
def _insertion_sort(order, start, stop, words):
    for i in range(start + 1, stop):
        x = order[i]
        j = i - 1
        while j >= start and _is_before(words, x, order[j]):
            order[j + 1] = order[j]
            j -= 1
        order[j + 1] = x


@njit(nogil=True, cache=True)
def settle(order, words, values):
    """Finish an order by key hash: ties by row hashes, equal rows added up, zeros gone.

    order: int64[n], sorted by words[0], changed in place; values: int64[width, n].
    Returns (row int64[k], totals int64[k, width]).
    """
    n = order.shape[0]
    width = values.shape[0]
    start = 0
    while start < n:
        stop = start + 1
        while stop < n and words[0, order[stop]] == words[0, order[start]]:
            stop += 1
        if stop - start > 24:
            part = order[start:stop].copy()
            order[start:stop] = part[np.argsort(words[1][part])]
        if stop - start > 1:
            _insertion_sort(order, start, stop, words)
        start = stop
    rows = np.empty(n, np.int64)
    totals = np.zeros((n, width), np.int64)
    k = 0
    i = 0
    while i < n:
        first = order[i]
        some = False
        j = i
        while j < n:
            row = order[j]
            if j > i and not (
                words[0, row] == words[0, first]
                and words[1, row] == words[1, first]
                and words[2, row] == words[2, first]
            ):
                break
            for v in range(width):
                totals[k, v] += values[v, row]
            j += 1
        for v in range(width):
            some |= totals[k, v] != 0
        if some:
            rows[k] = first
            k += 1
        i = j
    return rows[:k], totals[:k]


@njit(nogil=True, cache=True)
def gather_words(hits, start, count):
    """uint64[count, k]: words start .. start + count of each hit (index, address, row)."""
    k = hits.shape[0]
    out = np.empty((count, k), np.uint64)
    for i in range(k):
        address = hits[i, 1]
        rows = row_count(address)
        for w in range(count):
            out[w, i] = cell(address, rows, start + w, hits[i, 2])
    return out


@njit(nogil=True, cache=True)
def gather_bytes(hits, packed, words):
    """Copy the byte strings of one column: packed uint64[k], words in a row of the image.

    Returns (offsets int64[k + 1], bytes uint8).
    """
    k = hits.shape[0]
    offsets = np.empty(k + 1, np.int64)
    offsets[0] = 0
    for i in range(k):
        offsets[i + 1] = offsets[i] + np.int64(packed[i] & np.uint64(0xFFFFFFFF))
    out = np.empty(offsets[k], np.uint8)
    for i in range(k):
        address = hits[i, 1]
        source = address + 8 * (HEADER + words * row_count(address))
        source += np.int64(packed[i] >> np.uint64(32))
        at = offsets[i]
        for j in range(offsets[i + 1] - at):
            out[at + j] = byte_at(np.int64(source + j))
    return offsets, out


@njit(nogil=True, cache=True)
def heap_ends(hits, columns):
    """int64[k + 1]: bytes of the strings of all rows before each hit; columns: word numbers."""
    k = hits.shape[0]
    ends = np.zeros(k + 1, np.int64)
    for i in range(k):
        address = hits[i, 1]
        rows = row_count(address)
        total = ends[i]
        for c in columns:
            total += np.int64(cell(address, rows, c, hits[i, 2]) & np.uint64(0xFFFFFFFF))
        ends[i + 1] = total
    return ends


@njit(nogil=True, cache=True)
def write_page(out, hits, totals, columns, words):
    """Write rows in the order of hits into a page image after its header.

    out: uint64 image with room for words * k and the heap; totals int64[k, width] replace the
    last `width` words; columns: word numbers of byte strings.
    """
    k = hits.shape[0]
    width = totals.shape[1]
    heap = out[HEADER + words * k :].view(np.uint8)
    at = 0
    for i in range(k):
        address = hits[i, 1]
        row = hits[i, 2]
        rows = row_count(address)
        for w in range(words - width):
            out[HEADER + w * k + i] = cell(address, rows, w, row)
        for v in range(width):
            out[HEADER + (words - width + v) * k + i] = np.uint64(totals[i, v])
        source = address + 8 * (HEADER + words * rows)
        for c in columns:
            packed = cell(address, rows, c, row)
            start = np.int64(packed >> np.uint64(32))
            size = np.int64(packed & np.uint64(0xFFFFFFFF))
            out[HEADER + c * k + i] = (np.uint64(at) << np.uint64(32)) | np.uint64(size)
            for j in range(size):
                heap[at + j] = byte_at(np.int64(source + start + j))
            at += size
