"""The pipeline process: source to state to sink, epoch after epoch, for all views together.

One thread owns the store and everything of an epoch up to its commit; the sink writer, the
stream's reader and each build have threads of their own. Invariants: an epoch is committed to
the state before the sink sees it, and synced first where its source could not tell it again; the
source may forget only what synced state covers; what the
state lacks against the sink is stepped again with the sink muted; while the sink is too far behind
nothing is read, and all else goes on. The file is long because the
one thread's whole order, epochs, joins, drops and failures, is to be read in one place.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from connectors.postgres.control import ViewRow
from connectors.postgres.replication import StreamLimits
from connectors.sink import SinkEpoch
from connectors.source import MAIN_SOURCE, SourceBatch
from dataflow.changes import Changes
from dataflow.errors import SourceError, TemporaryError, TidemarkError, ViewError
from dataflow.schema import Relation
from service import kernels
from service.build import ViewBuild
from service.desk import Desk
from service.engine import Engine, ViewDefinition
from service.failures import Failures
from service.feed import Feed
from service.followers import Followers
from service.kept import forget_others, is_left
from service.log import log
from service.metrics import PipelineMetrics
from service.parts import Parts
from service.recovery import recover
from service.settings import DEFAULT_GROUP, Settings
from service.side_feeds import SideFeeds, is_main, side_relations
from service.side_work import SideWork
from service.wal_budget import WalBudget
from service.writer import SinkWriter

POLL_S = 0.02
IDLE_PROGRESS_S = 5.0
RECONCILE_S = 1.0
REPORT_S = 1.0
REFUSED_S = 15.0
STALLED_S = 5.0
RECONNECT_S = (0.1, 5.0)


class Pipeline:
    """Runs until `stop`; raises what cannot be healed here."""

    def __init__(self, settings: Settings, parts: Parts) -> None:
        self._settings = settings
        self._parts = parts
        self._is_stopping = False
        self.is_unused = False
        self._metrics = PipelineMetrics(settings.state)
        kernels.watch(self._metrics.kernel_compiled)
        self._store = parts.open_store()
        budget = settings.budget
        name, clock = parts.source.name, time.perf_counter
        self._engine = Engine(self._store, parts.evaluator(), name, budget.epoch, clock=clock)
        self._sink = parts.sink()
        self._staging = parts.sink()
        self._writer: SinkWriter | None = None
        self._mute: dict[str, Any] = {}
        self._awaits_sink = self._is_stall_told = False
        self._builds: dict[str, ViewBuild] = {}
        self._held: dict[str, tuple[ViewDefinition, int]] = {}
        self._desk = Desk(parts.control(), self._engine, parts)
        self._followers = Followers(parts.control(), self._engine, parts)
        self._wal_budget = WalBudget(settings, parts.new_source())
        limits = StreamLimits(budget.queue, budget.transaction, chunk_bytes=budget.chunk)
        self._feed = Feed(parts.source, self._desk.source_identity, limits)
        positions = self._engine.positions
        self._sides = SideFeeds(self._desk.sources.source, positions, self._feed.wake)
        self._is_sides_turn = self._have_sides_more = False
        self._failures = Failures(self._engine, self._desk, self._builds)
        self._side_work = SideWork(
            self._engine, self._failures, self._builds, self._desk.sources, self._sides.source
        )
        self._reconciled_at = self._reported_at = self._progressed_at = 0.0
        self._synced_at = time.monotonic()

    def stop(self) -> None:
        """Ask the loop to end after the epoch in hand."""
        self._is_stopping = True

    def run(self) -> None:
        """Recover, then stream until stopped."""
        try:
            try:
                self._recover()
            except SourceError as error:
                self._refuse(error)
            self._metrics.position = self._engine.position
            self._metrics.write()
            while not (self._is_stopping or self.is_unused):
                try:
                    self._tick()
                except SourceError as error:
                    self._refuse(error)
        finally:
            self._close()

    # --- start and end -------------------------------------------------------------------

    def _recover(self) -> None:
        """Bring sink and state to one position (DESIGN 4)."""
        self._desk.claim()
        if not self._desk.refresh():
            raise TemporaryError("sink.unreachable", "the catalog cannot be read")
        self._desk.recall_lost()
        self._writer, self._mute = recover(
            self._engine,
            self._sink,
            self._metrics,
            self._desk.failed_names(),
            self._settings.budget.waiting,
        )
        self._failures.remove_failed()
        self._engine.commit(None, written=self._written())
        self._resume_builds()
        if self._engine.views:
            self._open_stream()
        self._desk.settle_recovered()

    def _refuse(self, error: SourceError) -> None:
        """The source cannot be followed from where the state stands: only drops are served.

        Raises the error after a while, so that the supervisor tries again; returns when the last
        view that depends on the position is gone.
        """
        error = self._wal_budget.explained(error)
        log.error("source.refused", code=error.code, why=error.what, hint=error.hint)
        self._feed.close()
        for build in self._builds.values():
            build.cancel(error)
        until = time.monotonic() + REFUSED_S
        while self._engine.views:
            if self._is_stopping or time.monotonic() > until:
                raise error
            self._parts.report_failure(error)
            if self._desk.refresh():
                for row in self._desk.unwanted():
                    self._remove(row)
            self._desk.wait(RECONCILE_S)
        self._forget_source()

    def _close(self) -> None:
        for build in self._builds.values():
            build.cancel()
        self._wal_budget.close()
        self._side_work.pins.close()
        self._sides.close()
        self._feed.close()
        if self._writer is not None:
            self._writer.close()
        for build in self._builds.values():
            build.close(is_kept=True)
        self._followers.close()
        self._desk.close()
        self._parts.close()
        self._store.close()

    # --- the loop --------------------------------------------------------------------------

    def _tick(self) -> None:
        assert self._writer is not None
        self._writer.check()
        self._followers.check()
        now = time.monotonic()
        is_drained = self._awaits_sink and self._writer.is_idle
        is_due = is_drained or now - self._reconciled_at > RECONCILE_S
        is_due |= self._side_work.pins.is_any_found
        if self._desk.is_called() or is_due:
            self._reconciled_at = now
            if self._desk.refresh():
                self._reconcile()
                self._end_unused()
        self._forget_mutes()
        batch = self._poll()
        if batch is not None:
            self._run_epoch(batch)
        self._advance_builds()
        self._awaits_sink = self._awaits_sink and not is_drained
        written = self._writer.written
        self._drop_refused()
        self._desk.settle(written)
        if now - self._synced_at > self._settings.sync_interval_s:
            self._synced_at = now
            self._checkpoint()
        if now - self._reported_at > REPORT_S:
            self._reported_at = now
            self._report()

    def _poll(self) -> SourceBatch | None:
        assert self._writer is not None
        if self._awaits_sink or not self._writer.has_room:
            # The source keeps what we do not read; drops, builds and status go on.
            self._writer.await_progress(POLL_S)
            return None
        self._is_sides_turn = not self._is_sides_turn
        batch = self._poll_sides() if self._is_sides_turn else None
        batch = batch or self._poll_stream()
        # Also after both: what ended the waiting is mostly a side, and the next tick may wait.
        return batch or self._poll_sides()

    def _poll_stream(self) -> SourceBatch | None:
        # No waiting while another source may have more.
        timeout_s = 0 if self._have_sides_more else POLL_S
        if not self._feed.is_open:
            if not self._engine.position:
                self._feed.await_wake(timeout_s)
                return None
            self._reconnect(None)
            return None
        if self._mute and MAIN_SOURCE not in self._mute:
            # Others have yet to come where the sink is: nothing may be read beyond that.
            self._feed.await_wake(timeout_s)
            return None
        try:
            until = self._mute.get(MAIN_SOURCE)
            return self._feed.poll(self._epoch_rows(), timeout_s, until)
        except TidemarkError as error:
            if error.is_temporary:
                self._reconnect(error)
            elif not self._fail_readers(error):
                raise
            return None

    def _poll_sides(self) -> SourceBatch | None:
        self._have_sides_more = False
        try:
            batch = self._sides.poll(self._settings.epoch_rows, self._mute)
        except TidemarkError as error:
            if not self._fail_readers(error):
                raise
            return None
        self._have_sides_more = batch is not None
        return batch

    def _epoch_rows(self) -> int:
        """Most rows of an epoch; 1, a transaction alone, while a snapshot may lie ahead."""
        ahead = (b.awaits_snapshot(self._engine.position) for b in self._builds.values())
        return 1 if any(ahead) else self._settings.epoch_rows

    def _run_epoch(self, batch: SourceBatch) -> None:
        started = time.perf_counter()
        engine = self._engine
        is_bare = not batch.changes and batch.later is None and batch.rejected is None
        if is_bare and batch.source == MAIN_SOURCE and batch.position <= engine.position:
            return
        is_silent = is_bare if batch.source != MAIN_SOURCE else not batch.transactions
        if is_silent and not self._is_progress_due():
            # Nothing to show, but the source may forget it at the next checkpoint.
            engine.advance(batch)
            return
        before = engine.epoch
        epoch = engine.step(replace(batch, changes=[], later=self._chunks_for_builds(batch)))
        failed = [d for e in engine.refused() for d in self._failures.fail_readers(e)]
        self._metrics.epoch_stepped(batch.rows, batch.transactions, time.perf_counter() - started)
        if self._mute:
            # The sink has all of this already; keep its epoch number.
            engine.positions.stand(before)
            engine.commit(None, written=self._written())
            if epoch.later is not None:
                epoch.later.close()
        else:
            self._finish_epoch(epoch, sync=not self._sides.is_replayable(batch))
        self._settle_failed(failed)

    def _forget_mutes(self) -> None:
        """What a source has told again, or nothing reads any more, mutes the sink no longer."""
        if not self._mute:
            return
        reached = self._engine.positions.by_source
        read = side_relations(relation for relation, _ in self._failures.reads())
        for source, target in list(self._mute.items()):
            if source == MAIN_SOURCE:
                is_unread = self._sides.is_any and not self._engine.position
                is_reached = is_unread or self._engine.position >= target
            else:
                names = [name.name for name in read.get(source, ())]
                places = reached.get(source, {})
                is_reached = all(places.get(n) == target.get(n) for n in names)
            if is_reached:
                del self._mute[source]

    def _chunks_for_builds(self, batch: SourceBatch) -> Iterator[list[Changes]]:
        """The batch's chunks, each kept for the views that are being built as well."""
        for chunk in batch.chunks():
            yield chunk
            for build in self._builds.values():
                build.feed(replace(batch, changes=chunk, later=None, notes={}, rejected=None))

    def _finish_epoch(self, epoch: SinkEpoch, *, sync: bool = False) -> None:
        assert self._writer is not None
        is_synced = sync or self._followers.is_any
        self._engine.commit(epoch, written=self._written(), sync=is_synced)
        self._writer.submit(epoch)
        self._followers.advance()
        self._progressed_at = time.monotonic()
        self._metrics.position = self._engine.position

    def _is_progress_due(self) -> bool:
        return time.monotonic() - self._progressed_at > IDLE_PROGRESS_S

    def _checkpoint(self) -> None:
        """Force the state to disk, then let the source forget what it covers."""
        for build in self._builds.values():
            build.sync()
        self._engine.commit(None, written=self._written(), sync=True)
        self._feed.confirm(self._engine.position)

    def _report(self) -> None:
        """Tell people how things stand."""
        assert self._writer is not None
        self._metrics.source_position = self._feed.received_position
        self._metrics.sink_stalled_s = self._writer.stalled_s
        self._tell_stall(is_stalled=self._writer.stalled_s > STALLED_S)
        self._metrics.tell_dataflow(self._engine.figures)
        statuses = self._sides.statuses()
        self._metrics.sources = {name: status.facts() for name, status in statuses.items()}
        self._desk.sources.tell(statuses)
        self._desk.report(self._builds)
        self._followers.report()
        self._metrics.followers = self._followers.figures()
        self._metrics.write()

    def _tell_stall(self, *, is_stalled: bool) -> None:
        """The stream may not be read then: how far the source is ahead must be asked for."""
        if is_stalled != self._is_stall_told:
            self._is_stall_told = is_stalled
            log.warning("sink.stalled" if is_stalled else "sink.moves_on")
        if not is_stalled:
            return
        try:
            self._metrics.source_position = self._parts.source.current_position()
        except TemporaryError as error:
            log.warning("source.retry", code=error.code)

    def _reconnect(self, error: TidemarkError | None) -> None:
        """Open the stream again, and again until it is open, after a temporary error if any."""
        self._feed.close()
        pause = RECONNECT_S[0]
        while not self._is_stopping:
            if error is not None:
                self._metrics.source_error = str(error)
                log.warning("source.retry", code=error.code, pause_s=pause)
                self._metrics.write()
                time.sleep(pause)
                pause = min(pause * 2, RECONNECT_S[1])
            try:
                self._open_stream()
                break
            except TidemarkError as again:
                error = again
                if again.is_temporary:
                    continue
                if self._failures.definitions():
                    raise
                # A slot that nothing depends on: the next view begins with a new one.
                self._forget_source()
                break
        self._metrics.source_error = ""

    # --- views -----------------------------------------------------------------------------

    def _reconcile(self) -> None:
        """Do what the catalog asks for: drop, then build what is neither live nor being built."""
        self._sides.declared_anew(self._desk.sources.changed())
        for batch in () if self._mute else self._side_work.settled_dead_letters():
            self._run_epoch(batch)
        for row in self._desk.unwanted():
            self._drop(row)
        for row in self._desk.wanted(self._builds):
            try:
                self._try_build(row)
            except TemporaryError as error:
                log.warning("build.retry", view=row.title, code=error.code)
        self._attach_followers()

    def _try_build(self, row: ViewRow) -> None:
        """Start a build; the view fails if that is refused. Raises temporary errors alone."""
        try:
            self._start_build(row)
        except TidemarkError as error:
            if error.is_temporary:
                raise
            self._desk.fail_view(row.identity, error)

    def _resume_builds(self) -> None:
        """Go on with what was being built, before the stream is read: no change may be missed."""
        folder = self._settings.state / "builds"
        for row in self._desk.wanted(self._builds):
            if is_left(folder, row.identity):
                self._try_build(row)
        in_use = {build.definition.scope for build in self._builds.values()}
        forget_others(folder, in_use)

    def _attach_followers(self) -> None:
        """Begin what the catalog asks for beside the views' tables, once the state is on disk."""
        if self._followers.reconcile(is_muted=bool(self._mute)):
            self._engine.commit(None, written=self._written(), sync=True)
            self._followers.start()

    def _end_unused(self) -> None:
        """A group beside the default one ends with its last view; nothing of it is left."""
        is_default = self._settings.group == DEFAULT_GROUP
        if is_default or self._engine.views or self._builds:
            return
        if self._desk.has_rows() or self._followers.has_rows:
            return
        self._forget_source()
        self.is_unused = True

    def _start_build(self, row: ViewRow) -> None:
        held = self._held.get(row.identity)
        definition = held[0] if held else self._desk.define(row)
        if not self._desk.are_parents_live(definition):
            return
        self._settle_failed(self._failures.fail_outdated(definition))
        source = self._parts.source
        if self._feed.is_open and self._failures.is_newer(definition):
            # Rows from before a table got its new columns lack them: let them pass first.
            held = held or (definition, source.heartbeat())
            self._held[row.identity] = held
            if self._engine.position < held[1]:
                return
        self._held.pop(row.identity, None)
        definition = self._engine.in_free_scope(definition)
        folder = self._settings.state / "builds"
        feeds = self._side_work.begin(definition, is_resumed=is_left(folder, row.identity))
        if feeds is None:
            return
        self._store.drop(definition.scope + "/")
        reads_database = self._reads_database(definition)
        if reads_database and not self._feed.is_open and not self._engine.position:
            position = source.ensure_slot()
            self._desk.remember_source()
            self._engine.positions.begin(MAIN_SOURCE, position)
        self._engine.commit(None, written=self._written())
        source.watch([r for r in definition.relations() if is_main(r)])
        parts = self._parts.build(definition, row.options.get("backfill", "auto"), feeds)
        parts = replace(parts, reads_database=reads_database)
        columns = self._engine.columns_to_keep(definition, self._failures.reads())
        build = ViewBuild(definition, self._store, folder, parts, columns)
        self._builds[definition.identity] = build
        try:
            if reads_database:
                self._open_stream()
            else:
                self._sides.open(self._failures.reads())
        except TidemarkError as error:
            del self._builds[definition.identity]
            build.close(is_kept=error.is_temporary)
            raise
        if not build.is_cancelled:
            build.start()
            log.info("build.started", view=definition.table.title, road=build.status.road)

    def _reads_database(self, definition: ViewDefinition) -> bool:
        """A view of nothing but constants or views stands where the database does, if anywhere."""
        relations = definition.relations()
        return any(map(is_main, relations)) or not (relations or self._sides.is_any)

    def _advance_builds(self) -> None:
        for identity, build in list(self._builds.items()):
            build.passed(self._engine.position)
            if build.is_working:
                continue
            error = build.failure
            if error is not None and error.is_temporary and not build.is_cancelled:
                self._desk.fail_build(build, error)
                build.start_again()
            elif build.is_cancelled or error is not None:
                self._end_build(identity)
            elif build.catch_up():
                if not self._mute and self._engine.position >= build.position:
                    self._join(identity)
                elif not build.is_nudged:
                    # The snapshot is ahead of the stream, which has nothing to move it.
                    build.is_nudged = True
                    self._parts.source.heartbeat()

    def _end_build(self, identity: str) -> None:
        build = self._builds.pop(identity)
        build.close()
        self._store.drop(build.definition.scope + "/")
        self._engine.commit(None, written=self._written())
        self._staging.drop_staged(build.definition.table)
        error = build.refusal or (None if build.is_cancelled else build.failure)
        if error is not None:
            log.warning("build.failed", view=build.definition.table.title, why=str(error))
            self._desk.fail_build(build, error)
        self._release(build.definition.relations())

    def _join(self, identity: str) -> None:
        """Make a caught-up view live: its staged rows and what came since, in one epoch."""
        assert self._writer is not None
        build = self._builds[identity]
        parents = build.definition.parents()
        if not self._writer.has_room or (parents and not self._is_sink_drained()):
            return
        if parents:
            self._drop_refused()
            if build.is_cancelled:
                return
        view, gathered, result = build.take_over()
        try:
            for parent in parents:
                for rows in self._staging.read_rows(self._engine.views[parent].table):
                    build.add(view.step({parent: rows}))
                    self._store.relieve()
        except ViewError as error:
            build.failure = error
            return
        del self._builds[identity]
        engine = self._engine
        engine.add(view)
        epoch = engine.announce(view, gathered, result.errors, result.rejected)
        self._finish_epoch(epoch)
        self._desk.joined(build, epoch.progress.epoch)
        build.close()
        log.info("view.joined", view=view.definition.table.title, epoch=epoch.progress.epoch)

    def _drop(self, row: ViewRow) -> None:
        self._held.pop(row.identity, None)
        self._side_work.pins.forget(row.identity)
        build = self._builds.get(row.identity)
        if build is not None:
            build.cancel()
            return
        if not self._is_sink_drained():
            return
        self._release(self._remove(row))
        log.info("view.dropped", view=row.title)

    def _is_sink_drained(self) -> bool:
        """Whether the sink has every epoch; if not, nothing is read until it has."""
        assert self._writer is not None
        self._awaits_sink = not self._writer.is_idle
        return not self._awaits_sink

    def _remove(self, row: ViewRow) -> Sequence[Relation]:
        """Take a view out of state, sink and catalog; the relations that it read."""
        assert self._writer is not None
        self._writer.drain()
        relations: Sequence[Relation] = ()
        self._followers.end_view(row.identity)
        live = self._desk.live(row.identity)
        if live is not None:
            relations = live.relations()
            self._engine.remove(live.name)
            self._engine.commit(None, written=self._written())
        self._desk.drop(row, self._staging)
        return relations

    def _release(self, relations: Sequence[Relation]) -> None:
        """Stop watching what no view reads any more; the last view takes the slot with it."""
        reads = self._failures.reads()
        if not reads and not self._desk.has_views():
            self._forget_source()
            return
        self._feed.narrow(reads)
        used = {relation.name for relation, _ in reads}
        unused = [r for r in relations if r.name not in used]
        for name, gone in side_relations(unused).items():
            self._engine.positions.forget(name, [n.name for n in gone])
        self._sides.open(reads)
        self._engine.commit(None, written=self._written())
        try:
            self._parts.source.unwatch([r for r in unused if is_main(r)])
        except TemporaryError as error:
            log.warning("source.unwatch_failed", code=error.code)

    def _forget_source(self) -> None:
        """Nothing depends on the source's position any more: leave no slot, no progress."""
        assert self._writer is not None
        self._feed.close()
        self._sides.open([])
        self._parts.source.drop_slot()
        self._writer.restart()
        self._engine.positions.clear()
        self._engine.commit(None, written=0)
        self._staging.forget_progress()
        self._desk.forget_source()
        self._wal_budget.forget()

    def _open_stream(self) -> None:
        """Stream what is read; what turns out to be gone fails its views and no others."""
        self._sides.open(self._failures.reads())
        is_open = False
        while self._engine.position and not is_open:
            reads = [read for read in self._failures.reads() if is_main(read[0])]
            try:
                self._feed.open(self._engine.position, reads)
                is_open = True
            except TidemarkError as error:
                if not self._fail_readers(error):
                    raise

    # --- views that cannot go on -------------------------------------------------------------

    def _fail_readers(self, error: TidemarkError) -> bool:
        """Fail what reads the relation of a refusal; False when that is not all there is to it.

        The batch that was refused was not stepped: the next stream begins with it.
        """
        if error.is_temporary or error.relation is None:
            return False
        failed = self._failures.fail_readers(error)
        self._settle_failed(failed)
        return bool(failed)

    def _drop_refused(self) -> None:
        """Take out the views that the sink has refused."""
        assert self._writer is not None
        errors = self._writer.refusals()
        for error in errors:
            failed = self._failures.fail_readers(error)
            self._settle_failed(failed)
            for definition in failed:
                self._staging.drop_staged(definition.table)
        if errors:
            self._writer.forgive()

    def _settle_failed(self, failed: Sequence[ViewDefinition]) -> None:
        if failed:
            self._engine.commit(None, written=self._written())
            self._release([r for d in failed for r in d.relations()])

    def _written(self) -> int:
        return 0 if self._writer is None else self._followers.hold(self._writer.written)
