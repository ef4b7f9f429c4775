"""The pipeline's reports: to the catalog, to the API, and as metrics.

A sink that is down delays these reports and nothing else.
"""

from __future__ import annotations

from connectors.postgres.replication.slot import LOST
from dataflow.errors import TemporaryError
from service.backfill.builds import Builds
from service.checkpoint.checkpoints import Checkpoints
from service.engine.engine import Engine
from service.ingest.external_sources import ExternalSources
from service.metrics.metrics import PipelineMetrics
from service.pipeline.build_queue import BuildQueue
from service.pipeline.epochs import Epochs
from service.pipeline.followed_database import FollowedDatabase
from service.pipeline.reconciler import CatalogReconciler
from service.pipeline.sink_mute import SinkMute
from service.pipeline.source_refusal import ABANDONED
from service.runtime.log import log
from service.sinks.sink_workers import SinkWorkers
from service.views.lifecycle import ViewState
from storage.store import Store

STALLED_S = 5.0


class PipelineReport:
    """Used by the pipeline's thread."""

    def __init__(
        self,
        *,
        engine: Engine,
        epochs: Epochs,
        mute: SinkMute,
        builds: Builds,
        reconciler: CatalogReconciler,
        database: FollowedDatabase,
        external_sources: ExternalSources,
        sink_workers: SinkWorkers,
        checkpoints: Checkpoints,
        queue: BuildQueue,
        store: Store,
        metrics: PipelineMetrics,
        memory_bytes: int,
    ) -> None:
        self._engine = engine
        self._epochs = epochs
        self._mute = mute
        self._builds = builds
        self._reconciler = reconciler
        self._database = database
        self._external_sources = external_sources
        self._sink_workers = sink_workers
        self._checkpoints = checkpoints
        self._queue = queue
        self._store = store
        self._metrics = metrics
        self._memory_bytes = memory_bytes
        self._is_stall_reported = False

    def begin(self) -> None:
        """Publish the state's position, before the first epoch."""
        self._metrics.position = self._engine.position
        self._metrics.write()

    def run(self) -> None:
        """Update catalog and metrics, and begin a checkpoint when one is due."""
        self._checkpoints.tick(is_due=bool(self._engine.views) and not self._mute)
        metrics, stalled_s = self._metrics, self._epochs.writer.stalled_s
        self.show_source()
        metrics.sink_stalled_s = stalled_s
        self._measure()
        self._report_stall(is_stalled=stalled_s > STALLED_S)
        metrics.report_dataflow(self._engine.figures)
        statuses = self._external_sources.statuses()
        metrics.sources = {name: status.facts() for name, status in statuses.items()}
        self._reconciler.sources.report(statuses)
        self._reconciler.report(self._builds)
        self._queue.report_waiting()
        self._sink_workers.report()
        metrics.sink_workers = self._sink_workers.figures()
        metrics.write()

    def show_source(self) -> None:
        """Put into the metrics whether the database can be read, and how far it is."""
        away, silent_s = self._database.away_error, self._database.silent_s
        text = "" if away is None else str(away)
        if silent_s and away is None:
            text = f"the source has been silent for {silent_s:.0f} s [source.unreachable]"
        self._metrics.source_error = text or self._lost_text()
        if self._database.is_open:
            self._metrics.source_position = self._database.received_position

    def _lost_text(self) -> str:
        """Why nothing of the database is followed, while views wait to be rebuilt."""
        if self._engine.position:
            return ""
        rows = (r for r in self._reconciler.rows if r.status == ViewState.FAILED)
        code = next((r.code for r in rows if r.code in (*LOST, *ABANDONED)), "")
        return code and f"views have failed, and have to be rebuilt [{code}]"

    def _measure(self) -> None:
        """Gauges of this moment; and up to when the sink shows all while nothing waits for it."""
        metrics, engine, writer = self._metrics, self._engine, self._epochs.writer
        metrics.forget_others({d.table.title for d in engine.views.values()})
        metrics.gauges = {
            "sink_waiting_epochs": max(0, engine.epoch - writer.written),
            "memory_limit_bytes": self._memory_bytes,
            "state_disk_bytes": self._store.disk_bytes(),
            "outbox_bytes": engine.outbox_bytes(0),
            "abandoned_threads": self._external_sources.abandoned_threads
            + self._sink_workers.abandoned_threads,
            **self._checkpoints.figures(),
        }
        if writer.is_idle and not self._epochs.is_lagging:
            reached = [status.reached() for status in self._external_sources.statuses().values()]
            if engine.position:
                reached.append(metrics.read())
            if reached and None not in reached:
                metrics.shown.moved(min(r for r in reached if r is not None))

    def _report_stall(self, *, is_stalled: bool) -> None:
        """Report a stall. The stream may not be read meanwhile, so ask the source for its
        position.
        """
        if is_stalled != self._is_stall_reported:
            self._is_stall_reported = is_stalled
            log.warning("sink.stalled" if is_stalled else "sink.resumed")
        if not is_stalled or self._database.away_error is not None:
            return
        try:
            self._metrics.source_position = self._database.current_position()
        except TemporaryError as error:
            log.warning("source.retry", code=error.code)
