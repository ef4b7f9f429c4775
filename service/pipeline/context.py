"""What the parts of a pipeline work on together: one engine over one store, and what feeds it.

Made once when a pipeline starts, used by its thread alone. Nothing is decided here.
"""

from __future__ import annotations

import time

from connectors.postgres.replication.transactions import StreamLimits
from connectors.postgres.sink.postgres_sink import PostgresSink
from service.backfill.view_build import ViewBuild
from service.checkpoint.checkpoints import Checkpoints
from service.engine.engine import Engine, ViewDefinition
from service.engine.metered_evaluator import MeteredEvaluator
from service.factory.service_factory import ServiceFactory
from service.ingest.database_feed import Feed
from service.ingest.external_sources import ExternalSources, is_main
from service.ingest.table_watch import SourceWatch
from service.ingest.wal_retention import WalBudget
from service.metrics.metrics import PipelineMetrics
from service.pipeline.external_snapshots import ExternalSnapshots
from service.pipeline.reconciler import CatalogReconciler
from service.pipeline.reconnect import Reconnect
from service.pipeline.schema_change_recovery import SchemaChangeRecovery
from service.pipeline.view_failures import Failures
from service.runtime.error_reports import Reports
from service.runtime.settings import Settings
from service.sinks.sink_workers import SinkWorkers
from service.subscriptions.change_log_writers import ChangeLogs


class PipelineContext:
    """The parts. builds: views on their way to live, by identity; staging: a session of the sink
    for everything but epochs; tables: looks at the views' tables. is_build_left: what an earlier
    process was building may not be among the builds yet."""

    def __init__(self, settings: Settings, parts: ServiceFactory, metrics: PipelineMetrics) -> None:
        self.is_build_left = True
        self.settings = settings
        self.parts = parts
        self.host = parts.runtime
        self.metrics = metrics
        self.store = parts.open_store()
        budget = settings.budget
        name, clock = parts.source.name, time.perf_counter
        self.engine = Engine(
            self.store,
            self._evaluator(),
            name,
            budget.epoch,
            clock=clock,
            evaluator_of=self._evaluator,
            spare_bytes=settings.sink_keep_mb << 20,
        )
        self.sink: PostgresSink = parts.sink()
        self.staging: PostgresSink = parts.sink()
        self.tables = parts.view_tables()
        self.builds: dict[str, ViewBuild] = {}
        self.desk = CatalogReconciler(parts.control(), self.engine, parts)
        self.sink_workers = SinkWorkers(parts.control(), self.engine, parts, self.host)
        self.change_logs = ChangeLogs(settings, self.engine, self.host)
        self.wal_budget = WalBudget(settings, parts.new_source(), self.host)
        self.checkpoints = Checkpoints(
            settings, self.store, self.desk.source_identity, parts.new_source(), self.host
        )
        positions = self.engine.positions
        self.watch = SourceWatch(
            parts.source.tables(),
            self.store,
            lambda: self.failures.readers(),
            lambda: positions.database,
        )
        limits = StreamLimits(
            budget.queue,
            budget.transaction,
            chunk_bytes=budget.chunk,
            silence_s=settings.silence_s,
        )
        self.feed = Feed(parts.source, self.desk, self.watch, limits, runtime=self.host)
        self.reconnect = Reconnect(parts.source.identity, self.feed.wake, host=self.host)
        self.sides = ExternalSources(
            self.desk.sources.source, positions, self.feed.wake, runtime=self.host
        )
        reports = Reports(settings.state, lambda: self.engine.epoch)
        self.failures = Failures(self.engine, self.desk, self.builds, reports)
        self.schema_recovery = SchemaChangeRecovery(
            self.failures, self.desk, self.watch, self.sink_workers
        )
        sources = self.desk.sources, self.sides.source
        self.external_snapshots = ExternalSnapshots(
            self.engine, self.failures, self.builds, *sources, host=self.host
        )

    def _evaluator(self, role: str = "") -> MeteredEvaluator:
        return MeteredEvaluator(self.parts.evaluator(role), self.metrics.evaluated)

    def reads_database(self, definition: ViewDefinition) -> bool:
        """A view of nothing but constants or views stands where the database does, if anywhere."""
        relations = definition.relations()
        return any(map(is_main, relations)) or not (relations or self.sides.is_any)
