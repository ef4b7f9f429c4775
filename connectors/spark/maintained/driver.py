"""The driver of a distributed view: one epoch after the other, each committed by its manifest.

An epoch is fixed by `epochs/E`, then computed by tasks, stored for the sink in `out/E`, committed
by `manifest/E`, and shown by the sink. Wherever a driver stops, the next one continues: what an
epoch reads is never read twice from a source once it is fixed, and its tasks give the same rows
whenever they run. Invariant: the sink gets every committed epoch, in order. Start with
`Driver.step`. The protocol is decision 34.
"""

from __future__ import annotations

import pickle
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import orjson

from connectors.feed_source import REJECTED_KINDS, RangePlanner
from connectors.pages import decode_delta, encode_delta
from connectors.source import SourceBatch, StoredInput
from connectors.spark.frame import Row
from connectors.spark.maintained.bases import cut_files, one_state, write_base
from connectors.spark.maintained.bucket_state import CHANGES, ROWS, Version
from connectors.spark.maintained.changes import cut_changes, encode_changes
from connectors.spark.maintained.commits import Commits, base_epoch, fenced, lost
from connectors.spark.maintained.files import (
    Base,
    EpochInput,
    Manifest,
    numbered,
    pack,
    pack_sections,
    unpack,
)
from connectors.spark.maintained.layout import (
    ANSWERED,
    ERRORS,
    FAILED,
    FINAL,
    LOGGED,
    MEASURED,
    OUTPUT,
    REJECTED,
    WRITTEN,
    Layout,
    MaintainedView,
)
from connectors.spark.maintained.reading import FEW_RECORDS, ReadWork, read_next
from connectors.spark.maintained.scheduler import Scheduler
from connectors.spark.maintained.shared_storage import SharedStorage
from connectors.spark.maintained.tasks import (
    DueWork,
    EpochWork,
    ExportWork,
    Figures,
    Job,
    LookupWork,
)
from connectors.spark.records import decode_error
from dataflow.changes import Changes
from dataflow.collect import ERROR_KINDS
from dataflow.delta import Column, Delta
from dataflow.errors import TemporaryError
from dataflow.operators.base import kinds_of
from dataflow.operators.groups import columns_at
from dataflow.schema import Relation, RelationName
from storage.bulk import partition_positions
from storage.failpoints import failpoint
from storage.store import BulkFile, Store

# Pages of up to so many bytes are stored with the epoch's document.
INLINE_BYTES = 256 << 10
# A base is rewritten when the log after it has more bytes than it, and at least so many.
MIN_LOG_BYTES = 1 << 20
# So many bases are rewritten in an epoch at most, and as many because of their age.
REWRITTEN = 2
# A base is also rewritten after so many epochs, so that the history does not grow forever.
MAX_EPOCHS = 200
# Files that nothing needs are deleted after so long: above the longest that a lost task may run.
GRACE_S = 900.0


@dataclass(frozen=True)
class Batch:
    """What an epoch is to read.

    changes: of base relations, in order. rows: of a snapshot, or of maintained views, with all
    stored columns. stored: changes that `Driver.read` has stored, after `changes`. positions: of
    the sources after it, as JSON.
    """

    positions: Mapping[str, Any]
    changes: Sequence[Changes] = ()
    rows: Mapping[RelationName, Delta] = field(default_factory=dict)
    stored: StoredInput | None = None


@dataclass(frozen=True)
class CommittedEpoch:
    """A committed epoch as the sink gets it; all deltas are consolidated.

    errors: of ERROR_KINDS. final: rows of the view that are final. rejected: of REJECTED_KINDS.
    """

    epoch: int
    positions: Mapping[str, Any]
    rows: Delta
    errors: Delta
    rejected: Delta
    final: Sequence[Delta] = ()


class EpochSink(Protocol):
    """Shows committed epochs; its own storage has its progress."""

    def progress(self) -> int:
        """Return the newest epoch that it shows."""
        ...

    def apply(self, epoch: CommittedEpoch) -> None:
        """Show an epoch, in one transaction with the progress; nothing if it already does."""
        ...


@dataclass(frozen=True)
class Limits:
    """How much a driver does at a time; see the module's constants."""

    inline_bytes: int = INLINE_BYTES
    min_log_bytes: int = MIN_LOG_BYTES
    rewritten: int = REWRITTEN
    max_epochs: int = MAX_EPOCHS
    grace_s: float = GRACE_S


class Driver:
    """Drives one view. One thread; after an error, make another one.

    buckets: for a new view; an existing one has those of its state. start() comes first.
    """

    def __init__(
        self,
        view: MaintainedView,
        storage: SharedStorage,
        scheduler: Scheduler,
        sink: EpochSink,
        *,
        buckets: int,
        limits: Limits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._view = view
        self._content = pickle.dumps(view)
        self._storage = storage
        self._scheduler = scheduler
        self._sink = sink
        self._limits = limits or Limits()
        self._clock = clock
        self._commits = Commits(storage)
        self._newest = Manifest(0, "", 0, buckets, {}, input=False)
        self._shown = 0
        self._unneeded: dict[str, float] = {}
        self._layouts: dict[int, Layout] = {}
        # Of the tasks of the last epoch.
        self.figures: Sequence[Figures] = ()

    @property
    def epoch(self) -> int:
        """The newest committed epoch; 0 before the first."""
        return self._newest.epoch

    @property
    def positions(self) -> Mapping[str, Any]:
        """The positions of the sources after it."""
        return self._newest.positions

    @property
    def buckets(self) -> int:
        """The number of buckets."""
        return self._newest.buckets

    @property
    def layout(self) -> Layout:
        """The stages of the view over its buckets."""
        return self._layout(self.buckets)

    def state_bytes(self) -> dict[int, int]:
        """Return the bytes of each level in the shared storage: bases, and what came since."""
        found: dict[int, int] = {}
        for sizes in (self._newest.base_bytes, self._newest.log_bytes):
            for key, nbytes in sizes.items():
                level = int(key.partition("-")[0])
                found[level] = found.get(level, 0) + nbytes
        return found

    def start(self) -> None:
        """Take over the view: show what the sink lacks, and finish the epoch in progress.

        Read the sources from `positions` then. TidemarkError spark.state_lost, spark.fenced.
        """
        self._commits.take_generation()
        found = self._commits.newest()
        if found is not None:
            self._newest = found
        self._shown = self._sink.progress()
        for epoch in range(self._shown + 1, self.epoch + 1):
            manifest = self._commits.read(epoch)
            if manifest is None:
                raise lost(f"epoch {epoch}, which the sink does not show")
            self._show(manifest)
        while (given := self._commits.read_input(self.epoch + 1, self._newest.batch)) is not None:
            self._run(*given)
        if self._shown > self.epoch:
            raise lost(f"epoch {self.epoch + 1}, which the sink shows")

    def step(self, batch: Batch) -> Mapping[str, Any]:
        """Run one epoch; return the positions after it.

        They differ from the batch's if another driver had fixed the epoch: then the batch was not
        used. TidemarkError as raised by an operator, spark.fenced; TemporaryError.
        """
        given, payload = self._fixed(batch)
        self._run(given, payload)
        return self.positions

    # --- an epoch --------------------------------------------------------------------------------

    def _fixed(self, batch: Batch) -> tuple[EpochInput, bytes]:
        payload, ranges = pack_sections(self._cut(self._layout(self.buckets), batch))
        epoch, number, name = self.epoch + 1, uuid.uuid4().hex, ""
        stored = batch.stored or StoredInput(epoch, self.buckets, ())
        if (stored.epoch, stored.buckets) != (epoch, self.buckets):
            raise TemporaryError(
                "spark.late_read",
                "rows were read for an epoch that another one has overtaken",
                detail=f"epoch {stored.epoch} in {stored.buckets} buckets, not {epoch}",
                hint="no action needed: they are read again",
            )
        if len(payload) > self._limits.inline_bytes:
            name = f"{numbered('input', epoch)}-{number}"
            self._storage.put(name, payload)
            payload = b""
        given = EpochInput(
            epoch,
            number,
            self.buckets,
            batch.positions,
            name,
            ranges,
            is_first=self.epoch == 0,
            parts=stored.parts,
        )
        return self._commits.fix_input(given, payload, self._newest.batch)

    def read(self, planner: RangePlanner, max_rows: int) -> SourceBatch | None:
        """Let tasks read what comes next of a source; return it as a batch, None if nothing does.

        max_rows: about how many records a task reads. The batch's changes are stored for the next
        epoch, which must be that of the batch. It raises as `SourceFeed.poll`; TemporaryError
        spark.job.
        """
        found = read_next(planner, ReadWork(self._job(), self.epoch + 1, ()), max_rows, self._read)
        failpoint("spark.epoch.read")
        return found

    def _read(self, work: ReadWork) -> Sequence[Row]:
        if sum(one.size for one in work.ranges) > FEW_RECORDS:
            return self._scheduler.run(work)
        here = replace(work, job=replace(work.job, groups=1))
        return list(here.run(0, 0, (), ""))

    def _cut(self, layout: Layout, batch: Batch) -> dict[int, list[Row]]:
        """Return the pages of each bucket."""
        found: dict[int, list[Row]] = {}
        for name, delta in batch.rows.items():
            stage = layout.source_of(name)
            for bucket, rows in _rows_by_bucket(layout, self._view.tables[name], delta):
                page = encode_delta(rows)
                found.setdefault(bucket, []).append((layout.slot_of(stage, bucket), ROWS, page))
        changed: dict[RelationName, list[Changes]] = {}
        for changes in batch.changes:
            if changes.relation.name in self._view.tables and len(changes):
                changed.setdefault(changes.relation.name, []).append(changes)
        for name, parts in changed.items():
            table, stage = self._view.tables[name], layout.source_of(name)
            cut = cut_changes(table, parts, layout.buckets, self._fetch)
            for bucket, changes in enumerate(cut):
                if len(changes):
                    row = layout.slot_of(stage, bucket), CHANGES, encode_changes(changes)
                    found.setdefault(bucket, []).append(row)
        return found

    def _fetch(self, table: Relation, keys: Delta) -> Delta:
        """Return the stored rows of keys of a base relation."""
        job = self._job()
        stage = job.layout.source_of(table.name)
        slots = {
            job.layout.slot_of(stage, bucket): encode_delta(keys.take(at))
            for bucket, at in partition_positions(keys.columns, len(keys), self.buckets)
        }
        rows = self._scheduler.run(LookupWork(job, slots))
        empty = Delta.empty(kinds_of(table.fields))
        return Delta.concat([empty, *(decode_delta(bytearray(page)) for _, _, page in rows)])

    def first_change(self, thresholds: Mapping[int, Column]) -> int:
        """Return the position of the first candidate at which rows leave or come; n if at none.

        thresholds: by node, a threshold filter or a watermark: its values at all n candidates.
        TemporaryError.
        """
        (n,) = {len(values) for values in thresholds.values()}
        ones = np.ones(n, np.int64)
        pages = {node: encode_delta(Delta((v,), ones)) for node, v in thresholds.items()}
        rows = self._scheduler.run(DueWork(self._job(), pages))
        return min([n, *(orjson.loads(page) for _, _, page in rows)])

    def _layout(self, buckets: int) -> Layout:
        if buckets not in self._layouts:
            self._layouts[buckets] = Layout(self._view, buckets)
        return self._layouts[buckets]

    def _job(self) -> Job:
        at = Version(self._newest.epoch, self._newest.batch)
        groups = max(1, min(self._scheduler.tasks, self.buckets))
        generation = self._commits.generation
        return Job(self._content, self._storage, self.buckets, groups, generation, at)

    def _run(self, given: EpochInput, payload: bytes) -> None:
        """Compute, commit and show an epoch whose input is fixed."""
        failpoint("spark.epoch.fixed")
        # Of a view without state the first epoch decides how many there are.
        self._newest = replace(self._newest, buckets=given.buckets)
        if given.moved_to:
            self._move(given)
            return
        work = EpochWork(self._job(), given, payload, self._to_rewrite())
        rows = self._scheduler.run(work)
        failpoint("spark.epoch.computed")
        found = _Results(rows)
        self.figures = found.figures
        out = ""
        if found.shown:
            out = f"{numbered('out', given.epoch)}-{uuid.uuid4().hex}"
            self._storage.put(out, pack(found.shown))
        failpoint("spark.epoch.stored")
        manifest = self._manifest(given, found, out)
        self._newest = self._commits.commit(manifest)
        failpoint("spark.epoch.committed")
        self._show(self._newest, found.shown if self._newest is manifest else None)

    def _manifest(self, given: EpochInput, found: _Results, out: str) -> Manifest:
        before = self._newest
        bases, base_bytes = dict(before.bases), dict(before.base_bytes)
        log_bytes = dict(before.log_bytes)
        for key, name, nbytes in found.written:
            bases[key], base_bytes[key], log_bytes[key] = [name], nbytes, 0
        for key, nbytes in [*found.log_bytes, *_input_bytes(given)]:
            log_bytes[key] = log_bytes.get(key, 0) + nbytes
        return Manifest(
            given.epoch,
            given.batch,
            self._commits.generation,
            self.buckets,
            given.positions,
            is_first=given.is_first,
            logs=found.logs,
            answered=found.answered,
            out=out,
            bases=bases,
            base_bytes=base_bytes,
            log_bytes=log_bytes,
        )

    def _to_rewrite(self) -> frozenset[str]:
        """Return the buckets whose logs exceed their bases most, and those whose bases are old."""
        newest, limits = self._newest, self._limits
        if newest.epoch == 0:
            return frozenset()
        least = limits.min_log_bytes - 1
        excess = {
            key: nbytes - max(newest.base_bytes.get(key, 0), least)
            for key, nbytes in newest.log_bytes.items()
        }
        large = sorted((key for key, n in excess.items() if n > 0), key=lambda k: -excess[k])
        since = {
            key: base_epoch(newest.bases[key][-1]) if key in newest.bases else 0
            for key in self._layout(self.buckets).keys
        }
        due = newest.epoch - limits.max_epochs
        old = sorted((key for key, epoch in since.items() if epoch < due), key=lambda k: since[k])
        return frozenset([*large[: limits.rewritten], *old[: limits.rewritten]])

    def _show(self, manifest: Manifest, rows: Sequence[Row] | None = None) -> None:
        """Pass a committed epoch to the sink, unless it shows it; rows: what is in its file."""
        if manifest.epoch <= self._shown:
            return
        if rows is None:
            rows = list(unpack(self._storage.get(manifest.out))) if manifest.out else []
        kinds = kinds_of(self._view.nodes[-1].plan.fields)
        final = [_added_up(kinds, [page]) for slot, _, page in rows if slot == FINAL]
        self._sink.apply(
            CommittedEpoch(
                manifest.epoch,
                manifest.positions,
                _added_up(kinds, [page for slot, _, page in rows if slot == OUTPUT]),
                _added_up(ERROR_KINDS, [page for slot, _, page in rows if slot == ERRORS]),
                _added_up(REJECTED_KINDS, [page for slot, _, page in rows if slot == REJECTED]),
                final,
            )
        )
        self._shown = manifest.epoch

    # --- state moves -----------------------------------------------------------------------------

    def split(self, buckets: int) -> None:
        """Move all state to another number of buckets, in an epoch that reads nothing.

        An epoch that another driver has fixed meanwhile is run first.
        """
        if self.epoch == 0:
            # There is no state, and the first epoch must be one that reads.
            self._newest = replace(self._newest, buckets=buckets)
            return
        while True:
            number = uuid.uuid4().hex
            given = EpochInput(
                self.epoch + 1, number, self.buckets, self.positions, moved_to=buckets
            )
            fixed, payload = self._commits.fix_input(given, b"", self._newest.batch)
            self._run(fixed, payload)
            if fixed.moved_to == buckets:
                return

    def _move(self, given: EpochInput) -> None:
        at = Version(given.epoch, given.batch)
        work = ExportWork(self._job(), given.moved_to, at)
        bases: dict[str, list[str]] = {}
        nbytes: dict[str, int] = {}
        for key, name, size in _Results(self._scheduler.run(work)).written:
            bases.setdefault(key, []).append(name)
            nbytes[key] = nbytes.get(key, 0) + size
        self._commit_state(at, given.moved_to, bases, nbytes)

    def start_moved(
        self, store: Store, positions: Mapping[str, Any], folder: Path, *, epoch: int
    ) -> None:
        """Start with the state of a view that was maintained in one store, in place of `start`.

        The store has it under the view's scope, as of these positions and an epoch that the sink
        shows. folder: local, for its files. TidemarkError spark.fenced: the view has a state.
        """
        self._commits.take_generation()
        found = self._commits.newest()
        if found is not None:
            raise fenced(self._commits.generation, found.generation)
        self._shown = self._sink.progress()
        at = Version(epoch, uuid.uuid4().hex)
        layout = self._layout(self.buckets)
        # As if it were the state of one bucket.
        stages = [stage.number for level in layout.levels for stage in level]
        bases, nbytes = {}, {}
        folder.mkdir(parents=True, exist_ok=True)
        for key, files in cut_files(store, layout, stages, layout, folder).items():
            base = write_base(self._storage, key, (at.epoch, at.batch), files)
            bases[key], nbytes[key] = [base.name], base.nbytes
        self._newest = replace(self._newest, positions=positions)
        self._commit_state(at, self.buckets, bases, nbytes)

    def _commit_state(
        self,
        at: Version,
        buckets: int,
        bases: Mapping[str, Sequence[str]],
        nbytes: Mapping[str, int],
    ) -> None:
        """Commit that the state is these bases; buckets without one have no state."""
        empty = f"{numbered('base/empty', at.epoch)}-{uuid.uuid4().hex}/base"
        self._storage.put(empty, Base(at.epoch, at.batch).encode())
        layout = self._layout(buckets)
        whole = {key: bases.get(key, [empty]) for key in layout.keys}
        manifest = Manifest(
            at.epoch,
            at.batch,
            self._commits.generation,
            buckets,
            self.positions,
            input=False,
            bases=whole,
            base_bytes=nbytes,
        )
        self._newest = self._commits.commit(manifest)
        self._show(self._newest)

    def export(self, folder: Path) -> list[BulkFile]:
        """Return all state as files for one store's `ingest`, in the given empty local folder.

        The state is then that of `epoch` and `positions`.
        """
        self.split(self.buckets)
        layout = self._layout(self.buckets)
        return one_state(self._storage, layout, self._newest.bases, folder)

    # --- garbage ---------------------------------------------------------------------------------

    def collect_garbage(self) -> int:
        """Delete files that nothing has needed for the grace period; return how many."""
        keys = self._layout(self.buckets).keys
        unneeded = self._commits.unneeded(self._newest, keys, self._shown)
        now = self._clock()
        self._unneeded = {name: self._unneeded.get(name, now) for name in unneeded}
        due = [n for n, since in self._unneeded.items() if now - since >= self._limits.grace_s]
        for name in due:
            self._storage.delete(name)
            del self._unneeded[name]
        return len(due)


class _Results:
    """The rows that an epoch's tasks have returned, by kind. TidemarkError of a failed one."""

    def __init__(self, rows: Sequence[Row]) -> None:
        failures = [decode_error(page) for slot, _, page in rows if slot == FAILED]
        if failures:
            raise failures[0]
        self.shown = [row for row in rows if row[0] in (OUTPUT, ERRORS, FINAL, REJECTED)]
        logged = [orjson.loads(page) for slot, _, page in rows if slot == LOGGED]
        self.logs = [entry for entry, _ in logged]
        self.log_bytes = [pair for _, sizes in logged for pair in sizes.items()]
        self.answered = [orjson.loads(page) for slot, _, page in rows if slot == ANSWERED]
        measured = [orjson.loads(page) for slot, _, page in rows if slot == MEASURED]
        self.figures = [Figures(**facts) for facts in measured]
        self.written = [orjson.loads(page) for slot, _, page in rows if slot == WRITTEN]


def _input_bytes(given: EpochInput) -> list[tuple[str, int]]:
    """Return the bytes of the pages of each bucket, perhaps in several pairs."""
    ranges = [given.ranges, *(found for _, found in given.parts)]
    return [(f"0-{bucket}", stop - at) for own in ranges for bucket, (at, stop) in own.items()]


def _rows_by_bucket(layout: Layout, table: Relation, rows: Delta) -> list[tuple[int, Delta]]:
    n, buckets = len(rows), layout.buckets
    if not n:
        return []
    spec = layout.table_of(layout.source_of(table.name))
    if spec is None:
        # Without state, any bucket can have them.
        ends = [n * b // buckets for b in range(buckets + 1)]
        parts = [(b, rows.slice(ends[b], ends[b + 1])) for b in range(buckets)]
        return [(b, part) for b, part in parts if len(part)]
    found = partition_positions(columns_at(rows, spec.key), n, buckets)
    return [(bucket, rows.take(at)) for bucket, at in found]


def _added_up(kinds: str, pages: Sequence[bytes]) -> Delta:
    found = [decode_delta(bytearray(page)) for page in pages]
    return Delta.concat([Delta.empty(kinds), *found]).consolidate()
