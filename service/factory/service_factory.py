"""The concrete components of one service, made from its settings: source, sink, state, backfill.

Invariant: this module alone decides which class implements a contract; all packages above it use
the factory.
"""

from __future__ import annotations

import functools
import os
import shutil
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from connectors.extras import extra_required, has_package
from connectors.feed_source import FeedSource, Reader
from connectors.partition_cache import OnProgress
from connectors.postgres.analysis.analyzer import PostgresAnalyzer
from connectors.postgres.catalog import source_readers
from connectors.postgres.catalog.catalog import Control, SourceRow, control_of
from connectors.postgres.catalog.sink_records import SinkRow
from connectors.postgres.evaluation.evaluator import PostgresEvaluator
from connectors.postgres.schema.lease import Claim
from connectors.postgres.session.session import redact
from connectors.postgres.sink.postgres_sink import PostgresSink
from connectors.postgres.sink.table_inspector import TableInspector
from connectors.postgres.sink.view_tables import ViewTables
from connectors.postgres.source import PostgresSource
from connectors.shuffle_storage import Exchange, open_exchange, url_below
from connectors.sink import SinkTable
from connectors.source import MAIN_SOURCE
from connectors.spark.cluster import free_cores
from connectors.spark.java import check_spark
from connectors.spark.result import BackfillResult
from connectors.view_sink import ViewSink
from dataflow.errors import TidemarkError
from dataflow.expressions.evaluator import Evaluator, TimeLimit
from dataflow.schema import Relation
from dataflow.types import UTC
from service.backfill.build_parts import BuildParts, ExternalRead
from service.backfill.child_processes import Children
from service.backfill.engine_choice import (
    AUTO,
    LOCAL,
    SPARK,
    EngineChoice,
    Machine,
    SparkTarget,
    Work,
    choose,
    configured_cores,
    parts_of,
    work_of,
)
from service.backfill.local_backfill import BackfillJob
from service.backfill.spark_backfill import run_on_spark
from service.engine import state_version
from service.engine.engine import Engine, ViewDefinition
from service.factory.on_spark import bucket_views, evaluator_of
from service.factory.sink_types import sink_connector
from service.ingest.declared_sources import feed_source
from service.metrics.metrics import write_refusal
from service.runtime.memory_budget import MEBIBYTE
from service.runtime.memory_watch import INTERVAL_S, MemoryWatch, free_bytes
from service.runtime.runtime import RUNTIME, Runtime
from service.runtime.security_limits import protect
from service.runtime.settings import DEFAULT_GROUP, Settings
from service.views.groups import is_spark_group
from storage.errors import StorageError
from storage.rocks import RocksStore, StoreBudget
from storage.store import Store

if TYPE_CHECKING:
    from connectors.spark.session import LazySession

SOURCE = MAIN_SOURCE
# Once it is found, it stays.
_check_spark = functools.cache(check_spark)
# For the pages of a state that is only written.
_COPIED_CACHE_MB = 32


class ServiceFactory:
    """Make components on demand; hold only shared ones: the source and a warm Spark session."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.runtime: Runtime = RUNTIME
        location = f"pid {os.getpid()} on {socket.gethostname()}, state {settings.state.absolute()}"
        self.claim = Claim(settings.sink_key, location)
        self.source = self.new_source()
        self._spark: LazySession | None = None
        self._lock = threading.Lock()
        self._children = Children(functools.partial(protect, self.settings))
        self._own_role = ""

    def beside(self, group: str) -> ServiceFactory:
        """Return a factory of another group's components, which shares nothing with this one."""
        return ServiceFactory(self.settings.beside(group))

    def with_state(self, folder: Path) -> ServiceFactory:
        """Return a factory of the same group's components over a state in another folder, which is
        written once, beside a state that is open."""
        update = {"state": folder, "cache_mb": _COPIED_CACHE_MB}
        return ServiceFactory(self.settings.model_copy(update=update))

    def new_source(self) -> PostgresSource:
        """Return the source with its own sessions."""
        settings = self.settings
        return PostgresSource(
            settings.source,
            name=SOURCE,
            prefix=settings.prefix,
            suffix="" if settings.group == DEFAULT_GROUP else settings.group,
            claim=self.claim,
            publication=settings.publication,
        )

    def open_store(self) -> Store:
        """Open the state. StorageError state.locked if another process has it; state.version."""
        state_version.claim(self.settings.state)
        path = self.settings.state / state_version.STORE
        budget = self.settings.budget
        rest = StoreBudget(budget.runs, budget.ahead, budget.write_buffer)
        watch = MemoryWatch(self.settings.memory * MEBIBYTE, interval_s=INTERVAL_S)
        return RocksStore(path, cache_bytes=budget.cache, budget=rest, watch=watch)

    def sink(self) -> PostgresSink:
        """Return a new session on the sink, which writes under this service's claim."""
        settings = self.settings
        return PostgresSink(
            settings.sink, key=settings.sink_key, claim=self.claim, lock_s=settings.sink_lock_s
        )

    def table_inspector(self, control: Control) -> TableInspector:
        """Return what looks at the views' tables, by a session on the control tables."""
        return TableInspector(control.execute, self.claim.sink_application)

    def sink_of(self, group: str) -> PostgresSink:
        """Return a new session on the sink, for the views of one group."""
        return PostgresSink(self.settings.sink, key=self.settings.for_group(group).sink_key)

    def feed_source(self, row: SourceRow) -> FeedSource:
        """Return the external source that a row of the catalog declares."""
        return feed_source(row, self.reader())

    def reader(self) -> Reader:
        """Return this group as a reader of sources that retain changes for it."""
        return Reader(self.settings.prefix, self.settings.group, self.claim)

    def view_tables(self) -> ViewTables:
        """Return an inspector of the views' tables."""
        return ViewTables(self.settings.sink)

    def view_sink(self, row: SinkRow, table: SinkTable) -> ViewSink:
        """Return a new writer of a view's additional sink. SinkError sink.bad_option,
        secret.missing.
        """
        return sink_connector(row.type).make(row.options, table, row.identity, row.title)

    def checked_options(
        self, kind: str, options: Mapping[str, Any], table: SinkTable, name: str
    ) -> Mapping[str, Any]:
        """Return the options of a new sink with its defaults, after checking its destination.

        SinkError sink.unknown_type, sink.bad_option, and errors of the sink's type.
        """
        return sink_connector(kind).check(options, table, f"{table.title}/{name}")

    def control(self) -> Control:
        """Return a new session on the control tables."""
        return Control(self.settings.sink, self.settings.prefix)

    def evaluator(
        self, role: str = "", time_zone: str = UTC, limit: TimeLimit | None = None
    ) -> Evaluator:
        """Return a new session for expressions without a kernel, with the privileges of a role."""
        return PostgresEvaluator(self.settings.source, role=role, time_zone=time_zone, limit=limit)

    def role_of(self, requester: str) -> str:
        """Return the role whose privileges a creator's views have at the source; "" for the
        service's own.
        """
        if not requester:
            return ""
        with self._lock:
            if not self._own_role:
                control = self.control()
                self._own_role = control.rows("SELECT current_user::text")[0][0]
                control.close()
        return "" if requester == self._own_role else requester

    def analyzer(
        self,
        views: Sequence[Relation],
        feeds: Sequence[Relation] = (),
        requester: str = "",
        time_zone: str = UTC,
    ) -> PostgresAnalyzer:
        """Return a new analyzer at the source.

        views, feeds: the maintained views and external relations that a query may read. requester:
        the role whose privileges it uses, which must be allowed to read what the query reads.
        time_zone: a name that the source knows.
        """
        role = self.role_of(requester)
        return PostgresAnalyzer(
            self.settings.source,
            SOURCE,
            views,
            has_stubs=self.is_sink_apart,
            feeds=feeds,
            requester=role,
            time_zone=time_zone,
            check_readers=functools.partial(self._check_readers, role),
        )

    def _check_readers(self, role: str, feeds: Sequence[Relation], query: str) -> None:
        """Require that a role may read relations of declared sources. SourceError source.no_grant.

        The service's clock is for everyone: now() reads it.
        """
        names = [feed.name for feed in feeds if not feed.is_single]
        with control_of(self.settings.sink, self.settings.prefix) as control:
            source_readers.require_readable(control, role, names, query)

    @property
    def is_sink_apart(self) -> bool:
        """Return True if the views are in another database than the source."""
        return self.settings.source != self.settings.sink

    def choose_engine(
        self,
        work: Work,
        requested: str,
        speeds: Mapping[str, float] | None = None,
    ) -> EngineChoice:
        """Return the engine for a build's work and the option `backfill`.

        speeds: of this machine by engine, relative to that of the model; 1 by default.
        """
        machine, spark = self._machine(), self._spark_target()
        found = choose(work, machine, spark, speeds)
        is_installed = has_package("pyspark")
        if (found.engine == SPARK or not is_installed) and not spark.is_running:
            spark = replace(spark, missing=_without_spark(spark.master))
            found = choose(work, machine, spark, speeds)
        if requested != AUTO:
            return replace(found, engine=requested, reason=f"the view's option; {found.reason}")
        least_rows = self.settings.spark_rows
        if least_rows is not None and is_installed:
            engine = SPARK if work.read >= least_rows or spark.is_cluster else LOCAL
            return replace(found, engine=engine, reason=f"by TIDEMARK_SPARK_ROWS; {found.reason}")
        return found

    def _machine(self) -> Machine:
        state = self.settings.state
        existing = next(folder for folder in (state, *state.absolute().parents) if folder.is_dir())
        cores = len(os.sched_getaffinity(0))
        return Machine(cores, free_bytes(), shutil.disk_usage(existing).free)

    def _spark_target(self) -> SparkTarget:
        settings, session = self.settings, self._spark
        is_running = session is not None and session.is_started
        master = settings.spark if is_spark_group(settings.group) else settings.backfill_master
        cores, missing = session.cores if is_running and session else 0, ""
        if not cores:
            cores = configured_cores(master, settings.spark_settings, os.cpu_count() or 1)
            free = free_cores(master, settings.spark_settings)
            if free is not None:
                missing = "" if free else "its cluster has no core and memory for an executor"
                cores = min(cores, free) if cores else free
        return SparkTarget(
            master,
            cores,
            is_running,
            missing,
            has_exchange=bool(self._exchange_url),
            keeps_state=is_spark_group(settings.group),
        )

    def new_engine(
        self, store: Store, *parts: Any, while_waiting: Callable[[], object], **more: Any
    ) -> Engine:
        """Return the engine of this group over its store.

        while_waiting: called now and then while an epoch takes long. The rest as for `Engine`.
        """
        if not is_spark_group(self.settings.group):
            # A view can move to a cluster only together with the rows of its tables.
            return Engine(store, *parts, keeps_rows=bool(self.settings.spark), **more)
        from service.engine.bucket_engine import BucketEngine

        buckets = bucket_views(store, self.settings, self._spark_session(), while_waiting)
        return BucketEngine(store, *parts, buckets=buckets, **more)

    def build(
        self,
        definition: ViewDefinition,
        requested: str,
        feeds: Mapping[str, ExternalRead],
        estimate: Mapping[str, Any] | None = None,
    ) -> BuildParts:
        """Return the components with which this view is built.

        requested: its option `backfill`. estimate: that of its creation, as the catalog has it.
        """
        work = work_of(definition.relations(), estimate)
        speed = float((estimate or {}).get("speed", 1.0))
        choice = self.choose_engine(work, requested, {LOCAL: speed, SPARK: speed})
        is_spark = choice.engine == SPARK
        rows = sum(max(0, r.row_estimate) for r in definition.relations())
        return BuildParts(
            open_snapshot=self.source.open_snapshot,
            run=self._run_spark if is_spark else self._run_local,
            evaluator=evaluator_of(self.settings, definition),
            sink=self.sink(),
            choice=choice,
            parts=parts_of(rows),
            epoch_bytes=self.settings.budget.epoch,
            feeds=feeds,
            nudge=self.source.heartbeat,
            exchange=self._exchange(definition) if is_spark else None,
            runtime=self.runtime,
        )

    @property
    def source_row(self) -> str:
        """Return the source's name in the catalog for this group."""
        group = self.settings.group
        return SOURCE if group == DEFAULT_GROUP else f"{SOURCE}/{group}"

    @property
    def shown_source(self) -> str:
        """Return the source's DSN without secrets, for the catalog."""
        return redact(self.settings.source)

    def report_failure(self, error: TidemarkError | StorageError) -> None:
        """Report to the API why the pipeline refuses to run."""
        write_refusal(self.settings.state, error)

    def prepare_builds(self) -> None:
        """Start a child process for builds in advance; call only before there are threads."""
        self._children.prepare()

    def _run_local(self, job: BackfillJob, on_progress: OnProgress) -> BackfillResult:
        return self._children.run(job, on_progress)

    def _run_spark(self, job: BackfillJob, on_progress: OnProgress) -> BackfillResult:
        with extra_required("a backfill by Spark"):
            from connectors.spark.backfill import SparkBackfill

        # Of a view that Spark maintains, state stays where its tasks find it.
        is_copied = not is_spark_group(self.settings.group)
        engine = SparkBackfill(self._spark_session())
        return run_on_spark(engine, job, on_progress, is_copied=is_copied)

    def _exchange(self, definition: ViewDefinition) -> Exchange | None:
        """Return a view's own prefix in the executors' object storage, if there is one."""
        settings, url = self.settings, self._exchange_url
        if not url:
            return None
        if not settings.spark_exchange:
            from service.factory.spark_storage import build_exchange

            return build_exchange(settings).below(f"{settings.group}/{definition.scope}")
        return open_exchange(url).below(f"{settings.sink_key}/{definition.scope}")

    @property
    def _exchange_url(self) -> str:
        """Return where executors exchange files of backfills; "" is the state's own disk.

        Views on Spark by default use a part of the storage that they share with executors anyway.
        """
        settings = self.settings
        if settings.spark_exchange or not (
            settings.spark_storage and is_spark_group(settings.group)
        ):
            return settings.spark_exchange
        return url_below(settings.spark_storage, "exchange")

    def _spark_session(self) -> LazySession:
        """Return the session for all builds: it costs seconds and a gigabyte, so it stays open."""
        settings = self.settings
        with self._lock:
            if self._spark is None and is_spark_group(settings.group):
                from connectors.spark.maintained.runtime import new_session

                self._spark = new_session(settings.spark, settings.spark_settings)
            elif self._spark is None:
                from connectors.spark.session import LazySession

                self._spark = LazySession(settings.backfill_master, settings.spark_settings)
            return self._spark

    def spark_waiting(self) -> str:
        """Return why Spark makes no progress with the jobs of this process; "" if it makes some."""
        return "" if self._spark is None else self._spark.jobs.waiting()

    def close(self) -> None:
        """Stop idle children, and Spark with its JVM."""
        self._children.close()
        if self._spark is not None:
            self._spark.stop()
            self._spark = None


def _without_spark(master: str) -> str:
    """Return why sessions with a master cannot start here, "" if they can."""
    try:
        _check_spark(master, "Spark")
    except TidemarkError as error:
        return f"{error.what} ({error.hint})" if error.code == "package.missing" else error.what
    return ""
