"""What a build works with, handed to it whole by who starts it."""

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
from service.backfill.initial_load import Beside, RowSink
from service.backfill.local_backfill import BackfillJob
from service.runtime.runtime import RUNTIME, Runtime


@dataclass(frozen=True)
class ExternalRead:
    """A source beside the database, and where the snapshot of its relations lies."""

    source: FeedSource
    positions: FeedPositions
    notes: Mapping[str, bytes]


@dataclass(frozen=True)
class BuildParts:
    """What a build works with. run takes the chosen road, "local" or "spark"; epoch_bytes: what
    the view's changes since its snapshot may take in memory; beside: the table that it has
    already; nudge: makes the stream move past
    now; exchange: for what is kept of snapshots, if not the build's own folder. feeds: the other
    sources that it reads; reads_database: whether it reads the database, or stands where that
    does."""

    open_snapshot: Callable[[list[Relation]], Snapshot]
    run: Callable[[BackfillJob, OnProgress], BackfillResult]
    evaluator: Callable[[], Evaluator]
    sink: RowSink
    engine: str
    parts: int
    epoch_bytes: int
    nudge: Callable[[], object]
    exchange: Exchange | None = None
    feeds: Mapping[str, ExternalRead] = field(default_factory=dict)
    reads_database: bool = True
    beside: Beside | None = None
    runtime: Runtime = RUNTIME
