"""Rows by key in all runs of one arrangement, a bounded number of them at a time.

Most keys have few rows: a compiled lookup serves thousands of them at once and stops when its
output is full. A key that alone has more rows is read like a scan of just its rows. Invariant:
between two parts, the search only remembers how far the keys, or the row identities of the current
key, are done. Runs may therefore be flushed and pages evicted in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np
from tidemark_native import storage as kernels

from storage.layout import Layout
from storage.merge_policy import windows
from storage.page_reader import PageReader, merged
from storage.pages import Page, Selection
from storage.runs import RunTable

EVERY_ROW = 1 << 62
# Rows of a run in memory that count as a page when one key is read alone.
_MEMORY_STRIDE = 256
_LAST_HASH = (1 << 64) - 1


class RunSearch:
    """Searches the runs of `table`, and those in memory since `set_memory`.

    page_rows: about how many rows a page has. pay: called with the rows of pages that were read.
    """

    def __init__(
        self,
        table: RunTable,
        reader: PageReader,
        layout: Layout,
        page_rows: int,
        pay: Callable[[int], None],
    ) -> None:
        self._table = table
        self._reader = reader
        self._layout = layout
        self._page_rows = page_rows
        self._pay = pay
        self.set_memory([])

    def set_memory(self, pages: Sequence[Page]) -> None:
        """Set the runs in memory."""
        self._memory = pages
        self._addresses = np.array([page.address for page in pages], np.int64)

    def find(self, hashes: np.ndarray, max_rows: int) -> Iterator[tuple[int, Selection]]:
        """Yield rows whose key hash is among n sorted hashes, as parts (shift, selection).

        The index in a hit, plus the shift, counts into hashes. A part is valid until the next. It
        has about max_rows rows at most, or twice as many as hashes.
        """
        at = 0
        while at < len(hashes):
            rest = hashes[at:]
            hits, totals, missing, done = self._probe(rest, max_rows)
            if len(missing):
                missing = np.unique(missing)
                parts = -(-len(missing) // self._reader.pages_at_once(self._page_rows))
                if parts > 1 and len(rest) > 1:
                    bounds = np.linspace(0, len(rest), min(parts, len(rest)) + 1).astype(int)
                    for start, stop in pairwise(bounds.tolist()):
                        for shift, selection in self.find(rest[start:stop], max_rows):
                            yield at + start + shift, selection
                    return
                self._pay(self._reader.bring_in(self._table, missing))
                continue
            if 0 < done < len(rest) and rest[done] == rest[done - 1]:
                # All requests for one key get its rows in the same part: old and new of a row.
                done = int(np.searchsorted(rest, rest[done], "left"))
                complete = int(np.searchsorted(hits[:, 0], done, "left"))
                hits, totals = hits[:complete], totals[:complete]
            if done:
                yield at, Selection(hits, totals)
            else:
                done = int(np.searchsorted(rest, rest[0], "right"))
                yield from self._find_one(rest[0], (at, at + done), max_rows)
            at += done

    def _probe(self, hashes: np.ndarray, max_rows: int) -> tuple:
        table, layout = self._table, self._layout
        width, value_at = layout.width, layout.value_at
        memory = self._addresses
        return kernels.probe(hashes, table.starts, table.pages, memory, value_at, width, max_rows)

    def _find_one(
        self, key_hash: np.uint64, bounds: tuple[int, int], max_rows: int
    ) -> Iterator[tuple[int, Selection]]:
        """Yield the rows of one key hash, for each index that requests it."""
        start, stop = bounds
        # Two indexes are the old and the new of a row: they stay together whatever their size.
        least = 2 if stop - start == 2 else 1
        for window in self._windows(key_hash, max(max_rows // (stop - start), 1)):
            at = start
            while at < stop:
                # Again for each part: pages may have been evicted since the last.
                segments, alive, _ = self._reader.segments(self._table.runs, window)
                memory = [[page.address] for page in self._memory]
                hits, totals = merged(self._layout, [*segments, *memory], window)
                if not len(hits):
                    break
                count = min(max(max_rows // len(hits), least), stop - at)
                of_all = np.tile(hits, (count, 1))
                of_all[:, 0] = np.repeat(np.arange(count), len(hits))
                yield at, Selection(of_all, np.tile(totals, (count, 1)))
                del alive
                at += count

    def _windows(self, key_hash: np.uint64, max_rows: int) -> Iterator[np.ndarray]:
        """Yield windows of row identities that hold the rows of the key hash, cut by
        pages of runs.
        """
        tracks, page_rows = [], 1
        for run in self._table.runs:
            here = slice(*np.searchsorted(run.first, key_hash + np.arange(2, dtype=np.uint64)))
            if key_hash == _LAST_HASH:
                here = slice(int(np.searchsorted(run.first, key_hash)), len(run.first))
            tracks.append((run.first[here], run.first_row[here]))
            page_rows += -(-run.rows // len(run.numbers))
        for page in self._memory:
            tracks.append(self._memory_track(page, key_hash))
            page_rows += _MEMORY_STRIDE
        for window in windows(tracks, max(max_rows // page_rows, 1)):
            if window[0] != key_hash:
                window[:2] = key_hash, 0
            if not window[4] and key_hash != _LAST_HASH:
                window[2:] = key_hash + np.uint64(1), 0, 1
            yield window

    def _memory_track(self, page: Page, key_hash: np.uint64) -> tuple[np.ndarray, np.ndarray]:
        image = np.frombuffer(page.sealed, np.uint64)
        hashes = self._layout.hashes_of(image)
        start, stop = (int(np.searchsorted(hashes, key_hash, side)) for side in ("left", "right"))
        rows = slice(start, stop, _MEMORY_STRIDE)
        row_hashes = self._layout.records_of(image)[rows, 0]
        return np.ascontiguousarray(hashes[rows]), np.ascontiguousarray(row_hashes)
