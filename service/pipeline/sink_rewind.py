"""The repair of a rewound sink: its tables are brought to the state in one transaction.

A promoted standby or a backup shows an earlier epoch than the sink had acknowledged, and the outbox
may lack the difference. Then the sink gets nothing for a while: each view's rows are read again and
compared with its table, while the state and additional sinks continue. One epoch then repairs all
tables, error rows and the progress together. Invariant: until that epoch the sink shows, and names,
the position that it was rewound to. Used by the pipeline's thread.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from connectors.postgres.catalog.catalog import ViewRow
from connectors.postgres.sink.postgres_sink import PostgresSink
from connectors.sink import SinkEpoch, SinkRepair, ViewChange
from dataflow.delta import Delta
from dataflow.errors import OverBudgetError, SinkError, TidemarkError, ViewError
from dataflow.schema import RelationName
from service.backfill.builds import Builds
from service.backfill.view_build import Failed, ViewBuild
from service.engine.definition import ViewDefinition
from service.engine.engine import Engine, named
from service.engine.epoch_buffer import EpochBuffer
from service.metrics.metrics import PipelineMetrics
from service.pipeline.epochs import Epochs
from service.pipeline.reconciler import CatalogReconciler
from service.pipeline.source_reset import SourceReset
from service.pipeline.source_subscriptions import SourceSubscriptions
from service.pipeline.view_failures import Failures
from service.runtime.log import log
from service.runtime.settings import DEFAULT_GROUP
from service.views.lifecycle import DesiredState
from service.views.view_facts import changed_facts
from storage.failpoints import failpoint
from storage.store import Store


class SinkRewind:
    """Repair the sink. While it lags nothing else is joined, paused or renamed.

    staging: a session of the sink that reads the views' tables.
    """

    def __init__(
        self,
        *,
        engine: Engine,
        epochs: Epochs,
        builds: Builds,
        reconciler: CatalogReconciler,
        failures: Failures,
        subscriptions: SourceSubscriptions,
        reset: SourceReset,
        staging: PostgresSink,
        store: Store,
        metrics: PipelineMetrics,
        group: str,
    ) -> None:
        self._engine = engine
        self._epochs = epochs
        self._builds = builds
        self._reconciler = reconciler
        self._failures = failures
        self._subscriptions = subscriptions
        self._reset = reset
        self._staging = staging
        self._store = store
        self._metrics = metrics
        self._group = group

    def begin(self) -> None:
        """Rebuild the views that the sink's catalog knows otherwise; compare the others."""
        self._failures.remove_unmatched()
        self._reconciler.rebuild_lost()
        if not (self._engine.views or self._reconciler.has_views()):
            self._reset.forget_all()
        self.report()

    def report(self, caught_up: int = 0) -> None:
        """Show in the metrics how far the repair is."""
        rewound_to, views = self._epochs.rewound_to, len(self._engine.views)
        self._metrics.sink_error = (
            ""
            if rewound_to is None
            else (
                f"the sink went back to epoch {rewound_to}, of {self._engine.epoch}: {caught_up} "
                f"of {views} views are ready to be repaired [sink.rewound]"
            )
        )

    def to_compare(self) -> list[ViewRow]:
        """Return the views whose tables still have to be compared."""
        live = {d.identity for d in self._engine.views.values()} - self._builds.keys()
        rows = self._reconciler.rows
        return [r for r in rows if r.identity in live and r.desired != DesiredState.DROPPED]

    def failed(self, build: ViewBuild) -> None:
        """Take out a view whose rows cannot be read; its table is unchanged."""
        definition = self._reconciler.live(build.definition.identity)
        if definition is None or not isinstance(build.end, Failed):
            return
        error = build.end.error
        if isinstance(error, OverBudgetError):
            error.relation = definition.name
            taken = self._failures.take_out(error).views
        else:
            taken = self._failures.fail([definition], error)
        self._subscriptions.complete_failed(taken)

    def complete(self, caught_up: Collection[str]) -> None:
        """Repair the sink once every view has caught up with the engine."""
        views = list(self._engine.views.values())
        self.report(sum(d.identity in caught_up for d in views))
        if any(d.identity not in caught_up for d in views):
            return
        if self._take_out_tableless(views):
            return
        try:
            epoch = self._epoch(views)
        except TidemarkError as error:
            # Views that read other views contain some of their rows: all comparisons restart.
            for definition in views:
                self._builds[definition.identity].cancel()
            if not (error.is_temporary or isinstance(error, ViewError)):
                raise
            log.warning("sink.repair_retry", code=error.code, why=error.described)
            return
        builds = [self._builds.join(d.identity) for d in views]
        for build in builds:
            self._store.drop(build.definition.scope + "/")
        rewound_to = self._epochs.rewound_to
        assert rewound_to is not None
        live = frozenset(d.identity for d in views)
        epoch.repair = SinkRepair(rewound_to, live, self._group, self._group == DEFAULT_GROUP)
        failpoint("sink.repair.before")
        self._epochs.repair_sink(epoch)
        failpoint("sink.repair.after")
        for build in builds:
            build.close()
        # A view that has left the engine meanwhile is built like a new one.
        for build in self._builds.values():
            if build.is_comparison:
                build.cancel()
        log.warning("sink.repaired", epoch=epoch.progress.epoch, views=len(views))

    def _take_out_tableless(self, views: Collection[ViewDefinition]) -> bool:
        """Remove views whose tables are gone or replaced; they are built like new ones later."""
        gone = [d for d in views if not self._builds[d.identity].initial_load.is_in_place]
        for definition in gone:
            self._builds[definition.identity].cancel()
        if gone:
            what = "the table was missing from the sink after the rewind"
            why = SinkError("sink.table_missing", what)
            self._subscriptions.complete_failed(self._failures.degrade(gone, why))
        return bool(gone)

    def _epoch(self, views: Collection[ViewDefinition]) -> SinkEpoch:
        """Return the epoch that brings all tables to the state."""
        found: dict[RelationName, EpochBuffer] = {}
        rejected: list[Delta] = []
        for definition in views:
            build = self._builds[definition.identity]
            try:
                found[definition.name] = self._changes(definition, build, found)
            except ViewError as error:
                self._subscriptions.complete_failed(self._failures.fail([definition], error))
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
        found_rejected = Delta.concat(rejected) if rejected else None
        return self._engine.change_views(map(self._change, views), both, found_rejected)

    def _change(self, definition: ViewDefinition) -> ViewChange:
        """Return the change of a view: the catalog may precede a rebuild under other names."""
        table, row = definition.table, self._reconciler.row(definition.identity)
        facts = {} if row is None else changed_facts(definition, row)
        return ViewChange(definition.identity, table, table, facts, is_replaced=True)

    def _changes(
        self,
        definition: ViewDefinition,
        build: ViewBuild,
        parents: Mapping[RelationName, EpochBuffer],
    ) -> EpochBuffer:
        """Return the changes between a view's table and its rows, and its error rows."""
        view, buffered, result = build.take_over()
        for parent in definition.parents():
            table = self._engine.views[parent].table
            for rows in self._staging.read_rows(table):
                build.add(view.step({parent: rows}))
                self._store.relieve()
            for part in parents[parent]:
                for _, delta in part.deltas:
                    build.add(view.step({parent: delta}))
                    self._store.relieve()
        for errors in (result.errors, view.errors.take()):
            if errors is not None and len(errors):
                table = definition.table
                buffered.add(table, named(table, errors), is_errors=True)
        return buffered
