"""Building a view: snapshot, backfill and staging in a thread, catch-up in the pipeline's own.

A build never touches what is live: its state lies under its own scope, its rows in a staging
table, its changes in a spool. Only `take_over` hands all three to the engine, at an epoch
boundary. Interrupted anywhere before that, it starts again from nothing.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from operator import sub
from pathlib import Path

from connectors.feed_source import FeedSource, Places
from connectors.kept_parts import OnProgress, Progress
from connectors.sink import Sink
from connectors.source import MAIN_SOURCE, Snapshot, SnapshotPart, SourceBatch
from connectors.spark.result import BackfillResult
from dataflow.delta import Delta
from dataflow.errors import TidemarkError, ViewError
from dataflow.expressions.evaluator import Evaluator
from dataflow.schema import Relation, RelationName
from service.backfill import BackfillJob
from service.engine import BYTES_A_ROW, View, ViewDefinition, named
from service.gathered import Gathered
from service.log import log
from service.pace import Pace
from service.reads import Read
from service.spool import Spool
from storage.store import Store

CATCH_UP_S = 0.05


@dataclass(frozen=True)
class SideRead:
    """A source beside the database, and where the snapshot of its relations lies."""

    source: FeedSource
    places: Places
    notes: Mapping[str, bytes]


@dataclass(frozen=True)
class BuildParts:
    """What a build works with. run takes the chosen road, "local" or "spark"; epoch_bytes: what
    the view's changes since its snapshot may take in memory. feeds: the other sources that it
    reads; reads_database: whether it reads the database, or stands where that does."""

    open_snapshot: Callable[[list[Relation]], Snapshot]
    run: Callable[[BackfillJob, OnProgress], BackfillResult]
    evaluator: Callable[[], Evaluator]
    sink: Sink
    road: str
    parts: int
    epoch_bytes: int
    feeds: Mapping[str, SideRead] = field(default_factory=dict)
    reads_database: bool = True


@dataclass
class BuildStatus:
    """Where a build stands, for the catalog. read_since: when its parts began to be read."""

    phase: str = "snapshot"
    road: str = ""
    progress: Progress = field(default_factory=lambda: Progress(0, 0))
    started_at: float = field(default_factory=time.time)
    read_since: float = 0.0

    def facts(self) -> dict[str, object]:
        """As the catalog and REST show it, with an estimate of the seconds left."""
        found, now = self.progress, time.time()
        facts: dict[str, object] = {
            "phase": self.phase,
            "road": self.road,
            "parts_done": found.parts_done,
            "parts_total": found.parts_total,
            "rows": found.rows,
            "bytes": found.bytes,
            "elapsed_s": round(now - self.started_at, 1),
            "remaining_s": self._remaining_s(now),
        }
        if found.tasks_total:
            facts |= {"tasks_done": found.tasks_done, "tasks_total": found.tasks_total}
        return facts

    def _remaining_s(self, now: float) -> float | None:
        """By the steps that were made in this run; what an earlier one had read costs nothing."""
        found = self.progress
        done = max(found.parts_done - found.parts_kept, 0) + found.tasks_done
        total = found.parts_total - found.parts_kept + found.tasks_total
        if not done or not self.read_since:
            return None
        return round((now - self.read_since) * (total - done) / done, 1)


class ViewBuild:
    """One view on its way from definition to live.

    columns: what it keeps of each base relation, so that other views can read it there too.
    position: the snapshot's; the view joins at an epoch that is not before it.
    """

    def __init__(
        self,
        definition: ViewDefinition,
        store: Store,
        folder: Path,
        parts: BuildParts,
        columns: Mapping[RelationName, tuple[int, ...]],
    ) -> None:
        self.definition = definition
        self.columns = columns
        self.status = BuildStatus(road=parts.road)
        self.failure: TidemarkError | None = None
        self.refusal: TidemarkError | None = None
        self.is_cancelled = False
        self.is_nudged = False
        self.position = 0
        self.rows_staged = 0
        self._store = store
        self._parts = parts
        self._folder = folder / definition.scope
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        names = [r.name for r in definition.relations()]
        self._spool = Spool(self._folder / "changes.spool", names)
        self._result: BackfillResult | None = None
        self._view: View | None = None
        self._pace = Pace(parts.epoch_bytes // BYTES_A_ROW)
        self._gathered = Gathered(parts.epoch_bytes)
        self._thread = threading.Thread(
            target=self._run, name=f"build-{definition.table.name}", daemon=True
        )

    def start(self) -> None:
        """Begin; changes must be fed from now on."""
        self._thread.start()

    def cancel(self, refusal: TidemarkError | None = None) -> None:
        """Give up as soon as may be; with a refusal the view becomes failed."""
        self.refusal = self.refusal or refusal
        self.is_cancelled = True

    def reads(self) -> list[Read]:
        """The base relations, each with the positions of the fields that are kept."""
        return [(r, self.columns[r.name]) for r in self.definition.relations()]

    def awaits_snapshot(self, position: int) -> bool:
        """Whether transactions on both sides of the snapshot may still come after `position`.

        Until then they must come one in a batch: the spool leaves out whole batches.
        """
        if not self._parts.reads_database:
            return False
        return self.position == 0 or self.position > position

    def feed(self, batch: SourceBatch) -> None:
        """Keep a batch that the live views have just stepped over."""
        self._spool.append(batch)

    @property
    def is_working(self) -> bool:
        """The thread is still at snapshot, backfill or staging."""
        return self._thread.is_alive()

    def catch_up(self) -> bool:
        """Work for a short while in the caller's thread; True when nothing is left to replay."""
        if self._view is None:
            self._open_view()
        assert self._view is not None
        deadline = time.monotonic() + CATCH_UP_S
        while time.monotonic() < deadline:
            batch = self._spool.pop()
            if batch is None:
                return True
            if batch.source != MAIN_SOURCE or batch.last_commit > self.position:
                try:
                    self._replay(self._view, batch)
                except ViewError as error:
                    self.failure = error
                    return False
        return False

    def _replay(self, view: View, batch: SourceBatch) -> None:
        for changes in self._pace.slices(batch.changes):
            inputs = view.resolve(changes)
            if not inputs:
                continue
            before = list(view.dataflow.rows_out)
            self.add(view.step(inputs))
            made = max(map(sub, view.dataflow.rows_out, before))
            self._pace.learn(changes, made)
            self._store.relieve()

    def add(self, output: Delta) -> None:
        """Keep what the view gives out until it is live, and its error rows."""
        assert self._view is not None
        table = self.definition.table
        self._gathered.add(table, output)
        self._gathered.add(table, named(table, self._view.errors.take()), is_errors=True)

    def take_over(self) -> tuple[View, Gathered, BackfillResult]:
        """The caught-up view, what changed in it since its snapshot, what the backfill left."""
        assert self._view is not None and self._result is not None
        return self._view, self._gathered, self._result

    def close(self) -> None:
        """Remove the working files."""
        self._spool.close()
        self._gathered.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _open_view(self) -> None:
        assert self._result is not None
        self.status.phase = "catching up"
        self._view = View(self.definition, self._store, self._parts.evaluator(), self.columns)
        self._store.ingest(self._result.files)

    def _run(self) -> None:
        try:
            self._result = self._backfill()
            if not self.is_cancelled:
                self.status.phase = "staging"
                rows = self._result.read_output()
                self.rows_staged = self._parts.sink.stage(self.definition.table, rows)
        except TidemarkError as error:
            self.failure = error
        except Exception as error:
            log.exception("build.failed", view=self.definition.table.title)
            self.failure = TidemarkError(
                "backfill.failed", "the backfill failed", detail=str(error)
            )

    def _backfill(self) -> BackfillResult:
        definition, status = self.definition, self.status
        relations = list(definition.relations())
        with ExitStack() as open_snapshots:
            parts = self._snapshot_parts(open_snapshots)
            status.progress = Progress(0, sum(map(len, parts.values())))
            status.phase, status.read_since = "backfill", time.time()
            job = BackfillJob(
                definition.plan.root,
                definition.scope,
                tuple(relations),
                self.columns,
                parts,
                self._parts.evaluator,
                self._folder,
            )
            return self._parts.run(job, self._on_progress)

    def _snapshot_parts(self, held: ExitStack) -> dict[RelationName, Sequence[SnapshotPart]]:
        """Of each relation; the snapshots that they are of are closed with `held`."""
        by_source: dict[str, list[Relation]] = {}
        for relation in self.definition.relations():
            by_source.setdefault(relation.name.source, []).append(relation)
        parts: dict[RelationName, Sequence[SnapshotPart]] = {}
        if self._parts.reads_database:
            relations = by_source.pop(MAIN_SOURCE, [])
            snapshot = self._parts.open_snapshot(relations)
            held.callback(snapshot.close)
            self.position = snapshot.position
            for r in relations:
                parts[r.name] = snapshot.parts(r, self.columns[r.name], self._parts.parts)
        for source, relations in by_source.items():
            read = self._parts.feeds[source]
            snapshot = read.source.open_snapshot(relations, read.places, read.notes)
            held.callback(snapshot.close)
            for r in relations:
                parts[r.name] = snapshot.parts(r, self.columns[r.name], self._parts.parts)
        return parts

    def _on_progress(self, progress: Progress) -> None:
        self.status.progress = progress
        if self.is_cancelled:
            raise TidemarkError("view.dropped", "the view was dropped while it was built")
