"""The compiled lookup: one call returns the rows of all keys in the pages of all runs.

Rows of one key hash are adjacent in each run, sorted by their row hashes. Equal rows of several
runs are found by walking the runs in parallel; their totals are added. Invariant: a page that is
not in memory (address 0) is reported, and then the result must not be used.
"""

import numpy as np
from numba import njit

from storage.page_access import key_hash, record_at, row_count, word_of
from storage.page_search import ABSENT, BLOCK, MISSING, search_block


@njit(nogil=True, cache=True, forceinline=True)
def _set_cursors(x, starts, addresses, memory, found_at, cursors, missing) -> tuple:
    """Point cursors (page, row, stop page, address, record) at the rows of key x of a block.

    There is one cursor for each run that has some; a memory run has page -1. Returns (runs that
    have it, pages that are missing).
    """
    page_at, row_at = found_at
    found = 0
    lost = 0
    runs = starts.shape[0] - 1
    for r in range(runs):
        row = row_at[r, x]
        if row == ABSENT:
            continue
        page = page_at[r, x]
        if row == MISSING:
            missing[lost] = page
            lost += 1
            continue
        cursors[found, 0] = page
        cursors[found, 1] = row
        cursors[found, 2] = starts[r + 1]
        cursors[found, 3] = addresses[page]
        cursors[found, 4] = record_at(addresses[page], row)
        found += 1
    for m in range(memory.shape[0]):
        row = row_at[runs + m, x]
        if row == ABSENT:
            continue
        cursors[found, 0] = -1
        cursors[found, 1] = row
        cursors[found, 2] = -1
        cursors[found, 3] = memory[m]
        cursors[found, 4] = record_at(memory[m], row)
        found += 1
    return found, lost


@njit(nogil=True, cache=True, forceinline=True)
def _advance(cursors, c, h, first, addresses, touched):
    """Move cursor c to the next row of key hash h: 0 = found, 1 = no more, 2 = page missing."""
    address = cursors[c, 3]
    rows = row_count(address)
    row = cursors[c, 1] + 1
    if row < rows:
        cursors[c, 1] = row
        cursors[c, 4] = record_at(address, row)
        return 0 if key_hash(address, row) == h else 1
    page = cursors[c, 0]
    if page < 0 or page + 1 == cursors[c, 2] or first[page + 1] != h:
        return 1
    page += 1
    touched[page] = 1
    cursors[c, 0] = page
    cursors[c, 1] = 0
    cursors[c, 3] = addresses[page]
    if addresses[page] == 0:
        return 2
    cursors[c, 4] = record_at(addresses[page], 0)
    return 0


@njit(nogil=True, cache=True, forceinline=True)
def _smallest(cursors, found) -> tuple:
    """Return (cursor whose row has the smallest row hashes, these two hashes)."""
    best = 0
    best_first = word_of(cursors[0, 4], 0)
    best_second = word_of(cursors[0, 4], 1)
    for c in range(1, found):
        a = word_of(cursors[c, 4], 0)
        if a > best_first:
            continue
        b = word_of(cursors[c, 4], 1)
        if a < best_first or b < best_second:
            best, best_first, best_second = c, a, b
    return best, best_first, best_second


@njit(nogil=True, cache=True, forceinline=True)
def _take_row(h, cursors, found, first, addresses, touched, value_at, hits, totals, k) -> tuple:
    """Add up the smallest row of all cursors into hit and totals k, and move them past it.

    Returns (cursors left, missing page or -1).
    """
    best, row_first, row_second = _smallest(cursors, found)
    hits[k, 1] = cursors[best, 3]
    hits[k, 2] = cursors[best, 1]
    hits[k, 3] = cursors[best, 4]
    width = totals.shape[1]
    for v in range(width):
        totals[k, v] = 0
    c = best
    while c < found:
        record = cursors[c, 4]
        if word_of(record, 0) != row_first or word_of(record, 1) != row_second:
            c += 1
            continue
        for v in range(width):
            totals[k, v] += np.int64(word_of(record, value_at + v))
        state = _advance(cursors, c, h, first, addresses, touched)
        if state == 0:
            c += 1
        elif state == 1:
            found -= 1
            for x in range(cursors.shape[1]):
                cursors[c, x] = cursors[found, x]
        else:
            return 0, cursors[c, 0]
    return found, -1


@njit(nogil=True, cache=True)
def _grown(array, size):
    """Return a copy of a two-dimensional int64 array with space for size rows."""
    out = np.empty((size, array.shape[1]), np.int64)
    out[: array.shape[0]] = array
    return out


@njit(nogil=True, cache=True, forceinline=True)
def _repeat(hits, totals, before, k, i):
    """Repeat the result of the previous key, which has the same hash, for key i: rows `before` to
    k.
    """
    for j in range(k - before):
        hits[k + j, 0] = i
        hits[k + j, 1] = hits[before + j, 1]
        hits[k + j, 2] = hits[before + j, 2]
        hits[k + j, 3] = hits[before + j, 3]
        for v in range(totals.shape[1]):
            totals[k + j, v] = totals[before + j, v]


@njit(nogil=True, cache=True)
def _probe_on(hashes, starts, pages, memory, value_at, scratch, out, at) -> tuple:
    """Continue from key at[0] with at = (key, hits so far, where its hits begin, missing so far).

    scratch: (page_at, row_at, cursors, missing of one key). out: (hits, totals, missing); these
    stay the same arrays here, since rebinding one in a loop costs a reference count in each
    iteration. Returns `at` for the first key without space, or for the end.
    """
    first, addresses, touched, _ = pages
    page_at, row_at, cursors, lost_here = scratch
    hits, totals, missing = out
    i, k, before, lost = at
    width = totals.shape[1]
    capacity = hits.shape[0]
    block = i
    searched = i
    while i < hashes.shape[0]:
        if i == searched:
            block = i
            searched = min(i + BLOCK, hashes.shape[0])
            search_block(hashes[block:searched], starts, pages, memory, page_at, row_at)
        h = hashes[i]
        if i > 0 and h == hashes[i - 1]:
            count = k - before
            if k + count > capacity:
                return i, k, before, lost
            _repeat(hits, totals, before, k, i)
            before = k
            k += count
            i += 1
            continue
        begin = k
        if lost + lost_here.shape[0] + 1 > missing.shape[0]:
            return i, k, before, lost
        found, new = _set_cursors(
            i - block, starts, addresses, memory, (page_at, row_at), cursors, lost_here
        )
        for j in range(new):
            missing[lost + j, 0] = lost_here[j]
        lost += new
        while found > 0 and lost == 0:
            if k == capacity:
                return i, begin, before, lost
            hits[k, 0] = i
            found, page = _take_row(
                h, cursors, found, first, addresses, touched, value_at, hits, totals, k
            )
            if page >= 0:
                missing[lost, 0] = page
                lost += 1
            some = False
            for v in range(width):
                some |= totals[k, v] != 0
            if some:
                k += 1
        before = begin
        i += 1
    return i, k, before, lost


@njit(nogil=True, cache=True)
def probe(hashes, starts, pages, memory, value_at, width, most):
    """Return every row of all runs whose key hash is among n sorted hashes, equal rows summed.

    pages: (first uint64, addresses int64, touched uint8, filters int64) of all pages; run r has
    those from starts[r] to starts[r + 1]. touched is set to 1 for visited pages; filters are
    addresses or 0. memory: addresses of the runs that are one image. most: number of hits from
    which on the output no longer grows. Returns (hits int64[k, 4]: index into hashes, address, row,
    record; totals int64[k, width]; missing int64[m]: pages to bring in before another call; done:
    the number of hashes that the result covers, 0 if the first one alone has more rows than fit).
    """
    runs = starts.shape[0] - 1 + memory.shape[0]
    block = min(hashes.shape[0], BLOCK)
    scratch = (
        np.empty((runs, block), np.int64),
        np.empty((runs, block), np.int64),
        np.empty((runs, 5), np.int64),
        np.empty(runs, np.int64),
    )
    capacity = 2 * hashes.shape[0] + 16
    hits = np.empty((capacity, 4), np.int64)
    totals = np.empty((capacity, width), np.int64)
    missing = np.empty((runs + 16, 1), np.int64)
    at = 0, 0, 0, 0
    while True:
        out = hits, totals, missing
        at = _probe_on(hashes, starts, pages, memory, value_at, scratch, out, at)
        if at[0] == hashes.shape[0]:
            return hits[: at[1]], totals[: at[1]], missing[: at[3], 0], at[0]
        if at[3] + runs + 1 > missing.shape[0]:
            missing = _grown(missing, 2 * missing.shape[0] + runs)
        elif capacity >= most:
            return hits[: at[1]], totals[: at[1]], missing[: at[3], 0], at[0]
        else:
            capacity = 2 * capacity + at[1] - at[2]
            hits = _grown(hits, capacity)
            totals = _grown(totals, capacity)
