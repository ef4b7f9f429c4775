"""The concrete parts of one service, made from its settings: source, sink, state, backfill roads.

Everything above asks here, so that which class stands behind a contract is decided in one place.
"""

from __future__ import annotations

import functools
import os
import socket
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from connectors.feed_source import FeedSource
from connectors.partition_cache import OnProgress
from connectors.postgres.analysis.analyzer import PostgresAnalyzer
from connectors.postgres.catalog.catalog import Control, SourceRow
from connectors.postgres.catalog.sink_records import SinkRow
from connectors.postgres.evaluation.evaluator import PostgresEvaluator
from connectors.postgres.schema.lease import Claim
from connectors.postgres.session.session import redact
from connectors.postgres.sink.postgres_sink import PostgresSink
from connectors.postgres.sink.view_tables import ViewTables
from connectors.postgres.source import PostgresSource
from connectors.shuffle_storage import Exchange, open_exchange
from connectors.sink import SinkTable
from connectors.source import MAIN_SOURCE
from connectors.spark.result import BackfillResult
from connectors.view_sink import ViewSink
from dataflow.errors import SinkError, TidemarkError
from dataflow.expressions.evaluator import Evaluator
from dataflow.schema import Relation
from dataflow.sql.lower.lowering import lower
from service.backfill.build_parts import BuildParts, ExternalRead
from service.backfill.child_processes import Children
from service.backfill.local_backfill import BackfillJob
from service.engine import state_version
from service.engine.engine import ViewDefinition
from service.ingest.declared_sources import feed_source
from service.metrics.metrics import write_refusal
from service.runtime.memory_budget import MEBIBYTE
from service.runtime.memory_watch import MemoryWatch
from service.runtime.runtime import RUNTIME, Runtime
from service.runtime.security_limits import protect
from service.runtime.settings import DEFAULT_GROUP, Settings
from storage.errors import StorageError
from storage.rocks import RocksStore, StoreBudget
from storage.store import Store

if TYPE_CHECKING:
    from connectors.spark.session import LazySession

SOURCE = MAIN_SOURCE
LOCAL_PARTS = 8
ROWS_A_PART = 250_000


class ServiceFactory:
    """Makes parts on demand; holds only what is shared: the source and a warm Spark session."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.host: Runtime = RUNTIME
        place = f"pid {os.getpid()} on {socket.gethostname()}, state {settings.state.absolute()}"
        self.claim = Claim(settings.sink_key, place)
        self.source = self.new_source()
        self._spark: LazySession | None = None
        self._lock = threading.Lock()
        self._children = Children(functools.partial(protect, self.settings))
        self._own_role = ""

    def new_source(self) -> PostgresSource:
        """The source with sessions of its own."""
        settings = self.settings
        return PostgresSource(
            settings.source,
            name=SOURCE,
            prefix=settings.prefix,
            suffix="" if settings.group == DEFAULT_GROUP else settings.group,
            claim=self.claim,
        )

    def open_store(self) -> Store:
        """The state; StorageError state.locked when another process has it, state.version."""
        state_version.claim(self.settings.state)
        path = self.settings.state / state_version.STORE
        budget = self.settings.budget
        rest = StoreBudget(budget.runs, budget.ahead, budget.write_buffer)
        watch = MemoryWatch(self.settings.memory * MEBIBYTE)
        return RocksStore(path, cache_bytes=budget.cache, budget=rest, watch=watch)

    def sink(self) -> PostgresSink:
        """A new session on the sink; what it writes is written by who has claimed it."""
        return PostgresSink(self.settings.sink, key=self.settings.sink_key, claim=self.claim)

    def sink_of(self, group: str) -> PostgresSink:
        """A new session on the sink, for the views of one group."""
        return PostgresSink(self.settings.sink, key=self.settings.for_group(group).sink_key)

    def feed_source(self, row: SourceRow) -> FeedSource:
        """The source beside the database that a row of the catalog declares."""
        return feed_source(row)

    def view_tables(self) -> ViewTables:
        """Looks at the views' tables."""
        return ViewTables(self.settings.sink)

    def view_sink(self, row: SinkRow, table: SinkTable) -> ViewSink:
        """A new writer of one view's further sink. SinkError sink.bad_option, secret.missing."""
        from connectors.kafka.sink import make

        return make(row.options, table, row.identity, row.title)

    def checked_options(
        self, kind: str, options: Mapping[str, Any], table: SinkTable, name: str
    ) -> Mapping[str, Any]:
        """The options of a new sink with its defaults, after a look at what it will write to.

        SinkError sink.unknown_type, sink.bad_option, and what the sink's kind refuses.
        """
        from connectors.kafka.sink import check

        if kind != "kafka":
            raise SinkError(
                "sink.unknown_type", f'there are no sinks of type "{kind}"', hint='choose "kafka"'
            )
        return check(options, table, f"{table.title}/{name}")

    def control(self) -> Control:
        """A new session on the control tables."""
        return Control(self.settings.sink)

    def evaluator(self, role: str = "") -> Evaluator:
        """A new session for expressions without a native kernel, with the rights of a role."""
        return PostgresEvaluator(self.settings.source, role=role)

    def role_of(self, asker: str) -> str:
        """Whose rights a view of this creator has at the source: "" for the service's own."""
        if not asker:
            return ""
        with self._lock:
            if not self._own_role:
                control = self.control()
                self._own_role = control.rows("SELECT current_user::text")[0][0]
                control.close()
        return "" if asker == self._own_role else asker

    def analyzer(
        self, views: Sequence[Relation], feeds: Sequence[Relation] = (), asker: str = ""
    ) -> PostgresAnalyzer:
        """A new analysis at the source, knowing the maintained views and other sources' relations
        (feeds); asker: the role whose rights it has, and that must be allowed to read what the
        query reads."""
        return PostgresAnalyzer(
            self.settings.source,
            SOURCE,
            views,
            has_stubs=self.is_sink_apart,
            feeds=feeds,
            asker=self.role_of(asker),
        )

    @property
    def is_sink_apart(self) -> bool:
        """Whether the views live in another database than the one that is followed."""
        return self.settings.source != self.settings.sink

    def choose_engine(self, definition: ViewDefinition, wanted: str) -> str:
        """ "local" or "spark": what `backfill` asks for, by size when it says auto."""
        if wanted != "auto":
            return wanted
        is_cluster = not self.settings.spark_master.startswith("local")
        rows = sum(max(0, r.row_estimate) for r in definition.relations())
        return "spark" if is_cluster or rows >= self.settings.spark_rows else "local"

    def build(
        self, definition: ViewDefinition, wanted: str, feeds: Mapping[str, ExternalRead]
    ) -> BuildParts:
        """What building this view works with."""
        road = self.choose_engine(definition, wanted)
        rows = sum(max(0, r.row_estimate) for r in definition.relations())
        return BuildParts(
            open_snapshot=self.source.open_snapshot,
            run=self._run_spark if road == "spark" else self._run_local,
            evaluator=functools.partial(
                PostgresEvaluator, self.settings.source, role=definition.role
            ),
            sink=self.sink(),
            road=road,
            parts=max(LOCAL_PARTS, -(-rows // ROWS_A_PART)),
            epoch_bytes=self.settings.budget.epoch,
            feeds=feeds,
            nudge=self.source.heartbeat,
            exchange=self._exchange(definition) if road == "spark" else None,
            runtime=self.host,
        )

    @property
    def source_row(self) -> str:
        """The name under which the catalog knows the source, as this group follows it."""
        group = self.settings.group
        return SOURCE if group == DEFAULT_GROUP else f"{SOURCE}/{group}"

    @property
    def shown_source(self) -> str:
        """The source's DSN without secrets, for the catalog."""
        return redact(self.settings.source)

    def report_failure(self, error: TidemarkError | StorageError) -> None:
        """Leave word for the API why the pipeline refuses to run."""
        write_refusal(self.settings.state, error)

    def prepare_builds(self) -> None:
        """Have a process ready in which a view is built; only where there are no threads yet."""
        self._children.prepare()

    def _run_local(self, job: BackfillJob, on_progress: OnProgress) -> BackfillResult:
        return self._children.run(job, on_progress)

    def _run_spark(self, job: BackfillJob, on_progress: OnProgress) -> BackfillResult:
        from connectors.spark.backfill import SparkBackfill

        return SparkBackfill(self._spark_session()).run(
            nodes=lower(job.root),
            scope=job.scope,
            relations=job.relations,
            columns=job.columns,
            parts=job.parts,
            evaluator=job.evaluator,
            work_dir=job.work_dir,
            on_progress=on_progress,
            exchange=job.exchange,
        )

    def _exchange(self, definition: ViewDefinition) -> Exchange | None:
        """A view's own place in the object storage that executors reach, if there is one."""
        url = self.settings.spark_exchange
        place = f"{self.settings.sink_key}/{definition.scope}"
        return open_exchange(url).below(place) if url else None

    def _spark_session(self) -> LazySession:
        """One session for all builds: it costs seconds and a gigabyte, so it stays warm."""
        from connectors.spark.session import LazySession

        with self._lock:
            if self._spark is None:
                self._spark = LazySession(self.settings.spark_master, self.settings.spark_settings)
            return self._spark

    def close(self) -> None:
        """Stop what was started: children that have nothing to do, Spark with its JVM."""
        self._children.close()
        if self._spark is not None:
            self._spark.stop()
            self._spark = None
