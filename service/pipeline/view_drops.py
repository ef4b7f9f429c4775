"""How a view is dropped: from the state, the sink and at last the catalog.

Invariant: the row of the catalog goes last, so that a kill in between drops the view again.
"""

from __future__ import annotations

from collections.abc import Sequence

from connectors.postgres.catalog.catalog import ViewRow
from connectors.postgres.sink.postgres_sink import PostgresSink
from connectors.sink import SinkTable
from dataflow.errors import TemporaryError
from dataflow.schema import Relation
from service.backfill.builds import Builds
from service.engine.engine import Engine
from service.pipeline.build_start import BuildStart
from service.pipeline.epochs import Epochs
from service.pipeline.external_snapshots import ExternalSnapshots
from service.pipeline.reconciler import CatalogReconciler
from service.pipeline.sink_watch import SinkWatch
from service.pipeline.source_subscriptions import SourceSubscriptions
from service.runtime.log import log
from service.sinks.sink_workers import SinkWorkers
from service.views.wait_reasons import Waiting
from storage.failpoints import failpoint


class ViewDrops:
    """Used by the pipeline's thread. staging: a session of the sink for everything but epochs."""

    def __init__(
        self,
        *,
        engine: Engine,
        epochs: Epochs,
        builds: Builds,
        reconciler: CatalogReconciler,
        subscriptions: SourceSubscriptions,
        external_snapshots: ExternalSnapshots,
        sink_workers: SinkWorkers,
        staging: PostgresSink,
        start: BuildStart,
        waiting: Waiting,
        sink_watch: SinkWatch,
    ) -> None:
        self._engine = engine
        self._epochs = epochs
        self._builds = builds
        self._reconciler = reconciler
        self._subscriptions = subscriptions
        self._external_snapshots = external_snapshots
        self._sink_workers = sink_workers
        self._staging = staging
        self._start = start
        self._waiting = waiting
        # Of views that are out of the state, by identity: still to be released.
        self._unreleased: dict[str, Sequence[Relation]] = {}
        self._sink_watch = sink_watch

    def drop(self, row: ViewRow) -> None:
        """Drop a view, or cancel its build first; called again until the catalog has no row."""
        self._start.forget(row.identity)
        self._external_snapshots.snapshot_offsets.forget(row.identity)
        build = self._builds.get(row.identity)
        if build is not None:
            self._waiting.forget(row.identity)
            build.cancel()
            return
        if not self._epochs.is_sink_drained() or self._reconciler.is_renamed(row):
            return
        if self._is_held(row):
            return
        self._waiting.forget(row.identity)
        # The catalog last: once the drop is reported, nothing of the view is left at the source.
        relations = self._take_out(row) or self._unreleased.pop(row.identity, ())
        try:
            self._subscriptions.release(relations)
        except TemporaryError as error:
            if not error.code.startswith("source."):
                raise
            self._unreleased[row.identity] = relations
            log.warning("drop.retry", view=row.title, code=error.code, why=error.described)
            return
        self._reconciler.drop(row, self._staging)
        self._sink_watch.forget(row.identity)
        log.info("view.dropped", view=row.title)

    def _is_held(self, row: ViewRow) -> bool:
        """Return whether others hold locks on the view's table: dropping it would wait for them."""
        is_held = self._sink_watch.is_held(row.identity, [SinkTable(row.schema, row.name, (), ())])
        why = self._sink_watch.held(row.identity)
        if why is not None:
            self._waiting.note(row.identity, why)
        return is_held

    def remove(self, row: ViewRow) -> None:
        """Remove a view from state, sink and catalog; its relations are unchanged."""
        self._take_out(row)
        self._reconciler.drop(row, self._staging)

    def _take_out(self, row: ViewRow) -> Sequence[Relation]:
        """Take a view out of the state; the relations that it read."""
        self._epochs.writer.drain()
        relations: Sequence[Relation] = ()
        self._sink_workers.end_view(row.identity)
        live = self._reconciler.live(row.identity)
        if live is not None:
            relations = live.relations()
            self._engine.remove(live.name)
            self._epochs.commit()
            failpoint("view.drop.state")
        return relations
