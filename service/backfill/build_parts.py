"""The explicit inputs of a build, made by whoever starts it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from connectors.feed_source import FeedPositions, FeedSource
from connectors.partition_cache import OnProgress
from connectors.shuffle_storage import Exchange
from connectors.source import Snapshot
from connectors.spark.result import BackfillResult
from dataflow.expressions.evaluator import Evaluator
from dataflow.schema import Relation
from service.backfill.engine_choice import EngineChoice
from service.backfill.initial_load import LiveVersion, RowSink
from service.backfill.local_backfill import BackfillJob
from service.runtime.runtime import RUNTIME, Runtime


@dataclass(frozen=True)
class ExternalRead:
    """An external source, with the position of its relations' snapshots."""

    source: FeedSource
    positions: FeedPositions
    notes: Mapping[str, bytes]


@dataclass(frozen=True)
class BuildParts:
    """The explicit inputs of a build.

    choice: of the engine, which `run` executes. epoch_bytes: memory for the view's changes
    since its snapshot. live_version: the table that the view already has. nudge: advances the
    stream past the current position. exchange: storage for snapshot parts, if not the build's own
    folder. feeds: the external sources that it reads. reads_database: True if it reads the database
    or moves with its position.
    """

    open_snapshot: Callable[[list[Relation]], Snapshot]
    run: Callable[[BackfillJob, OnProgress], BackfillResult]
    evaluator: Callable[[], Evaluator]
    sink: RowSink
    choice: EngineChoice
    parts: int
    epoch_bytes: int
    nudge: Callable[[], object]
    exchange: Exchange | None = None
    feeds: Mapping[str, ExternalRead] = field(default_factory=dict)
    reads_database: bool = True
    live_version: LiveVersion | None = None
    runtime: Runtime = RUNTIME
