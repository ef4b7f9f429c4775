"""The pipeline process: source to state to sink, epoch after epoch, for all views together.

One thread owns the store and everything of an epoch up to its commit; the sink writer, the stream's
reader and each build have threads of their own. Here is the loop; `composition.py` puts its parts
together. Invariant: the source may forget only what synced state covers.
"""

from __future__ import annotations

from collections.abc import Callable

from connectors.sink import SinkChanged
from dataflow.errors import SourceError
from service.engine.engine import Engine
from service.metrics.metrics import PipelineMetrics
from service.pipeline.build_join import BuildJoin
from service.pipeline.catalog_turn import CatalogTurn
from service.pipeline.epochs import Epochs
from service.pipeline.pipeline_report import PipelineReport
from service.pipeline.reconciler import CatalogReconciler
from service.pipeline.sink_mute import SinkMute
from service.pipeline.sink_refusals import SinkRefusals
from service.pipeline.source_intake import SourceIntake
from service.pipeline.source_refusal import SourceRefusal
from service.pipeline.source_subscriptions import SourceSubscriptions
from service.pipeline.startup import Startup
from service.pipeline.state_sync import StateSync
from service.pipeline.view_life import ViewLife
from service.runtime import readiness_pipe
from service.runtime.runtime import Runtime
from service.sinks.sink_workers import SinkWorkers

REPORT_S = 1.0


class Pipeline:
    """Run until `stop`; raise what cannot be healed here. close: ends every part, in order."""

    def __init__(
        self,
        *,
        engine: Engine,
        epochs: Epochs,
        mute: SinkMute,
        startup: Startup,
        intake: SourceIntake,
        catalog: CatalogTurn,
        views: ViewLife,
        join: BuildJoin,
        refusals: SinkRefusals,
        refusal: SourceRefusal,
        reconciler: CatalogReconciler,
        subscriptions: SourceSubscriptions,
        sink_workers: SinkWorkers,
        state_sync: StateSync,
        report: PipelineReport,
        metrics: PipelineMetrics,
        runtime: Runtime,
        sync_interval_s: float,
        close: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._epochs = epochs
        self._mute = mute
        self._startup = startup
        self._intake = intake
        self._catalog = catalog
        self._views = views
        self._join = join
        self._refusals = refusals
        self._refusal = refusal
        self._reconciler = reconciler
        self._subscriptions = subscriptions
        self._sink_workers = sink_workers
        self._state_sync = state_sync
        self._report = report
        self._metrics = metrics
        self._runtime = runtime
        self._sync_interval_s = sync_interval_s
        self._close = close
        self._is_stopping = False
        self._reported_at = 0.0
        self._synced_at = runtime.monotonic()
        self._written_before = 0

    @property
    def is_unused(self) -> bool:
        """Return whether a group other than the default one has ended with its last view."""
        return self._views.is_unused

    def stop(self) -> None:
        """End the loop after the current epoch."""
        self._is_stopping = True

    def run(self) -> None:
        """Recover, then stream until stopped."""
        is_stopping = lambda: self._is_stopping  # noqa: E731
        try:
            try:
                self._startup.run(is_stopping)
            except SourceError as error:
                self._refusal.resolve(error, is_stopping)
            self._metrics.position = self._engine.position
            self._metrics.write()
            self._written_before = self._engine.epoch
            while not (self._is_stopping or self.is_unused):
                try:
                    self._tick()
                except SourceError as error:
                    self._refusal.resolve(error, is_stopping)
        except SinkChanged:
            # The next start needs the sink's progress.
            self._epochs.commit(sync=True)
            raise
        finally:
            self._close()

    def _tick(self) -> None:
        epochs, writer = self._epochs, self._epochs.writer
        writer.check()
        self._sink_workers.check()
        now = self._runtime.monotonic()
        is_drained = epochs.awaits_sink and writer.is_idle
        self._catalog.run_if_due(now, is_drained=is_drained)
        self._mute.unmute_reached(writer.written)
        batch = self._intake.poll()
        if batch is not None:
            self._subscriptions.complete_failed(epochs.run(batch))
        self._join.advance_builds()
        epochs.awaits_sink = epochs.awaits_sink and not is_drained
        written = writer.written
        self._refusals.resolve()
        self._reconciler.complete(written)
        if written > self._written_before:
            readiness_pipe.report()
        if now - self._synced_at > self._sync_interval_s:
            self._synced_at = now
            self._state_sync.run()
        if now - self._reported_at > REPORT_S:
            self._reported_at = now
            self._report.run()
