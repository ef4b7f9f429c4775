"""The next batch that the pipeline reads, and its source.

Invariants: nothing is read while the sink lags too much. A muted source is not read beyond the
position that the sink shows. A snapshot's rows and later ones never come in one batch.
"""

from __future__ import annotations

from collections.abc import Callable

from connectors.source import MAIN_SOURCE, SourceBatch
from dataflow.errors import TemporaryError, TidemarkError
from service.backfill.builds import Builds
from service.engine.engine import Engine
from service.ingest.external_sources import ExternalSources
from service.metrics.metrics import PipelineMetrics
from service.pipeline.build_start import BuildStart
from service.pipeline.epochs import Epochs
from service.pipeline.followed_database import FollowedDatabase
from service.pipeline.reconciler import CatalogReconciler
from service.pipeline.sink_mute import SinkMute
from service.pipeline.source_reset import SourceReset
from service.pipeline.source_subscriptions import SourceSubscriptions
from service.pipeline.view_failures import Failures
from service.runtime.log import log
from service.runtime.runtime import Runtime

POLL_S = 0.02


class SourceIntake:
    """Used by the pipeline's thread. show_source: puts the database's state into the metrics."""

    def __init__(
        self,
        *,
        engine: Engine,
        epochs: Epochs,
        mute: SinkMute,
        builds: Builds,
        failures: Failures,
        reconciler: CatalogReconciler,
        subscriptions: SourceSubscriptions,
        reset: SourceReset,
        database: FollowedDatabase,
        external_sources: ExternalSources,
        start: BuildStart,
        metrics: PipelineMetrics,
        show_source: Callable[[], None],
        runtime: Runtime,
        epoch_rows: int,
    ) -> None:
        self._engine = engine
        self._epochs = epochs
        self._mute = mute
        self._builds = builds
        self._failures = failures
        self._reconciler = reconciler
        self._subscriptions = subscriptions
        self._reset = reset
        self._database = database
        self._external_sources = external_sources
        self._start = start
        self._metrics = metrics
        self._show_source = show_source
        self._runtime = runtime
        self._epoch_rows = epoch_rows
        self._is_external_turn = self._has_more_external = False

    def poll(self) -> SourceBatch | None:
        """Return whole transactions of one source, None when there are none or none may be read."""
        writer = self._epochs.writer
        if self._epochs.awaits_sink or not writer.has_space:
            # The source keeps what we do not read; drops, builds and status continue.
            writer.await_progress(POLL_S)
            return None
        if self._reconciler.owes_failures:
            # Readers see what is read: they must know which views are not moving with it.
            self._database.await_wake(POLL_S)
            return None
        self._is_external_turn = not self._is_external_turn
        batch = self._poll_external() if self._is_external_turn else None
        batch = batch or self._poll_stream()
        # Also after both: what ended the waiting is mostly a side, and the next tick may wait.
        return batch or self._poll_external() or self._epochs.unshown()

    def _poll_stream(self) -> SourceBatch | None:
        # No waiting while another source may have more.
        timeout_s = 0 if self._has_more_external else POLL_S
        if not self._database.is_open:
            # Also if nothing is to be read: views that wait for a build do so until it is known.
            is_away = self._database.away_error is not None
            is_desired = self._engine.position or not self._builds.are_resumed or is_away
            if is_desired and self._database.is_reachable:
                self.reopen()
            else:
                self._database.await_wake(timeout_s)
            return None
        mute = self._mute.by_source
        if mute and MAIN_SOURCE not in mute:
            # Other sources have not reached the sink yet: nothing may be read beyond it.
            self._database.await_wake(timeout_s)
            return None
        try:
            rows, until = self._bounds(mute.get(MAIN_SOURCE))
            batch = self._database.poll(rows, timeout_s, until)
            # What is missing has been read; a batch counts as read once it is stepped.
            whole = self._runtime.time() - self._database.silent_s
            self._metrics.read.moved(whole if batch is None and until is None else None)
            return batch
        except TidemarkError as error:
            if error.is_temporary:
                self._note_away(error)
            elif not self._subscriptions.fail_readers(error):
                raise
            return None

    def _poll_external(self) -> SourceBatch | None:
        self._has_more_external = False
        if self._database.is_probe_due:
            self._probe_objects()
        if not self._builds.are_resumed:
            # The relation continues from its old position: nothing may be read beyond that before
            # it is back.
            return None
        try:
            batch = self._external_sources.poll(
                self._epoch_rows,
                self._mute.by_source,
                self._builds.unpassed(self._engine.positions),
            )
        except TidemarkError as error:
            if not self._subscriptions.fail_readers(error):
                raise
            return None
        self._has_more_external = batch is not None
        return batch

    def _probe_objects(self) -> None:
        """Probe what views without tables rest on: the database may be away."""
        try:
            self._subscriptions.probe_tables()
        except TemporaryError as error:
            log.debug("source.retry", code=error.code, why=error.described)

    def _bounds(self, until: int | None) -> tuple[int, int | None]:
        """Return the most rows of an epoch, and its limits by position.

        A snapshot's rows and later ones never come in one batch. While the snapshot's position is
        unknown, an epoch is a single transaction.
        """
        ahead = self._builds.unread_snapshots(self._engine.position)
        if 0 in ahead:
            return 1, until
        ends = [*ahead, *([] if until is None else [until])]
        return self._epoch_rows, min(ends, default=None)

    def reopen(self) -> None:
        """Open the stream again, or begin to reconnect; never wait for it."""
        try:
            if not self._builds.are_resumed:
                self._start.resume_interrupted()
                self._builds.note_resumed()
                self._subscriptions.forget_unread()
            if self._engine.views or self._engine.position:
                self._subscriptions.open()
            else:
                self._database.regained()
        except TidemarkError as error:
            if error.is_temporary:
                self._note_away(error)
                return
            if self._failures.definitions():
                raise
            # A slot that nothing depends on: the next view begins with a new one.
            self._reset.forget_all()

    def _note_away(self, error: TidemarkError) -> None:
        """Note that the database cannot be read; everything else continues."""
        self._database.lost(error)
        self._show_source()
