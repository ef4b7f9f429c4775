"""The engine alone: operators over RocksDB, one durable commit an epoch, no network.

A run is a child process, so its memory is its own. It warms up with a small workload, takes the
state that another process has loaded, steps through the changes in epochs of given sizes, and
compares its answer with the oracle's. Reading rows from disk and turning them into columns is the
source's work and is not timed.

Under the default replica identity, updates arrive without their old rows and deletes with their
keys only, as the replication stream sends them; old rows come from our own state. Under FULL they
arrive whole, which is also what the peers get.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from bench.measure import in_child, peak_rss_mb, percentile, reset_peak_rss_mb
from bench.rows import DELETE, OLD, Columns, Generated
from bench.workloads import Answer, Table, Workload, difference, fold
from connectors.sink import SinkTable
from connectors.source import SourceBatch
from dataflow.changes import Changes
from dataflow.delta import KIND_BYTES, Column, Delta
from dataflow.expressions.evaluator import NoEvaluator
from dataflow.plan.nodes import ViewPlan
from dataflow.schema import Field, Relation
from dataflow.values import to_text
from service.engine.engine import Engine, View, ViewDefinition
from service.runtime.memory_budget import (
    MEBIBYTE,
    MemoryBudget,
    calm_collector,
    calm_malloc,
)
from service.runtime.memory_watch import INTERVAL_S, MemoryWatch
from storage.memory import MemoryStore
from storage.rocks import RocksStore, StoreBudget
from storage.store import BulkFile

SOURCE = "source"
MEMORY_MB = 1024  # as the service takes by itself
LOAD_ROWS = 65_536
WARMED_PAGES = 1024
BLOCK_CHANGES = 50_000


@dataclass(frozen=True)
class Stage:
    """`count` epochs of `size` changes each, or as many as the changes allow."""

    size: int
    count: int | None = None


@dataclass(frozen=True)
class Job:
    """One run. stages: executed in order. is_full: old rows arrive whole. memory_mb: the value of
    `--memory`.
    """

    workload: Workload
    plan: ViewPlan
    rows: Generated
    warm_up: Generated
    stages: tuple[Stage, ...]
    is_full: bool = False
    memory_mb: int = MEMORY_MB


@dataclass(frozen=True)
class Timed:
    """A stage: wall and CPU seconds of its steps and commits, and those of each epoch."""

    size: int
    changes: int
    wall_s: float
    cpu_s: float
    p50_ms: float
    p99_ms: float


@dataclass
class Result:
    """The result of a run. load_rows: of all tables. fault: how the answer is wrong; None if it is
    right.
    """

    load_rows: int = 0
    load_s: float = 0.0
    load_cpu_s: float = 0.0
    stages: list[Timed] = field(default_factory=list)
    peak_rss_mb: float = 0.0
    fault: str | None = None


def measure(job: Job) -> Result:
    """Load the rows in one process, as a backfill does, and run the job in another."""
    with TemporaryDirectory(prefix="tidemark-bench-") as folder:
        loaded = in_child(_load_warm, job, Path(folder))
        return in_child(_run_warm, job, Path(folder), loaded)


def run(job: Job) -> Result:
    """Load and run the job in this process."""
    with TemporaryDirectory(prefix="tidemark-bench-") as folder:
        return _run_warm(job, Path(folder), load(job, job.rows, Path(folder)))


def _load_warm(job: Job, folder: Path) -> Loaded:
    with TemporaryDirectory(prefix="tidemark-bench-") as small:
        load(job, job.warm_up, Path(small))
    return load(job, job.rows, folder)


def _run_warm(job: Job, folder: Path, loaded: Loaded) -> Result:
    calm_malloc()
    # Twice: compiled loops are there after the first, the second leaves what allocators keep.
    for _ in range(2):
        with TemporaryDirectory(prefix="tidemark-bench-") as small:
            place = Path(small)
            _Run(job, job.warm_up, place).run(load(job, job.warm_up, place))
    calm_collector()
    reset_peak_rss_mb()
    return _Run(job, job.rows, folder).run(loaded)


@dataclass(frozen=True)
class Loaded:
    """A view's state after the initial rows, as files, and its first rows."""

    files: Sequence[BulkFile]
    output: Sequence[Delta]
    rows: int
    wall_s: float
    cpu_s: float


def load(job: Job, rows: Generated, folder: Path) -> Loaded:
    """Load as the local backfill does: in memory, relation by relation, then as files."""
    memory, timer, output, total = MemoryStore(), Timer(), [], 0
    definition = definition_of(job)
    view = View(definition, memory, NoEvaluator())
    with timer:
        output.append(view.dataflow.seed())
    relations = {r.name.name: r for r in definition.relations()}
    for table in job.workload.tables:
        relation = relations[table.name]
        count = rows.count(table, "load")
        if not count:
            continue
        delta = _initial_rows(rows, table, view.dataflow.needed_columns()[relation.name], count)
        with timer:
            view.tables[relation.name].load(delta)
            output.append(view.step({relation.name: delta}))
        total += count
    with timer:
        files = memory.write_files(folder)
    return Loaded(files, output, total, timer.wall_s, timer.cpu_s)


def _initial_rows(rows: Generated, table: Table, needed: Sequence[int], count: int) -> Delta:
    chunks = []
    for low in range(0, count, LOAD_ROWS):
        high = min(low + LOAD_ROWS, count)
        columns = columns_of(rows, table, rows.read(table, "load", table.names, low, high))
        chunks.append(Delta([columns[c] for c in needed], np.ones(high - low, np.int64)))
    return Delta.concat(chunks)


def definition_of(job: Job) -> ViewDefinition:
    """Return the one view of a run."""
    table = SinkTable("public", "kept", job.plan.root.fields, job.plan.key)
    return ViewDefinition("bench", table, job.workload.query, job.plan)


class _Run:
    """A store, an engine and one view over rows."""

    def __init__(self, job: Job, rows: Generated, folder: Path) -> None:
        self._job, self._rows = job, rows
        fields = job.plan.root.fields
        self._output = Output(job.workload, fields)
        definition = definition_of(job)
        budget = MemoryBudget.of(job.memory_mb)
        rest = StoreBudget(budget.runs, budget.ahead, budget.write_buffer)
        watch = MemoryWatch(job.memory_mb * MEBIBYTE, interval_s=INTERVAL_S)
        self._store = RocksStore(
            folder / "store", cache_bytes=budget.cache, budget=rest, watch=watch
        )
        self._engine = Engine(self._store, NoEvaluator(), SOURCE, budget.epoch)
        self._view = View(definition, self._store, NoEvaluator())
        self._relations = {r.name.name: r for r in definition.relations()}

    def run(self, loaded: Loaded) -> Result:
        """Take the initial state, step through all stages, and compare."""
        result = Result(loaded.rows, loaded.wall_s, loaded.cpu_s)
        self._take(loaded, result)
        batches = self._batches()
        for stage in self._job.stages:
            result.stages.append(self._stage(stage, batches))
        self._store.close()
        result.peak_rss_mb = peak_rss_mb()
        expected = self._rows.answer(self._job.workload)
        result.fault = difference(expected, self._output.answer())
        return result

    def _take(self, loaded: Loaded, result: Result) -> None:
        timer = Timer()
        for delta in loaded.output:
            self._output.add(delta)
        with timer:
            self._store.ingest(loaded.files)
            self._engine.add(self._view)
            self._store.commit()
            # As the commits of a service do by and by.
            while self._store.warm(WARMED_PAGES):
                self._store.relieve()
        result.load_s += timer.wall_s
        result.load_cpu_s += timer.cpu_s

    def _stage(self, stage: Stage, batches: BatchReader) -> Timed:
        engine, seconds, changes, timer = self._engine, [], 0, Timer()
        while stage.count is None or len(seconds) < stage.count:
            batch = batches.next(stage.size)
            if batch is None:
                break
            with timer:
                epoch = engine.step(batch)
            taken_s = timer.last_s
            for part in epoch.rows.parts():
                for _, delta in part.deltas:
                    self._output.add(delta)
            with timer:
                engine.commit(epoch, written=epoch.progress.epoch - 1)
            seconds.append(taken_s + timer.last_s)
            changes += batch.transactions
        p50, p99 = (percentile(seconds, share) * 1e3 if seconds else 0.0 for share in (0.5, 0.99))
        return Timed(stage.size, changes, timer.wall_s, timer.cpu_s, p50, p99)

    def _batches(self) -> BatchReader:
        tables = [(t, self._relations[t.name]) for t in self._job.workload.stream]
        return BatchReader(self._rows, tables, is_full=self._job.is_full)


class Timer:
    """Sums wall and CPU seconds (of all threads) over its `with` blocks."""

    def __init__(self) -> None:
        self.wall_s = self.cpu_s = self.last_s = 0.0

    def __enter__(self) -> None:
        self._cpu_s, self._wall_s = time.process_time(), time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.last_s = time.perf_counter() - self._wall_s
        self.wall_s += self.last_s
        self.cpu_s += time.process_time() - self._cpu_s


class BatchReader:
    """Changes as the stream sends them, in batches of any size."""

    def __init__(
        self, rows: Generated, tables: Sequence[tuple[Table, Relation]], *, is_full: bool
    ) -> None:
        self._streams = [_Stream(rows, t, relation, is_full=is_full) for t, relation in tables]
        self._changes = max((s.changes for s in self._streams), default=0)
        self._at = 0

    def next(self, size: int) -> SourceBatch | None:
        """Return the next `size` changes; None if there are no more."""
        low, high = self._at, min(self._at + size, self._changes)
        if low == high:
            return None
        self._at = high
        sent = [changes for s in self._streams if (changes := s.take(high)) is not None]
        # An update is one change, whichever way it is sent.
        changes = sum(int((c.kinds != Changes.OLD).sum()) for c in sent)
        return SourceBatch(high, sent, changes, sum(map(len, sent)))


class _Stream:
    """One table's rows in order, read in blocks."""

    def __init__(self, rows: Generated, table: Table, relation: Relation, *, is_full: bool) -> None:
        self._rows, self._table, self._relation = rows, table, relation
        self._is_full = is_full
        self._count = rows.count(table, "changes")
        self._read_to = 0
        self._seq = np.empty(0, np.int64)
        self._kinds = np.empty(0, np.uint8)
        self._columns: tuple[Column, ...] = ()
        last = rows.read(table, "changes", ["seq"], self._count - 1, self._count)["seq"]
        self.changes = int(last[0]) + 1 if len(last) else 0

    def take(self, before: int) -> Changes | None:
        """Return the unread changes numbered below `before`; None for no limit."""
        if self._read_to < self._count and (not len(self._seq) or self._seq[-1] < before):
            self._read_more(before)
        cut = int(np.searchsorted(self._seq, before))
        if not cut:
            return None
        index = np.arange(cut)
        # Copies, as a decoder makes them: a slice would keep the whole block.
        taken = Changes(
            self._relation, self._kinds[:cut].copy(), tuple(c.take(index) for c in self._columns)
        )
        rest = len(self._seq)
        self._seq, self._kinds = self._seq[cut:], self._kinds[cut:]
        self._columns = tuple(c.slice(cut, rest) for c in self._columns)
        return taken

    def _read_more(self, before: int) -> None:
        """Read blocks until one reaches beyond the requested changes."""
        names = ["seq", "kind", *self._table.names]
        while self._read_to < self._count and (not len(self._seq) or self._seq[-1] < before):
            high = min(self._read_to + BLOCK_CHANGES, self._count)
            read = self._rows.read(self._table, "changes", names, self._read_to, high)
            self._read_to = high
            sent = read if self._is_full else _without_old_rows(read)
            columns = columns_of(self._rows, self._table, sent)
            if not self._is_full:
                columns = _without_gone_values(columns, sent["kind"], self._table.key)
            is_first = not len(self._seq)
            self._seq = np.concatenate([self._seq, sent["seq"]])
            self._kinds = np.concatenate([self._kinds, sent["kind"].astype(np.uint8)])
            self._columns = (
                columns
                if is_first
                else tuple(map(Column.concat, zip(self._columns, columns, strict=True)))
            )


def _without_old_rows(read: Columns) -> Columns:
    """Return what the default replica identity sends: no old rows, and only the key of a deleted
    row.
    """
    keep = read["kind"] != OLD
    kept = {name: values[keep] for name, values in read.items()}
    is_gone = kept["kind"] == DELETE
    kept["kind"] = np.where(is_gone, Changes.DELETE_KEY, kept["kind"])
    return kept


def _without_gone_values(
    columns: tuple[Column, ...], kinds: np.ndarray, key: int
) -> tuple[Column, ...]:
    is_there = kinds != Changes.DELETE_KEY
    if is_there.all():
        return columns
    return (*columns[:key], *(_nulled(column, is_there) for column in columns[key:]))


def _nulled(column: Column, is_there: np.ndarray) -> Column:
    """Return the column with NULL (stored as zero bits or an empty string) in the other rows."""
    if column.kind != KIND_BYTES:
        return Column(np.where(is_there, column.values, 0), is_there)
    pool = Column.concat([column, Column.of(KIND_BYTES, [""])])
    index = np.where(is_there, np.arange(len(column)), len(column))
    taken = pool.take(index)
    return Column(taken.values, is_there, taken.data)


_words: dict[tuple[Path, str, str], Column] = {}


def columns_of(rows: Generated, table: Table, read: Columns) -> tuple[Column, ...]:
    """Return the table's columns from what is stored on disk."""
    columns = []
    for name, kind in table.columns:
        if kind == "i":
            columns.append(Column(np.ascontiguousarray(read[name], np.int64)))
            continue
        found = (rows.folder, table.name, name)
        if found not in _words:
            _words[found] = Column.of(KIND_BYTES, rows.words(table, name))
        columns.append(_words[found].take(read[name].astype(np.int64)))
    return tuple(columns)


class Output:
    """The view's output: the rows while they are few, otherwise counts and sums."""

    def __init__(self, workload: Workload, fields: Sequence[Field]) -> None:
        self._workload, self._fields = workload, fields
        self._kept: Delta | None = None
        self._totals: list[int | float] = [0] * (1 + len(workload.summed))

    def add(self, delta: Delta) -> None:
        """Add the delta of an epoch."""
        if not len(delta):
            return
        if self._workload.keys:
            parts = [delta] if self._kept is None else [self._kept, delta]
            self._kept = Delta.concat(parts).consolidate()
            return
        self._totals[0] += int(delta.weights.sum())
        for at, column in enumerate(self._workload.summed, start=1):
            self._totals[at] += (delta.columns[column].values * delta.weights).sum().item()

    def answer(self) -> Answer:
        """Return the answer in the oracle's form."""
        if not self._workload.keys:
            return {(): tuple(self._totals)}
        return fold(self._workload, self._rows())

    def _rows(self) -> Iterator[tuple[tuple[object, ...], int]]:
        if self._kept is None:
            return
        texts = [
            to_text(f.type, column).texts()
            for f, column in zip(self._fields, self._kept.columns, strict=True)
        ]
        keys = self._workload.keys
        for row, weight in zip(zip(*texts, strict=True), self._kept.weights.tolist(), strict=True):
            yield (*map(_value, row[:keys]), *map(_value, row[keys:])), weight


def _value(text: str | None) -> object:
    """Return an int, a decimal, or the text itself."""
    if text is None or not text.lstrip("-").replace(".", "", 1).isdigit():
        return text
    return int(text) if "." not in text else Decimal(text)
