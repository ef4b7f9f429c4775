"""The pipeline's turn at the catalog: do what users ask for, and what their builds are ready for.

Invariant: nothing is done by a catalog that could not be read completely, or whose sink shows less
than it had acknowledged.
"""

from __future__ import annotations

from service.ingest.external_sources import ExternalSources
from service.pipeline.build_join import BuildJoin
from service.pipeline.build_queue import BuildQueue
from service.pipeline.epochs import Epochs
from service.pipeline.external_snapshots import ExternalSnapshots
from service.pipeline.reconciler import CatalogReconciler
from service.pipeline.schema_change_recovery import SchemaChangeRecovery
from service.pipeline.sink_mute import SinkMute
from service.pipeline.source_subscriptions import SourceSubscriptions
from service.pipeline.view_life import ViewLife

RECONCILE_S = 1.0


class CatalogTurn:
    """Used by the pipeline's thread."""

    def __init__(
        self,
        *,
        epochs: Epochs,
        mute: SinkMute,
        reconciler: CatalogReconciler,
        external_sources: ExternalSources,
        schema_recovery: SchemaChangeRecovery,
        external_snapshots: ExternalSnapshots,
        subscriptions: SourceSubscriptions,
        views: ViewLife,
        queue: BuildQueue,
        join: BuildJoin,
    ) -> None:
        self._epochs = epochs
        self._mute = mute
        self._reconciler = reconciler
        self._external_sources = external_sources
        self._schema_recovery = schema_recovery
        self._external_snapshots = external_snapshots
        self._subscriptions = subscriptions
        self._views = views
        self._queue = queue
        self._join = join
        self._ran_at = 0.0

    @property
    def is_unused(self) -> bool:
        """Return whether a group other than the default one has ended with its last view."""
        return self._views.is_unused

    def run_if_due(self, now: float, *, is_drained: bool) -> None:
        """Execute the catalog's requests if it has changed or an interval has passed.

        now: of the runtime's monotonic clock. is_drained: the sink has every epoch that was
        awaited.
        """
        is_due = is_drained or now - self._ran_at > RECONCILE_S
        is_due |= self._external_snapshots.is_anything_found or self._queue.is_due
        if not (self._reconciler.is_called() or is_due):
            return
        self._ran_at = now
        acknowledged = self._epochs.writer.written
        if self._reconciler.refresh():
            self._reconciler.require_server()
            self._epochs.require_sink(acknowledged, self._reconciler.sink_epoch)
            self._reconcile()

    def advance_builds(self) -> None:
        """See `BuildJoin.advance_builds`."""
        self._join.advance_builds()

    def _reconcile(self) -> None:
        """Execute the catalog's requests."""
        self._external_sources.declared_again(self._reconciler.sources.changed())
        self._schema_recovery.note_names()
        letters = self._external_snapshots.resolved_dead_letters
        for batch in () if self._mute else letters():
            self._subscriptions.complete_failed(self._epochs.run(batch))
        self._views.reconcile()
