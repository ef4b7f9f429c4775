"""The start of a pipeline: sink and state are brought to one position, however long the sink
refuses.

A sink may refuse all writes: it is a standby now, a privilege was revoked, another service owns it.
Such a refusal is reported as the problem of all views, and retried with growing pauses in the same
process. Invariant: nothing is read or stepped before the sink's position is known; meanwhile
additional sinks get what is committed for them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from connectors.sink import Sink
from dataflow.errors import SinkError, TemporaryError, TidemarkError
from service.engine.engine import Engine
from service.ingest.external_sources import ExternalSources
from service.metrics.metrics import PipelineMetrics
from service.pipeline.epochs import Epochs
from service.pipeline.reconciler import CatalogReconciler
from service.pipeline.recovery import recover, require_known
from service.pipeline.sink_mute import SinkMute
from service.pipeline.view_failures import Failures
from service.runtime import signals, state_owner
from service.runtime.log import log
from service.runtime.runtime import Runtime
from service.sinks.sink_workers import SinkWorkers
from storage.backoff import Backoff
from storage.store import Store

PAUSE_S = (0.5, 30.0)
# Another process must begin, or another version of the program.
_ENDING = signals.FINAL_CODES | {"sink.fenced"}


class Startup:
    """Retry the recovery until the sink takes it. Used by the pipeline's thread, once.

    report_failure: shows the API why the pipeline does not run.
    """

    def __init__(
        self,
        recovery: StateRecovery,
        epochs: Epochs,
        sink_workers: SinkWorkers,
        report_failure: Callable[[TidemarkError], None],
        runtime: Runtime,
    ) -> None:
        self._recovery = recovery
        self._epochs = epochs
        self._sink_workers = sink_workers
        self._report_failure = report_failure
        self._runtime = runtime

    def run(self, is_stopping: Callable[[], bool]) -> None:
        """Return once the sink is known and open.

        Raise errors that are not the sink's or need another process, and the sink's refusal when
        the service stops.
        """
        backoff, reported = Backoff(*PAUSE_S), ""
        while True:
            try:
                self._recovery.run()
                break
            except SinkError as error:
                if error.code in _ENDING or error.relation is not None or is_stopping():
                    raise
                if reported != str(error):
                    reported = str(error)
                    log.error("sink.refused", code=error.code, why=error.what, hint=error.hint)
                self._await(error, backoff.next_s(), is_stopping)
        if reported:
            log.info("sink.running")

    def _await(self, error: SinkError, pause_s: float, is_stopping: Callable[[], bool]) -> None:
        """Report why nothing moves, and wait; additional sinks continue."""
        self._epochs.close()
        until = self._runtime.monotonic() + pause_s
        while self._runtime.monotonic() < until and not is_stopping():
            self._report_failure(error)
            self._serve_additional_sinks()
            self._runtime.sleep(min(0.5, pause_s))

    def _serve_additional_sinks(self) -> None:
        if not self._recovery.is_sink_claimed:
            return
        try:
            self._sink_workers.reconcile(is_muted=False, is_lagging=True)
            self._sink_workers.start()
            self._sink_workers.report()
        except TidemarkError as error:
            log.debug("sink.retry", code=error.code)


class StateRecovery:
    """Bring sink and state to one position. Used by the pipeline's thread.

    waiting_bytes: what epochs on their way to the sink may take. restore_views: called once the
    engine has only views that the catalog calls live. reopen: opens the stream, or begins to
    reconnect.
    """

    def __init__(
        self,
        *,
        engine: Engine,
        sink: Sink,
        waiting_bytes: int,
        reconciler: CatalogReconciler,
        failures: Failures,
        epochs: Epochs,
        mute: SinkMute,
        external_sources: ExternalSources,
        metrics: PipelineMetrics,
        store: Store,
        state_folder: Path,
        restore_views: Callable[[], None],
        reopen: Callable[[], None],
        runtime: Runtime,
    ) -> None:
        self._engine = engine
        self._sink = sink
        self._waiting_bytes = waiting_bytes
        self._reconciler = reconciler
        self._failures = failures
        self._epochs = epochs
        self._mute = mute
        self._external_sources = external_sources
        self._metrics = metrics
        self._store = store
        self._state_folder = state_folder
        self._restore_views = restore_views
        self._reopen = reopen
        self._runtime = runtime
        self.is_sink_claimed = False

    def run(self) -> None:
        """Bring sink and state to one position (DESIGN 4). SinkError when the sink refuses."""
        self._reconciler.claim()
        self._sink.claim()
        self.is_sink_claimed = True
        self._refresh()
        self._check_owner()
        for error in self._engine.recover(self._epochs.written()):
            log.error("buckets.lost", code=error.code, why=error.described)
            self._reconciler.degrade_lost(error)
        require_known(self._engine, self._sink)
        is_older = self._failures.remove_strangers()
        self._reconciler.rebuild_lost()
        failed, before = self._reconciler.failed_names(), self._engine.epoch
        found = recover(
            self._engine,
            self._sink,
            self._metrics,
            failed,
            self._waiting_bytes,
            is_older=is_older,
            runtime=self._runtime,
        )
        self._epochs.start(*found)
        self._rebuild_refused()
        # Epochs that were on their way to the sink may have changed the catalog.
        self._refresh()
        self._epochs.resume_progress(self._reconciler.sink_progress)
        self._failures.remove_failed()
        if self._epochs.writer.written > before:
            self._remove_outdated()
        self._restore_views()
        self._epochs.commit()
        self._reopen()
        if not self._epochs.is_lagging:
            self._reconciler.complete_recovered()

    def _rebuild_refused(self) -> None:
        """Rebuild the views whose rows of the outbox were refused: these may be from before a
        change of the sink's types. What refuses the rows of a rebuild too fails the view.
        """
        for error in self._epochs.writer.refusals():
            self._failures.degrade(self._failures.readers_of(error.relation), error)

    def _refresh(self) -> None:
        if not self._reconciler.refresh():
            raise TemporaryError("sink.unreachable", "the catalog cannot be read")

    def _check_owner(self) -> None:
        """StorageError state.foreign when the catalog follows another database than the state."""
        identity = self._reconciler.source_identity()
        if self._engine.views:
            state_owner.check(self._store, identity, str(self._state_folder))
        state_owner.note(self._store, identity)

    def _remove_outdated(self) -> None:
        """Rebuild the views whose sources cannot replay: the state is older than the sink."""
        self._failures.remove_outdated(self._external_sources.not_replayable(self._mute.by_source))
        self._reconciler.rebuild_lost()
