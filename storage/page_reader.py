"""The pages of the runs of one arrangement, read from disk if they are not in memory.

Invariant: a page is verified before any use. Reads for a merge or a scan do not evict searched
pages from the cache.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tidemark_native import storage as kernels

from storage.faults import corrupt
from storage.layout import Layout
from storage.page_cache import PageCache
from storage.pages import Page, Selection, verify
from storage.runs import Run, RunTable, page_key
from storage.write_set import WriteSet

PAGES_AT_ONCE = 64


class PageReader:
    """Reads pages of the arrangement `name`, of this identity and layout."""

    def __init__(
        self, name: str, identity: int, layout: Layout, writes: WriteSet, cache: PageCache
    ) -> None:
        self._name = name
        self._identity = identity
        self._layout = layout
        self._writes = writes
        self._cache = cache

    def segments(
        self, runs: Sequence[Run], window: np.ndarray
    ) -> tuple[list[list[int]], list[Page], int]:
        """Return page addresses of each run that may have rows in the window.

        Also return the pages read for it, which the caller keeps alive, and how many were in
        memory.
        """
        segments: list[list[int]] = []
        alive: list[Page] = []
        resident = 0
        for run in runs:
            start = kernels.page_bound(run.first, run.first_row, window[0], window[1])
            start = max(start - 1, 0)
            stop = len(run.first)
            if window[4]:
                stop = kernels.page_bound(run.first, run.first_row, window[2], window[3])
            addresses = run.addresses[start:stop].tolist()
            absent = [at for at, address in enumerate(addresses) if not address]
            for at, page in zip(absent, self._read(run, absent, start), strict=True):
                addresses[at] = page.address
                alive.append(page)
            resident += len(addresses) - len(absent)
            segments.append(addresses)
        return segments, alive, resident

    def bring_in(self, table: RunTable, missing: np.ndarray) -> int:
        """Read pages, passed as positions in the flat arrays of the table, into the cache.

        Returns the number of their rows.
        """
        rows = 0
        owners = np.searchsorted(table.starts, missing, "right") - 1
        self._cache.pages_read += len(missing)
        for owner in np.unique(owners):
            run = table.runs[owner]
            pages = (missing[owners == owner] - table.starts[owner]).tolist()
            for at, page in zip(pages, self._read(run, pages), strict=True):
                self._cache.add(run, at, page.sealed, page.address)
                self._cache.bytes_read += len(page.sealed)
                run.reads += page.rows
                rows += page.rows
        return rows

    def warm(self, run: Run, start: int, pages: int) -> int:
        """Cache up to so many pages of a run from a position on, while there is space; return the
        position after the last one, or after the run where the space ends."""
        stop = min(start + pages, len(run.numbers))
        absent = [at for at in range(start, stop) if not run.addresses[at]]
        for at, page in zip(absent, self._read(run, absent), strict=True):
            if not self._cache.has_space(len(page.sealed)):
                return len(run.numbers)
            self._cache.add(run, at, page.sealed, page.address)
        return stop

    def _read(self, run: Run, pages: Sequence[int], shift: int = 0) -> list[Page]:
        """Return pages of a run, verified; shift is added to their positions."""
        if not pages:
            return []
        numbers = [int(run.numbers[at + shift]) for at in pages]
        keys = [page_key(self._identity, run.identity, number) for number in numbers]
        where = f'page of run {run.identity} of "{self._name}"'
        found = [verify(sealed, self._layout, where) for sealed in self._writes.read(keys)]
        for at, page in zip(pages, found, strict=True):
            if page.first != (int(run.first[at + shift]), int(run.first_row[at + shift])):
                raise corrupt(f"{where} belongs to another position")
        return found

    def pages_at_once(self, page_rows: int) -> int:
        """Return how many pages of about so many rows one part of a search may read over the
        budget.
        """
        page_bytes = self._cache.page_bytes() or self._layout.row_bytes * page_rows
        return max(self._cache.budget_bytes // 4 // page_bytes, PAGES_AT_ONCE)


def merged(layout: Layout, segments: Sequence[Sequence[int]], window: np.ndarray) -> Selection:
    """Return the merged rows of runs, passed as page addresses, within the window."""
    starts = np.zeros(len(segments) + 1, np.int64)
    np.cumsum([len(s) for s in segments], out=starts[1:])
    flat = np.array([address for s in segments for address in s], np.int64)
    return Selection(*kernels.merge(flat, starts, window, layout.value_at, layout.width))


def track_of(layout: Layout, page: Page, stride: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (key hash, row hash) of every stride-th row of a page, for `merge_policy.windows`."""
    image = np.frombuffer(page.sealed, np.uint64)
    hashes = np.ascontiguousarray(layout.hashes_of(image)[::stride])
    row_hashes = layout.records_of(image)[::stride, 0]
    return hashes, np.ascontiguousarray(row_hashes)
