"""An engine whose view is maintained in buckets by Spark (decision 35).

Only where rows are stored and stepped differs from `Engine`: positions, outbox and life of the view
are the same. Invariant: the driver commits an epoch before this engine does, and this engine before
the sink sees it; `recover` closes the gap after a kill.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from connectors.feed_source import RangePlanner
from connectors.sink import Progress, SinkEpoch, SinkTable
from connectors.source import SourceBatch, StoredInput
from connectors.spark.maintained.commits import LOST_CODES
from connectors.spark.maintained.imports import BackfilledState
from connectors.spark.maintained.layout import Layout
from connectors.spark.maintained.output import CommittedEpoch
from connectors.spark.maintained.tasks import Figures
from connectors.spark.result import BackfillResult
from connectors.spark.stages import Stage
from dataflow.changes import Changes
from dataflow.delta import Delta
from dataflow.due import TickSearch
from dataflow.errors import InvariantError, TidemarkError, ViewError
from dataflow.live_tables import TableLocation
from dataflow.operators.base import view_error
from dataflow.plan.explain import describe
from dataflow.schema import RelationName
from dataflow.shared import StateLocation
from dataflow.sharing import TABLE, NodeFigures
from dataflow.sql.lower.lowering import title_of
from service.engine.bucket_due import BucketDueSearch
from service.engine.bucket_views import BucketViews, FixedEpoch, LargeBatch
from service.engine.definition import View, ViewDefinition
from service.engine.engine import Engine
from service.engine.epoch_buffer import EpochBuffer, named
from service.engine.range_reader import RangeReader
from service.engine.replay import CatchUp
from storage.store import Store


class BucketEngine(Engine):
    """See Engine. buckets: over the same store."""

    def __init__(self, *parts: Any, buckets: BucketViews, **more: Any) -> None:
        self._buckets = buckets
        # How often rows came that no clock has brought; by clock, how often at its last search.
        self._changes = 0
        # Whether every commit of this store so far is on disk.
        self._is_durable = False
        self._searched: dict[str, int] = {}
        # What reads each relation of an external source.
        self._read_by: dict[RelationName, str] = {}
        super().__init__(*parts, **more)

    def _enter(
        self,
        definition: ViewDefinition,
        locations: Sequence[StateLocation | None] | None,
        tables: Sequence[TableLocation] | None = None,
    ) -> list[str]:
        self.views[definition.name] = definition
        self._buckets.enter(definition)
        return []

    @property
    def depends_on_history(self) -> bool:
        """Return True: this store must not be behind the sink, since the driver never repeats."""
        return True

    def range_reader(self, is_alone: Callable[[], bool]) -> RangeReader:
        """See Engine."""
        return RangeReader(
            lambda: bool(self.views) and is_alone(), self._read_ranges, self._read_by.update
        )

    def _read_ranges(self, planner: RangePlanner, max_rows: int) -> SourceBatch | None:
        (definition,) = self.views.values()
        return self._buckets.read(definition.identity, planner, max_rows)

    # --- the view as a whole ---------------------------------------------------------------------

    def in_free_scope(self, definition: ViewDefinition) -> ViewDefinition:
        """See Engine; a build begins, whose view will be stepped."""
        self._buckets.warm()
        return super().in_free_scope(definition)

    def catch_up(self, view: View, backfilled: BackfillResult) -> CatchUp:
        """See Engine. State that tasks have written goes into buckets at once."""
        if backfilled.exchange is None:
            return super().catch_up(view, backfilled)
        return self._buckets.catch_up(view, BackfilledState(backfilled.exchange, backfilled.files))

    def forget_build(self, definition: ViewDefinition) -> None:
        """See Engine."""
        super().forget_build(definition)
        self._buckets.forget_build(definition)

    def add(self, view: View) -> None:
        """See Engine; its state goes into buckets, unless it is there."""
        definition = view.definition
        self._changes += 1
        self._forget(definition)
        self.views[definition.name] = definition
        self._buckets.begin(view, self.positions.progress or Progress(self.epoch, {}))
        self._put_definition(definition)
        self._drop([f"{definition.scope}/"])

    def remove(self, name: RelationName) -> None:
        """See Engine."""
        definition = self.views.pop(name)
        self._forget(definition)
        self._buckets.remove(definition.identity)

    def copy_to(
        self, name: RelationName, store: Store, folder: Path
    ) -> Mapping[RelationName, tuple[int, ...]]:
        """See Engine; it takes an epoch of the driver, which reads nothing."""
        return self._buckets.export(self.views[name].identity, store, folder)

    def renew(self, view: View) -> None:
        """See Engine; the view has no readers."""
        self.add(view)

    def rename(self, name: RelationName, table: SinkTable) -> None:
        """See Engine; the view has no readers."""
        definition = replace(self.views.pop(name), table=table)
        self._forget(definition)
        self.views[definition.name] = definition
        self._buckets.rename(definition)
        self._put_definition(definition)

    # --- epochs ----------------------------------------------------------------------------------

    def recover(self, written: int) -> list[TidemarkError]:
        """Add the epochs that the driver has committed and this store lacks.

        Epochs that only moved positions are this store's alone. `step` makes them durable before
        the driver's next one, so only an older copy of the store can lack one in between.

        written: as for `commit`. Views whose state is lost leave the engine; return why, each of
        its relation.
        TidemarkError spark.fenced; TemporaryError.
        """
        if self.views:
            self._buckets.warm()
        lost = []
        for name, definition in list(self.views.items()):
            try:
                found = list(self._buckets.recover(definition.identity))
            except TidemarkError as error:
                if error.code not in LOST_CODES:
                    raise
                lost.append(_of_view(name, error))
                self.remove(name)
                self.commit(None, written=written, sync=True)
                continue
            first = found[0][0].progress.epoch if found else self.epoch + 1
            if first != self.epoch + 1:
                # This store was restored, and what came between went with the other one.
                lost.append(_of_view(name, lacks_epochs(self.epoch, first)))
                self.remove(name)
                self.commit(None, written=written, sync=True)
                continue
            for fixed, committed in found:
                number = fixed.progress.epoch
                if number != self.epoch + 1:
                    raise InvariantError("state.buckets", f"epoch {number} after {self.epoch}")
                self.positions.restore(fixed.progress, fixed.source, fixed.notes)
                buffered = self.gather()
                found = self._take(definition, committed, buffered)
                rejected = Delta.concat(found) if found else None
                time_us = fixed.commit_time_us
                epoch = self._buffered_epoch(buffered, rejected, commit_time_us=time_us)
                self.commit(epoch, written=written, sync=True)
        self._buckets.sweep()
        return lost

    def step(self, batch: SourceBatch) -> SinkEpoch:
        """See Engine. A batch that changes nothing that the view reads runs no tasks."""
        buffered, failures = self.gather(), dict[RelationName, ViewError]()
        self.positions.pass_over(batch, self.epoch + 1)
        assert self.positions.progress is not None
        fixed = FixedEpoch.of(self.positions.progress, batch)
        rejected = [] if batch.rejected is None else [batch.rejected]
        given = {name: _Given(d, self._buckets, self._sync) for name, d in self.views.items()}
        # To the end, whoever reads it: views that are being built get what passes here.
        for chunk in batch.chunks():
            for name in given.keys() - failures.keys():
                with _noted(name, failures):
                    given[name].add(chunk)
        for name in given.keys() - failures.keys():
            own, definition = given[name], self.views[name]
            if not own.is_any and batch.stored is None:
                continue
            self._changes += not own.is_clock or batch.stored is not None
            self._sync()
            with _noted(name, failures):
                stored = own.stored() or batch.stored
                committed = self._buckets.step(definition.identity, fixed, own.held, stored)
                rejected += self._take(definition, committed, buffered)
        self._refuse(failures, buffered)
        return self._buffered_epoch(
            buffered,
            Delta.concat(rejected) if rejected else None,
            commit_time_us=batch.commit_time_us,
        )

    def _sync(self) -> None:
        """Put what is committed on disk, before the driver moves on."""
        if not self._is_durable:
            self.store.sync()
            self._is_durable = True

    def _take(
        self, definition: ViewDefinition, committed: CommittedEpoch, buffered: EpochBuffer
    ) -> list[Delta]:
        """Put the rows of a committed epoch into the open one; return rejected records."""
        rejected = []
        for part in committed.parts():
            buffered.add(definition.table, part.rows)
            if len(part.errors):
                found = named(definition.table, part.errors)
                buffered.add(definition.table, found, is_errors=True)
            for rows in part.final:
                buffered.add(definition.published, rows)
            if len(part.rejected):
                rejected.append(part.rejected)
        self._buckets.keep(definition.identity, committed)
        return rejected

    def commit(self, epoch: SinkEpoch | None, *, written: int, sync: bool = False) -> None:
        """See Engine; then files of removed views are deleted."""
        super().commit(epoch, written=written, sync=sync)
        self._is_durable = sync
        self._buckets.clean()

    def due_search(self, source: str, candidates: np.ndarray) -> TickSearch:
        """See Engine. The next tick is found if no rows came since the search before."""
        readers = [
            d for d in self.views.values() if any(r.name.source == source for r in d.relations())
        ]
        if not readers:
            return EveryTick(len(candidates))
        (definition,) = readers
        before, self._searched[source] = self._searched.get(source), self._changes
        if before != self._changes:
            return EveryTick(min(1, len(candidates)))
        return BucketDueSearch(
            self._buckets.nodes(definition.identity),
            self._own_evaluator(definition) or self._evaluator,
            view=(definition.name, definition.plan.refresh_us),
            clock=(source, candidates),
            changes=lambda: self._changes,
            ask=functools.partial(self._buckets.first_change, definition.identity),
        )

    # --- figures ---------------------------------------------------------------------------------

    def task_figures(self) -> list[Figures]:
        """Return what each task of the last epoch took."""
        return [f for d in self.views.values() for f in self._buckets.figures(d.identity)[1]]

    def figures(self) -> list[NodeFigures]:
        """Return the stages of the view: each is a node, or several that need no exchange."""
        found = []
        for name, definition in self.views.items():
            layout, measured, nbytes = self._buckets.figures(definition.identity)
            for level, stages in enumerate(layout.levels):
                seconds = sum(f.seconds for f in measured if f.level == level) / len(stages)
                size = nbytes.get(level, 0) // len(stages)
                for stage in stages:
                    node = _figures(layout, stage, name, (size, seconds))
                    reader = stage.relation and self._read_by.get(stage.relation)
                    is_read = f"{node.detail}, read by {reader}" if reader else node.detail
                    found.append(replace(node, detail=is_read))
        return found


class _Given:
    """What a batch changes of the relations of one view; too much for memory is stored.

    sync: called before the driver may move on.
    """

    def __init__(
        self, definition: ViewDefinition, buckets: BucketViews, sync: Callable[[], None]
    ) -> None:
        relations = definition.relations()
        self._read = {relation.name for relation in relations}
        self._clocks = {relation.name for relation in relations if relation.is_single}
        self._identity = definition.identity
        self._buckets = buckets
        self._sync = sync
        self._large: LargeBatch | None = None
        self._rows = 0
        self.held: list[Changes] = []
        self.is_any = False
        # Whether all of it is of clocks.
        self.is_clock = True

    def add(self, chunk: Sequence[Changes]) -> None:
        """Add a chunk. TemporaryError spark.storage, spark.late_read."""
        own = [c for c in chunk if len(c) and c.relation.name in self._read]
        self.is_any |= bool(own)
        self.is_clock &= all(c.relation.name in self._clocks for c in own)
        self._rows += sum(map(len, own))
        self.held += own
        if self._rows > self._buckets.held_rows:
            self._sync()
            self._large = self._large or self._buckets.large_batch(self._identity)
            self._large.add(self.held)
            self.held = []

    def stored(self) -> StoredInput | None:
        """Return where that is which is not held."""
        return None if self._large is None else self._large.finish()


@contextmanager
def _noted(name: RelationName, failures: dict[RelationName, ViewError]) -> Iterator[None]:
    """Note an error that only concerns a view."""
    try:
        yield
    except Exception as error:
        failure = view_error("buckets", error)
        if failure is None:
            raise
        failure.relation = name
        failures[name] = failure


class EveryTick:
    """A search whose answer is always the same; see `dataflow.due`."""

    def __init__(self, found: int) -> None:
        self._found = found

    def first(self) -> int:
        """See DueSearch."""
        return self._found


def _figures(
    layout: Layout, stage: Stage, view: RelationName, measured: tuple[int, float]
) -> NodeFigures:
    size, seconds = measured
    where = "one bucket" if stage.buckets == 1 else f"{stage.buckets} buckets"
    keys = 0 if stage.routing is None else len(stage.routing.hashes)
    if keys and stage.buckets > 1:
        where += f", {keys} {'key' if keys == 1 else 'keys'} spread over them"
    if stage.relation is not None:
        what, detail = TABLE, f"rows of {stage.relation} in {where}"
    else:
        plans = [layout.nodes[n].plan for n in stage.nodes]
        what, detail = title_of(plans[-1]), f"{describe(plans[-1])} in {where}"
    return NodeFigures(
        f"s{stage.number}",
        what,
        detail,
        tuple(f"s{n}" for n in layout.inputs_of(stage)),
        views=(view,),
        output_of=(view,) if layout.is_last(stage) else (),
        is_part=False,
        rows=0,
        bytes=size,
        rows_in=0,
        rows_out=0,
        time_s=seconds,
    )


def _of_view(name: RelationName, error: TidemarkError) -> TidemarkError:
    error.relation = name
    return error


def lacks_epochs(epoch: int, found: int) -> TidemarkError:
    """Return the error of a store that lacks epochs before one that the driver has committed."""
    return TidemarkError(
        "spark.state_lost",
        "the state beside a view's buckets is older than they are",
        detail=f"it has epoch {epoch}, and the buckets continue with epoch {found}",
        hint="no action needed: the view is built again",
    )
