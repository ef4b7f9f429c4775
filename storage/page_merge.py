"""The compiled merge of sorted runs, within a window of row identities.

Rows are sorted by (key hash, row hash, second row hash); equal rows are summed, and rows that sum
to zero are removed. Invariant: weights add, so any set of runs may be merged.
"""

import numpy as np
from numba import njit

from storage.page_access import key_hash, record_at, row_count, word_of

_IDENTITY = 3


@njit(nogil=True, cache=True)
def _bound(address, rows, h, r):
    """Return the first row whose (key hash, first row hash) is not below (h, r)."""
    low = 0
    high = rows
    while low < high:
        middle = (low + high) >> 1
        x = key_hash(address, middle)
        if x < h or (x == h and word_of(record_at(address, middle), 0) < r):
            low = middle + 1
        else:
            high = middle
    return low


@njit(nogil=True, cache=True)
def page_bound(first, first_row, h, r):
    """Return how many pages begin below (h, r): first, first_row uint64[pages], sorted as pairs."""
    low = 0
    high = first.shape[0]
    while low < high:
        middle = (low + high) >> 1
        if first[middle] < h or (first[middle] == h and first_row[middle] < r):
            low = middle + 1
        else:
            high = middle
    return low


@njit(nogil=True, cache=True)
def _enter(segments, segment, stop, window):
    """Return the first segment in [segment, stop) with rows in the window: (segment, row, row
    stop).
    """
    while segment < stop:
        address = segments[segment]
        rows = row_count(address)
        row = _bound(address, rows, window[0], window[1])
        end = rows if window[4] == 0 else _bound(address, rows, window[2], window[3])
        if row < end:
            return segment, row, end
        segment += 1
    return segment, 0, 0


@njit(nogil=True, cache=True, inline="always")
def _close(totals, k):
    """Return k if row k may stay, k - 1 if all of its totals are zero (or there is no row)."""
    if k < 0:
        return -1
    for v in range(totals.shape[1]):
        if totals[k, v] != 0:
            return k
    return k - 1


@njit(nogil=True, cache=True)
def _set_key(keys, c, address, row):
    record = record_at(address, row)
    keys[c, 0] = key_hash(address, row)
    keys[c, 1] = word_of(record, 0)
    keys[c, 2] = word_of(record, 1)


@njit(nogil=True, cache=True)
def _least(keys, live):
    """Return the head with the smallest row identity."""
    best = 0
    for c in range(1, live):
        if keys[c, 0] > keys[best, 0]:
            continue
        if keys[c, 0] == keys[best, 0]:
            if keys[c, 1] > keys[best, 1]:
                continue
            if keys[c, 1] == keys[best, 1] and keys[c, 2] >= keys[best, 2]:
                continue
        best = c
    return best


@njit(nogil=True, cache=True)
def _set_heads(segments, starts, window, heads, keys):
    """Put one head (segment, row, row stop, segment stop) on each run with rows in the window."""
    live = 0
    for r in range(starts.shape[0] - 1):
        s, row, end = _enter(segments, starts[r], starts[r + 1], window)
        if s < starts[r + 1]:
            heads[live, 0] = s
            heads[live, 1] = row
            heads[live, 2] = end
            heads[live, 3] = starts[r + 1]
            _set_key(keys, live, segments[s], row)
            live += 1
    return live


@njit(nogil=True, cache=True)
def merge(segments, starts, window, value_at, width):
    """Merge runs within a window of (key hash, row hash): equal rows summed, zeros removed.

    segments int64[s]: page addresses; run r is segments[starts[r]:starts[r + 1]] in order. window
    uint64[5]: lower pair, upper pair (excluded), 1 if there is an upper bound. Returns (hits
    int64[k, 4]: 0, address, row, record; totals int64[k, width]).
    """
    runs = starts.shape[0] - 1
    heads = np.empty((runs, 4), np.int64)
    keys = np.empty((runs, _IDENTITY), np.uint64)
    total = 0
    for address in segments:
        total += row_count(address)
    live = _set_heads(segments, starts, window, heads, keys)
    hits = np.zeros((total, 4), np.int64)
    totals = np.empty((total, width), np.int64)
    last = np.zeros(_IDENTITY, np.uint64)
    k = -1
    while live > 0:
        best = _least(keys, live)
        address = segments[heads[best, 0]]
        row = heads[best, 1]
        record = record_at(address, row)
        same = k >= 0
        for x in range(_IDENTITY):
            same &= keys[best, x] == last[x]
        if not same:
            k = _close(totals, k) + 1
            hits[k, 1] = address
            hits[k, 2] = row
            hits[k, 3] = record
            totals[k] = 0
            last[:] = keys[best]
        for v in range(width):
            totals[k, v] += np.int64(word_of(record, value_at + v))
        row += 1
        if row == heads[best, 2]:
            s, row, end = _enter(segments, heads[best, 0] + 1, heads[best, 3], window)
            if s == heads[best, 3]:
                live -= 1
                heads[best] = heads[live]
                keys[best] = keys[live]
                continue
            heads[best, 0] = s
            heads[best, 2] = end
            address = segments[s]
        heads[best, 1] = row
        _set_key(keys, best, address, row)
    k = _close(totals, k) + 1
    return hits[:k], totals[:k]
