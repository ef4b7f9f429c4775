"""The simulated implementations of the contracts, as service_factory.py builds the real ones."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from connectors.clock.source import ClockSource
from connectors.partition_cache import OnProgress
from connectors.postgres.catalog.catalog import SourceRow
from connectors.postgres.catalog.sink_records import SinkRow
from connectors.sink import SinkTable, TableState
from connectors.spark.result import BackfillResult
from dataflow.errors import TidemarkError
from dataflow.expressions.evaluator import TimeLimit
from dataflow.schema import Relation
from dataflow.types import UTC
from service.backfill.build_parts import BuildParts, ExternalRead
from service.backfill.engine_choice import LOCAL, EngineChoice, Work
from service.backfill.local_backfill import BackfillJob, backfill
from service.engine.definition import ViewDefinition
from service.engine.engine import Engine
from service.ingest.declared_sources import relations_of
from service.runtime.memory_budget import MemoryBudget
from service.runtime.runtime import Runtime
from service.runtime.settings import Settings
from storage.errors import StorageError
from storage.store import Store
from tests.simulation import clock, features
from tests.simulation.analysis import SimAnalyzer
from tests.simulation.ddl_analysis import DdlAnalyzer
from tests.simulation.ddl_source import DdlSource
from tests.simulation.ddl_tables import DdlServer
from tests.simulation.disk import BulkStore
from tests.simulation.evaluation import SimEvaluator
from tests.simulation.feed import SimFeedSource
from tests.simulation.fibers import FiberHost
from tests.simulation.sessions import SimControl, SimSink, SimTables
from tests.simulation.source import SimSource
from tests.simulation.view_sinks import SimViewSink, view_sink

if TYPE_CHECKING:
    from tests.simulation.world import World

PARTS = 2


class SimInspector:
    """Nobody locks a table here; who spoils one is found by the next epoch that changes it."""

    def states(self) -> list[TableState]:
        return []

    def waits(self) -> str:
        return ""

    def holders(self, table: SinkTable) -> dict[tuple[int, str], str]:
        return {}


class SimSettings(Settings):
    """Settings with a small budget, so that epochs are large for it."""

    epoch_bytes: int = 64 << 20

    @property
    def few_rows(self) -> int:
        """Every row: there are few."""
        return 1

    @property
    def budget(self) -> MemoryBudget:
        """As of 1 GB, but for an epoch."""
        found = MemoryBudget.of(1024)
        return MemoryBudget(**{**vars(found), "epoch": self.epoch_bytes})


class SimParts:
    """As service.factory.service_factory.Parts, for one process or for human readers."""

    is_sink_apart = False
    source_row = "source"
    shown_source = "simulated"

    def __init__(self, world: World, host: Runtime) -> None:
        self.settings = world.settings
        self.runtime = host
        self._world = world
        self.source = self.new_source()
        self._owner = f"process {world.pids}"

    def new_source(self) -> SimSource:
        server, faults = self._world.server, self._world.faults
        if isinstance(server, DdlServer):
            return DdlSource(server, faults, features.stream(self._world.seed, "ddl stream"))
        return SimSource(server, faults)

    def open_store(self) -> Store:
        return self._world.disk.open_store(self._world.faults.step)

    def new_engine(self, store: Store, *parts: Any, while_waiting: Any, **more: Any) -> Engine:
        return Engine(store, *parts, **more)

    def spark_waiting(self) -> str:
        return ""

    def sink(self) -> SimSink:
        return SimSink(self._world.database, self._world.faults, self._owner)

    def choose_engine(
        self, work: Work, requested: str, speeds: Mapping[str, float] | None = None
    ) -> EngineChoice:
        """No planner tells what a view would cost here."""
        raise TidemarkError("source.unreachable", "there is no planner to ask")

    def sink_of(self, group: str) -> SimSink:
        return self.sink()

    def view_tables(self) -> SimTables:
        return SimTables(self._world.database, self._world.faults)

    def table_inspector(self, control: SimControl) -> SimInspector:
        return SimInspector()

    def control(self) -> SimControl:
        return SimControl(self._world.database, self._world.faults)

    def feed_source(self, row: SourceRow) -> SimFeedSource | ClockSource:
        if row.type == clock.CLOCK:
            assert self._world.clock is not None and isinstance(self.runtime, FiberHost)
            return clock.source(row, self._world.clock, self.runtime)
        return SimFeedSource(row.name, relations_of(row), self._world.broker, self._world.faults)

    def evaluator(
        self, role: str = "", time_zone: str = UTC, limit: TimeLimit | None = None
    ) -> SimEvaluator:
        return SimEvaluator(self._world.faults)

    def analyzer(
        self,
        views: Sequence[Relation],
        feeds: Sequence[Relation] = (),
        requester: str = "",
        time_zone: str = UTC,
    ) -> SimAnalyzer:
        server = self._world.server
        if isinstance(server, DdlServer):
            return DdlAnalyzer(server, self._world.faults, views, feeds, time_zone)
        return SimAnalyzer(views, feeds, time_zone)

    def view_sink(self, row: SinkRow, table: SinkTable) -> SimViewSink:
        return view_sink(self._world, row, table)

    def report_failure(self, error: TidemarkError | StorageError) -> None:
        self._world.refused(error)

    def build(
        self,
        definition: ViewDefinition,
        requested: str,
        feeds: Mapping[str, ExternalRead],
        estimate: Mapping[str, Any] | None = None,
    ) -> BuildParts:
        return BuildParts(
            open_snapshot=self.source.open_snapshot,
            run=_run_in_rocks if "rocks" in self._world.parts else _run,
            evaluator=functools.partial(self.evaluator, definition.role),
            sink=self.sink(),
            choice=EngineChoice(LOCAL),
            parts=PARTS,
            epoch_bytes=self.settings.budget.epoch,
            feeds=feeds,
            nudge=self.source.heartbeat,
            runtime=self.runtime,
        )

    def close(self) -> None:
        """Nothing is open."""


def _run(job: BackfillJob, on_progress: OnProgress) -> BackfillResult:
    return backfill(job, on_progress, BulkStore())


def _run_in_rocks(job: BackfillJob, on_progress: OnProgress) -> BackfillResult:
    return backfill(job, on_progress)
