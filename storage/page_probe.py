"""The compiled search: one call looks up all keys in the pages of all runs.

Rows of one key hash stand together in each run, sorted by their row hashes, so equal rows of
several runs are found by walking the runs side by side; their totals are added. Key hashes are
uniform: every search starts from a guess and gallops. Invariant: a page that is not in memory
(address 0) is reported, and then the answer is not to be used.
"""

import numpy as np
from numba import njit

from storage.page_access import cell, row_count


@njit(nogil=True, cache=True)
def _lower_bound(address, rows, h):
    """First row whose key hash is not below h; hashes are uniform, so guess and gallop."""
    if rows == 0:
        return 0
    low = 0
    high = rows
    if rows > 32:
        a = cell(address, rows, 0, 0)
        b = cell(address, rows, 0, rows - 1)
        if h <= a:
            return 0
        if h > b:
            return rows
        guess = np.int64(np.float64(h - a) / (np.float64(b - a) + 1.0) * rows)
        guess = min(guess, rows - 1)
        step = 8
        if cell(address, rows, 0, guess) < h:
            low = guess + 1
            while low + step < rows and cell(address, rows, 0, low + step) < h:
                low += step + 1
                step *= 2
            high = min(low + step + 1, rows)
        else:
            high = guess
            while high - step >= 0 and cell(address, rows, 0, high - step) >= h:
                high -= step
                step *= 2
            low = max(high - step, 0)
    while low < high:
        middle = (low + high) >> 1
        if cell(address, rows, 0, middle) < h:
            low = middle + 1
        else:
            high = middle
    return low


@njit(nogil=True, cache=True)
def _page_of(first, start, stop, h):
    """The last page in [start, stop) that begins below h, or start."""
    low = start
    high = stop
    if stop - start > 32:
        guess = start + np.int64(np.float64(h) / 18446744073709551616.0 * (stop - start))
        guess = min(guess, stop - 1)
        step = 4
        if first[guess] < h:
            low = guess
            while low + step < stop and first[low + step] < h:
                low += step
                step *= 2
            high = min(low + step, stop)
        else:
            high = guess
            while high - step >= start and first[high - step] >= h:
                high -= step
                step *= 2
            low = max(high - step, start)
    while low < high:
        middle = (low + high) >> 1
        if first[middle] < h:
            low = middle + 1
        else:
            high = middle
    return max(low - 1, start)


@njit(nogil=True, cache=True)
def _enter_run(h, page, stop, first, addresses, touched, cursor):
    """Point a cursor (page, row, stop page, address) at the first row of key hash h of a run.

    page: the last one that begins below h. Returns 0 = there, 1 = no such row, 2 = page
    cursor[0] is missing.
    """
    touched[page] = 1
    address = addresses[page]
    cursor[0] = page
    if address == 0:
        return 2
    rows = row_count(address)
    row = _lower_bound(address, rows, h)
    if row == rows:
        page += 1
        row = 0
        if page == stop or first[page] != h:
            return 1
        touched[page] = 1
        address = addresses[page]
        cursor[0] = page
        if address == 0:
            return 2
    elif cell(address, rows, 0, row) != h:
        return 1
    cursor[1] = row
    cursor[2] = stop
    cursor[3] = address
    return 0


@njit(nogil=True, cache=True)
def _locate(h, starts, first, addresses, touched, memory, cursors, missing) -> tuple:
    """Point cursors at the rows of key hash h, one cursor for each run that has some.

    Returns (runs that have it, pages that are missing). A memory run has page -1.
    """
    found = 0
    lost = 0
    for r in range(starts.shape[0] - 1):
        page = _page_of(first, starts[r], starts[r + 1], h)
        if first[page] > h:
            continue
        state = _enter_run(h, page, starts[r + 1], first, addresses, touched, cursors[found])
        if state == 0:
            found += 1
        elif state == 2:
            missing[lost] = cursors[found, 0]
            lost += 1
    for m in range(memory.shape[0]):
        rows = row_count(memory[m])
        row = _lower_bound(memory[m], rows, h)
        if row < rows and cell(memory[m], rows, 0, row) == h:
            cursors[found, 0] = -1
            cursors[found, 1] = row
            cursors[found, 2] = -1
            cursors[found, 3] = memory[m]
            found += 1
    return found, lost


@njit(nogil=True, cache=True)
def _advance(cursor, h, first, addresses, touched):
    """Move a cursor to the next row of key hash h: 0 = there, 1 = no more, 2 = page missing."""
    address = cursor[3]
    rows = row_count(address)
    row = cursor[1] + 1
    if row < rows:
        cursor[1] = row
        return 0 if cell(address, rows, 0, row) == h else 1
    page = cursor[0]
    if page < 0 or page + 1 == cursor[2] or first[page + 1] != h:
        return 1
    page += 1
    touched[page] = 1
    cursor[0] = page
    cursor[1] = 0
    cursor[3] = addresses[page]
    return 2 if addresses[page] == 0 else 0


@njit(nogil=True, cache=True)
def _smallest(cursors, found) -> tuple:
    """(cursor whose row has the smallest row hashes, these two hashes)."""
    best = 0
    rows = row_count(cursors[0, 3])
    best_first = cell(cursors[0, 3], rows, 1, cursors[0, 1])
    best_second = cell(cursors[0, 3], rows, 2, cursors[0, 1])
    for c in range(1, found):
        rows = row_count(cursors[c, 3])
        a = cell(cursors[c, 3], rows, 1, cursors[c, 1])
        if a > best_first:
            continue
        b = cell(cursors[c, 3], rows, 2, cursors[c, 1])
        if a < best_first or b < best_second:
            best, best_first, best_second = c, a, b
    return best, best_first, best_second


@njit(nogil=True, cache=True)
def _take_row(h, cursors, found, pages, value_at, hit, totals) -> tuple:
    """Add up the smallest row of all cursors into hit and totals, and move them past it.

    pages: (first, addresses, touched). Returns (cursors left, missing page or -1).
    """
    first, addresses, touched = pages
    best, row_first, row_second = _smallest(cursors, found)
    hit[1] = cursors[best, 3]
    hit[2] = cursors[best, 1]
    totals[:] = 0
    c = best
    while c < found:
        address = cursors[c, 3]
        row = cursors[c, 1]
        rows = row_count(address)
        if cell(address, rows, 1, row) != row_first or cell(address, rows, 2, row) != row_second:
            c += 1
            continue
        for v in range(totals.shape[0]):
            totals[v] += np.int64(cell(address, rows, value_at + v, row))
        state = _advance(cursors[c], h, first, addresses, touched)
        if state == 0:
            c += 1
        elif state == 1:
            found -= 1
            cursors[c] = cursors[found]
        else:
            return 0, cursors[c, 0]
    return found, -1


@njit(nogil=True, cache=True)
def _grown(array, size):
    """A copy of a two-dimensional int64 array with room for size rows."""
    out = np.empty((size, array.shape[1]), np.int64)
    out[: array.shape[0]] = array
    return out


@njit(nogil=True, cache=True)
def probe(hashes, starts, pages, memory, value_at, width):
    """Every row of all runs whose key hash is among n sorted hashes, equal rows added up.

    pages: (first uint64, addresses int64, touched uint8) of all pages, run r having those from
    starts[r] to starts[r + 1]; touched is set to 1 where a search came by. memory: addresses of
    the runs that are one image. Returns (hits int64[k, 3]: index into hashes, address, row;
    totals int64[k, width]; missing int64[m]: pages to bring in, then ask again).
    """
    first, addresses, touched = pages
    runs = starts.shape[0] - 1 + memory.shape[0]
    cursors = np.empty((runs, 4), np.int64)
    lost_here = np.empty(runs, np.int64)
    capacity = 2 * hashes.shape[0] + 16
    hits = np.empty((capacity, 3), np.int64)
    totals = np.empty((capacity, width), np.int64)
    missing = np.empty((16, 1), np.int64)
    k = 0
    lost = 0
    before = 0
    for i in range(hashes.shape[0]):
        h = hashes[i]
        if i > 0 and h == hashes[i - 1]:
            count = k - before
            if k + count > capacity:
                capacity = 2 * capacity + count
                hits = _grown(hits, capacity)
                totals = _grown(totals, capacity)
            hits[k : k + count] = hits[before:k]
            hits[k : k + count, 0] = i
            totals[k : k + count] = totals[before:k]
            before = k
            k += count
            continue
        before = k
        found, new = _locate(h, starts, first, addresses, touched, memory, cursors, lost_here)
        if lost + new + 1 > missing.shape[0]:
            missing = _grown(missing, 2 * (lost + new + 1))
        missing[lost : lost + new, 0] = lost_here[:new]
        lost += new
        while found > 0 and lost == 0:
            if k == capacity:
                capacity *= 2
                hits = _grown(hits, capacity)
                totals = _grown(totals, capacity)
            hits[k, 0] = i
            found, page = _take_row(h, cursors, found, pages, value_at, hits[k], totals[k])
            if page >= 0:
                missing[lost, 0] = page
                lost += 1
            if totals[k].any():
                k += 1
    return hits[:k], totals[:k], missing[:lost, 0]
