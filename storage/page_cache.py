"""The pages of all runs on disk that are in memory, within a budget of bytes.

Eviction is CLOCK: a page that a search touched since the hand last passed stays. Invariant: after
`shrink` the cached pages and filters fit in the budget; between two shrinks every page stays valid.
Filters are never evicted; they are cached while they fit into FILTER_SHARE of the budget. The
budget shrinks for a while if the whole process uses too much memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from storage.runs import Run

FILTER_SHARE = 0.4
# This share of the budget stays under any pressure: without any pages nothing progresses.
_LEAST_SHARE = 0.25


class PageCache:
    """Which pages are cached; the bytes and addresses are in the runs themselves.

    pages_read, bytes_read: counters of what searches had to read from disk.
    """

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self._whole_bytes = budget_bytes
        self.used_bytes = 0
        self.filter_bytes = 0
        self.pages_read = self.bytes_read = 0
        self.reserved_bytes = 0
        self._entries: list[tuple[Run, int]] = []
        self._hand = 0
        self._stale = 0

    def resize(self, more_bytes: int) -> None:
        """Change the budget by so many bytes; below 0 pages are evicted."""
        self._whole_bytes += more_bytes
        self.budget_bytes = max(self.budget_bytes + more_bytes, 0)
        self.shrink()

    def has_space(self, size_bytes: int) -> bool:
        """Return True if so many bytes more would still be within the budget."""
        return self.used_bytes + size_bytes <= self.budget_bytes

    def growth(self, most: int) -> int:
        """Return `most` while the cache is less than nine tenths full, else 1.

        Pages of unfinished runs do not count: most of them will replace others.
        """
        held_bytes = self.used_bytes - self.reserved_bytes
        return most if 10 * held_bytes < 9 * self.budget_bytes else 1

    def reserve(self, size_bytes: int) -> None:
        """Count so many bytes more (below 0: fewer) of pages that are not part of a run yet."""
        self.reserved_bytes += size_bytes
        self.used_bytes += size_bytes

    def may_reserve(self) -> bool:
        """Return True if pages of unfinished runs may replace others."""
        return 2 * self.reserved_bytes < self.budget_bytes - self.filter_bytes

    def page_bytes(self) -> int:
        """Return the average bytes of a page that was read; 0 if none was."""
        return self.bytes_read // max(self.pages_read, 1)

    def add(self, run: Run, page: int, sealed: bytes, address: int) -> None:
        """Cache a page; nothing is evicted for it before the next shrink."""
        run.buffers[page] = sealed
        run.addresses[page] = address
        run.touched[page] = 1
        self.used_bytes += len(sealed)
        self._entries.append((run, page))

    def take_filters(self, run: Run, groups: Sequence[bytes | None]) -> None:
        """Cache the stored filters of a run if there is space for them."""
        size_bytes = sum(len(group or b"") for group in groups)
        if self.has_space_for_filters(size_bytes):
            run.take_filters(groups)
            self.filter_bytes += size_bytes
            self.used_bytes += size_bytes

    def has_space_for_filters(self, size_bytes: int) -> bool:
        """Return True if so many bytes more of filters would be cached."""
        return self.filter_bytes + size_bytes <= FILTER_SHARE * self.budget_bytes

    def release(self, run: Run) -> None:
        """Release all pages and filters of a removed run."""
        size_bytes = sum(map(len, run.groups))
        self.filter_bytes -= size_bytes
        self.used_bytes -= size_bytes
        run.groups = []
        run.filters[:] = 0
        for page in np.flatnonzero(run.addresses).tolist():
            self.used_bytes -= len(run.buffers[page] or b"")
            self._stale += 1
            run.buffers[page] = None
        run.addresses[:] = 0
        if self._stale > 64 and 2 * self._stale > len(self._entries):
            self._entries = [(r, p) for r, p in self._entries if r.buffers[p] is not None]
            self._hand = 0
            self._stale = 0

    def press(self, excess_bytes: int) -> int:
        """Reduce the budget by so many bytes; return the bytes of evicted pages.

        Below 0 there is free memory: the budget grows by a part of it, up to its initial size.
        """
        before = self.used_bytes
        if excess_bytes > 0:
            least = max(_LEAST_SHARE * self._whole_bytes, self.filter_bytes)
            target_bytes = min(self.budget_bytes, before) - excess_bytes
            self.budget_bytes = min(self.budget_bytes, max(target_bytes, int(least)))
            self.shrink()
        elif self.budget_bytes < self._whole_bytes:
            self.budget_bytes = min(self.budget_bytes - excess_bytes // 8, self._whole_bytes)
        return before - self.used_bytes

    def shrink(self) -> None:
        """Evict pages until they fit in the budget."""
        entries = self._entries
        while self.used_bytes > self.budget_bytes and entries:
            if self._hand >= len(entries):
                self._hand = 0
            run, page = entries[self._hand]
            sealed = run.buffers[page]
            if sealed is not None and run.touched[page]:
                run.touched[page] = 0
                self._hand += 1
                continue
            if sealed is None:
                self._stale -= 1
            else:
                self.used_bytes -= len(sealed)
                run.buffers[page] = None
                run.addresses[page] = 0
            entries[self._hand] = entries[-1]
            entries.pop()
