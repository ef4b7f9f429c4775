"""A sink that was set back: its tables are brought to where the state is, all in one transaction.

A standby that was promoted, or a backup, shows an earlier epoch than the sink had acknowledged.
What it lacks the outbox may not have any more. Then nothing is given to the sink for a while: each
view's rows are read anew and compared with those that its table shows, while the state and further
sinks go on; one epoch takes all tables, error rows and the progress on together. Invariant: until
that epoch the sink shows, and names, the position that it was set back to. Used by the pipeline's
thread.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from connectors.postgres.catalog.catalog import ViewRow
from connectors.sink import SinkEpoch, ViewChange
from dataflow.delta import Delta
from dataflow.errors import SinkError, TidemarkError, ViewError
from dataflow.schema import RelationName
from service.backfill.view_build import ViewBuild
from service.engine.definition import ViewDefinition
from service.engine.engine import named
from service.engine.epoch_buffer import EpochBuffer
from service.pipeline.context import PipelineContext
from service.pipeline.epochs import Epochs
from service.pipeline.source_subscriptions import SourceSubscriptions
from service.runtime.log import log
from service.views.lifecycle import DesiredState
from service.views.view_facts import changed_facts
from storage.failpoints import failpoint


class SinkRewind:
    """What `ViewLife` asks while the sink is behind; nothing else is joined, paused or renamed."""

    def __init__(
        self, core: PipelineContext, epochs: Epochs, following: SourceSubscriptions
    ) -> None:
        self._context = core
        self._engine = core.engine
        self._desk = core.desk
        self._builds = core.builds
        self._epochs = epochs
        self._following = following

    def begin(self) -> None:
        """Views that the sink's catalog knows otherwise are built anew; the others are compared."""
        core = self._context
        core.failures.remove_unmatched()
        self._desk.recall_lost()
        if not (self._engine.views or self._desk.has_views()):
            self._following.forget()
        self.tell()

    def tell(self, caught_up: int = 0) -> None:
        """For people."""
        behind, views = self._epochs.behind, len(self._engine.views)
        self._context.metrics.sink_error = (
            ""
            if behind is None
            else (
                f"the sink was set back to epoch {behind}, of {self._engine.epoch}: {caught_up} of "
                f"{views} views are ready to be brought back [sink.behind]"
            )
        )

    def wanted(self) -> list[ViewRow]:
        """Views whose tables are to be compared, and are not yet."""
        live = {d.identity for d in self._engine.views.values()} - self._builds.keys()
        rows = self._desk.rows
        return [r for r in rows if r.identity in live and r.desired != DesiredState.DROPPED]

    def failed(self, build: ViewBuild) -> None:
        """A view's rows cannot be read: its table stays as it is."""
        definition = self._desk.live(build.definition.identity)
        error = build.refusal or build.failure
        if definition is not None and error is not None and not build.is_cancelled:
            self._following.complete_failed(self._context.failures.fail([definition], error))

    def settle(self, caught_up: Collection[str]) -> None:
        """Bring the sink back once every view has caught up with the engine."""
        views = list(self._engine.views.values())
        self.tell(sum(d.identity in caught_up for d in views))
        if any(d.identity not in caught_up for d in views):
            return
        if self._take_out_tableless(views):
            return
        try:
            epoch = self._epoch(views)
        except TidemarkError as error:
            # What reads other views has taken in some of their rows: all begin again.
            for definition in views:
                self._builds[definition.identity].cancel()
            if not (error.is_temporary or isinstance(error, ViewError)):
                raise
            log.warning("sink.return_again", code=error.code, why=error.described)
            return
        builds = [self._builds.pop(d.identity) for d in views]
        for build in builds:
            self._context.store.drop(build.definition.scope + "/")
        failpoint("sink.return.before")
        self._epochs.bring_back(epoch)
        failpoint("sink.return.after")
        for build in builds:
            build.close()
        log.warning("sink.returns", epoch=epoch.progress.epoch, views=len(views))

    def _take_out_tableless(self, views: Collection[ViewDefinition]) -> bool:
        """Views whose tables are gone, or are other ones, are built like new ones later."""
        gone = [d for d in views if not self._builds[d.identity].first.is_in_place]
        for definition in gone:
            self._builds[definition.identity].cancel()
        if gone:
            what = "the table was not in the sink when that was set back"
            why = SinkError("sink.table_missing", what)
            self._following.complete_failed(self._context.failures.degrade(gone, why))
        return bool(gone)

    def _epoch(self, views: Collection[ViewDefinition]) -> SinkEpoch:
        """What brings all tables to where the state is."""
        found: dict[RelationName, EpochBuffer] = {}
        rejected: list[Delta] = []
        for definition in views:
            build = self._builds[definition.identity]
            try:
                found[definition.name] = self._changes(definition, build, found)
            except ViewError as error:
                self._following.complete_failed(self._context.failures.fail([definition], error))
                raise
            letters = build.take_over()[2].rejected
            rejected += [] if letters is None else [letters]
        both = self._engine.gather()
        for definition in views:
            for part in found[definition.name]:
                if part.errors is not None:
                    both.add(definition.table, part.errors, is_errors=True)
                for table, delta in part.deltas:
                    both.add(table, delta)
        epoch = self._engine.change_views(map(self._change, views), both)
        epoch.rejected = Delta.concat(rejected) if rejected else None
        return epoch

    def _change(self, definition: ViewDefinition) -> ViewChange:
        """The catalog may be from before the view was built anew under other names."""
        table, row = definition.table, self._desk.row(definition.identity)
        facts = {} if row is None else changed_facts(definition, row)
        return ViewChange(definition.identity, table, table, facts, is_renewed=True)

    def _changes(
        self,
        definition: ViewDefinition,
        build: ViewBuild,
        parents: Mapping[RelationName, EpochBuffer],
    ) -> EpochBuffer:
        """What makes a view's rows of those that its table shows, and its error rows."""
        view, gathered, result = build.take_over()
        for parent in definition.parents():
            table = self._engine.views[parent].table
            for rows in self._context.staging.read_rows(table):
                build.add(view.step({parent: rows}))
                self._context.store.relieve()
            for part in parents[parent]:
                for _, delta in part.deltas:
                    build.add(view.step({parent: delta}))
                    self._context.store.relieve()
        for errors in (result.errors, view.errors.take()):
            if errors is not None and len(errors):
                table = definition.table
                gathered.add(table, named(table, errors), is_errors=True)
        return gathered
