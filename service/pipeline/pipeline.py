"""The pipeline process: source to state to sink, epoch after epoch, for all views together.

One thread owns the store and everything of an epoch up to its commit; the sink writer, the stream's
reader and each build have threads of their own. Here is the loop and its turns; `composition.py`
puts their parts together. Invariant: the source may forget only what synced state covers.
"""

from __future__ import annotations

from collections.abc import Callable

from connectors.sink import SinkChanged
from dataflow.errors import SourceError
from service.engine.engine import Engine
from service.pipeline.catalog_turn import CatalogTurn
from service.pipeline.epochs import Epochs
from service.pipeline.idle_work import IdleWork
from service.pipeline.pipeline_report import PipelineReport
from service.pipeline.reconciler import CatalogReconciler
from service.pipeline.sink_mute import SinkMute
from service.pipeline.sink_refusals import SinkRefusals
from service.pipeline.sink_watch import SinkWatch
from service.pipeline.source_intake import SourceIntake
from service.pipeline.source_refusal import SourceRefusal
from service.pipeline.source_subscriptions import SourceSubscriptions
from service.pipeline.startup import Startup
from service.pipeline.state_sync import StateSync
from service.runtime import readiness_pipe
from service.runtime.runtime import Runtime
from service.sinks.sink_workers import SinkWorkers

REPORT_S = 1.0


class Pipeline:
    """Run until `stop`; raise what cannot be healed here. close: ends every part, in order."""

    def __init__(
        self,
        *,
        startup: Startup,
        sources: SourceTurn,
        catalog: CatalogTurn,
        sink: SinkTurn,
        upkeep: Upkeep,
        runtime: Runtime,
        close: Callable[[], None],
    ) -> None:
        self._startup = startup
        self._sources = sources
        self._catalog = catalog
        self._sink = sink
        self._upkeep = upkeep
        self._runtime = runtime
        self._close = close
        self._is_stopping = False

    @property
    def is_unused(self) -> bool:
        """Return whether a group other than the default one has ended with its last view."""
        return self._catalog.is_unused

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
                self._sources.resolve(error, is_stopping)
            self._upkeep.begin()
            self._sink.begin()
            while not (self._is_stopping or self.is_unused):
                try:
                    self._tick()
                except SourceError as error:
                    self._sources.resolve(error, is_stopping)
        except SinkChanged:
            self._sink.leave()
            raise
        finally:
            self._close()

    def _tick(self) -> None:
        self._sink.check()
        now, is_drained = self._runtime.monotonic(), self._sink.is_drained
        self._catalog.run_if_due(now, is_drained=is_drained)
        self._sink.unmute_reached()
        self._sources.step()
        self._catalog.advance_builds()
        self._sink.follow(is_drained=is_drained)
        self._upkeep.run_if_due(now)


class SourceTurn:
    """The pipeline's turn at the sources: read one batch and step it, or resolve a refusal."""

    def __init__(
        self,
        intake: SourceIntake,
        epochs: Epochs,
        subscriptions: SourceSubscriptions,
        refusal: SourceRefusal,
        idle_work: IdleWork,
    ) -> None:
        self._idle_work = idle_work
        self._intake = intake
        self._epochs = epochs
        self._subscriptions = subscriptions
        self._refusal = refusal

    def step(self) -> None:
        """Step what arrives next; wait briefly if there is nothing."""
        batch = self._intake.poll()
        if batch is None:
            self._idle_work.step()
        else:
            self._idle_work.put_off()
            self._subscriptions.complete_failed(self._epochs.run(batch))

    def resolve(self, error: SourceError, is_stopping: Callable[[], bool]) -> None:
        """See `SourceRefusal.resolve`."""
        self._refusal.resolve(error, is_stopping)


class SinkTurn:
    """The pipeline's turn at the sink: what waits for epochs that the sink shows by now."""

    def __init__(
        self,
        *,
        engine: Engine,
        epochs: Epochs,
        mute: SinkMute,
        refusals: SinkRefusals,
        reconciler: CatalogReconciler,
        sink_workers: SinkWorkers,
    ) -> None:
        self._engine = engine
        self._epochs = epochs
        self._mute = mute
        self._refusals = refusals
        self._reconciler = reconciler
        self._sink_workers = sink_workers
        self._written_before = 0

    def begin(self) -> None:
        """Count epochs from the state's on."""
        self._written_before = self._engine.epoch

    def check(self) -> None:
        """Raise what has ended a thread of the sink, or of an additional one."""
        self._epochs.writer.check()
        self._sink_workers.check()

    @property
    def is_drained(self) -> bool:
        """Return whether the sink has everything that it was awaited for."""
        return self._epochs.awaits_sink and self._epochs.writer.is_idle

    def unmute_reached(self) -> None:
        """End the mute of the sources that have reached the sink's position."""
        self._mute.unmute_reached(self._epochs.writer.written)

    def follow(self, *, is_drained: bool) -> None:
        """Resolve refusals and report what the sink shows. is_drained: at the tick's start."""
        epochs = self._epochs
        epochs.awaits_sink = epochs.awaits_sink and not is_drained
        written = epochs.writer.written
        self._refusals.resolve()
        self._reconciler.complete(written)
        if written > self._written_before:
            readiness_pipe.report()

    def leave(self) -> None:
        """Sync the state before this process ends: the next start needs the sink's epoch."""
        self._epochs.commit(sync=True)


class Upkeep:
    """What is done from time to time: the sync of the state, a look at the sink, and reports."""

    def __init__(
        self,
        state_sync: StateSync,
        watch: SinkWatch,
        report: PipelineReport,
        sync_interval_s: float,
        runtime: Runtime,
    ) -> None:
        self._state_sync = state_sync
        self._watch = watch
        self._report = report
        self._sync_interval_s = sync_interval_s
        self._synced_at = runtime.monotonic()
        self._reported_at = 0.0

    def begin(self) -> None:
        """Publish the position that the pipeline starts from."""
        self._report.begin()

    def run_if_due(self, now: float) -> None:
        """Sync and report if their intervals have passed. now: of the runtime's monotonic clock."""
        if now - self._synced_at > self._sync_interval_s:
            self._synced_at = now
            self._state_sync.run()
        if now - self._reported_at > REPORT_S:
            self._reported_at = now
            self._watch.run()
            self._report.run()
