"""RocksStore: the product's state in one RocksDB directory.

A commit is one write batch with the new pages, directories and log records of all arrangements, and
the named values. Invariant: the state on disk is always that after some commit; after a crash of
the process it is that after the last one. RocksDB has no reads through an open batch, so the open
epoch is buffered (`storage.write_set`) and every read goes through it. One thread, except where
`storage.store` says otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from rocksdict import BlockBasedOptions, Cache, IngestExternalFileOptions, Options, Rdict

from storage.arrangement import RocksArrangement, RocksSums
from storage.bulk import BulkWriter, first_rows, identity_of, page_numbers, raw_options
from storage.copies import copy_database, value_in_copy
from storage.errors import OutOfSpaceError, StorageError
from storage.failpoints import failpoint
from storage.faults import named
from storage.layout import Layout
from storage.merge_policy import MergeMeter
from storage.page_cache import PageCache
from storage.page_files import PageFiles
from storage.pages import Tuning, verify
from storage.run_set import HeldBytes, RunSet, Shared
from storage.runs import (
    BULK_RUN,
    PAGE,
    RUN,
    Run,
    arrangement_range,
    page_key,
    run_key,
    run_pages,
)
from storage.seal import Seal
from storage.store import ArrangementSpec, BulkFile, SumsSpec, Watch
from storage.write_set import WriteSet, check_cursor, stored, stored_keys

FORMAT = b"tidemark 4"
_FORMAT_KEY = b"f"
_FILES = "unfinished"
_UNSEARCHED_FAN = 4
# A commit caches at most so many pages of what was ingested, and one for so many applied rows: a
# small epoch does not wait for them.
_WARMED_PAGES, _ROWS_A_PAGE = 64, 4
_TUNING = Tuning(page_growth=4, fan_growth=4)
_SPEC = b"a"
_VALUE = b"v"
_LEVEL_BYTES = 512 << 20
_LEVEL_ZERO_FILES = 16


def named_value(folder: Path, key: str) -> bytes | None:
    """Return a named value in a copy of a state. StorageError state.corrupt, state.io."""
    return value_in_copy(folder, _VALUE + key.encode())


@dataclass(frozen=True)
class StoreBudget:
    """Memory beside the page cache.

    run_bytes: small runs not yet on disk, over all arrangements. ahead_bytes: pages of the open
    epoch. write_buffer_bytes: RocksDB's own, of which it has two.
    """

    run_bytes: int = 256 << 20
    ahead_bytes: int = 32 << 20
    write_buffer_bytes: int = 64 << 20


def _options(budget: StoreBudget, *, direct_reads: bool) -> Options:
    options = raw_options(compress=False)
    options.create_if_missing(True)
    options.set_use_direct_reads(direct_reads)
    options.set_write_buffer_size(budget.write_buffer_bytes)
    options.set_max_background_jobs(2)
    options.set_max_bytes_for_level_base(_LEVEL_BYTES)
    # Pages are never overwritten: compaction only frees space, so it may wait.
    options.set_level_zero_file_num_compaction_trigger(_LEVEL_ZERO_FILES)
    options.set_level_zero_slowdown_writes_trigger(3 * _LEVEL_ZERO_FILES)
    options.set_level_zero_stop_writes_trigger(4 * _LEVEL_ZERO_FILES)
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(1 << 20)
    blocks = BlockBasedOptions()
    blocks.set_block_cache(Cache(8 << 20))
    blocks.set_block_size(16 << 10)
    blocks.set_bloom_filter(10, False)
    options.set_block_based_table_factory(blocks)
    return options


def _open(path: str, options: Options) -> Rdict:
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
        return Rdict(path, options)
    except Exception as error:
        text = str(error)
        if "lock file" in text.lower() or "lock hold" in text.lower():
            hint = "stop the other service or choose another state directory"
            raise StorageError("state.locked", f'"{path}" is in use', hint) from error
        raise named(error, f'cannot open "{path}"') from error


class RocksStore:
    """Arrangements and named values in the directory `path`; one service at a time.

    cache_bytes: budget for pages in memory, over all arrangements, or a cache that stores of this
    thread share; budget: for the rest.
    direct_reads: bypass the cache of the operating system, to measure a cold disk. watch: the
    memory of the process; under pressure the page cache shrinks. StorageError state.locked,
    state.version, state.corrupt, state.io on opening.
    """

    def __init__(
        self,
        path: str | Path,
        cache_bytes: int | PageCache = 256 << 20,
        tuning: Tuning | None = None,
        budget: StoreBudget | None = None,
        *,
        direct_reads: bool = False,
        watch: Watch | None = None,
    ) -> None:
        self.path = str(path)
        self._watch = watch
        self._budget = budget or StoreBudget()
        self._seal = Seal(Path(self.path))
        self._seal.check_files()
        self._db = _open(self.path, _options(self._budget, direct_reads=direct_reads))
        self._tuning = tuning or _TUNING
        self._writes = WriteSet(self._db, self._seal, self._budget.ahead_bytes)
        self._open: dict[str, tuple[str, RunSet]] = {}
        is_shared = isinstance(cache_bytes, PageCache)
        self.cache = cache_bytes if is_shared else PageCache(cache_bytes)
        self._shares_cache = is_shared
        self.meter = MergeMeter(self._tuning.epoch_merge_rows, self._tuning.fuel)
        self._pending: dict[RunSet, None] = {}
        self._held = HeldBytes()
        # Of runs that were ingested, whose pages are not all cached: the position of the next one.
        self._cold: dict[RunSet, int] = {}
        try:
            folder = Path(self.path) / _FILES
            self._files = PageFiles(self._db, folder, raw_options(compress=False))
            self._check_format()
            self._seal.check_commits(self._db)
            self._specs = self._read_specs()
            self._remove_left_overs()
        except BaseException as error:
            try:
                self._db.close()
            except Exception as refusal:
                # A damaged database may also refuse to close; report the damage.
                error.add_note(f"closing it failed too: {refusal}")
            raise

    def _check_format(self) -> None:
        found = stored(self._db, _FORMAT_KEY)
        if found is None and not stored_keys(self._db, b"", b"\xff"):
            failpoint("state.create.unmarked")
            self._db.put(_FORMAT_KEY, FORMAT)
        elif found != FORMAT:
            detail = f'"{self.path}" has state format {found!r}, this version reads {FORMAT!r}'
            hint = (
                "run the version that created it, or move the directory away to rebuild all views"
            )
            raise StorageError("state.version", detail, hint)

    def _read_specs(self) -> dict[str, str]:
        keys = stored_keys(self._db, _SPEC, _SPEC + b"\xff")
        return {key[1:].decode(): (stored(self._db, key) or b"").decode() for key in keys}

    def _remove_left_overs(self) -> None:
        """Remove pages whose run was never finished: a merge or a bulk load was interrupted."""
        identities = {identity_of(name) for name in self._specs}
        runs = set(stored_keys(self._db, RUN, RUN + b"\xff" * 16))
        cursor = self._db.iter()
        cursor.seek(PAGE)
        stale = []
        while cursor.valid() and cursor.key()[:1] == PAGE:
            key = cursor.key()
            identity, run = int.from_bytes(key[1:9], "big"), int.from_bytes(key[9:13], "big")
            start, stop = run_pages(identity, run)
            if identity not in identities or run_key(identity, run) not in runs:
                stale.append((start, stop))
            cursor.seek(stop)
        check_cursor(cursor)
        del cursor
        for start, stop in stale:
            self._db.delete_range(start, stop)

    def arrange(self, spec: ArrangementSpec) -> RocksArrangement:
        """Open or create. StorageError state.mismatch if it exists with another shape."""
        shape = {"kind": "rows", "kinds": spec.kinds, "key": list(spec.key)}
        runs = self._run_set(spec, json.dumps(shape), has_weights=True)
        return RocksArrangement(spec, runs, self.require_space)

    def arrange_sums(self, spec: SumsSpec) -> RocksSums:
        """Open or create. StorageError state.mismatch if it exists with another shape."""
        shape = {"kind": "sums", "kinds": spec.key_kinds, "width": spec.width}
        return RocksSums(spec, self._run_set(spec, json.dumps(shape), has_weights=False))

    def _run_set(
        self, spec: ArrangementSpec | SumsSpec, shape: str, *, has_weights: bool
    ) -> RunSet:
        name = spec.name
        identity = identity_of(name)
        stored = self._specs.get(name)
        if stored is None:
            if any(identity_of(other) == identity for other in self._specs):
                raise StorageError("state.mismatch", f'"{name}" has the number of another')
            self._writes.put(_SPEC + name.encode(), shape.encode())
            self._specs[name] = shape
        elif stored != shape:
            detail = f'"{name}" exists as {stored}, not as {shape}'
            raise StorageError("state.mismatch", detail, "rebuild the view that owns it")
        if name not in self._open:
            tuning = self._tuning
            is_searched = isinstance(spec, SumsSpec) or spec.is_searched
            if not is_searched:
                # Runs that no search reads may be many.
                tuning = replace(tuning, fan=_UNSEARCHED_FAN * tuning.fan, fan_growth=1)
            parts = self._writes, self.cache, tuning, self.meter, self._pending
            shared = Shared(*parts, self._files, self._held)
            runs = RunSet(
                name,
                identity,
                Layout.of(spec),
                shared,
                has_weights=has_weights,
                is_searched=is_searched,
            )
            self._open[name] = (shape, runs)
        return self._open[name][1]

    def drop(self, prefix: str) -> None:
        """Remove every arrangement whose name starts with prefix; part of the open epoch."""
        for name in [name for name in self._specs if name.startswith(prefix)]:
            identity = identity_of(name)
            if name in self._open:
                self._open.pop(name)[1].discard()
            else:
                RunSet.remove(self._writes, identity)
            self._writes.put(_SPEC + name.encode(), None)
            del self._specs[name]

    def names(self) -> list[str]:
        """Return the names of all arrangements and sums, open or not."""
        return list(self._specs)

    def size(self, name: str) -> tuple[int, int]:
        """Return about (rows, bytes) of an open arrangement or sums; see the contract."""
        if name not in self._open:
            return 0, 0
        runs = self._open[name][1]
        return sum(runs.run_rows()), runs.about_bytes()

    def disk_bytes(self) -> int:
        """Return the bytes of all files of the state, as RocksDB counts them."""
        return self._db.property_int_value("rocksdb.total-sst-files-size") or 0

    def put(self, key: str, value: bytes | None) -> None:
        """Set (None: remove) a named value; part of the open epoch, visible to get at once."""
        self._writes.put(_VALUE + key.encode(), value)

    def put_ahead(self, key: str, value: bytes) -> None:
        """Set a named value that may be on disk before the commit; see the contract."""
        self._writes.put_ahead(_VALUE + key.encode(), value)

    def get(self, key: str) -> bytes | None:
        """Return a named value, or None; committed ones from any thread."""
        return self._writes.get(_VALUE + key.encode())

    def items(self, prefix: str) -> Iterator[tuple[str, bytes]]:
        """Yield named values whose key starts with prefix, in key order."""
        start = _VALUE + prefix.encode()
        for key in self._writes.scan(start, start + b"\xff"):
            value = self._writes.get(key)
            if value is not None:
                yield key[1:].decode(), value

    def relieve(self) -> None:
        """Flush the largest memory runs to disk while all of them exceed their budget.

        Then shrink the page cache as far as the process as a whole requires.
        """
        self._flush_largest()
        if self._watch is not None:
            self._watch.check(self.cache)

    def require_space(self, nbytes: int) -> None:
        """Raise OutOfSpaceError unless the process may use so many bytes more."""
        if self._watch is not None and not self._watch.has_space(nbytes, self.cache):
            raise OutOfSpaceError(nbytes)

    def _flush_largest(self) -> None:
        held_bytes = self._held.total
        if held_bytes <= self._budget.run_bytes:
            return
        runs = [runs for _, runs in self._open.values()]
        for largest in sorted(runs, key=lambda r: -r.memory_bytes):
            held_bytes -= largest.memory_bytes
            largest.flush()
            if held_bytes <= self._budget.run_bytes // 2:
                break

    def commit(self, *, sync: bool = False) -> None:
        """Write everything since the last commit atomically; see the contract."""
        self.relieve()
        for runs in list(self._pending):
            runs.work_for_reads()
        self.warm(min(_WARMED_PAGES, self.meter.applied_rows // _ROWS_A_PAGE))
        self.meter.end_epoch()
        failpoint("state.commit.before")
        self._writes.commit(sync=sync)
        failpoint("state.commit.after")

    def sync(self) -> None:
        """Wait until every commit so far is durable."""
        self._writes.sync()

    def ingest(self, files: Sequence[BulkFile]) -> None:
        """Ingest the files of `BulkWriter` as the whole content of their still empty arrangements.

        Each must have been arranged before. Durable on return, independent of the epoch; the files
        are moved. StorageError state.mismatch: an arrangement is unknown, is not empty, was dropped
        in the open epoch, or has another shape.
        """
        by_name: dict[str, list[BulkFile]] = {}
        for file in sorted(files, key=lambda f: f.partition):
            if file.pages:
                by_name.setdefault(file.name, []).append(file)
        for name in by_name:
            self._check_ingest(name)
        paths = [file.path for parts in by_name.values() for file in parts]
        if not paths:
            return
        options = IngestExternalFileOptions()
        options.set_move_files(True)
        try:
            for name in by_name:
                self._db.delete_range(*run_pages(identity_of(name), BULK_RUN))
            failpoint("state.ingest.before")
            self._db.ingest_external_file(paths, options)
            failpoint("state.ingest.unlisted")
        except Exception as error:
            raise named(error, "cannot ingest files of a backfill") from error
        durable = WriteSet(self._db, self._seal)
        taken = {name: self._bulk_run(name, parts) for name, parts in by_name.items()}
        for name, run in taken.items():
            durable.put(_SPEC + name.encode(), self._open[name][0].encode())
            durable.put(run_key(identity_of(name), BULK_RUN), run.encode())
        durable.commit(sync=True)
        failpoint("state.ingest.after")
        for name, run in taken.items():
            runs = self._open[name][1]
            runs.ingest(run)
            if runs.is_searched:
                self._cold[runs] = 0

    def warm(self, pages: int) -> bool:
        """Cache up to so many pages of what was ingested last, while there is space; return whether
        there are more.

        Large commits do a part of it, so that what a backfill has written is not read page by page
        when the first changes look for it.
        """
        while self._cold and pages > 0:
            runs, start = self._cold.popitem()
            after = runs.warm(start, pages)
            pages -= max(after - start, 0)
            if after:
                self._cold[runs] = after
        return bool(self._cold)

    def merge_when_idle(self) -> bool:
        """Merge runs that searches read, as much as one epoch may; see the contract."""
        is_any = False
        for _, runs in list(self._open.values()):
            while runs.is_searched and self.meter.is_open() and runs.work_when_idle():
                is_any = True
        return is_any

    def _check_ingest(self, name: str) -> None:
        if name not in self._open:
            raise StorageError("state.mismatch", f'bulk file for unknown "{name}"', "arrange it")
        if not self._open[name][1].is_empty():
            raise StorageError("state.mismatch", f'bulk file for "{name}", which is not empty')
        if self._writes.removes(arrangement_range(PAGE, identity_of(name))[0]):
            detail = f'bulk file for "{name}", which the open epoch drops or clears'
            raise StorageError("state.mismatch", detail, "commit first")

    def _bulk_run(self, name: str, files: Sequence[BulkFile]) -> Run:
        numbers = np.concatenate([page_numbers(file) for file in files])
        rows = sum(file.rows for file in files)
        run = Run(BULK_RUN, 0, (rows, rows), numbers)
        run.first[:], run.first_row[:] = np.concatenate([first_rows(f) for f in files], axis=1)
        for at in range(0, len(numbers), max(len(numbers) - 1, 1)):
            sealed = stored(self._db, page_key(identity_of(name), BULK_RUN, int(numbers[at])))
            verify(sealed, self._open[name][1].layout, f'bulk page of "{name}"')
        return run

    def write_file(self, spec: ArrangementSpec | SumsSpec, path: str) -> BulkFile:
        """Write the rows of a state as one file at `path`, for `ingest`; they are in order."""
        opened = (
            self.arrange(spec) if isinstance(spec, ArrangementSpec) else self.arrange_sums(spec)
        )
        return BulkWriter(spec, 0, 1, path).write_ordered(opened.runs.scan())

    def copy_to(self, folder: Path) -> None:
        """Copy the state at the newest commit; see the contract."""
        copy_database(self._db, folder)

    def close(self) -> None:
        """Release the state directory. Uncommitted writes are dropped.

        StorageError state.io, state.disk_full: the committed state is intact, and the next start
        finds it.
        """
        if self._shares_cache:
            for _, runs in self._open.values():
                runs.leave_memory()
        self._open.clear()
        self._seal.close()
        try:
            self._db.close()
        except Exception as error:
            raise named(error, "cannot close the state") from error
