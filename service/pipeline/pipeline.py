"""The pipeline process: source to state to sink, epoch after epoch, for all views together.

One thread owns the store and everything of an epoch up to its commit; the sink writer, the
stream's reader and each build have threads of their own. Here is the loop, from recovery to the
end; how it begins is in `start`, the epochs' way in `epochs`, what is followed of the sources in
`following`, how views come and go in `view_life`. Invariants: the source may forget only what
synced state covers; while the sink is too far behind nothing is read, and all else goes on.
"""

from __future__ import annotations

from connectors.postgres.replication.slot import LOST
from connectors.sink import SinkChanged
from connectors.source import MAIN_SOURCE, SourceBatch
from dataflow.errors import SourceError, TemporaryError, TidemarkError
from service.factory.service_factory import ServiceFactory
from service.metrics.metrics import PipelineMetrics
from service.pipeline.context import PipelineContext
from service.pipeline.epochs import Epochs
from service.pipeline.source_subscriptions import SourceSubscriptions
from service.pipeline.startup import Start
from service.pipeline.view_builds import ViewLife
from service.runtime import kernels, readiness_pipe
from service.runtime.log import log
from service.runtime.settings import Settings
from service.views.lifecycle import ViewState
from storage.errors import StorageError

POLL_S = 0.02
RECONCILE_S = 1.0
REPORT_S = 1.0
REFUSED_S = 15.0
STALLED_S = 5.0
# Beginnings of the codes of what is found out when the stream is opened.
OPENING = ("source.slot_", "source.no_free_", "source.privilege", "source.login", "source.database")
OPENING += ("source.identity_", "source.promoted_", "source.standby", "source.wal_level")
# What may be a mistake in a setting, and is put right; whoever asks for a rebuild gives it up.
ABANDONED = ("source.identity_changed", "source.promoted_behind")


class Pipeline:
    """Runs until `stop`; raises what cannot be healed here."""

    def __init__(self, settings: Settings, parts: ServiceFactory) -> None:
        self._settings = settings
        self._parts = parts
        self._host = parts.runtime
        self._is_stopping = False
        self._metrics = PipelineMetrics(settings.state)
        kernels.watch(self._metrics.kernel_compiled)
        self._context = PipelineContext(settings, parts, self._metrics)
        self._engine = self._context.engine
        self._desk = self._context.desk
        self._feed = self._context.feed
        self._sides = self._context.sides
        self._epochs = Epochs(self._context)
        self._following = SourceSubscriptions(self._context, self._epochs)
        self._views = ViewLife(self._context, self._epochs, self._following)
        self._is_stall_told = False
        self._is_sides_turn = self._have_sides_more = False
        self._reconciled_at = self._reported_at = 0.0
        self._synced_at = self._host.monotonic()
        self._written_before = 0

    @property
    def is_unused(self) -> bool:
        """Whether a group beside the default one has ended with its last view."""
        return self._views.is_unused

    def stop(self) -> None:
        """Ask the loop to end after the epoch in hand."""
        self._is_stopping = True

    def run(self) -> None:
        """Recover, then stream until stopped."""
        start = Start(self._context, self._epochs, self._views, self._reopen)
        try:
            try:
                start.run(lambda: self._is_stopping)
            except SourceError as error:
                self._refuse(error)
            self._metrics.position = self._engine.position
            self._metrics.write()
            self._written_before = self._engine.epoch
            while not (self._is_stopping or self.is_unused):
                try:
                    self._tick()
                except SourceError as error:
                    self._refuse(error)
        except SinkChanged:
            # The next start is to know what it had.
            self._epochs.commit(sync=True)
            raise
        finally:
            self._close()

    # --- start and end -------------------------------------------------------------------

    def _refuse(self, error: SourceError) -> None:
        """The source cannot be followed from where the state stands: only drops are served.

        Raises the error after a while, so that the supervisor tries again; returns when the last
        view that depends on the position is gone, or has failed for it.
        """
        error = self._context.wal_budget.explained(error)
        log.error("source.refused", code=error.code, why=error.what, hint=error.hint)
        self._feed.close()
        if error.code in LOST:
            self._lose(error)
            return
        for build in self._context.builds.values():
            build.cancel(error)
        until = self._host.monotonic() + REFUSED_S
        while self._engine.views:
            if self._is_stopping or self._host.monotonic() > until:
                raise error
            self._parts.report_failure(error)
            if self._desk.refresh():
                for row in self._desk.to_drop():
                    self._views.remove(row)
                if error.code in ABANDONED and self._desk.asks_replacement:
                    self._lose(error)
                    return
            self._desk.wait(RECONCILE_S)
            if self._engine.views and self._is_put_right(error):
                log.info("source.running", source=MAIN_SOURCE)
                break
        else:
            self._following.forget()
        # The refusal is taken back before anything new is called live.
        self._metrics.write()

    def _lose(self, error: SourceError) -> None:
        """Go on without what reads the database; a rebuild is the way out."""
        self._following.lose(error)
        self._metrics.position = self._engine.position
        self._metrics.write()

    def _is_put_right(self, error: SourceError) -> bool:
        """Whether a source that could not be opened can be, by now."""
        if not error.code.startswith(OPENING):
            return False
        try:
            self._following.open()
        except TidemarkError as again:
            log.debug("source.retry", code=again.code)
            self._feed.close()
            return False
        return True

    def _close(self) -> None:
        core = self._context
        for build in core.builds.values():
            build.cancel()
        self._epochs.close()
        core.wal_budget.close()
        core.reconnect.close()
        core.checkpoints.close()
        core.watch.close()
        core.external_snapshots.snapshot_offsets.close()
        self._sides.close()
        self._feed.close()
        for build in core.builds.values():
            build.close(is_kept=True)
        core.sink_workers.close()
        core.change_logs.close()
        self._desk.close()
        self._parts.close()
        try:
            core.store.close()
        except StorageError as error:
            # What was committed is found at the next start; why it ends now is told already.
            log.warning("state.unclosed", code=error.code, why=error.detail)

    # --- the loop --------------------------------------------------------------------------

    def _tick(self) -> None:
        epochs, writer = self._epochs, self._epochs.writer
        writer.check()
        self._context.sink_workers.check()
        now = self._host.monotonic()
        is_drained = epochs.awaits_sink and writer.is_idle
        is_due = is_drained or now - self._reconciled_at > RECONCILE_S
        is_due |= (
            self._context.external_snapshots.snapshot_offsets.is_any_found or self._views.is_due
        )
        if self._desk.is_called() or is_due:
            self._reconciled_at = now
            acknowledged = writer.written
            if self._desk.refresh():
                self._desk.require_server()
                epochs.require_sink(acknowledged, self._desk.sink_epoch)
                self._reconcile()
        epochs.forget_mutes()
        batch = self._poll()
        if batch is not None:
            self._run_epoch(batch)
        self._views.advance_builds()
        epochs.awaits_sink = epochs.awaits_sink and not is_drained
        written = writer.written
        self._following.drop_refused()
        self._desk.settle(written)
        if written > self._written_before:
            readiness_pipe.report()
        if now - self._synced_at > self._settings.sync_interval_s:
            self._synced_at = now
            epochs.checkpoint()
        if now - self._reported_at > REPORT_S:
            self._reported_at = now
            self._report()

    def _reconcile(self) -> None:
        """Do what the catalog asks for."""
        self._sides.declared_again(self._desk.sources.changed())
        self._context.schema_recovery.note_names()
        letters = self._context.external_snapshots.resolved_dead_letters
        for batch in () if self._epochs.mute else letters():
            self._run_epoch(batch)
        self._views.reconcile()

    def _run_epoch(self, batch: SourceBatch) -> None:
        self._following.complete_failed(self._epochs.run(batch))

    # --- what is read --------------------------------------------------------------------------

    def _poll(self) -> SourceBatch | None:
        writer = self._epochs.writer
        if self._epochs.awaits_sink or not writer.has_space:
            # The source keeps what we do not read; drops, builds and status go on.
            writer.await_progress(POLL_S)
            return None
        if self._desk.owes_failures:
            # What is read is shown: who looks at it must know which views do not move on with it.
            self._feed.await_wake(POLL_S)
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
            # Also where nothing is to be read: views that wait to be built do so until it is known.
            is_away = self._context.reconnect.error is not None
            is_desired = self._engine.position or self._context.is_build_left or is_away
            if is_desired and self._context.reconnect.is_open:
                self._reopen()
            else:
                self._feed.await_wake(timeout_s)
            return None
        mute = self._epochs.mute
        if mute and MAIN_SOURCE not in mute:
            # Others have yet to come where the sink is: nothing may be read beyond that.
            self._feed.await_wake(timeout_s)
            return None
        try:
            rows, until = self._bounds(mute.get(MAIN_SOURCE))
            batch = self._feed.poll(rows, timeout_s, until)
            # What is not there has been read; a batch is read once it is stepped.
            whole = self._host.time() - self._feed.silent_s
            self._metrics.read.moved(whole if batch is None and until is None else None)
            return batch
        except TidemarkError as error:
            if error.is_temporary:
                self._is_away(error)
            elif not self._following.fail_readers(error):
                raise
            return None

    def _poll_sides(self) -> SourceBatch | None:
        self._have_sides_more = False
        if self._context.is_build_left:
            # It goes on from where it stood: nothing may be read past that before it is back.
            return None
        try:
            batch = self._sides.poll(self._settings.epoch_rows, self._epochs.mute)
        except TidemarkError as error:
            if not self._following.fail_readers(error):
                raise
            return None
        self._have_sides_more = batch is not None
        return batch

    def _bounds(self, until: int | None) -> tuple[int, int | None]:
        """Most rows of an epoch, and up to where it may go: what a snapshot has and what comes
        after it never come together. While nobody knows where one will be, it is a transaction
        alone."""
        builds, position = self._context.builds.values(), self._engine.position
        ahead = [b.position for b in builds if b.awaits_snapshot(position)]
        if 0 in ahead:
            return 1, until
        ends = [*ahead, *([] if until is None else [until])]
        return self._settings.epoch_rows, min(ends, default=None)

    def _reopen(self) -> None:
        """Open the stream again, or let the way back be looked for; never waits for it."""
        try:
            if self._context.is_build_left:
                self._views.resume_builds()
                self._context.is_build_left = False
                self._following.forget_unread()
            if self._engine.views or self._engine.position:
                self._following.open()
            else:
                self._context.reconnect.regained()
        except TidemarkError as error:
            if error.is_temporary:
                self._is_away(error)
                return
            if self._context.failures.definitions():
                raise
            # A slot that nothing depends on: the next view begins with a new one.
            self._following.forget()

    def _is_away(self, error: TidemarkError) -> None:
        """The database cannot be read just now: all else goes on."""
        self._feed.close()
        pause_s = self._context.reconnect.lost(error)
        log.warning("source.retry", code=error.code, why=error.described, pause_s=round(pause_s, 2))
        self._tell_source()

    # --- how it goes ---------------------------------------------------------------------------

    def _report(self) -> None:
        """Tell people how things stand, and see whether a copy of the state is due."""
        self._context.checkpoints.tick(is_due=bool(self._engine.views) and not self._epochs.mute)
        core, metrics, stalled_s = self._context, self._metrics, self._epochs.writer.stalled_s
        self._tell_source()
        metrics.sink_stalled_s = stalled_s
        self._measure()
        self._tell_stall(is_stalled=stalled_s > STALLED_S)
        metrics.report_dataflow(self._engine.figures)
        statuses = self._sides.statuses()
        metrics.sources = {name: status.facts() for name, status in statuses.items()}
        self._desk.sources.tell(statuses)
        self._desk.report(core.builds)
        self._views.report_waiting()
        core.sink_workers.report()
        metrics.sink_workers = core.sink_workers.figures()
        metrics.write()

    def _tell_source(self) -> None:
        """Whether the database can be read, and how far it is as far as is known."""
        away, silent_s = self._context.reconnect.error, self._feed.silent_s
        said = "" if away is None else str(away)
        if silent_s and away is None:
            said = f"the source has been silent for {silent_s:.0f} s [source.unreachable]"
        self._metrics.source_error = said or self._said_lost()
        if self._feed.is_open:
            self._metrics.source_position = self._feed.received_position

    def _said_lost(self) -> str:
        """Why nothing of the database is followed, while views wait to be rebuilt."""
        if self._engine.position:
            return ""
        rows = (r for r in self._desk.rows if r.status == ViewState.FAILED)
        code = next((r.code for r in rows if r.code in (*LOST, *ABANDONED)), "")
        return code and f"views have failed, and have to be rebuilt [{code}]"

    def _measure(self) -> None:
        """Gauges of this moment; and up to when the sink shows all while nothing waits for it."""
        metrics, engine, writer = self._metrics, self._engine, self._epochs.writer
        metrics.forget_others({d.table.title for d in engine.views.values()})
        metrics.gauges = {
            "sink_waiting_epochs": max(0, engine.epoch - writer.written),
            "memory_limit_bytes": self._settings.memory << 20,
            "state_disk_bytes": self._context.store.disk_bytes(),
            "outbox_bytes": engine.outbox_bytes(0),
            **self._context.checkpoints.figures(),
        }
        if writer.is_idle and not self._epochs.is_lagging:
            reached = [status.reached() for status in self._sides.statuses().values()]
            if engine.position:
                reached.append(metrics.read())
            if reached and None not in reached:
                metrics.shown.moved(min(r for r in reached if r is not None))

    def _tell_stall(self, *, is_stalled: bool) -> None:
        """The stream may not be read then: how far the source is ahead must be asked for."""
        if is_stalled != self._is_stall_told:
            self._is_stall_told = is_stalled
            log.warning("sink.stalled" if is_stalled else "sink.moves_on")
        if not is_stalled or self._context.reconnect.error is not None:
            return
        try:
            self._metrics.source_position = self._parts.source.current_position()
        except TemporaryError as error:
            log.warning("source.retry", code=error.code)
