"""The build of a view: snapshot, backfill and staging in a thread, catch-up in the pipeline's
thread.

A build never touches live views: its state has its own scope, its rows are in a staging table, its
changes in a spool. If the view already has a table, the new rows are compared with those that it
shows. Only `take_over` passes everything to the engine, at an epoch boundary. After an interruption
it starts again with a new snapshot, and reads only what it had not read and what has changed since
(decision 22).
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

from connectors.feed_source import (
    ChosenSnapshot,
    FeedPart,
    FeedPositions,
    FeedSnapshot,
    retaining,
)
from connectors.partition_cache import RUNS, Progress, is_cached
from connectors.shuffle_storage import FolderExchange
from connectors.source import MAIN_SOURCE, SnapshotPart, SourceBatch
from connectors.spark.result import BackfillResult
from dataflow.delta import Delta
from dataflow.errors import TidemarkError
from dataflow.operators.base import view_error
from dataflow.schema import Relation, RelationName
from service.backfill.backfill_manifest import BackfillManifest
from service.backfill.build_parts import BuildParts
from service.backfill.build_status import BuildPhase, BuildStatus
from service.backfill.connector_calls import ConnectorCalls
from service.backfill.initial_load import Bounds, InitialLoad, LiveVersion, dropped
from service.backfill.local_backfill import BackfillJob
from service.backfill.spool import FILE as SPOOL
from service.backfill.spool import Spool
from service.engine.column_requirements import Read
from service.engine.definition import View, ViewDefinition
from service.engine.epoch_buffer import EpochBuffer, named
from service.engine.positions import Positions
from service.engine.replay import CatchUp
from service.runtime.disk_errors import disk_error
from service.runtime.log import log
from service.runtime.runtime import Thread
from storage.backoff import Backoff
from storage.failpoints import failpoint
from storage.store import Store

CATCH_UP_S = 0.05
LEAST_PAUSE_S, MAX_PAUSE_S = 0.5, 30.0
_SPOOLED = "spooled/"


@dataclass(frozen=True)
class Cancelled:
    """The build is no longer desired; with a refusal the view becomes failed."""

    refusal: TidemarkError | None = None


@dataclass(frozen=True)
class Failed:
    """The end of a build by an error; after a temporary one it may start again."""

    error: TidemarkError


class ViewBuild:
    """One view on its way from definition to live.

    columns: what it stores of each base relation, so that other views can use it too. opened:
    returns the backfilled view with these columns. catch_up: returns what steps it from there on.
    position: of the snapshot; the view
    joins at an epoch not before it.
    """

    def __init__(
        self,
        definition: ViewDefinition,
        store: Store,
        folder: Path,
        parts: BuildParts,
        columns: Mapping[RelationName, tuple[int, ...]],
        *,
        opened: Callable[[ViewDefinition, Mapping[RelationName, tuple[int, ...]]], View],
        catch_up: Callable[[View, BackfillResult], CatchUp],
    ) -> None:
        self.definition = definition
        self.status = BuildStatus(choice=parts.choice)
        self._failed: Failed | None = None
        self._cancelled: Cancelled | None = None
        self._nudged_position: int | None = None
        self.position = 0
        # The snapshots' positions at sources that choose them, by their order; 0 before.
        self._chosen = dict.fromkeys(
            (name for name, read in parts.feeds.items() if retaining(read.source)), 0
        )
        self._store = store
        self._parts = parts
        self._runtime = parts.runtime
        self._folder = folder / definition.scope
        self._exchange = parts.exchange or FolderExchange(self._folder)
        self._manifest = self._new_manifest()
        self._count_key = f"{_SPOOLED}{definition.scope}"
        self._spool = self._recall()
        self._note_starts()
        self.columns = self._manifest.columns(definition.relations(), columns)
        self._result: BackfillResult | None = None
        self._view: View | None = None
        self._opened, self._open_catch_up = opened, catch_up
        self._catch_up: CatchUp | None = None
        self._passed = self._runtime.condition()
        self._passed_position = 0
        self._calls = ConnectorCalls(self._passed, lambda: self.is_cancelled, self._runtime)
        self._initial_load = self._new_initial_load()
        self._pause_s, self._backoff = 0.0, Backoff(LEAST_PAUSE_S, MAX_PAUSE_S)
        self._thread = self._new_thread()

    def _recall(self) -> Spool:
        """Return the spool, with the batches of an earlier process if they are consistent."""
        count, _, token = (self._store.get(self._count_key) or b"").decode().partition(" ")
        is_there = bool(token) and self._manifest.recall() and self._manifest.token == token
        if not is_there:
            self._manifest = self._new_manifest()
            shutil.rmtree(self._folder, ignore_errors=True)
            if self._parts.exchange is not None:
                self._parts.exchange.remove()
        self._folder.mkdir(parents=True, exist_ok=True)
        names = [r.name for r in self.definition.relations()]
        spool = Spool(self._folder / SPOOL, names, self._runtime)
        if is_there and not spool.restore(int(count)):
            self._manifest.forget("what changed since then is lost or damaged")
        self._count(spool)
        return spool

    def _new_manifest(self) -> BackfillManifest:
        return BackfillManifest(self._folder, self._exchange, self.definition.building)

    def _count(self, spool: Spool) -> None:
        """Store with the open epoch how much of the spool belongs to it."""
        self._store.put(self._count_key, f"{spool.count} {self._manifest.token}".encode())

    def _note_starts(self) -> None:
        """Store the offsets from which on the spool has the changes of external sources.

        Without them a later process would read its snapshot beyond what it replays.
        """
        for source, read in self._parts.feeds.items():
            self._manifest.start_of(source, read.positions, read.notes)
        if self._parts.feeds:
            self._manifest.save()

    def _new_initial_load(self) -> InitialLoad:
        parts, table = self._parts, self.definition.table
        bounds = Bounds(
            parts.epoch_bytes, CATCH_UP_S, self._passed, lambda: self.is_cancelled, self._runtime
        )
        return InitialLoad(table, parts.sink, parts.live_version, bounds)

    def _new_thread(self) -> Thread:
        return self._runtime.thread(self._run, f"build-{self.definition.table.name}")

    def start(self) -> None:
        """Begin; changes must be fed from now on."""
        self._thread.start()

    def start_again(self) -> None:
        """Start again after a temporary error: with a new snapshot, after a pause.

        Changes must have been fed all the while.
        """
        log.info("build.again", view=self.definition.table.title, why=str(self.error))
        self._failed = self._result = None
        self._initial_load.close()
        self._initial_load = self._new_initial_load()
        self.position = 0
        self._chosen = dict.fromkeys(self._chosen, 0)
        self._nudged_position = None
        self._spool.rewind()
        self._pause_s = self._backoff.next_s()
        self.status = BuildStatus(choice=self._parts.choice, notes=self._manifest.notes)
        self._thread = self._new_thread()
        self._thread.start()

    def cancel(self, refusal: TidemarkError | None = None) -> None:
        """Stop as soon as possible; with a refusal the view becomes failed. The first refusal
        counts."""
        if self._cancelled is None or self._cancelled.refusal is None:
            self._cancelled = Cancelled(refusal)
        with self._passed:
            self._passed.notify_all()

    @property
    def end(self) -> Cancelled | Failed | None:
        """Return how the build ended, None while it has not; a cancelled one has not failed."""
        return self._cancelled or self._failed

    @property
    def error(self) -> TidemarkError | None:
        """Return the error that ended the work, also of a build that was cancelled meanwhile."""
        return None if self._failed is None else self._failed.error

    @property
    def is_cancelled(self) -> bool:
        """Return whether the build is to stop, or has."""
        return self._cancelled is not None

    def fail(self, error: TidemarkError) -> None:
        """End the build with an error."""
        self._failed = Failed(error)

    def nudge(self) -> None:
        """Make the stream pass the snapshot, once for each. TemporaryError."""
        if self._nudged_position != self.position:
            self._parts.nudge()
            self._nudged_position = self.position

    def passed(self, position: int) -> None:
        """Note that the stream is at `position`: everything up to it has been fed."""
        with self._passed:
            if position != self._passed_position:
                self._passed_position = position
                self._passed.notify_all()

    @property
    def live_version(self) -> LiveVersion | None:
        """Return the table that the view has already, if any."""
        return self._parts.live_version

    @property
    def is_comparison(self) -> bool:
        """Return whether its rows repair the table of a live view; it never joins itself."""
        return self.live_version is not None and self.live_version.still_at is not None

    @property
    def initial_load(self) -> InitialLoad:
        """Return its first rows, staged or compared with those shown, and the changes since."""
        return self._initial_load

    def hold(self, written: int) -> None:
        """Note that the outbox has everything after epoch `written`, and retain it if required."""
        self._initial_load.hold(written)

    def reads(self) -> list[Read]:
        """Return the base relations, each with the positions of the fields that are stored."""
        return [(r, self.columns[r.name]) for r in self.definition.relations()]

    def awaits_snapshot(self, position: int) -> bool:
        """Return True if transactions on both sides of the snapshot may still come after
        `position`.

        They must not come in one batch, because the spool omits whole batches.
        """
        if not self._parts.reads_database:
            return False
        return self.position == 0 or self.position > position

    def unpassed(self, positions: Positions) -> set[str]:
        """Return the external sources of which the state has not passed this build's snapshot.

        Their transactions must come one by one, as in `awaits_snapshot`.
        """
        return {
            name
            for name, order in self._chosen.items()
            if not order or self._order(name, positions.offsets(name)) < order
        }

    def _order(self, source: str, positions: FeedPositions) -> int:
        """Return the order of the earliest of the positions of the source's relations."""
        found = retaining(self._parts.feeds[source].source)
        assert found is not None
        names = [r.name.name for r in self.definition.relations() if r.name.source == source]
        return min(found.order_of(positions[name]) for name in names)

    def _is_in_snapshot(self, batch: SourceBatch) -> bool:
        if batch.source == MAIN_SOURCE:
            return batch.last_commit <= self.position
        # Not by its positions: they may lie far beyond the transactions that it has.
        return batch.last_commit <= self._chosen.get(batch.source, -1)

    def feed(self, batch: SourceBatch) -> None:
        """Spool a batch that the live views have just stepped over."""
        self._spool.append(batch)
        # In the same epoch, so that after a kill the state has the number of valid batches.
        self._count(self._spool)

    def sync(self) -> None:
        """Sync the spooled changes to disk before the source may discard them."""
        self._spool.sync()

    @property
    def is_opening(self) -> bool:
        """Return whether its snapshot is not open yet."""
        return self.is_working and self.status.phase is BuildPhase.SNAPSHOT

    @property
    def is_working(self) -> bool:
        """Return whether the thread is still at snapshot, backfill or staging."""
        return self._thread.is_alive()

    def catch_up(self, newest: int) -> bool:
        """Replay for a short while in the caller's thread; return True when nothing is left.

        newest: the engine's epoch, up to which the view's old version was reported.
        """
        if self._view is None:
            try:
                self._open_view()
            except Exception as error:
                self.fail(self._blamed(error))
                return False
        assert self._catch_up is not None
        deadline = self._runtime.monotonic() + CATCH_UP_S
        while self._runtime.monotonic() < deadline:
            batch = self._spool.pop()
            try:
                if batch is None:
                    self._add_all(self._catch_up.finish())
                elif not self._is_in_snapshot(batch):
                    failpoint("build.catchup.replay")
                    self._add_all(self._catch_up.take(batch.changes))
            except Exception as error:
                self.fail(self._blamed(error))
                return False
            if batch is None:
                return self._initial_load.subtract_old(newest)
        return False

    def _blamed(self, error: Exception) -> TidemarkError:
        """Return an error of this build alone; raise any other one again."""
        if isinstance(error, TidemarkError) and not (error.is_temporary or not error.relation):
            return error
        found = view_error("catch-up", error)
        if found is None:
            raise error
        return found

    def _add_all(self, outputs: Iterable[Delta]) -> None:
        for output in outputs:
            self.add(output)
            self._store.relieve()

    def add(self, output: Delta) -> None:
        """Buffer the view's output and error rows until it is live."""
        assert self._catch_up is not None
        errors = named(self.definition.table, self._catch_up.errors())
        self._initial_load.add(output, errors)

    def take_over(self) -> tuple[View, EpochBuffer, BackfillResult]:
        """Return the caught-up view, its changes since the snapshot, and the backfill's result."""
        assert self._view is not None and self._result is not None
        return self._view, self._initial_load.buffered, self._result

    def close(self, *, is_kept: bool = False) -> None:
        """Remove the working files, unless another process will continue with them."""
        self._spool.close()
        self._initial_load.close()
        if is_kept:
            return
        self._store.put(self._count_key, None)
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._parts.exchange is not None:
            try:
                self._parts.exchange.remove()
            except TidemarkError as error:
                log.warning("build.not_removed", where=str(self._parts.exchange), code=error.code)

    def _open_view(self) -> None:
        assert self._result is not None
        self.status.enter(BuildPhase.CATCHING_UP)
        failpoint("build.catchup.before")
        self._view = self._opened(self.definition, self.columns)
        self._catch_up = self._open_catch_up(self._view, self._result)

    def _run(self) -> None:
        with self._passed:
            self._passed.wait_for(lambda: self.is_cancelled, self._pause_s)
        try:
            if self.is_cancelled:
                raise dropped()
            self._result = self._backfill()
            if not self.is_cancelled:
                failpoint("build.stage.before")
                self._initial_load.load(self._result.read_output(), self.status)
                failpoint("build.stage.after")
        except TidemarkError as error:
            self.fail(disk_error(error, "the backfill") or error)
        except Exception as error:
            log.exception("build.failed", view=self.definition.table.title)
            failed = TidemarkError("backfill.failed", "the backfill failed", detail=str(error))
            self.fail(disk_error(error, "the backfill") or failed)

    def _backfill(self) -> BackfillResult:
        definition, status = self.definition, self.status
        work = self._folder / "work"
        shutil.rmtree(work, ignore_errors=True)
        self._exchange.below(RUNS).remove()
        work_dir = work / uuid.uuid4().hex
        work_dir.mkdir(parents=True)
        with ExitStack() as held:
            parts = self._snapshot_parts(held)
            status.notes = self._manifest.notes
            kept = sum(is_cached(part) for chunks in parts.values() for part in chunks)
            status.progress = Progress(0, sum(map(len, parts.values())), parts_reused=kept)
            status.enter(BuildPhase.BACKFILL)
            status.read_since = self._runtime.time()
            job = BackfillJob(
                definition.plan.root,
                definition.scope,
                definition.relations(),
                self.columns,
                parts,
                self._parts.evaluator,
                work_dir,
                self._parts.exchange,
            )
            return self._parts.run(job, self._on_progress)

    def _snapshot_parts(self, held: ExitStack) -> dict[RelationName, Sequence[SnapshotPart]]:
        """Return the parts of each relation; `held` closes the snapshots that they belong to."""
        relations, manifest = self.definition.relations(), self._manifest
        parts: dict[RelationName, Sequence[SnapshotPart]] = {}
        self._open_database(held, parts)
        sides = {r.name.source for r in relations} - {MAIN_SOURCE}
        for source in sorted(sides):
            read, own = self._parts.feeds[source], [r for r in relations if r.name.source == source]
            positions, notes = manifest.start_of(source, read.positions, read.notes)
            opens = partial(read.source.open_snapshot, own, positions, notes)
            side = self._calls.result(opens, FeedSnapshot.close)
            held.callback(self._calls.close, side.close)
            if source in self._chosen:
                chooser, chosen = retaining(read.source), cast(ChosenSnapshot, side)
                assert chooser is not None
                self._chosen[source] = chooser.order_of(chosen.position)
            for r in own:
                cut = manifest.cut(
                    partial(self._parts_of, side, r), r, self.columns[r.name], self._parts.parts
                )
                parts[r.name] = manifest.wrapped(r, cut, manifest.finished(r))
        manifest.save()
        return {r.name: parts[r.name] for r in relations}

    def _parts_of(
        self,
        side: FeedSnapshot,
        relation: Relation,
        columns: Sequence[int],
        count: int,
        known: Sequence[str],
    ) -> Sequence[FeedPart]:
        return self._calls.result(partial(side.parts, relation, columns, count, known))

    def _open_database(
        self, held: ExitStack, parts: dict[RelationName, Sequence[SnapshotPart]]
    ) -> None:
        """Open the database's snapshot, set `position`, and add the parts of its relations."""
        manifest = self._manifest
        if not self._parts.reads_database:
            manifest.begin(0)
            return
        relations = [r for r in self.definition.relations() if r.name.source == MAIN_SOURCE]
        snapshot = self._parts.open_snapshot(relations)
        held.callback(snapshot.close)
        self.position = snapshot.position
        failpoint("build.snapshot.opened")
        manifest.begin(snapshot.position)
        count = self._parts.parts
        cuts = {
            r.name: manifest.cut(partial(snapshot.parts, r), r, self.columns[r.name], count)
            for r in relations
        }
        finished = {r.name: manifest.finished(r) for r in relations}
        manifest.save()
        if any(finished.values()):
            self._await_changes()
        for r in relations:
            of_keys = partial(snapshot.part_of_keys, r, self.columns[r.name])
            parts[r.name] = manifest.whole(r, cuts[r.name], finished[r.name], self._spool, of_keys)

    def _await_changes(self) -> None:
        """Wait until the spool has everything that changed before the snapshot."""
        self.status.enter(BuildPhase.READING_CHANGES)
        self._parts.nudge()
        with self._passed:
            while self._passed_position < self.position:
                if self.is_cancelled:
                    raise dropped()
                self._passed.wait()

    def _on_progress(self, progress: Progress) -> None:
        self.status.progress = progress
        if self.is_cancelled:
            raise dropped()
