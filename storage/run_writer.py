"""Write the pages of a new run one after the other, and the filters of each group of them.

A filter group is stored right after the last page it covers. Invariant: the run exists only once
its directory entry does; without it, everything written is garbage.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tidemark_native.storage import filter_of

from storage.filters import GROUP, encode_group
from storage.layout import Layout
from storage.page_cache import PageCache
from storage.page_files import PageFile
from storage.pages import Page, Selection, Tuning, cut
from storage.runs import Run, filter_key, page_key


class RunWriter:
    """Takes pages in row order. put: stores a key and value. first_number: of its first page."""

    def __init__(
        self,
        put: Callable[[bytes, bytes], None],
        identity: int,
        run: int,
        first_number: int = 0,
    ) -> None:
        self.identity = run
        self.rows = 0
        self.first: list[tuple[int, int]] = []
        self.groups: list[bytes] = []
        self._put = put
        self._arrangement = identity
        self._first_number = first_number
        self._filters: list[np.ndarray] = []

    def add(self, page: Page) -> None:
        """Write the next page."""
        number = self._first_number + len(self.first)
        self._put(page_key(self._arrangement, self.identity, number), page.sealed)
        self._filters.append(filter_of(page.address))
        self.first.append(page.first)
        self.rows += page.rows
        if len(self._filters) == GROUP:
            self._put_group()

    def _put_group(self) -> None:
        group = encode_group(self._filters)
        last = self._first_number + len(self.first) - 1
        self._put(filter_key(self._arrangement, self.identity, last), group)
        self.groups.append(group)
        self._filters = []

    def finish(self) -> None:
        """Write the filters of the last pages."""
        if self._filters:
            self._put_group()

    def run(self, age: int, net: int) -> Run:
        """Return the finished run; none of its pages and filters is in memory yet."""
        numbers = np.arange(len(self.first), dtype=np.uint64) + np.uint64(self._first_number)
        run = Run(self.identity, age, (self.rows, net), numbers)
        if self.first:
            run.first[:], run.first_row[:] = np.array(self.first, np.uint64).T
        return run


class RunBuilder:
    """A run that is being written, and those of its pages that stay in memory.

    A context manager: at its end the reserved bytes of the cache's budget are released, as the
    pages are part of a run or will never be. net: entries that add less those that remove. file:
    what the writer writes to, if not to the open epoch.
    """

    def __init__(
        self,
        writer: RunWriter,
        cache: PageCache,
        layout: Layout,
        tuning: Tuning,
        file: PageFile | None = None,
    ) -> None:
        self.writer = writer
        self.net = 0
        self._cache = cache
        self._layout = layout
        self._tuning = tuning
        self._kept: list[Page | None] = []
        self._reserved_bytes = 0
        self._file = file

    def __enter__(self) -> RunBuilder:
        return self

    def __exit__(self, *error: object) -> None:
        self._cache.reserve(-self._reserved_bytes)
        self._reserved_bytes = 0
        if self._file is not None:
            self._file.discard()

    def write(self, selection: Selection, net: int, *, is_hot: bool) -> None:
        """Write rows as the next pages; is_hot: cache them even if that evicts others."""
        growth = self._cache.growth(self._tuning.page_growth)
        for page in cut(self._layout, selection, self._tuning, growth):
            self.writer.add(page)
            size_bytes = len(page.sealed)
            is_kept = self._cache.has_space(size_bytes) or (is_hot and self._cache.may_reserve())
            self._kept.append(page if is_kept else None)
            if is_kept:
                self._reserved_bytes += size_bytes
                self._cache.reserve(size_bytes)
        self.net += net

    def finish(self, age: int | None) -> Run | None:
        """Return the run with its pages and filters in memory, or None if it has no rows."""
        self.writer.finish()
        if self._file is not None:
            self._file.finish()
        if not self.writer.first:
            return None
        run = self.writer.run(self.writer.identity if age is None else age, self.net)
        self._cache.take_filters(run, self.writer.groups)
        for at, page in enumerate(self._kept):
            if page is not None:
                self._cache.add(run, at, page.sealed, page.address)
        return run
