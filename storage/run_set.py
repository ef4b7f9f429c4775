"""RunSet: the sorted runs that hold the state of one arrangement.

New rows become a small run in memory and a record in the log; enough of them become a run on
disk; neighbouring runs of like size are merged a few pages at a time, paid for by the rows that
come in, so that no epoch waits for a large merge. Invariant: the total of a row is the sum of its
entries in all runs, and merging never changes it. Runs are kept and merged in the order of time;
hence a merge that starts at the oldest run must not leave a row with a negative weight.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from storage import page_merge, page_probe
from storage.delta import Column
from storage.layout import Layout
from storage.page_cache import PageCache
from storage.pages import Page, Selection, Tuning, cut, order_rows, seal_whole, verify
from storage.run_writer import RunWriter
from storage.runs import (
    BULK_RUN,
    LOG,
    PAGE,
    RUN,
    Run,
    RunTable,
    arrangement_range,
    choose_merge,
    log_key,
    page_key,
    run_key,
    run_pages,
)
from storage.store import NegativeWeightError
from storage.write_set import WriteSet

_EVERYTHING = np.zeros(5, np.uint64)
_OPEN_FAN = 32
_PAGES_AT_ONCE = 64


class RunSet:
    """All runs of one arrangement. has_weights: the one value of a row must not go below zero."""

    def __init__(
        self,
        name: str,
        identity: int,
        layout: Layout,
        shared: tuple[WriteSet, PageCache, Tuning],
        *,
        has_weights: bool,
    ) -> None:
        self.name = name
        self.identity = identity
        self.layout = layout
        self._writes, self._cache, self._tuning = shared
        self._has_weights = has_weights
        self._table = RunTable()
        self._memory: list[Page] = []
        self.memory_bytes = 0
        self._memory_addresses = np.empty(0, np.int64)
        self._next_run = BULK_RUN + 1
        self._next_log = 0
        self._merging: Iterator[int] | None = None
        self._credit_rows = 0
        self._recover()

    def _recover(self) -> None:
        entries = self._writes.scan(*arrangement_range(RUN, self.identity))
        runs = sorted((Run.decode(self._writes.get(key)) for key in entries), key=lambda r: r.age)
        for run in runs:
            self._read_filters(run)
        self._table.replace(0, 0, runs)
        self._next_run = max([r.identity for r in runs], default=BULK_RUN) + 1
        keys = self._writes.scan(*arrangement_range(LOG, self.identity))
        sealed = self._writes.read(keys)
        self._memory = [verify(s, self.layout, f'log of "{self.name}"') for s in sealed]
        self._next_log = int.from_bytes(keys[-1][9:], "big") + 1 if keys else 0
        while len(self._memory) > _OPEN_FAN:
            self._merge_memory(0, len(self._memory), _OPEN_FAN)
        self._set_memory(self._memory)

    def net_rows(self) -> int:
        """Entries that add less entries that take away: about the distinct rows."""
        net = sum(run.net for run in self._table.runs)
        for page in self._memory:
            net += self._net(self.layout.values_of(np.frombuffer(page.sealed, np.uint64)))
        return max(net, 0)

    def distinct_rows(self) -> int:
        """About the rows there are with all runs added up, judged from the lowest hashes."""
        memory = [[page.address] for page in self._memory]
        window = next(_windows(self._table.runs, _PAGES_AT_ONCE))
        segments, _alive = self._segments(self._table.runs, window)
        rows = len(self._merged([*segments, *memory], window).hits)
        return int(rows / (int(window[2]) / 2**64)) if window[4] and window[2] else rows

    def is_empty(self) -> bool:
        """Whether no row was ever put here, or all were merged away."""
        return not self._table.runs and not self._memory

    def run_rows(self) -> list[int]:
        """Entries of each run, oldest first, those in memory last."""
        return [r.rows for r in self._table.runs] + [p.rows for p in self._memory]

    def add(self, columns: Sequence[Column], values: np.ndarray) -> None:
        """Add int64[width, n] values to the totals of n rows, which may repeat."""
        n = values.shape[1]
        if n == 0:
            return
        image = self.layout.image(columns, values)
        selection = order_rows(self.layout, image)
        rows = len(selection.hits)
        if rows == 0:
            return
        if rows + sum(page.rows for page in self._memory) < self._tuning.memory_rows:
            page = seal_whole(self.layout, selection)
            self._writes.put(log_key(self.identity, self._next_log), page.sealed)
            self._next_log += 1
            self._memory.append(page)
            chosen = choose_merge([page.rows for page in self._memory], self._tuning.fan)
            if chosen is not None:
                self._merge_memory(*chosen, chosen[1] - chosen[0])
            self._set_memory(self._memory)
        else:
            self._flush(selection)
        self._work(rows)
        self._cache.shrink()

    def flush(self) -> None:
        """Make a run on disk of the memory runs; no search may be under way."""
        if self._memory:
            self._flush(None)

    def _set_memory(self, pages: list[Page]) -> None:
        self._memory = pages
        self.memory_bytes = sum(len(page.sealed) for page in pages)
        self._memory_addresses = np.array([page.address for page in pages], np.int64)

    def _merge_memory(self, start: int, stop: int, fan: int) -> None:
        """Merge each `fan` neighbours of the memory runs in [start, stop) into one."""
        merged = []
        for at in range(start, stop, fan):
            pages = self._memory[at : min(at + fan, stop)]
            selection = self._merged([[page.address] for page in pages], _EVERYTHING)
            if len(selection.hits):
                merged.append(seal_whole(self.layout, selection))
        self._memory[start:stop] = merged

    def _flush(self, selection: Selection | None) -> None:
        """Make one run on disk of all memory runs and the selection, and empty the log."""
        held = self._memory
        if selection is None or held:
            held = held if selection is None else [*held, seal_whole(self.layout, selection)]
            selection = self._merged([[page.address] for page in held], _EVERYTHING)
            self._writes.remove_range(*arrangement_range(LOG, self.identity))
        if not self._table.runs:
            self._check(selection)
        if len(selection.hits):
            pages = list(cut(self.layout, selection, self._tuning))
            writer = self._new_run()
            for page in pages:
                writer.add(page)
            end = len(self._table.runs)
            self._enter_run(end, end, writer, self._net(selection.totals.T), pages)
        self._set_memory([])

    def _new_run(self) -> RunWriter:
        self._next_run += 1
        return RunWriter(self._writes.put_ahead, self.identity, self._next_run - 1)

    def _enter_run(
        self, start: int, stop: int, writer: RunWriter, net: int, pages: Sequence[Page | None]
    ) -> None:
        """Put the written run, with these resident pages, in the place of runs[start:stop]."""
        replaced = self._table.runs[start:stop]
        for run in replaced:
            self._cache.release(run)
            self._writes.remove_range(*run_pages(self.identity, run.identity))
            self._writes.put(run_key(self.identity, run.identity), None)
        writer.finish()
        if not writer.first:
            self._table.replace(start, stop, [])
            return
        run = writer.run(max((r.age for r in replaced), default=writer.identity), net)
        self._cache.take_filters(run, writer.groups)
        for at, page in enumerate(pages):
            if page is not None:
                self._cache.add(run, at, page.sealed, page.address)
        self._writes.put(run_key(self.identity, run.identity), run.encode())
        self._table.replace(start, stop, [run])

    def _read_filters(self, run: Run) -> None:
        """Hold the filters of a stored run, as far as there is room for them."""
        if self._cache.has_room_for_filters(run.rows // 8):
            self._cache.take_filters(run, self._writes.read(run.group_keys(self.identity)))

    def ingest(self, run: Run) -> None:
        """Take a run whose pages, filters and directory are already stored as the only one."""
        self._read_filters(run)
        self._table.replace(0, 0, [run])

    def discard(self) -> None:
        """Forget everything in memory and remove everything stored."""
        for run in self._table.runs:
            self._cache.release(run)
        self._table.replace(0, len(self._table.runs), [])
        self._set_memory([])
        self._merging = None
        self.remove(self._writes, self.identity)

    @staticmethod
    def remove(writes: WriteSet, identity: int) -> None:
        """Remove everything stored for an arrangement, open or not."""
        for kind in (PAGE, RUN, LOG):
            writes.remove_range(*arrangement_range(kind, identity))

    def _work(self, rows: int) -> None:
        """Merge as many rows as the incoming ones pay for."""
        fuel = self._tuning.fuel * (1 + len(self._table.runs) // 12)
        self._credit_rows += fuel * rows
        while self._credit_rows > 0:
            if self._merging is None:
                chosen = choose_merge([r.rows for r in self._table.runs], self._tuning.fan)
                if chosen is None:
                    self._credit_rows = 0
                    return
                self._merging = self._merge_steps(*chosen)
            done = next(self._merging, None)
            if done is None:
                self._merging = None
            else:
                self._credit_rows -= done

    def _merge_steps(self, start: int, stop: int) -> Iterator[int]:
        """Merge runs[start:stop]; yields the rows read after each step. Newer runs may come."""
        runs = self._table.runs[start:stop]
        writer = self._new_run()
        kept: list[Page | None] = []
        net = kept_bytes = 0
        for window in _windows(runs, self._tuning.merge_pages):
            segments, alive = self._segments(runs, window)
            selection = self._merged(segments, window)
            if start == 0:
                self._check(selection)
            for page in cut(self.layout, selection, self._tuning):
                writer.add(page)
                resident = self._cache.has_room(kept_bytes + len(page.sealed))
                kept_bytes += len(page.sealed) if resident else 0
                kept.append(page if resident else None)
            net += self._net(selection.totals.T)
            del alive
            yield max(len(selection.hits), 1)
        self._enter_run(start, stop, writer, net, kept)

    def _merged(self, segments: Sequence[Sequence[int]], window: np.ndarray) -> Selection:
        """Rows of runs given as page addresses, within the window, equal ones added up."""
        starts = np.zeros(len(segments) + 1, np.int64)
        np.cumsum([len(s) for s in segments], out=starts[1:])
        flat = np.array([address for s in segments for address in s], np.int64)
        layout = self.layout
        return Selection(*page_merge.merge(flat, starts, window, layout.value_at, layout.width))

    def _segments(
        self, runs: Sequence[Run], window: np.ndarray
    ) -> tuple[list[list[int]], list[Page]]:
        """Page addresses of each run that may have rows in the window, and what keeps them."""
        segments: list[list[int]] = []
        alive: list[Page] = []
        for run in runs:
            start = page_merge.page_bound(run.first, run.first_row, window[0], window[1])
            start = max(start - 1, 0)
            stop = len(run.first)
            if window[4]:
                stop = page_merge.page_bound(run.first, run.first_row, window[2], window[3])
            addresses = run.addresses[start:stop].tolist()
            absent = [at for at, address in enumerate(addresses) if not address]
            for at, page in zip(absent, self._read(run, absent, start), strict=True):
                addresses[at] = page.address
                alive.append(page)
            segments.append(addresses)
        return segments, alive

    def _read(self, run: Run, pages: Sequence[int], shift: int = 0) -> list[Page]:
        """Pages of a run, shift being added to their positions, verified."""
        if not pages:
            return []
        numbers = [int(run.numbers[at + shift]) for at in pages]
        keys = [page_key(self.identity, run.identity, number) for number in numbers]
        where = f'page of run {run.identity} of "{self.name}"'
        return [verify(sealed, self.layout, where) for sealed in self._writes.read(keys)]

    def find(self, hashes: np.ndarray) -> Iterator[tuple[int, Selection]]:
        """Rows whose key hash is among n sorted hashes, as parts (shift, selection).

        The index in a hit, plus the shift, counts into hashes. A part is good until the next.
        """
        layout = self.layout
        table = self._table
        while True:
            hits, totals, missing = page_probe.probe(
                hashes,
                table.starts,
                table.pages,
                self._memory_addresses,
                layout.value_at,
                layout.width,
            )
            if not len(missing):
                break
            missing = np.unique(missing)
            if len(missing) > _PAGES_AT_ONCE and len(hashes) > 1:
                room = self._cache.budget_bytes - self._cache.used_bytes
                if len(missing) * (layout.row_bytes * self._tuning.page_rows) > room:
                    half = len(hashes) // 2
                    yield from self.find(hashes[:half])
                    for shift, selection in self.find(hashes[half:]):
                        yield shift + half, selection
                    return
            self._bring_in(missing)
        selection = Selection(hits, totals)
        self._check(selection)
        yield 0, selection
        self._cache.shrink()

    def _bring_in(self, missing: np.ndarray) -> None:
        """Read pages, given as positions in the flat arrays, into the cache."""
        owners = np.searchsorted(self._table.starts, missing, "right") - 1
        for owner in np.unique(owners):
            run = self._table.runs[owner]
            pages = (missing[owners == owner] - self._table.starts[owner]).tolist()
            self._cache.pages_read += len(pages)
            for at, page in zip(pages, self._read(run, pages), strict=True):
                self._cache.add(run, at, page.sealed, page.address)

    def scan(self) -> Iterator[Selection]:
        """All rows in order, each once, in parts of tuning.scan_pages; no writes meanwhile."""
        runs = list(self._table.runs)
        memory = [[page.address] for page in self._memory]
        for window in _windows(runs, self._tuning.scan_pages):
            segments, alive = self._segments(runs, window)
            selection = self._merged([*segments, *memory], window)
            self._check(selection)
            if len(selection.hits):
                yield selection
            del alive

    def _net(self, values: np.ndarray) -> int:
        """Rows that add less rows that take away, of int64[width, n]; for sums simply the rows."""
        return int(np.sign(values[0]).sum()) if self._has_weights else values.shape[1]

    def _check(self, selection: Selection) -> None:
        """NegativeWeightError if a row of the selection, complete with all runs, is below 0."""
        if not self._has_weights or not len(selection.totals):
            return
        if selection.totals.min() >= 0:
            return
        at = int(np.argmin(selection.totals[:, 0]))
        columns = self.layout.columns(selection.hits[at : at + 1])
        row = tuple(column.to_list()[0] for column in columns)
        raise NegativeWeightError(self.name, repr(row), int(selection.totals[at, 0]))


def _windows(runs: Sequence[Run], pages: int) -> Iterator[np.ndarray]:
    """Windows of row identities, in order and without gaps, of about so many pages in all runs."""
    window = _EVERYTHING.copy()
    if runs:
        first = np.concatenate([run.first for run in runs])
        first_row = np.concatenate([run.first_row for run in runs])
        order = np.lexsort((first_row, first))[pages::pages]
        for h, r in zip(first[order], first_row[order], strict=True):
            if h == window[0] and r == window[1]:
                continue
            window[2:] = h, r, 1
            yield window
            window = window.copy()
            window[:2] = h, r
    window[2:] = 0
    yield window
