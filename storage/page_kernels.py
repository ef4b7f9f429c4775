"""Compiled loops that make page images and take rows out of them.

Rows are named by hits: int64[k, 4] of (index, page address, row, record address). Invariant: the
caller keeps every image alive for the whole call, and a loop writes only to the arrays that it is
to fill.
"""

import numpy as np
from numba import njit

from storage.kernels import fold, fold_null, splitmix, xxh64
from storage.page_access import HASHES, HEADER, key_hash, record_at, word_of
from storage.raw_memory import address_of, copy_bytes

_SIZE = np.uint64(0xFFFFFFFF)
_START = np.uint64(32)


@njit(nogil=True, cache=True)
def pack_bytes(offsets, base, out):
    """Write start << 32 | length of each byte string into out; the first one starts at base."""
    shift = base - offsets[0]
    for i in range(out.shape[0]):
        start = np.uint64(offsets[i] + shift)
        out[i] = (start << _START) | np.uint64(offsets[i + 1] - offsets[i])


@njit(nogil=True, cache=True)
def hash_rows(image, rows, key, masks, is_bytes, seeds):
    """Fill the key hash and the two row hashes of all rows of an image that has its columns.

    They equal the values of `storage.delta.hash_columns` with the two seeds.
    """
    base = address_of(image)
    count = is_bytes.shape[0]
    keyed = np.empty(count, np.uint64)
    column_at = HASHES + masks
    for i in range(rows):
        record = record_at(base, i)
        first = seeds[0]
        second = seeds[1]
        for c in range(count):
            nulls = word_of(record, HASHES + (c >> 6))
            word = word_of(record, column_at + c)
            if (nulls >> np.uint64(c & 63)) & np.uint64(1):
                first = fold_null(first)
                second = fold_null(second)
                continue
            if is_bytes[c]:
                start = base + np.int64(word >> _START)
                size = np.int64(word & _SIZE)
                keyed[c] = xxh64(start, size, seeds[0])
                second = fold(second, xxh64(start, size, seeds[1]))
            else:
                keyed[c] = splitmix(word)
                second = fold(second, keyed[c])
            first = fold(first, keyed[c])
        h = seeds[0]
        for c in key:
            nulls = word_of(record, HASHES + (c >> 6))
            is_null = (nulls >> np.uint64(c & 63)) & np.uint64(1)
            h = fold_null(h) if is_null else fold(h, keyed[c])
        at = (record - base) >> 3
        image[HEADER + i] = h
        image[at] = first
        image[at + 1] = second


@njit(nogil=True, cache=True, inline="always")
def _is_before(records, a, b):
    if records[a, 0] != records[b, 0]:
        return records[a, 0] < records[b, 0]
    return records[a, 1] < records[b, 1]


@njit(nogil=True, cache=True)
def _insertion_sort(order, start, stop, records):
    for i in range(start + 1, stop):
        x = order[i]
        j = i - 1
        while j >= start and _is_before(records, x, order[j]):
            order[j + 1] = order[j]
            j -= 1
        order[j + 1] = x


@njit(nogil=True, cache=True)
def resolve_order(order, hashes, records, value_at):
    """Finish an order by key hash: ties by row hashes, equal rows summed, zeros removed.

    order: int64[n], sorted by hashes uint64[n], changed in place. records: uint64[n, stride]; the
    words from value_at on are additive. Returns (row int64[k], totals int64[k, width]).
    """
    n = order.shape[0]
    width = records.shape[1] - value_at
    start = 0
    while start < n:
        stop = start + 1
        while stop < n and hashes[order[stop]] == hashes[order[start]]:
            stop += 1
        if stop - start > 24:
            part = order[start:stop].copy()
            order[start:stop] = part[np.argsort(records[:, 0][part])]
        if stop - start > 1:
            _insertion_sort(order, start, stop, records)
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
                hashes[row] == hashes[first]
                and records[row, 0] == records[first, 0]
                and records[row, 1] == records[first, 1]
            ):
                break
            for v in range(width):
                totals[k, v] += np.int64(records[row, value_at + v])
            j += 1
        for v in range(width):
            some |= totals[k, v] != 0
        if some:
            rows[k] = first
            k += 1
        i = j
    return rows[:k], totals[:k]


@njit(nogil=True, cache=True)
def hits_of(address, rows):
    """Return hits, with index 0, for these rows of the image at an address."""
    hits = np.zeros((rows.shape[0], 4), np.int64)
    for k in range(rows.shape[0]):
        hits[k, 1] = address
        hits[k, 2] = rows[k]
        hits[k, 3] = record_at(address, rows[k])
    return hits


@njit(nogil=True, cache=True)
def gather_words(hits, start, count):
    """Return uint64[count, k]: words start .. start + count of the record of each hit."""
    k = hits.shape[0]
    out = np.empty((count, k), np.uint64)
    for i in range(k):
        record = hits[i, 3]
        for w in range(count):
            out[w, i] = word_of(record, start + w)
    return out


@njit(nogil=True, cache=True)
def gather_bytes(hits, packed):
    """Copy the byte strings of one column: packed uint64[k].

    Returns (offsets int64[k + 1], bytes uint8).
    """
    k = hits.shape[0]
    offsets = np.empty(k + 1, np.int64)
    offsets[0] = 0
    for i in range(k):
        offsets[i + 1] = offsets[i] + np.int64(packed[i] & _SIZE)
    out = np.empty(offsets[k], np.uint8)
    target = address_of(out)
    for i in range(k):
        source = hits[i, 1] + np.int64(packed[i] >> _START)
        copy_bytes(target + offsets[i], source, np.int64(packed[i] & _SIZE))
    return offsets, out


@njit(nogil=True, cache=True)
def heap_ends(hits, columns):
    """Return int64[k + 1]: bytes of the strings of all rows before each hit; columns:
    word numbers.
    """
    k = hits.shape[0]
    ends = np.zeros(k + 1, np.int64)
    for i in range(k):
        total = ends[i]
        for c in columns:
            total += np.int64(word_of(hits[i, 3], c) & _SIZE)
        ends[i + 1] = total
    return ends


@njit(nogil=True, cache=True)
def write_page(out, hits, totals, columns, header):
    """Write rows in the order of hits into a page image, except for its checksum.

    out: uint64, exactly the size of the image. totals int64[k, width] replace the last `width`
    words of a record. columns: word numbers of byte strings. header: magic, stride << 32, shape.
    """
    k = hits.shape[0]
    width = totals.shape[1]
    stride = np.int64(header[1] >> np.uint64(32))
    base = address_of(out)
    heap = 8 * (HEADER + (stride + 1) * k)
    # The heap need not fill its last word.
    out[out.shape[0] - 1] = 0
    out[0] = header[0]
    out[1] = 0
    out[2] = header[1] | np.uint64(k)
    out[3] = header[2]
    for i in range(k):
        address = hits[i, 1]
        source = hits[i, 3]
        out[HEADER + i] = key_hash(address, hits[i, 2])
        at = HEADER + k + stride * i
        for w in range(stride - width):
            out[at + w] = word_of(source, w)
        for v in range(width):
            out[at + stride - width + v] = np.uint64(totals[i, v])
        for c in columns:
            packed = out[at + c]
            size = np.int64(packed & _SIZE)
            copy_bytes(base + heap, address + np.int64(packed >> _START), size)
            out[at + c] = (np.uint64(heap) << _START) | np.uint64(size)
            heap += size


@njit(nogil=True, cache=True)
def write_pages(out, ends, bounds, selection, columns, header):
    """Write consecutive images.

    Page p, out[ends[p] : ends[p + 1]], has the rows of hits and totals from bounds[p] to bounds[p +
    1].
    """
    hits, totals = selection
    for p in range(bounds.shape[0] - 1):
        start = bounds[p]
        stop = bounds[p + 1]
        write_page(
            out[ends[p] : ends[p + 1]], hits[start:stop], totals[start:stop], columns, header
        )
