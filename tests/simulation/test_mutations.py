"""Oracle: the simulation must fail where the product is broken on purpose, within a few seeds.

Each case takes one promise out of the code that keeps it, as a careless change would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from connectors.clock.source import RELATION, ClockFeed
from connectors.postgres.analysis.table_names import KnownNames
from connectors.postgres.catalog.catalog import ViewRow
from connectors.postgres.schema.history_target import (
    ClosedWindows,
    History,
    Recorded,
    final_rows,
)
from connectors.postgres.sink import sink_epoch
from connectors.postgres.sink.history_tables import Histories
from connectors.sink import Progress, SinkEpoch
from connectors.source import SourceBatch
from dataflow.collect import ErrorRows
from dataflow.delta import Column, Delta
from dataflow.due import DueSearch
from dataflow.errors import TidemarkError
from dataflow.expressions.time_zones import Offsets
from dataflow.operators.lateness.late_rows import LateRowsOperator
from dataflow.operators.lateness.watermark import WatermarkOperator
from dataflow.plan.nodes import ViewPlan
from dataflow.types import EPOCH_2000_US
from service.backfill.view_build import ViewBuild
from service.engine.definition import ViewDefinition
from service.engine.engine import Engine
from service.engine.outbox import Outbox
from service.engine.positions import Positions
from service.factory import planning
from service.ingest.database_feed import Feed
from service.ingest.external_sources import ExternalSources
from service.ingest.table_watch import CatalogSnapshot, SourceWatch
from service.pipeline import recovery
from service.pipeline.epochs import Epochs
from service.pipeline.sink_writer import SinkWriter
from service.pipeline.state_sync import StateSync
from service.sinks.sink_worker import SinkWorker
from service.sinks.sink_workers import SinkWorkers
from service.subscriptions.change_reader import ChangeReader
from service.views.name_tracking import with_current_names
from storage.write_set import WriteSet
from tests.simulation.run import run

MAX_SEEDS = 400


def confirm_before_sync(self: StateSync) -> None:
    """The source may forget what is not on disk yet (P5)."""
    self._feed.confirm(self._engine.position)
    self._epochs.commit(sync=True)


def checkpoint_without_sync(self: StateSync) -> None:
    """The same, by a commit that is not forced."""
    self._epochs.commit()
    self._feed.confirm(self._engine.position)


def progress_apart(
    self: Engine, epoch: SinkEpoch | None, *, written: int, sync: bool = False
) -> None:
    """State and positions in one commit, the outbox in the next."""
    self.positions.save()
    self.store.commit()
    if epoch is not None:
        self._outbox.put(epoch)
    self._outbox.forget(written)
    self.store.commit(sync=sync)


def outbox_with_a_gap(self: Outbox, after: int, newest: int) -> list[SinkEpoch]:
    """An entry is lost, and the ones behind it take its number."""
    found = [e for k in self._entries if k.number > after and (e := self.find(k.number))]
    return [_numbered(e, after + i) for i, e in enumerate(found[1:], 1)] if found else []


def outbox_twice(self: Outbox, after: int, newest: int) -> list[SinkEpoch]:
    """What the sink has is given to it once more."""
    found = [e for k in self._entries if k.number >= after and (e := self.find(k.number))]
    return [_numbered(e, after + i) for i, e in enumerate(found, 1)]


def _numbered(epoch: SinkEpoch, number: int) -> SinkEpoch:
    return replace(epoch, progress=replace(epoch.progress, epoch=number))


def never_muted(*given: Any, **named: Any) -> Any:
    """After a crash of the machine the sink is told again what it has."""
    writer, _ = recovery.recover(*given, **named)
    return writer, {}


def meets_sink_at_once(self: Epochs, writer: SinkWriter, mute: dict[str, Any]) -> None:
    """The state bears the sink's epoch before it is there: a second crash forgets the mute."""
    START(self, writer, mute)
    self._engine.positions.set_epoch(max(self._engine.epoch, writer.written))


def unaware_of_snapshot(self: ViewBuild, newest: int) -> bool:
    """What lies before the snapshot is replayed too."""
    position, self.position = self.position, 0
    try:
        return CATCH_UP(self, newest)
    finally:
        self.position = position


def joins_too_early(self: ViewBuild, newest: int) -> bool:
    """A view joins before what came since its snapshot is replayed."""
    if self._view is None:
        self._open_view()
    return True


def never_there(self: Any, asked: Any) -> bool:
    """An epoch whose answer was lost is sent once more, unasked."""
    return False


def always(self: Any, asked: Any) -> bool:
    """What a stream refuses is taken to be read, whatever it was opened for."""
    return True


def all_refused(self: SinkEpoch, error: TidemarkError) -> SinkEpoch:
    """What the sink refuses takes the rest of its epoch with it."""
    epoch = REFUSED(self, error)
    return replace(epoch, rows=replace(epoch.rows, deltas=[]))


def nothing(*given: Any) -> None:
    """It is not done at all."""


def errors_stay(self: ErrorRows) -> Delta:
    """A row that is repaired leaves its error behind."""
    found = TAKE(self)
    return found.take(np.flatnonzero(found.weights > 0))


def errors_since_snapshot_lost(self: ViewBuild, output: Delta) -> None:
    """What fails while a view is built is told to nobody."""
    self._view.errors.take()  # type: ignore[union-attr]
    ADD(self, output)


def tells_again(self: ExternalSources, batch: SourceBatch) -> bool:
    """What a source cannot tell a second time is shown before it is on disk."""
    return True


def beyond_the_sink(self: Any, max_rows: int, until: Mapping[str, Any]) -> Any:
    """While the sink is muted a source is read beyond the place that the sink is at."""
    return POLL(self, max_rows, dict.fromkeys(until))


def only_the_newest(self: Positions, epoch: int, source: str, position: Any) -> None:
    """The place of a relation takes those of the others of its source with it."""
    self.progress = Progress(epoch, {**self.by_source, source: position})


def in_two_writes(self: WriteSet, *, sync: bool) -> None:
    """The named values of a commit are written after its pages."""
    values = {key: value for key, value in self._puts.items() if key[:1] == b"v"}
    for key in values:
        del self._puts[key]
    WRITE(self, sync=False)
    self._puts.update(values)
    WRITE(self, sync=sync)


def told_twice(self: ChangeReader, epoch: int) -> Any:
    """Who goes on from a mark is told of its epoch once more."""
    return POSITION(self, epoch - 1)


def forgets_for_sinks(self: SinkWorkers, written: int) -> int:
    """The outbox keeps nothing for sinks that are behind."""
    HOLD(self, written)
    return written


def ahead_of_tables(self: SinkWorkers) -> None:
    """Sinks get what the views' tables do not have yet."""
    for follower in list(self._sink_workers.values()):
        follower.advance(self._engine.epoch)


def any_begin(self: SinkWorker) -> int:
    """What a sink holds already is written again."""
    return BEGIN(self) - 1


def nobody(self: SinkWorkers, view_identity: str) -> list[str]:
    """Views change as a whole whatever their sinks are told."""
    return []


def looked_at_once(self: Feed) -> None:
    """The catalog is examined when the stream is opened, and before no batch."""


def not_waited_for(self: SourceWatch) -> None:
    """Where all is read in any case, what has been committed just now is not waited for."""
    catalog, oids = self._catalog, self._oids
    digest = catalog.digest if self._digest is not None else lambda known, objects: -1
    with patch.object(catalog, "digest", digest):
        REFRESH(self)
    assert self._oids == oids


def newest_shape_alone(self: SourceWatch, found: CatalogSnapshot) -> None:
    """Rows of before a change are on their way, and their shape is forgotten."""
    ACCEPT(self, found)
    for oid, table in self._tables.items():
        self._tables[oid] = replace(table, shapes=table.shapes[:1])
    self._save()


def names_looked_at_once(query: str, known: KnownNames, analyzer: Any) -> tuple[str, ViewPlan]:
    """Tables are renamed while a query is planned, and nobody looks again."""
    query_now = with_current_names(query, known, analyzer)
    return query_now, planning.plan_view(query_now, analyzer)


def late_ticks(self: DueSearch) -> int:
    """A clock ticks some values after the first at which a view changes."""
    n = len(self._candidates)
    found = min([self._fixed, *(moving.find() for moving in self._moving)])
    return found if found == n else found + 5


def never_shown(self: Epochs) -> None:
    """A position without changes is shown if something follows it."""


def never_late(self: LateRowsOperator, rows: Delta, mark: int, is_gone: np.ndarray) -> np.ndarray:
    """Late rows are taken, whatever the view's policy is."""
    return np.zeros(len(rows), np.bool_)


class Farthest:
    """What was seen of the partition that has come farthest."""

    def __init__(self, seen: Any) -> None:
        self._seen = seen

    def scan(self) -> Iterator[Delta]:
        """Yield its row."""
        for rows in [Delta.concat(parts)] if (parts := list(self._seen.scan())) else []:
            yield rows.take(np.array([rows.columns[-2].values.argmax()]))


def greatest_partition(self: WatermarkOperator, now: int, watched: int) -> Delta:
    """The watermark is that of the partition that has come farthest."""
    with patch.object(self, "_seen", Farthest(self._seen)):
        return PUBLISH(self, now, watched)


def never_idle(self: WatermarkOperator, step_us: int) -> int:
    """No partition ever falls silent."""
    return 0


def never_closed(column: Column, *_: Any) -> np.ndarray:
    """Rows that come into a window that is closed are taken for those of an open one."""
    return np.zeros(len(column), np.bool_)


def in_steps(self: ClockFeed, max_rows: int, *, until: Any = None) -> SourceBatch | None:
    """A clock catches up a second at a time."""
    if until is None and self._is_due and self.has_waited:
        present = self.candidates(2)[1] + EPOCH_2000_US
        until = {RELATION: {"us": int(min(present, self._us + 1_000_000))}}
    return POLL_CLOCK(self, max_rows, until=until)


def without_changes(self: Offsets, instants: np.ndarray) -> np.ndarray:
    """The clocks of a zone never change."""
    return instants + self.us[0]


def later_offset(self: Offsets, local: np.ndarray) -> np.ndarray:
    """A time that is skipped, or is there twice, is taken for the earlier moment."""
    at = np.searchsorted(self.starts, local, side="right") - 1
    return local - self.us[at]


def never_ended(self: Recorded, is_double: bool, *, is_looked_up: bool) -> Any:
    """The past does not say until when a row was there."""
    closed = f", {self.history.column(3)} = (SELECT committed_at FROM now)"
    return [part.replace(closed, "") for part in ENDED(self, is_double, is_looked_up=is_looked_up)]


def ended_late(self: Recorded, is_double: bool, *, is_looked_up: bool) -> Any:
    """A row of the past is there for an epoch too long."""
    parts = ENDED(self, is_double, is_looked_up=is_looked_up)
    return [
        p.replace("= (SELECT epoch FROM now),", "= (SELECT epoch + 1 FROM now),") for p in parts
    ]


def begun_again(*given: Any, **named: Any) -> bool:
    """Every version of a view has a past of its own."""
    return False


def rewind_unsaid(key: str, token: str, epoch: SinkEpoch) -> list[bytes]:
    """A rewound sink does not know which epochs it has lost."""
    return [s for s in BEGIN_EPOCH(key, token, epoch) if b"note_rewind" not in s]


def kept_too_long(self: Histories, cursor: Any, recorded: int) -> list[bytes]:
    """Nothing of the past ever goes."""
    return []


def never_removed(
    self: LateRowsOperator, keys: list[Column], went: np.ndarray, came: np.ndarray
) -> np.ndarray:
    """A row that was deleted in another part of a transaction comes as a new one."""
    return np.zeros(len(went), np.bool_)


def nothing_changed(definition: ViewDefinition, row: ViewRow) -> dict[str, Any]:
    """Keep what the catalog of a rewound sink says of views from before they were rebuilt."""
    return {}


PUBLISH, POLL_CLOCK = WatermarkOperator._publish, ClockFeed.poll
ENDED, BEGIN_EPOCH = Recorded._ended, sink_epoch.begin
REFRESH, ACCEPT = SourceWatch.refresh, SourceWatch.accept
POSITION = ChangeReader.position_after
HOLD, BEGIN = SinkWorkers.hold, SinkWorker._begin
WRITE = WriteSet.commit
POLL: Callable[..., Any] = ExternalSources.poll
TAKE, ADD = ErrorRows.take, ViewBuild.add
REFUSED = SinkEpoch.refused
START, CATCH_UP = Epochs.start, ViewBuild.catch_up


# What is broken, by what, and what the runs have beside the plain pipeline.
def closed_from_the_start(history: History, closed: ClosedWindows) -> str:
    """Each run of edges publishes all rows before it, too."""
    return final_rows(history, replace(closed, after_us=None))


def only_the_last_edge(
    after_us: int | None, moved: Sequence[tuple[int, int | None]]
) -> Iterator[tuple[int | None, list[tuple[int, int]]]]:
    """What several epochs have closed counts as of the last one."""
    edges = [(epoch, edge_us) for epoch, edge_us in moved if edge_us is not None]
    if edges:
        yield after_us, edges[-1:]


BROKEN: dict[str, tuple[str, Any, tuple[str, ...]]] = {
    "confirm before sync": ("service.pipeline.state_sync.StateSync.run", confirm_before_sync, ()),
    "checkpoint without sync": (
        "service.pipeline.state_sync.StateSync.run",
        checkpoint_without_sync,
        (),
    ),
    "progress apart": ("service.engine.engine.Engine.commit", progress_apart, ()),
    "outbox with a gap": ("service.engine.outbox.Outbox.read", outbox_with_a_gap, ()),
    "outbox twice": ("service.engine.outbox.Outbox.read", outbox_twice, ()),
    "never muted": ("service.pipeline.startup.recover", never_muted, ()),
    "mute forgotten": ("service.pipeline.epochs.Epochs.start", meets_sink_at_once, ("feeds",)),
    "snapshot not passed over": (
        "service.backfill.view_build.ViewBuild.catch_up",
        unaware_of_snapshot,
        (),
    ),
    "joined too early": ("service.backfill.view_build.ViewBuild.catch_up", joins_too_early, ()),
    "outcome not asked for": (
        "service.pipeline.sink_writer.SinkWriter._is_in_sink",
        never_there,
        (),
    ),
    "refused with its epoch": ("connectors.sink.SinkEpoch.refused", all_refused, ("refusals",)),
    "errors stay": ("dataflow.collect.ErrorRows.take", errors_stay, ("errors",)),
    "errors lost": (
        "service.backfill.view_build.ViewBuild.add",
        errors_since_snapshot_lost,
        ("errors",),
    ),
    "not on disk": (
        "service.ingest.external_sources.ExternalSources.is_replayable",
        tells_again,
        ("feeds",),
    ),
    "beyond the sink": (
        "service.ingest.external_sources.ExternalSources.poll",
        beyond_the_sink,
        ("feeds",),
    ),
    "places forgotten": ("service.engine.positions.Positions._move", only_the_newest, ("feeds",)),
    "commit in two writes": ("storage.write_set.WriteSet.commit", in_two_writes, ("rocks",)),
    "told twice": (
        "service.subscriptions.change_reader.ChangeReader.position_after",
        told_twice,
        ("subscribers",),
    ),
    "nothing kept for sinks": (
        "service.sinks.sink_workers.SinkWorkers.hold",
        forgets_for_sinks,
        ("sinks",),
    ),
    "ahead of the tables": (
        "service.sinks.sink_workers.SinkWorkers.advance",
        ahead_of_tables,
        ("sinks",),
    ),
    "sinks not on disk": ("service.sinks.sink_workers.SinkWorkers.is_any", False, ("sinks",)),
    "first rows twice": ("service.sinks.sink_worker.SinkWorker._begin", any_begin, ("sinks",)),
    "sinks not asked": ("service.sinks.sink_workers.SinkWorkers.followed", nobody, ("sinks",)),
    "refused and kept": (
        "service.pipeline.sink_refusals.SinkRefusals.resolve",
        nothing,
        ("refusals",),
    ),
    "tables not looked at": (
        "service.ingest.database_feed.Feed._refresh",
        looked_at_once,
        ("ddl",),
    ),
    "commits not waited for": (
        "service.ingest.table_watch.SourceWatch.refresh",
        not_waited_for,
        ("ddl",),
    ),
    "passed over and unshown": ("service.pipeline.epochs.Epochs.unshown", never_shown, ()),
    "shapes forgotten": (
        "service.ingest.table_watch.SourceWatch.accept",
        newest_shape_alone,
        ("ddl",),
    ),
    "failures told late": (
        "service.pipeline.reconciler.CatalogReconciler.owes_failures",
        False,
        ("ddl",),
    ),
    "unread and refused": ("service.ingest.database_feed.Feed.was_opened_for", always, ("ddl",)),
    "names looked at once": ("service.factory.planning._plan", names_looked_at_once, ("ddl",)),
    "ticks late": ("dataflow.due.DueSearch.first", late_ticks, ("clock",)),
    "clock in steps": ("connectors.clock.source.ClockFeed.poll", in_steps, ("zones",)),
    "zone without changes": (
        "dataflow.expressions.time_zones.Offsets.local",
        without_changes,
        ("zones",),
    ),
    "later offset": ("dataflow.expressions.time_zones.Offsets.instants", later_offset, ("zones",)),
    "late and taken": (
        "dataflow.operators.lateness.late_rows.LateRowsOperator._late",
        never_late,
        ("lateness",),
    ),
    "reloaded and late": (
        "dataflow.operators.lateness.late_rows.LateRowsOperator._exchange",
        never_removed,
        ("lateness",),
    ),
    "failed and unsaid": (
        "service.pipeline.view_failures.Failures.are_unreported",
        False,
        ("lateness",),
    ),
    "greatest partition": (
        "dataflow.operators.lateness.watermark.WatermarkOperator._publish",
        greatest_partition,
        ("lateness",),
    ),
    "never idle": (
        "dataflow.operators.lateness.watermark.WatermarkOperator._watch",
        never_idle,
        ("lateness",),
    ),
    "final twice": (
        "dataflow.operators.lateness.final_rows.is_closed",
        never_closed,
        ("lateness",),
    ),
    "frozen and changed": (
        "dataflow.operators.lateness.retained_aggregate.is_closed",
        never_closed,
        ("lateness",),
    ),
    "decided again": (
        "service.engine.definition.ViewDefinition.depends_on_history",
        False,
        ("lateness",),
    ),
    "past never ended": (
        "connectors.postgres.schema.history_target.Recorded._ended",
        never_ended,
        ("history",),
    ),
    "past ended late": (
        "connectors.postgres.schema.history_target.Recorded._ended",
        ended_late,
        ("history",),
    ),
    "past begun again": (
        "connectors.postgres.sink.history_tables._is_whole",
        begun_again,
        ("history",),
    ),
    "past kept": (
        "connectors.postgres.sink.history_tables.Histories.pruning",
        kept_too_long,
        ("history",),
    ),
    "rewind unsaid": (
        "connectors.postgres.sink.postgres_sink.begin",
        rewind_unsaid,
        ("failovers", "history"),
    ),
    "names of before": (
        "service.pipeline.sink_rewind.changed_facts",
        nothing_changed,
        ("refusals", "failovers", "ddl"),
    ),
    "drained and refused": (
        "service.pipeline.sink_writer.SinkWriter.has_refusals",
        False,
        ("refusals", "lateness"),
    ),
    "closed again in the past": (
        "connectors.postgres.query.history_rows.final_rows",
        closed_from_the_start,
        ("lateness", "history"),
    ),
    "edges of the past unread": (
        "connectors.postgres.query.history_rows._rising",
        only_the_last_edge,
        ("lateness", "history"),
    ),
}
# Where to begin with what few seeds find: at one that is known to.
BEGIN_AT = {
    "commits not waited for": 1206,
    "failures told late": 268,
    "failed and unsaid": 1070,
    "unread and refused": 2187,
    "names looked at once": 700215,
    "names of before": 1705,
}


@contextmanager
def broken(name: str) -> Iterator[tuple[str, ...]]:
    """The product with one thing wrong; what finds it."""
    target, wrong, parts = BROKEN[name]
    with patch(target, wrong):
        yield parts


@pytest.mark.parametrize("name", BROKEN)
def test_the_simulation_finds(name: str) -> None:
    with broken(name) as parts:
        first = BEGIN_AT.get(name, 1)
        for seed in range(first, first + MAX_SEEDS):
            if run(seed, parts=parts).failure is not None:
                print(f"{name}: found by seed {seed}")
                return
    raise AssertionError(f"{MAX_SEEDS} seeds have not found: {name}")
