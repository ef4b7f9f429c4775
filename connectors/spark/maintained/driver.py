"""The driver of a distributed view: one epoch after the other, each committed by its manifest.

An epoch is fixed by `epochs/E`, then computed by tasks, stored for the sink in `out/E`, committed
by `manifest/E`, and shown by the sink. Wherever a driver stops, the next one continues: what an
epoch reads is never read twice from a source once it is fixed, and its tasks give the same rows
whenever they run. Invariant: the sink gets every committed epoch, in order. Start with
`Driver.step`. The protocol is decision 34.
"""

from __future__ import annotations

import functools
import pickle
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import orjson

from connectors.feed_source import RangePlanner
from connectors.objects.shared_storage import SharedStorage
from connectors.pages import decode_delta, encode_delta
from connectors.source import SourceBatch, StoredInput
from connectors.spark.frame import Row
from connectors.spark.maintained.bases import cut_files, one_state, stored_bytes, write_base
from connectors.spark.maintained.bucket_state import ROWS, Version
from connectors.spark.maintained.commits import (
    LOST_CODES,
    Commits,
    Committed,
    FixedInput,
    base_epoch,
    fenced,
    lost,
)
from connectors.spark.maintained.files import (
    Base,
    EpochInput,
    Manifest,
    numbered,
    pack,
    pack_sections,
    unpack,
)
from connectors.spark.maintained.growth import DEFAULT_GROWTH, Growth, GrowthLimits
from connectors.spark.maintained.imports import BackfilledState, ImportWork
from connectors.spark.maintained.input_pages import LargeInput, pages_of_changes
from connectors.spark.maintained.layout import (
    Layout,
    MaintainedView,
    Spread,
    spread_of,
)
from connectors.spark.maintained.output import CommittedEpoch, ShownRows, shown_rows
from connectors.spark.maintained.reading import FEW_RECORDS, ReadWork, read_next
from connectors.spark.maintained.results import Results, without_failures
from connectors.spark.maintained.scheduler import Scheduler
from connectors.spark.maintained.skew import HEAVY_ROWS, KeyCounts, count_state
from connectors.spark.maintained.tasks import (
    DueWork,
    EpochWork,
    ExportWork,
    Figures,
    Job,
    LookupWork,
)
from dataflow.changes import Changes
from dataflow.delta import Column, Delta
from dataflow.errors import TemporaryError, TidemarkError
from dataflow.operators.base import kinds_of
from dataflow.operators.groups import columns_at
from dataflow.schema import Relation, RelationName
from storage.bulk import partition_positions
from storage.failpoints import failpoint
from storage.store import BulkFile, Store

# Pages of up to so many bytes are stored with the epoch's document.
INLINE_BYTES = 256 << 10
# A task that has more bytes for the sink stores them in a file, which the driver reads on its own.
OUTPUT_BYTES = 4 << 20
# A base is rewritten when the log after it has more bytes than it, and at least so many.
MIN_LOG_BYTES = 1 << 20
# So many bases are rewritten in an epoch at most, and as many because of their age.
REWRITTEN = 2
# A base is also rewritten after so many epochs, so that the history does not grow forever.
MAX_EPOCHS = 200
# Files that nothing needs are deleted after so long: above the longest that a lost task may run.
GRACE_S = 900.0
_T = TypeVar("_T")


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


class EpochSink(Protocol):
    """Shows committed epochs; its own storage has its progress."""

    def progress(self) -> int:
        """Return the newest epoch that it shows."""
        ...

    def commit(self) -> str:
        """Return the digest of the manifest of that epoch; "" where it is not recorded."""
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
    heavy_rows: int = HEAVY_ROWS
    output_bytes: int = OUTPUT_BYTES
    growth: GrowthLimits = DEFAULT_GROWTH


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
        # The digest of its manifest.
        self._digest = ""
        self._shown = 0
        self._unneeded: dict[str, float] = {}
        self._layouts: dict[tuple[int, Spread], Layout] = {}
        self._counts = KeyCounts(self._limits.heavy_rows)
        self._growth = Growth(self._limits.growth)
        # Of the tasks of the last epoch.
        self.figures: Sequence[Figures] = ()

    @property
    def epoch(self) -> int:
        """The newest committed epoch; 0 before the first."""
        return self._newest.epoch

    @property
    def commit(self) -> str:
        """The digest of its manifest; "" before the first."""
        return self._digest

    @property
    def positions(self) -> Mapping[str, Any]:
        """The positions of the sources after it."""
        return self._newest.positions

    @property
    def buckets(self) -> int:
        """The number of buckets."""
        return self._newest.buckets

    @property
    def spread(self) -> Spread:
        """The keys of joins that are spread over the buckets."""
        return spread_of(self._newest.spread)

    @property
    def layout(self) -> Layout:
        """The stages of the view over its buckets."""
        return self._layout(self.buckets, self.spread)

    def state_bytes(self) -> dict[int, int]:
        """Return the bytes of each level in the shared storage: bases, and what came since."""
        found: dict[int, int] = {}
        for sizes in (self._newest.base_bytes, self._newest.log_bytes):
            for key, nbytes in sizes.items():
                level = _level_of(key)
                found[level] = found.get(level, 0) + nbytes
        return found

    def start(self) -> None:
        """Take over the view: show what the sink lacks, and finish the epoch in progress.

        Read the sources from `positions` then. TidemarkError of LOST_CODES, spark.fenced.
        """
        self._commits.take_generation()
        found = self._commits.newest()
        if found is not None:
            self._newest, self._digest = found
        self._shown = self._sink.progress()
        if self._shown and (commit := self._sink.commit()):
            self._commits.require(self._shown, commit)
        for epoch in range(self._shown + 1, self.epoch + 1):
            committed = self._commits.read(epoch)
            if committed is None:
                raise lost(f"epoch {epoch}, which the sink does not show")
            self._show(committed)
        while (given := self._commits.read_input(self._committed)) is not None:
            self._run(given)
        if self._shown > self.epoch:
            raise lost(f"epoch {self.epoch + 1}, which the sink shows")

    def step(self, batch: Batch) -> Mapping[str, Any]:
        """Run one epoch; return the positions after it. If buckets have become large or busy, or a
        key heavy, an epoch that splits or spreads it comes first.

        They differ from the batch's if another driver had fixed the epoch: then the batch was not
        used. TidemarkError as raised by an operator, spark.fenced; TemporaryError.
        """
        # What tasks have read is for the next epoch and no other: `read` has moved state before it.
        if batch.stored is None and not self._rebalance():
            return self.positions
        self._run(self._fixed(batch))
        return self.positions

    def _rebalance(self) -> bool:
        """Split buckets that have grown, and spread keys that have become heavy.

        False if epochs of another driver came first.
        """
        buckets = self._growth.buckets(self.layout, self.state_bytes(), self._scheduler.tasks)
        spread = self._counts.spread(self._layout(buckets, self.spread))
        if (buckets, spread) == (self.buckets, self.spread):
            return True
        # What follows is decided on new evidence: state is not written again for each key.
        self._counts = KeyCounts(self._limits.heavy_rows)
        self._growth.forget()
        return self._reshape(buckets, spread)

    # --- an epoch --------------------------------------------------------------------------------

    @property
    def _committed(self) -> Committed:
        return Committed(self._newest, self._digest)

    def _fixed(self, batch: Batch) -> FixedInput:
        payload, ranges = pack_sections(self._cut(self.layout, batch))
        epoch, number, name = self.epoch + 1, uuid.uuid4().hex, ""
        stored = batch.stored or StoredInput(epoch, self.buckets, ())
        if (stored.epoch, stored.buckets) != (epoch, self.buckets):
            raise _late_read(stored.epoch, stored.buckets)
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
            spread=self.spread,
            before=self._digest,
        )
        return self._commits.fix_input(given, payload, self._committed)

    def read(self, planner: RangePlanner, max_rows: int) -> SourceBatch | None:
        """Let tasks read what comes next of a source; return it as a batch, None if nothing does.

        max_rows: about how many records a task reads. The batch's changes are stored for the next
        epoch, which must be that of the batch. It raises as `SourceFeed.poll`; TemporaryError
        spark.job.
        """
        if not self._rebalance():
            return None
        found = read_next(planner, ReadWork(self._job(), self.epoch + 1, ()), max_rows, self._read)
        failpoint("spark.epoch.read")
        return found

    def large_input(self) -> LargeInput:
        """Return what stores a batch for the next epoch, which must be that of the batch.

        TemporaryError spark.late_read: epochs of another driver came first.
        """
        if not self._rebalance():
            raise _late_read(self.epoch, self.buckets)
        return LargeInput(self._job(), self.epoch + 1, self._fetch)

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
        for bucket, pages in pages_of_changes(layout, batch.changes, self._fetch).items():
            found.setdefault(bucket, []).extend(pages)
        return found

    def _fetch(self, table: Relation, keys: Delta) -> Delta:
        """Return the stored rows of keys of a base relation."""
        job = self._job()
        stage = job.layout.source_of(table.name)
        slots = {
            job.layout.slot_of(stage, bucket): encode_delta(keys.take(at))
            for bucket, at in partition_positions(keys.columns, len(keys), self.buckets)
        }
        rows = without_failures(self._scheduler.run(LookupWork(job, slots)))
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
        rows = without_failures(self._scheduler.run(DueWork(self._job(), pages)))
        return min([n, *(orjson.loads(page) for _, _, page in rows)])

    def _layout(self, buckets: int, spread: Spread) -> Layout:
        if (buckets, spread) not in self._layouts:
            # Of the present state, and of one that it moves to.
            for other in list(self._layouts)[:-1]:
                del self._layouts[other]
            self._layouts[buckets, spread] = Layout(self._view, buckets, spread)
        return self._layouts[buckets, spread]

    def _job(self, nbytes: int = 0) -> Job:
        """Return the job of a work. nbytes: what it reads beside the states."""
        at = Version(self._newest.epoch, self._newest.batch)
        groups = max(1, min(self._scheduler.tasks, self.buckets))
        return Job(
            self._content,
            self._storage,
            self.buckets,
            groups,
            self._commits.generation,
            at,
            self.spread,
            self._digest,
            nbytes + sum(self.state_bytes().values()),
        )

    def _run(self, fixed: FixedInput) -> None:
        """Compute, commit and show an epoch whose input is fixed."""
        failpoint("spark.epoch.fixed")
        given = fixed.given
        if given.moved_to:
            self._move(fixed)
            return
        # Of a view without state the first epoch decides how many there are.
        self._newest = replace(self._newest, buckets=given.buckets, spread=given.spread)
        limit = self._limits.output_bytes
        job = self._job(sum(nbytes for _, nbytes in _input_bytes(given)))
        work = EpochWork(job, given, fixed.payload, self._to_rewrite(), limit)
        rows = self._scheduler.run(work)
        failpoint("spark.epoch.computed")
        try:
            found = Results(rows)
        except TidemarkError as error:
            if error.code not in LOST_CODES:
                self._commits.abandon(given, self._newest.batch)
            raise
        self.figures = found.figures
        self._counts.add(found.counted)
        self._growth.add(found.figures)
        out = ""
        if found.shown:
            out = f"{numbered('out', given.epoch)}-{uuid.uuid4().hex}"
            self._storage.put(out, pack(found.shown))
        failpoint("spark.epoch.stored")
        manifest = self._manifest(fixed, found, out)
        self._newest, self._digest = self._commits.commit(manifest)
        failpoint("spark.epoch.committed")
        self._show(self._committed, found.shown if self._newest is manifest else None)

    def _manifest(self, fixed: FixedInput, found: Results, out: str) -> Manifest:
        given, before = fixed.given, self._newest
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
            outs=found.outs,
            bases=bases,
            base_bytes=base_bytes,
            log_bytes=log_bytes,
            spread=given.spread,
            given=fixed.digest,
            before=self._digest,
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
            for key in self.layout.keys
        }
        due = newest.epoch - limits.max_epochs
        old = sorted((key for key, epoch in since.items() if epoch < due), key=lambda k: since[k])
        return frozenset([*large[: limits.rewritten], *old[: limits.rewritten]])

    def _show(self, committed: Committed, rows: Sequence[Row] | None = None) -> None:
        """Pass a committed epoch to the sink, unless it shows it; rows: what is in its file."""
        manifest = committed.manifest
        if manifest.epoch <= self._shown:
            return
        if rows is None:
            rows = list(unpack(self._storage.get(manifest.out))) if manifest.out else []
        first = self._shown_rows(rows)
        self._sink.apply(
            CommittedEpoch(
                **vars(first),
                epoch=manifest.epoch,
                commit=committed.digest,
                positions=manifest.positions,
                is_move=not manifest.input,
                later=[functools.partial(self._stored_rows, name) for name in manifest.outs],
            )
        )
        self._shown = manifest.epoch

    def _shown_rows(self, rows: Sequence[Row]) -> ShownRows:
        return shown_rows(kinds_of(self._view.nodes[-1].plan.fields), rows)

    def _stored_rows(self, name: str) -> ShownRows:
        """Return the rows that a task has stored."""
        return self._shown_rows(list(unpack(self._storage.get(name))))

    # --- state moves -----------------------------------------------------------------------------

    def split(self, buckets: int) -> None:
        """Move all state to another number of buckets, in an epoch that reads nothing.

        An epoch that another driver has fixed meanwhile is run first.
        """
        self._reshape(buckets, self.spread)

    def spread_keys(self, spread: Spread) -> None:
        """Spread these keys of joins from now on, and no others; as `split`."""
        self._reshape(self.buckets, spread)

    def _reshape(self, buckets: int, spread: Spread) -> bool:
        """Move state; return False if epochs of another driver came first."""
        if self.epoch == 0:
            # There is no state, and the first epoch must be one that reads.
            self._newest = replace(self._newest, buckets=buckets, spread=spread)
            return True
        is_next = True
        while True:
            number = uuid.uuid4().hex
            given = EpochInput(
                self.epoch + 1,
                number,
                self.buckets,
                self.positions,
                moved_to=buckets,
                spread=spread,
                before=self._digest,
            )
            fixed = self._commits.fix_input(given, b"", self._committed)
            self._run(fixed)
            if (fixed.given.moved_to, spread_of(fixed.given.spread)) == (buckets, spread):
                return is_next
            is_next = False

    def _move(self, fixed: FixedInput) -> None:
        given = fixed.given
        at, spread = Version(given.epoch, given.batch), spread_of(given.spread)
        levels = frozenset(range(len(self.layout.levels)))
        if given.moved_to == self.buckets and spread != self.spread:
            # The rows of the other levels stay where they are.
            levels = self.layout.changed_levels(spread)
        work = ExportWork(self._job(), given.moved_to, spread, at, levels)
        found = Results(self._scheduler.run(work))
        layout = self._layout(given.moved_to, spread)
        self._commit_state(at, layout, *found.bases(), levels, given=fixed.digest)

    def start_moved(
        self, store: Store, positions: Mapping[str, Any], folder: Path, *, epoch: int
    ) -> None:
        """Start with the state of a view that was maintained in one store, in place of `start`.

        The store has it under the view's scope, as of these positions and an epoch that the sink
        shows. folder: local, for its files. TidemarkError spark.fenced: the view has a state.
        """
        self._take_new()
        at = Version(epoch, uuid.uuid4().hex)
        plain = self._layout(self.buckets, ())
        buckets = self._growth.buckets(plain, stored_bytes(store, plain), self._scheduler.tasks)
        plain = self._layout(buckets, ())
        self._counts.add(count_state(store, plain))
        layout = self._layout(buckets, self._counts.spread(plain))
        # As if it were the state of one bucket.
        stages = {stage.number: 0 for level in layout.levels for stage in level}
        bases, nbytes = {}, {}
        folder.mkdir(parents=True, exist_ok=True)
        for key, files in cut_files(store, plain, stages, layout, folder).items():
            base = write_base(self._storage, key, (at.epoch, at.batch), files)
            bases[key], nbytes[key] = [base.name], base.nbytes
        self._newest = replace(self._newest, positions=positions)
        self._commit_state(at, layout, bases, nbytes, frozenset(range(len(layout.levels))))

    def start_imported(
        self, state: BackfilledState, positions: Mapping[str, Any], *, epoch: int
    ) -> None:
        """Start with the state that a backfill's tasks have written, in place of `start`.

        It is as of these positions and an epoch that the sink shows. Tasks read and write it.
        TidemarkError spark.fenced: the view has a state; TemporaryError.
        """
        self._take_new()
        at = Version(epoch, uuid.uuid4().hex)
        plain = self._layout(self.buckets, ())
        sizes = state.level_bytes(plain)
        buckets = self._growth.buckets(plain, sizes, self._scheduler.tasks)
        self._newest = replace(self._newest, buckets=buckets, positions=positions)
        job = self._job(sum(sizes.values()))
        found = Results(self._scheduler.run(ImportWork(job, state, at)))
        # What they have counted spreads keys before the next epoch.
        self._counts.add(found.counted)
        self._commit_state(
            at, self.layout, *found.bases(), frozenset(range(len(self.layout.levels)))
        )

    def _take_new(self) -> None:
        """Take over a view that has no state yet. TidemarkError spark.fenced."""
        self._commits.take_generation()
        found = self._commits.newest()
        if found is not None:
            raise fenced(self._commits.generation, found.manifest.generation)
        self._shown = self._sink.progress()

    def _commit_state(
        self,
        at: Version,
        layout: Layout,
        bases: Mapping[str, Sequence[str]],
        nbytes: Mapping[str, int],
        levels: frozenset[int],
        *,
        given: str = "",
    ) -> None:
        """Commit that the state of some levels is these bases, in these buckets.

        Buckets of them without one have no state; the other levels stay as they are.
        """
        empty = f"{numbered('base/empty', at.epoch)}-{uuid.uuid4().hex}/base"
        self._storage.put(empty, Base(at.epoch, at.batch).encode())
        before = self._newest
        moved = {key: bases.get(key, [empty]) for key in layout.keys if _level_of(key) in levels}
        manifest = Manifest(
            at.epoch,
            at.batch,
            self._commits.generation,
            layout.buckets,
            self.positions,
            input=False,
            bases={**_outside(levels, before.bases), **moved},
            base_bytes={**_outside(levels, before.base_bytes), **nbytes},
            log_bytes=_outside(levels, before.log_bytes),
            spread=layout.spread,
            given=given,
            before=self._digest,
        )
        self._newest, self._digest = self._commits.commit(manifest)
        failpoint("spark.state.moved")
        self._show(self._committed)

    def export(self, folder: Path) -> list[BulkFile]:
        """Return all state as files for one store's `ingest`, in the given empty local folder.

        The state is then that of `epoch` and `positions`.
        """
        self.split(self.buckets)
        return one_state(self._storage, self.layout, self._newest.bases, folder)

    # --- garbage ---------------------------------------------------------------------------------

    def collect_garbage(self) -> int:
        """Delete files that nothing has needed for the grace period; return how many."""
        keys = self.layout.keys
        unneeded = self._commits.unneeded(self._newest, keys, self._shown)
        now = self._clock()
        self._unneeded = {name: self._unneeded.get(name, now) for name in unneeded}
        due = [n for n, since in self._unneeded.items() if now - since >= self._limits.grace_s]
        for name in due:
            self._storage.delete(name)
            del self._unneeded[name]
        return len(due)


def _late_read(epoch: int, buckets: int) -> TemporaryError:
    return TemporaryError(
        "spark.late_read",
        "rows were read for an epoch that another one has overtaken",
        detail=f"epoch {epoch} in {buckets} buckets",
        hint="no action needed: they are read again",
    )


def _level_of(key: str) -> int:
    """Return the level of a bucket "level-bucket"."""
    return int(key.partition("-")[0])


def _outside(levels: frozenset[int], by_bucket: Mapping[str, _T]) -> dict[str, _T]:
    """Return what belongs to buckets of other levels."""
    return {key: value for key, value in by_bucket.items() if _level_of(key) not in levels}


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
