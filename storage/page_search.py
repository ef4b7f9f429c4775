"""The compiled search of a block of key hashes in the pages of all runs.

Key hashes are uniform: every search starts from a guess and gallops. Memory is slower than the
search, so a block goes in stages: each prefetches the cache lines that the next one reads.
Invariant: a page that is not in memory (address 0) is reported as MISSING, unless its filter rules
out the key.
"""

import numpy as np
from numba import njit

from storage.filters import may_contain
from storage.page_access import HEADER, key_hash, record_at, row_count
from storage.raw_memory import fetch_ahead

BLOCK = 64
# Position of a key in a run: a row, or one of these (_PASSED: after the page).
ABSENT = -1
MISSING = -2
_PASSED = -3
_FIRST_HASH = np.uint64(0)
_LAST_HASH = np.uint64(0xFFFFFFFFFFFFFFFF)


@njit(nogil=True, cache=True, inline="always")
def _ratio(part, whole):
    """Return part / whole as a float; halved first, since signed conversions are the fast ones."""
    return np.float64(np.int64(part >> np.uint64(1))) / (
        np.float64(np.int64(whole >> np.uint64(1))) + 1.0
    )


@njit(nogil=True, cache=True, forceinline=True)
def _lower_bound(address, rows, low, guess, h):
    """Return the first row from `low` on whose key hash is not below h, searched around a guess."""
    step = 4
    if guess < low:
        guess = low
    if guess >= rows:
        return rows
    if key_hash(address, guess) < h:
        low = guess + 1
        near = min(low + 4, rows)
        while low < near:
            if key_hash(address, low) >= h:
                return low
            low += 1
        while low + step < rows and key_hash(address, low + step) < h:
            low += step + 1
            step *= 2
        high = min(low + step, rows)
    else:
        high = guess
        while high - step >= low and key_hash(address, high - step) >= h:
            high -= step
            step *= 2
        low = max(high - step, low)
    while low < high:
        middle = (low + high) >> 1
        if key_hash(address, middle) < h:
            low = middle + 1
        else:
            high = middle
    return low


@njit(nogil=True, cache=True, forceinline=True)
def _page_of(first, start, stop, h):
    """Return the last page in [start, stop) that begins below h, or start."""
    low = start
    high = stop
    if stop - start > 32:
        guess = start + np.int64(_ratio(h, _LAST_HASH) * (stop - start))
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
def _guess_row(address, h, begin, end):
    """Return where h should be in a page with hashes between begin and end; prefetch it."""
    rows = row_count(address)
    guess = min(np.int64(_ratio(h - begin, end - begin) * rows), rows - 1)
    fetch_ahead(np.int64(address + 8 * (HEADER + guess)))  # pyright: ignore
    return guess


@njit(nogil=True, cache=True, forceinline=True)
def _prefetch_record(address, row):
    record = record_at(address, row)
    fetch_ahead(record)  # pyright: ignore
    fetch_ahead(np.int64(record + 64))  # pyright: ignore


@njit(nogil=True, cache=True)
def _search_run(hashes, start, stop, pages, page_at, row_at):
    """Find sorted hashes in the run of pages [start, stop).

    Fills page_at and row_at int64[keys]: the first row of each hash, or row ABSENT, or MISSING if
    the page is not in memory.
    """
    first, addresses, touched, filters = pages
    page = -1
    for i in range(hashes.shape[0]):
        h = hashes[i]
        if page < 0 or (page + 1 < stop and first[page + 1] < h):
            page = _page_of(first, start, stop, h)
        page_at[i] = page
        row_at[i] = 0 if first[page] <= h else ABSENT
        fetch_ahead(addresses[page])  # pyright: ignore
    for i in range(hashes.shape[0]):
        if row_at[i] == ABSENT:
            continue
        page = page_at[i]
        if addresses[page] == 0:
            row_at[i] = _PASSED
            if filters[page] == 0 or may_contain(filters[page], hashes[i]):
                touched[page] = 1
                row_at[i] = MISSING
            continue
        touched[page] = 1
        end = first[page + 1] if page + 1 < stop else _LAST_HASH
        row_at[i] = _guess_row(addresses[page], hashes[i], first[page], end)
    page = -1
    row = 0
    for i in range(hashes.shape[0]):
        if row_at[i] == ABSENT or row_at[i] == MISSING:
            continue
        if page_at[i] != page:
            page = page_at[i]
            row = 0
        h = hashes[i]
        address = addresses[page]
        rows = 0
        if row_at[i] != _PASSED:
            rows = row_count(address)
            row = _lower_bound(address, rows, row, row_at[i], h)
        row_at[i] = ABSENT
        if row == rows:
            if page + 1 < stop and first[page + 1] == h:
                touched[page + 1] = 1
                page_at[i] = page + 1
                row_at[i] = MISSING if addresses[page + 1] == 0 else 0
        elif key_hash(address, row) == h:
            row_at[i] = row
            _prefetch_record(address, row)


@njit(nogil=True, cache=True)
def _search_memory(hashes, address, row_at):
    """Find sorted hashes in a run that is one image; see _search_run."""
    rows = row_count(address)
    for i in range(hashes.shape[0]):
        row_at[i] = _guess_row(address, hashes[i], _FIRST_HASH, _LAST_HASH)
    row = 0
    for i in range(hashes.shape[0]):
        row = _lower_bound(address, rows, row, row_at[i], hashes[i])
        row_at[i] = ABSENT
        if row < rows and key_hash(address, row) == hashes[i]:
            row_at[i] = row
            _prefetch_record(address, row)


@njit(nogil=True, cache=True)
def search_block(hashes, starts, pages, memory, page_at, row_at):
    """Find a block of sorted hashes in all runs: page_at, row_at int64[runs, block]."""
    runs = starts.shape[0] - 1
    keys = hashes.shape[0]
    for r in range(runs):
        _search_run(hashes, starts[r], starts[r + 1], pages, page_at[r, :keys], row_at[r, :keys])
    for m in range(memory.shape[0]):
        _search_memory(hashes, memory[m], row_at[runs + m, :keys])
