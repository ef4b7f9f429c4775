"""RunSet: the sorted runs that hold the state of one arrangement.

New rows become a small run in memory and a record in the log; enough of them become a run on disk.
Neighbouring runs of like size are merged, and so are runs that searches had to read too often.
Merges advance a few pages at a time, paid for by rows and reads, so that no epoch waits for a large
one. Invariant: the total of a row is the sum of its entries in all runs, and merging never changes
it. Runs are stored and merged in the order of time; hence a merge that starts at the oldest run
must not leave a row with a negative weight.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from storage.delta import Column
from storage.errors import NegativeWeightError
from storage.failpoints import failpoint
from storage.layout import Layout
from storage.merge_policy import (
    EVERYTHING,
    KEYS_A_ROW,
    MergeMeter,
    choose_by_reads,
    choose_merge,
    choose_tail,
    choose_when_idle,
    windows,
)
from storage.page_cache import PageCache
from storage.page_files import PageFiles
from storage.page_reader import PAGES_AT_ONCE, PageReader, merged, track_of
from storage.pages import (
    Page,
    Selection,
    Tuning,
    below_zero,
    order_rows,
    seal_few,
    seal_whole,
    verify,
)
from storage.run_search import EVERY_ROW, RunSearch
from storage.run_writer import RunBuilder, RunWriter
from storage.runs import (
    BULK_RUN,
    LOG,
    PAGE,
    RUN,
    Run,
    RunTable,
    arrangement_range,
    log_key,
    run_key,
    run_pages,
    tracks_of,
)
from storage.store import END
from storage.write_set import WriteSet

_OPEN_FAN = 32
# After so many keys and rows it is examined whether their searches have paid for a merge.
_CHECKED_KEYS = 4096
_SAMPLED_PAGES = 8


class HeldBytes:
    """The bytes of all runs in memory of a store."""

    def __init__(self) -> None:
        self.total = 0


class Shared(NamedTuple):
    """What all arrangements of a store share. pending: those that have merges to do."""

    writes: WriteSet
    cache: PageCache
    tuning: Tuning
    meter: MergeMeter
    pending: dict[RunSet, None]
    files: PageFiles
    held: HeldBytes


class RunSet:
    """All runs of one arrangement. has_weights: the one value of a row must not become negative.
    is_searched: rows are looked up, not only scanned now and then."""

    def __init__(
        self,
        name: str,
        identity: int,
        layout: Layout,
        shared: Shared,
        *,
        has_weights: bool,
        is_searched: bool,
    ) -> None:
        self.name = name
        self.identity = identity
        self.layout = layout
        self.is_searched = is_searched
        self._writes, self._cache, self._files = shared.writes, shared.cache, shared.files
        self._tuning, self._meter = shared.tuning, shared.meter
        self._pending, self._held = shared.pending, shared.held
        self._reader = PageReader(name, identity, layout, self._writes, self._cache)
        self._has_weights = has_weights
        self._table = RunTable()
        self._memory: list[Page] = []
        # Rows of each.
        self._sizes: list[int] = []
        self.memory_bytes = 0
        self._frozen = self._frozen_log = self._next_log = 0
        self._next_run = BULK_RUN + 1
        self._flushing: Generator[int] | None = None
        self._merging: Generator[int] | None = None
        self._credit_rows = 0
        self._last_checked: tuple[list[int], int] = [], 0
        self._searched = 0
        # Whether searches may have paid for a merge since that was last examined.
        self._is_due = False
        self._negative: NegativeWeightError | None = None
        page_rows = self._tuning.page_rows
        self._search = RunSearch(self._table, self._reader, layout, page_rows, self._pay_for_read)
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
        """Return entries that add less entries that remove: about the distinct rows."""
        net = sum(run.net for run in self._table.runs)
        for page in self._memory:
            net += self._net(self.layout.values_of(np.frombuffer(page.sealed, np.uint64)))
        return max(net, 0)

    def distinct_rows(self) -> int:
        """Return about how many distinct rows all runs have, estimated from the lowest hashes."""
        memory = [[page.address] for page in self._memory]
        window = next(windows(tracks_of(self._table.runs), PAGES_AT_ONCE))
        segments, _alive, _ = self._reader.segments(self._table.runs, window)
        rows = len(merged(self.layout, [*segments, *memory], window).hits)
        return int(rows / (int(window[2]) / 2**64)) if window[4] and window[2] else rows

    def is_empty(self) -> bool:
        """Return True if no row was ever added, or all were merged away."""
        return not self._table.runs and not self._memory

    def run_rows(self) -> list[int]:
        """Return the entries of each run, oldest first, those in memory last."""
        return [r.rows for r in self._table.runs] + [p.rows for p in self._memory]

    def about_bytes(self) -> int:
        """Return about how many bytes all runs take, byte strings included.

        A run on disk is estimated from its pages in memory, or else from its rows.
        """
        total = self.memory_bytes
        for run in self._table.runs:
            pages = np.flatnonzero(run.addresses)[:_SAMPLED_PAGES].tolist()
            if pages:
                sample = sum(len(run.buffers[page] or b"") for page in pages)
                total += sample * len(run.numbers) // len(pages)
            else:
                total += self.layout.row_bytes * run.rows
        return total

    def add(self, columns: Sequence[Column], values: np.ndarray) -> None:
        """Add int64[width, n] values to the totals of n rows, which may repeat.

        NegativeWeightError: a merge has found one, now or since the last call.
        """
        n = values.shape[1]
        if n == 0:
            return
        image = self.layout.image(columns, values)
        page = seal_few(self.layout, image) if n <= 2 < self._tuning.memory_rows else None
        if page is not None:
            self._meter.take_in(n)
            self._remember(page)
            self._earn(n)
            return
        selection = order_rows(self.layout, image)
        rows = len(selection.hits)
        if rows == 0:
            return
        self._meter.take_in(rows)
        if rows < self._tuning.memory_rows:
            self._remember(seal_whole(self.layout, selection))
        else:
            self._flush_with(selection)
        self._earn(rows)

    def _earn(self, rows: int) -> None:
        """Do the merges that so many applied rows pay for."""
        self._credit_rows += self._tuning.fuel * (1 + len(self._table.runs) // 12) * rows
        self.work()
        self._cache.shrink()
        self._check()

    def flush(self) -> None:
        """Write the memory runs as one run on disk; no search may be open."""
        if self._memory:
            self._flush_with(None)

    def _remember(self, page: Page) -> None:
        """Add a page to the log and to memory, as its own run."""
        self._writes.put(log_key(self.identity, self._next_log), page.sealed)
        self._next_log += 1
        self._memory.append(page)
        self._sizes.append(page.rows)
        self._hold(self.memory_bytes + len(page.sealed))
        sizes = self._sizes[self._frozen :]
        if sum(sizes) >= self._tuning.memory_rows:
            self._finish_flush()
            self._frozen, self._frozen_log = len(self._memory), self._next_log
            self._flushing = self._flush_steps()
        else:
            self._merge_tail(sizes)
        self._search.set_memory(self._memory)

    def _merge_tail(self, sizes: list[int]) -> None:
        """Merge the newest memory runs, which have so many rows, where a new one calls for it."""
        while (start := choose_tail(sizes, self._tuning.fan)) is not None:
            rows, count = sum(sizes[start:]), len(sizes) - start
            if 4 * rows > self._tuning.memory_rows:
                break
            self._merge_memory(start + self._frozen, len(self._memory), count)
            self._set_memory(self._memory)
            sizes = self._sizes[self._frozen :]

    def _set_memory(self, pages: list[Page]) -> None:
        self._memory = pages
        self._sizes = [page.rows for page in pages]
        self._hold(sum(len(page.sealed) for page in pages))
        self._search.set_memory(pages)

    def _hold(self, size_bytes: int) -> None:
        self._held.total += size_bytes - self.memory_bytes
        self.memory_bytes = size_bytes

    def _merge_memory(self, start: int, stop: int, fan: int) -> None:
        """Merge each `fan` neighbours of the memory runs in [start, stop) into one."""
        parts = [self._memory[at : min(at + fan, stop)] for at in range(start, stop, fan)]
        addresses = ([[page.address] for page in pages] for pages in parts)
        selections = (merged(self.layout, found, EVERYTHING) for found in addresses)
        self._memory[start:stop] = [seal_whole(self.layout, s) for s in selections if len(s.hits)]

    def _flush_with(self, selection: Selection | None) -> None:
        """Write all memory runs and a large selection as one run on disk, and empty the log."""
        self._finish_flush()
        pages = self._memory
        if selection is None or pages:
            pages = pages if selection is None else [*pages, seal_whole(self.layout, selection)]
            selection = merged(self.layout, [[page.address] for page in pages], EVERYTHING)
            self._writes.remove_range(*arrangement_range(LOG, self.identity))
        if not self._table.runs:
            self._note(selection)
        with self._new_run(len(selection.hits)) as builder:
            builder.write(selection, self._net(selection.totals.T), is_hot=True)
            self._enter_run(builder)
        self._set_memory([])

    def _flush_steps(self) -> Generator[int]:
        """Write the frozen memory runs as one run on disk; yield the rows after each step."""
        memory = self._memory[: self._frozen]
        is_oldest = not self._table.runs
        tracks = [track_of(self.layout, page, self._tuning.page_rows) for page in memory]
        with self._new_run(sum(page.rows for page in memory)) as builder:
            for window in windows(tracks, self._tuning.merge_pages):
                selection = merged(self.layout, [[page.address] for page in memory], window)
                if is_oldest:
                    self._note(selection)
                builder.write(selection, self._net(selection.totals.T), is_hot=True)
                failpoint("merge.flush.step")
                yield max(len(selection.hits), 1)
            start, _ = arrangement_range(LOG, self.identity)
            self._writes.remove_range(start, log_key(self.identity, self._frozen_log))
            self._enter_run(builder)
        self._set_memory(self._memory[self._frozen :])
        self._frozen = 0

    def _finish_flush(self) -> None:
        """Complete a flush that is in progress."""
        for rows in self._flushing or ():
            self._meter.count(rows)
        self._flushing = None

    def _new_run(self, rows: int) -> RunBuilder:
        """Return the builder of a run of at most so many rows."""
        number = self._next_run
        self._next_run += 1
        file, put = None, self._writes.put_ahead
        # The commit removes ranges first: a removed range must not be stored before it.
        is_removed = self._writes.removes(run_pages(self.identity, number)[0])
        if rows >= self._tuning.file_rows and not is_removed:
            file = self._files.open()
            put = file.put
        writer = RunWriter(put, self.identity, number)
        return RunBuilder(writer, self._cache, self.layout, self._tuning, file)

    def _enter_run(self, builder: RunBuilder, span: tuple[int, int] | None = None) -> None:
        """Put the written run in the place of runs[start:stop], or as the newest one."""
        start, stop = span or (len(self._table.runs), len(self._table.runs))
        replaced = self._table.runs[start:stop]
        for old in replaced:
            self._cache.release(old)
            self._writes.remove_range(*run_pages(self.identity, old.identity))
            self._writes.put(run_key(self.identity, old.identity), None)
        run = builder.finish(max((old.age for old in replaced), default=None))
        if run is not None:
            run.searched = self._searched
            self._writes.put(run_key(self.identity, run.identity), run.encode())
        self._table.replace(start, stop, [] if run is None else [run])

    def _read_filters(self, run: Run) -> None:
        """Cache the filters of a stored run, as far as there is space for them."""
        if self._cache.has_space_for_filters(run.rows // 8):
            self._cache.take_filters(run, self._writes.read(run.group_keys(self.identity)))

    def ingest(self, run: Run) -> None:
        """Take a run whose pages, filters and directory are already stored as the only one."""
        self._read_filters(run)
        self._table.replace(0, 0, [run])

    def warm(self, start: int, pages: int) -> int:
        """Cache pages of the run that was ingested, as `PageReader.warm`; 0 after the last one."""
        runs = self._table.runs
        if not runs or runs[0].identity != BULK_RUN or start >= len(runs[0].numbers):
            return 0
        return self._reader.warm(runs[0], start, pages)

    def discard(self) -> None:
        """Drop everything in memory and remove everything stored."""
        self._forget()
        self.remove(self._writes, self.identity)

    def clear(self) -> None:
        """Remove every row; later runs have other numbers and may be written ahead."""
        self._forget()
        first, after = (run_pages(self.identity, n)[0] for n in (BULK_RUN, self._next_run))
        self._writes.remove_range(first, after)
        for kind in (RUN, LOG):
            self._writes.remove_range(*arrangement_range(kind, self.identity))

    def _forget(self) -> None:
        self.leave_memory()
        self._table.replace(0, len(self._table.runs), [])
        self._set_memory([])
        self._frozen = self._credit_rows = 0
        self._is_due = False
        self._negative = None
        self._pending.pop(self, None)

    def leave_memory(self) -> None:
        """Give back what the cache has of all runs, and stop the merges; the store is closing."""
        for run in self._table.runs:
            self._cache.release(run)
        for steps in (self._flushing, self._merging):
            if steps is not None:
                steps.close()
        self._flushing = self._merging = None

    @staticmethod
    def remove(writes: WriteSet, identity: int) -> None:
        """Remove everything stored for an arrangement, open or not."""
        for kind in (PAGE, RUN, LOG):
            writes.remove_range(*arrangement_range(kind, identity))

    def work(self) -> None:
        """Do the merges that rows and reads have paid for, as far as the epoch allows."""
        while self._credit_rows > 0 and self._meter.is_open():
            if self._flushing is None and self._merging is None:
                self._merging = self._next_merge()
                if self._merging is None:
                    self._credit_rows = 0
                    break
            self._credit_rows -= self._step()
        self._pending.pop(self, None)
        if self._credit_rows > 0 or self._is_due:
            self._pending[self] = None

    def _step(self) -> int:
        """Do a step of the flush or merge in progress; return its rows, 0 at its end."""
        done = next(self._flushing or self._merging or iter(()), None)
        if done is not None:
            self._meter.count(done)
            return done
        if self._flushing is not None:
            self._flushing = None
        else:
            self._merging = None
        return 0

    def _next_merge(self) -> Generator[int] | None:
        fan = self._tuning.fan * self._cache.growth(self._tuning.fan_growth)
        standing = [run.rows for run in self._table.runs], fan
        chosen = None if standing == self._last_checked else choose_merge(*standing)
        self._last_checked = standing
        return self._merge_steps(*chosen) if chosen else None

    def work_for_reads(self) -> None:
        """Start a merge that searches have paid for, if there is one, and work."""
        self._is_due = False
        if self._merging is None:
            runs = self._table.runs
            reads = [run.reads + (self._searched - run.searched) // KEYS_A_ROW for run in runs]
            chosen = choose_by_reads([run.rows for run in runs], reads)
            if chosen is not None:
                self._merging = self._merge_steps(*chosen)
                # One more: the last step enters the run.
                self._credit_rows += sum(run.rows for run in runs[chosen[0] :]) + 1
        self.work()

    def work_when_idle(self) -> bool:
        """Do a step of a merge that nothing has paid for yet; return whether there was one."""
        if self._flushing is None and self._merging is None:
            runs = self._table.runs
            start = choose_when_idle([run.rows for run in runs])
            if start is None:
                return False
            self._merging = self._merge_steps(start, len(runs))
        self._step()
        return True

    def _merge_steps(self, start: int, stop: int) -> Generator[int]:
        """Merge runs[start:stop]; yield the rows after each step. Newer runs may come."""
        runs = self._table.runs[start:stop]
        with self._new_run(sum(run.rows for run in runs)) as builder:
            step = self._tuning.step_pages([len(run.first) for run in runs])
            for window in windows(tracks_of(runs), step):
                segments, alive, resident = self._reader.segments(runs, window)
                selection = merged(self.layout, segments, window)
                if start == 0:
                    self._note(selection)
                is_hot = 2 * resident > sum(map(len, segments))
                builder.write(selection, self._net(selection.totals.T), is_hot=is_hot)
                del alive
                failpoint("merge.runs.step")
                yield max(len(selection.hits), 1)
            self._enter_run(builder, (start, stop))
            failpoint("merge.runs.entered")

    def find(
        self, hashes: np.ndarray, max_rows: int = EVERY_ROW
    ) -> Iterator[tuple[int, Selection]]:
        """Yield rows whose key hash is among n sorted hashes; see `RunSearch.find`.

        Between two parts runs may be flushed; nothing may be added.
        """
        self._charge(len(hashes))
        for shift, selection in self._search.find(hashes, max_rows):
            self._check(selection)
            self._charge(len(selection.hits))
            yield shift, selection
            self._cache.shrink()

    def _charge(self, count: int) -> None:
        """Count so many keys that were searched, or rows that were found, in each run."""
        before, self._searched = self._searched, self._searched + count
        if before // _CHECKED_KEYS < self._searched // _CHECKED_KEYS:
            self._set_due()

    def _pay_for_read(self, rows: int) -> None:
        """Count the rows of pages that a search had to read."""
        self._meter.read(rows)
        if self._flushing is not None or self._merging is not None:
            self._credit_rows += rows // 2
        self._set_due()

    def _set_due(self) -> None:
        """Have it examined at the commit whether searches have paid for a merge."""
        self._is_due = True
        self._pending[self] = None

    def scan(self) -> Iterator[Selection]:
        """Yield all rows in order, each once, in parts by tuning.scan_pages; see `find`."""
        for _, selection in self.scan_from(0):
            if len(selection.hits):
                yield selection

    def scan_from(self, start: int) -> Iterator[tuple[int, Selection]]:
        """Yield the parts of `scan` that reach beyond a key hash, each with the hash where the next
        one begins; END with the last part."""
        for window in windows(tracks_of(self._table.runs), self._tuning.scan_pages):
            end = int(window[2]) if window[4] else END
            if end <= start and end != END:
                continue
            segments, alive, _ = self._reader.segments(self._table.runs, window)
            memory = [[page.address] for page in self._memory]
            selection = merged(self.layout, [*segments, *memory], window)
            self._check(selection)
            yield end, selection
            del alive

    def _net(self, values: np.ndarray) -> int:
        """Return rows that add less rows that remove, of int64[width, n]; for sums
        simply the rows.
        """
        return int(np.sign(values[0]).sum()) if self._has_weights else values.shape[1]

    def _note(self, selection: Selection) -> None:
        """Record a negative total. No caller runs a merge, so the next `add` raises it."""
        if self._has_weights and self._negative is None:
            self._negative = below_zero(self.name, self.layout, selection)

    def _check(self, selection: Selection | None = None) -> None:
        if selection is not None:
            self._note(selection)
        if self._negative is not None:
            raise self._negative
