"""The compiled search: one call looks up all keys in the pages of all runs.

Rows of one key hash stand together in each run, sorted by their row hashes, so equal rows of
several runs are found by walking the runs side by side; their totals are added. Key hashes are
uniform: every search starts from a guess and gallops. Invariant: a page that is not in memory
(address 0) is reported, and then the answer is not to be used; unless its filter says that it
does not hold the key.
"""

import numpy as np
from numba import njit

from storage.filters import may_contain
from storage.page_access import cell, row_count

_LAST_HASH = np.uint64(0xFFFFFFFFFFFFFFFF)


@njit(nogil=True, cache=True, inline="always")
def _share(part, whole):
    """part / whole as a float; halved first, since signed conversions are the fast ones."""
    return np.float64(np.int64(part >> np.uint64(1))) / (
        np.float64(np.int64(whole >> np.uint64(1))) + 1.0
    )


@njit(nogil=True, cache=True, forceinline=True)
def _lower_bound(address, rows, low, h):
    """First row, not before row `low`, whose key hash is not below h.

    Hashes are uniform: from the start it guesses; then, or from elsewhere, it steps and gallops.
    """
    high = rows
    step = 4
    if low == 0 and rows > 32:
        a = cell(address, rows, 0, 0)
        b = cell(address, rows, 0, rows - 1)
        if h <= a:
            return 0
        if h > b:
            return rows
        guess = min(np.int64(_share(h - a, b - a) * rows), rows - 1)
        if cell(address, rows, 0, guess) < h:
            low = guess + 1
        else:
            high = guess
            while high - step >= 0 and cell(address, rows, 0, high - step) >= h:
                high -= step
                step *= 2
            low = max(high - step, 0)
    if high == rows:
        near = min(low + 4, rows)
        while low < near:
            if cell(address, rows, 0, low) >= h:
                return low
            low += 1
        while low + step < rows and cell(address, rows, 0, low + step) < h:
            low += step + 1
            step *= 2
        high = min(low + step, rows)
    while low < high:
        middle = (low + high) >> 1
        if cell(address, rows, 0, middle) < h:
            low = middle + 1
        else:
            high = middle
    return low


@njit(nogil=True, cache=True, forceinline=True)
def _page_of(first, start, stop, h):
    """The last page in [start, stop) that begins below h, or start."""
    low = start
    high = stop
    if stop - start > 32:
        guess = start + np.int64(_share(h, _LAST_HASH) * (stop - start))
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


@njit(nogil=True, cache=True, forceinline=True)
def _enter_run(h, stop, first, addresses, touched, filters, places, r, cursors, c):
    """Point cursor c (page, row, stop page, address) at the first row of key hash h of run r.

    places[r]: (last page that begins below h, row of it to search from), moved to what is found.
    Returns 0 = there, 1 = no such row, 2 = page cursors[c, 0] is missing.
    """
    page = places[r, 0]
    address = addresses[page]
    cursors[c, 0] = page
    rows = row = 0
    if address != 0:
        touched[page] = 1
        rows = row_count(address)
        row = _lower_bound(address, rows, places[r, 1], h)
        places[r, 1] = row
    elif filters[page] == 0 or may_contain(filters[page], h):
        touched[page] = 1
        return 2
    if row == rows:
        page += 1
        row = 0
        if page == stop or first[page] != h:
            return 1
        touched[page] = 1
        address = addresses[page]
        cursors[c, 0] = page
        if address == 0:
            return 2
    elif cell(address, rows, 0, row) != h:
        return 1
    cursors[c, 1] = row
    cursors[c, 2] = stop
    cursors[c, 3] = address
    return 0


@njit(nogil=True, cache=True, forceinline=True)
def _locate(
    h, starts, first, addresses, touched, filters, memory, places, cursors, missing
) -> tuple:
    """Point cursors at the rows of key hash h, one cursor for each run that has some.

    places int64[runs, 2]: where the last, lower hash was searched: (page or -1, row).
    Returns (runs that have it, pages that are missing). A memory run has page -1.
    """
    found = 0
    lost = 0
    runs = starts.shape[0] - 1
    for r in range(runs):
        stop = starts[r + 1]
        page = places[r, 0]
        if page < 0 or (page + 1 < stop and first[page + 1] < h):
            page = _page_of(first, starts[r], stop, h)
            places[r, 0] = page
            places[r, 1] = 0
        if first[page] > h:
            continue
        state = _enter_run(h, stop, first, addresses, touched, filters, places, r, cursors, found)
        if state == 0:
            found += 1
        elif state == 2:
            missing[lost] = cursors[found, 0]
            lost += 1
    for m in range(memory.shape[0]):
        rows = row_count(memory[m])
        row = _lower_bound(memory[m], rows, places[runs + m, 1], h)
        places[runs + m, 1] = row
        if row < rows and cell(memory[m], rows, 0, row) == h:
            cursors[found, 0] = -1
            cursors[found, 1] = row
            cursors[found, 2] = -1
            cursors[found, 3] = memory[m]
            found += 1
    return found, lost


@njit(nogil=True, cache=True, forceinline=True)
def _advance(cursors, c, h, first, addresses, touched):
    """Move cursor c to the next row of key hash h: 0 = there, 1 = no more, 2 = page missing."""
    address = cursors[c, 3]
    rows = row_count(address)
    row = cursors[c, 1] + 1
    if row < rows:
        cursors[c, 1] = row
        return 0 if cell(address, rows, 0, row) == h else 1
    page = cursors[c, 0]
    if page < 0 or page + 1 == cursors[c, 2] or first[page + 1] != h:
        return 1
    page += 1
    touched[page] = 1
    cursors[c, 0] = page
    cursors[c, 1] = 0
    cursors[c, 3] = addresses[page]
    return 2 if addresses[page] == 0 else 0


@njit(nogil=True, cache=True, forceinline=True)
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


@njit(nogil=True, cache=True, forceinline=True)
def _take_row(h, cursors, found, first, addresses, touched, value_at, hits, totals, k) -> tuple:
    """Add up the smallest row of all cursors into hit and totals k, and move them past it.

    Returns (cursors left, missing page or -1).
    """
    best, row_first, row_second = _smallest(cursors, found)
    hits[k, 1] = cursors[best, 3]
    hits[k, 2] = cursors[best, 1]
    width = totals.shape[1]
    for v in range(width):
        totals[k, v] = 0
    c = best
    while c < found:
        address = cursors[c, 3]
        row = cursors[c, 1]
        rows = row_count(address)
        if cell(address, rows, 1, row) != row_first or cell(address, rows, 2, row) != row_second:
            c += 1
            continue
        for v in range(width):
            totals[k, v] += np.int64(cell(address, rows, value_at + v, row))
        state = _advance(cursors, c, h, first, addresses, touched)
        if state == 0:
            c += 1
        elif state == 1:
            found -= 1
            for x in range(4):
                cursors[c, x] = cursors[found, x]
        else:
            return 0, cursors[c, 0]
    return found, -1


@njit(nogil=True, cache=True)
def _grown(array, size):
    """A copy of a two-dimensional int64 array with room for size rows."""
    out = np.empty((size, array.shape[1]), np.int64)
    out[: array.shape[0]] = array
    return out


@njit(nogil=True, cache=True, forceinline=True)
def _repeat(hits, totals, before, k, i):
    """Give key i what the key before it, with the same hash, has got from row `before` to k."""
    for j in range(k - before):
        hits[k + j, 0] = i
        hits[k + j, 1] = hits[before + j, 1]
        hits[k + j, 2] = hits[before + j, 2]
        for v in range(totals.shape[1]):
            totals[k + j, v] = totals[before + j, v]


@njit(nogil=True, cache=True)
def _probe_on(hashes, starts, pages, memory, value_at, scratch, out, at) -> tuple:
    """Go on from key at[0] with at = (key, hits so far, where its hits begin, missing so far).

    scratch: (places, cursors, missing of one key); out: (hits, totals, missing), which stay the
    same arrays here, since rebinding one in a loop costs a count of references each time round.
    Returns at for the first key that found no room, or for the end.
    """
    first, addresses, touched, filters = pages
    places, cursors, lost_here = scratch
    hits, totals, missing = out
    i, k, before, lost = at
    width = totals.shape[1]
    capacity = hits.shape[0]
    while i < hashes.shape[0]:
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
        found, new = _locate(
            h, starts, first, addresses, touched, filters, memory, places, cursors, lost_here
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
def probe(hashes, starts, pages, memory, value_at, width):
    """Every row of all runs whose key hash is among n sorted hashes, equal rows added up.

    pages: (first uint64, addresses int64, touched uint8, filters int64) of all pages, run r having
    those from starts[r] to starts[r + 1]; touched is set to 1 where a search came by, filters are
    addresses or 0. memory: addresses of the runs that are one image. Returns (hits int64[k, 3]:
    index into hashes, address, row; totals int64[k, width]; missing int64[m]: pages to bring in,
    then ask again).
    """
    runs = starts.shape[0] - 1 + memory.shape[0]
    places = np.zeros((runs, 2), np.int64)
    places[:, 0] = -1
    scratch = places, np.empty((runs, 4), np.int64), np.empty(runs, np.int64)
    capacity = 2 * hashes.shape[0] + 16
    hits = np.empty((capacity, 3), np.int64)
    totals = np.empty((capacity, width), np.int64)
    missing = np.empty((runs + 16, 1), np.int64)
    at = 0, 0, 0, 0
    while True:
        out = hits, totals, missing
        at = _probe_on(hashes, starts, pages, memory, value_at, scratch, out, at)
        if at[0] == hashes.shape[0]:
            return hits[: at[1]], totals[: at[1]], missing[: at[3], 0]
        if at[3] + runs + 1 > missing.shape[0]:
            missing = _grown(missing, 2 * missing.shape[0] + runs)
        else:
            capacity = 2 * capacity + at[1] - at[2]
            hits = _grown(hits, capacity)
            totals = _grown(totals, capacity)
