"""The pages of all runs on disk that are in memory, within a budget of bytes.

CLOCK: a page that a search touched since the hand last came by stays. Invariant: after `shrink`
the pages and filters held come to at most the budget; between two shrinks any page may be relied
upon. Filters are not given up again: they are held while they fit into FILTER_SHARE of it.
The budget may be pressed for a while, when the process as a whole takes too much.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from storage.runs import Run

FILTER_SHARE = 0.4
# Of the budget so much stays whatever the pressure: without any pages nothing goes on.
_LEAST_SHARE = 0.25


class PageCache:
    """Which pages are held; the bytes and addresses stand in the runs themselves.

    pages_read, bytes_read: what searches had to read from disk so far, counters.
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

    def has_space(self, size_bytes: int) -> bool:
        """Whether so many bytes more would still be within the budget."""
        return self.used_bytes + size_bytes <= self.budget_bytes

    def growth(self, most: int) -> int:
        """`most` as long as what is held, pages of unfinished runs aside (most of them will take
        the place of others), takes less than nine tenths of the budget; else 1."""
        held_bytes = self.used_bytes - self.reserved_bytes
        return most if 10 * held_bytes < 9 * self.budget_bytes else 1

    def reserve(self, size_bytes: int) -> None:
        """Count so many bytes more (below 0: fewer) of pages that are part of no run yet."""
        self.reserved_bytes += size_bytes
        self.used_bytes += size_bytes

    def may_reserve(self) -> bool:
        """Whether pages of unfinished runs may take the place of others."""
        return 2 * self.reserved_bytes < self.budget_bytes - self.filter_bytes

    def page_bytes(self) -> int:
        """Bytes of a page that was read, on average; 0 if none was."""
        return self.bytes_read // max(self.pages_read, 1)

    def add(self, run: Run, page: int, sealed: bytes, address: int) -> None:
        """Hold a page; nothing is given up for it before the next shrink."""
        run.buffers[page] = sealed
        run.addresses[page] = address
        run.touched[page] = 1
        self.used_bytes += len(sealed)
        self._entries.append((run, page))

    def take_filters(self, run: Run, groups: Sequence[bytes | None]) -> None:
        """Hold the filters of a run, given as stored, if there is room for them."""
        size_bytes = sum(len(group or b"") for group in groups)
        if self.has_room_for_filters(size_bytes):
            run.take_filters(groups)
            self.filter_bytes += size_bytes
            self.used_bytes += size_bytes

    def has_room_for_filters(self, size_bytes: int) -> bool:
        """Whether so many bytes more of filters would be held."""
        return self.filter_bytes + size_bytes <= FILTER_SHARE * self.budget_bytes

    def release(self, run: Run) -> None:
        """Let go of all pages and filters of a run that is no more."""
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
        """Hold so many bytes less from now on; the bytes of pages that were given up.

        Below 0 there is room: the budget grows by a part of it, up to what it was at first.
        """
        before = self.used_bytes
        if excess_bytes > 0:
            least = max(_LEAST_SHARE * self._whole_bytes, self.filter_bytes)
            wanted = min(self.budget_bytes, before) - excess_bytes
            self.budget_bytes = min(self.budget_bytes, max(wanted, int(least)))
            self.shrink()
        elif self.budget_bytes < self._whole_bytes:
            self.budget_bytes = min(self.budget_bytes - excess_bytes // 8, self._whole_bytes)
        return before - self.used_bytes

    def shrink(self) -> None:
        """Give up pages until the budget is kept."""
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
