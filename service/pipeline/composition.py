"""The composition of a pipeline: each part gets exactly what it uses.

Only this module sees all of them, and it decides nothing. The order matters: some parts open
sessions or start threads when they are created; `close` ends them in its own order.
"""

from __future__ import annotations

import time

from connectors.postgres.replication.transactions import StreamLimits
from dataflow.types import UTC
from dataflow.work import WorkMeter
from service.backfill.builds import Builds
from service.checkpoint.checkpoints import Checkpoints
from service.engine.engine import Engine
from service.engine.metered_evaluator import MeteredEvaluator
from service.factory.service_factory import ServiceFactory
from service.ingest.clock_schedule import ClockSchedule
from service.ingest.database_feed import Feed
from service.ingest.external_sources import ExternalSources
from service.ingest.source_requirements import SourceRequirements
from service.ingest.table_watch import SourceWatch
from service.ingest.wal_retention import WalBudget
from service.metrics.metrics import PipelineMetrics
from service.pipeline.build_join import BuildJoin
from service.pipeline.build_queue import BuildQueue
from service.pipeline.build_start import BuildStart
from service.pipeline.catalog_turn import CatalogTurn
from service.pipeline.epochs import Epochs
from service.pipeline.external_snapshots import ExternalSnapshots
from service.pipeline.followed_database import FollowedDatabase
from service.pipeline.idle_work import IdleWork
from service.pipeline.pipeline import Pipeline, SinkTurn, SourceTurn, Upkeep
from service.pipeline.pipeline_report import PipelineReport
from service.pipeline.postponed_builds import PostponedBuilds
from service.pipeline.reconciler import CatalogReconciler
from service.pipeline.reconnect import Reconnect
from service.pipeline.schema_change_recovery import SchemaChangeRecovery
from service.pipeline.sink_mute import SinkMute
from service.pipeline.sink_refusals import SinkRefusals
from service.pipeline.sink_rewind import SinkRewind
from service.pipeline.sink_watch import SinkWatch
from service.pipeline.source_intake import SourceIntake
from service.pipeline.source_refusal import SourceRefusal
from service.pipeline.source_reset import SourceReset
from service.pipeline.source_subscriptions import SourceSubscriptions
from service.pipeline.startup import Startup, StateRecovery
from service.pipeline.state_sync import StateSync
from service.pipeline.view_drops import ViewDrops
from service.pipeline.view_failures import Failures
from service.pipeline.view_handovers import ViewHandovers
from service.pipeline.view_life import ViewLife
from service.pipeline.view_replacement import ViewReplacement
from service.pipeline.view_rights import ViewRights
from service.runtime.error_reports import Reports
from service.runtime.log import log
from service.runtime.settings import Settings
from service.sinks.sink_workers import SinkWorkers
from service.subscriptions.change_log_writers import ChangeLogs
from service.views.wait_reasons import Waiting
from storage.errors import StorageError
from storage.reserve import Reserve


def compose(settings: Settings, factory: ServiceFactory) -> Pipeline:
    """Return the pipeline of these settings, with its state open. StorageError state.locked."""
    return _Composition(settings, factory).pipeline()


class _Composition:
    """The parts that several others use. No part is ever given this object."""

    def __init__(self, settings: Settings, factory: ServiceFactory) -> None:
        self._settings, self._factory = settings, factory
        self._runtime = runtime = factory.runtime
        reserve = Reserve(settings.state)
        self._is_disk_short = lambda: reserve.is_short
        self._metrics = PipelineMetrics(settings.state)
        self._metrics.spark_error = factory.spark_waiting
        self._store = factory.open_store()
        work_clock = runtime.work_clock()
        self._meter = WorkMeter(settings.view_budget, work_clock, work_clock.waiting)
        self._engine = self._new_engine()
        self._sink, self._staging = factory.sink(), factory.sink()
        self._tables = factory.view_tables()
        self._builds = Builds()
        control = factory.control()
        self._inspector = factory.table_inspector(control)
        self._reconciler = CatalogReconciler(control, self._engine, factory)
        self._sink_workers = SinkWorkers(factory.control(), self._engine, factory, runtime)
        self._change_logs = ChangeLogs(settings, self._engine, runtime)
        self._wal_retention = WalBudget(settings, factory.new_source(), runtime)
        identity = self._reconciler.source_identity
        self._checkpoints = Checkpoints(
            settings, self._store, identity, factory.new_source(), runtime
        )
        self._compose_sources()
        self._compose_epochs()
        self._compose_live_views()
        self._compose_start_of_builds()
        self._compose_builds()
        self._compose_catalog()

    def _new_engine(self) -> Engine:
        return self._factory.new_engine(
            self._store,
            self._evaluator(),
            self._factory.source.name,
            self._settings.budget.epoch,
            clock=time.perf_counter,
            evaluator_of=self._evaluator,
            spare_bytes=self._settings.sink_retention_mb << 20,
            few_rows=self._settings.few_rows,
            meter=self._meter,
            while_waiting=self._metrics.write,
        )

    def _evaluator(self, role: str = "", time_zone: str = UTC) -> MeteredEvaluator:
        evaluator = self._factory.evaluator(role, time_zone, self._meter)
        return MeteredEvaluator(evaluator, self._metrics.evaluated)

    def _compose_sources(self) -> None:
        settings, source, runtime = self._settings, self._factory.source, self._runtime
        engine, reconciler, builds = self._engine, self._reconciler, self._builds
        positions, budget = engine.positions, settings.budget
        reports = Reports(settings.state, lambda: engine.epoch)
        self._postponed = PostponedBuilds(runtime.monotonic)
        self._failures = Failures(engine, reconciler, builds, reports, self._postponed)
        self._watch = SourceWatch(
            source.tables(),
            self._store,
            self._failures.readers,
            self._failures.definitions,
            lambda: positions.database,
        )
        limits = StreamLimits(
            budget.queue,
            budget.transaction,
            chunk_bytes=budget.chunk,
            liveness_timeout_s=settings.liveness_timeout_s,
        )
        self._feed = Feed(source, reconciler, self._watch, limits, runtime=runtime)
        self._reconnect = Reconnect(source.identity, self._feed.wake, runtime=runtime)
        self._database = FollowedDatabase(
            source, self._feed, self._watch, self._reconnect, self._wal_retention
        )
        self._requirements = SourceRequirements(self._failures.readers)
        self._external_sources = ExternalSources(
            reconciler.sources.source,
            positions,
            self._feed.wake,
            plan=ClockSchedule(engine).plan,
            # A build spools the changes themselves.
            ranges=engine.range_reader(is_alone=lambda: not builds),
            requirements=self._requirements,
            is_disk_short=self._is_disk_short,
            runtime=runtime,
        )
        self._schema_recovery = SchemaChangeRecovery(
            engine, self._failures, reconciler, self._watch, self._sink_workers
        )
        self._mute = SinkMute(positions, self._failures, builds, self._external_sources)
        self._external_snapshots = ExternalSnapshots(
            engine,
            self._failures,
            builds,
            reconciler.sources,
            self._external_sources,
            requirements=self._requirements,
            runtime=runtime,
        )

    def _compose_epochs(self) -> None:
        self._epochs = Epochs(
            engine=self._engine,
            builds=self._builds,
            failures=self._failures,
            schema_recovery=self._schema_recovery,
            mute=self._mute,
            external_sources=self._external_sources,
            sink_workers=self._sink_workers,
            change_logs=self._change_logs,
            metrics=self._metrics,
            runtime=self._runtime,
        )
        self._reset = SourceReset(
            engine=self._engine,
            epochs=self._epochs,
            mute=self._mute,
            failures=self._failures,
            reconciler=self._reconciler,
            database=self._database,
            external_sources=self._external_sources,
            staging=self._staging,
        )
        self._subscriptions = SourceSubscriptions(
            engine=self._engine,
            epochs=self._epochs,
            mute=self._mute,
            builds=self._builds,
            failures=self._failures,
            reconciler=self._reconciler,
            schema_recovery=self._schema_recovery,
            database=self._database,
            external_sources=self._external_sources,
            reset=self._reset,
            sink_workers=self._sink_workers,
        )
        self._refusals = SinkRefusals(
            epochs=self._epochs,
            failures=self._failures,
            builds=self._builds,
            staging=self._staging,
            change_logs=self._change_logs,
            subscriptions=self._subscriptions,
        )
        self._sink_watch = SinkWatch(
            engine=self._engine,
            epochs=self._epochs,
            mute=self._mute,
            failures=self._failures,
            subscriptions=self._subscriptions,
            sink=self._sink,
            inspector=self._inspector,
            metrics=self._metrics,
            runtime=self._runtime,
        )

    def _compose_live_views(self) -> None:
        self._waiting = Waiting(self._reconciler.report_waiting, self._runtime)
        self._replacement = ViewReplacement(
            engine=self._engine,
            epochs=self._epochs,
            builds=self._builds,
            reconciler=self._reconciler,
            sink_workers=self._sink_workers,
            tables=self._tables,
        )
        self._rewind = SinkRewind(
            engine=self._engine,
            epochs=self._epochs,
            builds=self._builds,
            reconciler=self._reconciler,
            failures=self._failures,
            subscriptions=self._subscriptions,
            reset=self._reset,
            staging=self._staging,
            store=self._store,
            metrics=self._metrics,
            group=self._settings.group,
        )

    def _compose_start_of_builds(self) -> None:
        self._rights = ViewRights(
            reconciler=self._reconciler,
            failures=self._failures,
            subscriptions=self._subscriptions,
            waiting=self._waiting,
            control=self._factory.control(),
            factory=self._factory,
            runtime=self._runtime,
        )
        self._start = BuildStart(
            engine=self._engine,
            epochs=self._epochs,
            mute=self._mute,
            builds=self._builds,
            failures=self._failures,
            reconciler=self._reconciler,
            subscriptions=self._subscriptions,
            database=self._database,
            external_sources=self._external_sources,
            external_snapshots=self._external_snapshots,
            store=self._store,
            folder=self._settings.state / "builds",
            waiting=self._waiting,
            requirements=self._requirements,
            rights=self._rights,
            parts_of=self._factory.build,
            open_sink=self._factory.sink,
        )

    def _compose_builds(self) -> None:
        self._queue = BuildQueue(
            epochs=self._epochs,
            builds=self._builds,
            reconciler=self._reconciler,
            database=self._database,
            rewind=self._rewind,
            start=self._start,
            waiting=self._waiting,
            postponed=self._postponed,
            rights=self._rights,
            sink_watch=self._sink_watch,
            is_disk_short=self._is_disk_short,
            runtime=self._runtime,
        )
        self._join = BuildJoin(
            engine=self._engine,
            epochs=self._epochs,
            mute=self._mute,
            builds=self._builds,
            failures=self._failures,
            reconciler=self._reconciler,
            subscriptions=self._subscriptions,
            refusals=self._refusals,
            replacement=self._replacement,
            rewind=self._rewind,
            database=self._database,
            sink_workers=self._sink_workers,
            staging=self._staging,
            store=self._store,
            waiting=self._waiting,
            sink_watch=self._sink_watch,
        )

    def _compose_catalog(self) -> None:
        self._drops = ViewDrops(
            engine=self._engine,
            epochs=self._epochs,
            builds=self._builds,
            reconciler=self._reconciler,
            subscriptions=self._subscriptions,
            external_snapshots=self._external_snapshots,
            sink_workers=self._sink_workers,
            staging=self._staging,
            start=self._start,
            waiting=self._waiting,
            sink_watch=self._sink_watch,
        )
        self._handovers = ViewHandovers(
            engine=self._engine,
            epochs=self._epochs,
            builds=self._builds,
            reconciler=self._reconciler,
            subscriptions=self._subscriptions,
            sink_workers=self._sink_workers,
            watch=self._watch,
            waiting=self._waiting,
            factory=self._factory,
            while_waiting=self._metrics.write,
            runtime=self._runtime,
        )
        self._views = ViewLife(
            engine=self._engine,
            epochs=self._epochs,
            mute=self._mute,
            builds=self._builds,
            failures=self._failures,
            reconciler=self._reconciler,
            subscriptions=self._subscriptions,
            reset=self._reset,
            replacement=self._replacement,
            rewind=self._rewind,
            drops=self._drops,
            start=self._start,
            queue=self._queue,
            sink_workers=self._sink_workers,
            change_logs=self._change_logs,
            handovers=self._handovers,
            waiting=self._waiting,
            sink_watch=self._sink_watch,
            rights=self._rights,
            group=self._settings.group,
        )

    def pipeline(self) -> Pipeline:
        """Return the loop over these parts."""
        report = self._new_report()
        intake = self._new_intake(report)
        return Pipeline(
            startup=self._new_startup(intake),
            sources=SourceTurn(
                intake,
                self._epochs,
                self._subscriptions,
                self._new_refusal(),
                self._new_idle_work(),
            ),
            catalog=self._new_catalog_turn(),
            sink=self._new_sink_turn(),
            upkeep=self._new_upkeep(report),
            runtime=self._runtime,
            close=self._close,
        )

    def _new_idle_work(self) -> IdleWork:
        parts = self._store, self._engine, self._epochs
        return IdleWork(*parts, self._runtime)

    def _new_sink_turn(self) -> SinkTurn:
        return SinkTurn(
            engine=self._engine,
            epochs=self._epochs,
            mute=self._mute,
            refusals=self._refusals,
            reconciler=self._reconciler,
            sink_workers=self._sink_workers,
        )

    def _new_upkeep(self, report: PipelineReport) -> Upkeep:
        state_sync = StateSync(
            engine=self._engine,
            epochs=self._epochs,
            builds=self._builds,
            feed=self._feed,
            external_sources=self._external_sources,
            checkpoints=self._checkpoints,
        )
        return Upkeep(
            state_sync, self._sink_watch, report, self._settings.sync_interval_s, self._runtime
        )

    def _new_intake(self, report: PipelineReport) -> SourceIntake:
        return SourceIntake(
            engine=self._engine,
            epochs=self._epochs,
            mute=self._mute,
            builds=self._builds,
            failures=self._failures,
            reconciler=self._reconciler,
            subscriptions=self._subscriptions,
            reset=self._reset,
            database=self._database,
            external_sources=self._external_sources,
            start=self._start,
            metrics=self._metrics,
            show_source=report.show_source,
            runtime=self._runtime,
            epoch_rows=self._settings.epoch_rows,
        )

    def _new_catalog_turn(self) -> CatalogTurn:
        return CatalogTurn(
            epochs=self._epochs,
            mute=self._mute,
            reconciler=self._reconciler,
            external_sources=self._external_sources,
            schema_recovery=self._schema_recovery,
            external_snapshots=self._external_snapshots,
            subscriptions=self._subscriptions,
            views=self._views,
            queue=self._queue,
            join=self._join,
        )

    def _new_refusal(self) -> SourceRefusal:
        return SourceRefusal(
            engine=self._engine,
            builds=self._builds,
            reconciler=self._reconciler,
            subscriptions=self._subscriptions,
            reset=self._reset,
            database=self._database,
            drops=self._drops,
            metrics=self._metrics,
            report_failure=self._factory.report_failure,
            runtime=self._runtime,
        )

    def _new_report(self) -> PipelineReport:
        return PipelineReport(
            engine=self._engine,
            epochs=self._epochs,
            mute=self._mute,
            builds=self._builds,
            reconciler=self._reconciler,
            database=self._database,
            external_sources=self._external_sources,
            sink_workers=self._sink_workers,
            checkpoints=self._checkpoints,
            queue=self._queue,
            store=self._store,
            metrics=self._metrics,
            memory_bytes=self._settings.memory << 20,
        )

    def _new_startup(self, intake: SourceIntake) -> Startup:
        recovery = StateRecovery(
            engine=self._engine,
            sink=self._sink,
            waiting_bytes=self._settings.budget.waiting,
            reconciler=self._reconciler,
            failures=self._failures,
            epochs=self._epochs,
            mute=self._mute,
            external_sources=self._external_sources,
            metrics=self._metrics,
            store=self._store,
            state_folder=self._settings.state,
            restore_views=self._views.restore,
            reopen=intake.reopen,
            runtime=self._runtime,
        )
        return Startup(
            recovery, self._epochs, self._sink_workers, self._factory.report_failure, self._runtime
        )

    def _close(self) -> None:
        self._builds.cancel_all()
        self._epochs.close()
        self._wal_retention.close()
        self._reconnect.close()
        self._checkpoints.close()
        self._watch.close()
        self._external_snapshots.snapshot_offsets.close()
        self._external_sources.close()
        self._feed.close()
        self._builds.close()
        self._sink_workers.close()
        self._change_logs.close()
        self._reconciler.close()
        self._factory.close()
        try:
            self._store.close()
        except StorageError as error:
            # The next start finds what was committed; the reason for this end is already reported.
            log.warning("state.unclosed", code=error.code, why=error.detail)
