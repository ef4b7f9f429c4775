"""The end of a subscription: the database's position is forgotten, and the slot dropped.

Invariant: the state is on disk before the slot is dropped, and the sink's progress goes last. An
older state would still have views, but no slot to continue from.
"""

from __future__ import annotations

from connectors.postgres.sink.postgres_sink import PostgresSink
from dataflow.errors import SourceError
from service.engine.engine import Engine
from service.ingest.external_sources import ExternalSources
from service.pipeline.epochs import Epochs
from service.pipeline.followed_database import FollowedDatabase, reads_database
from service.pipeline.reconciler import CatalogReconciler
from service.pipeline.sink_mute import SinkMute
from service.pipeline.view_failures import Failures
from storage.failpoints import failpoint


class SourceReset:
    """Used by the pipeline's thread. staging: a session of the sink for everything but epochs."""

    def __init__(
        self,
        *,
        engine: Engine,
        epochs: Epochs,
        mute: SinkMute,
        failures: Failures,
        reconciler: CatalogReconciler,
        database: FollowedDatabase,
        external_sources: ExternalSources,
        staging: PostgresSink,
    ) -> None:
        self._engine = engine
        self._epochs = epochs
        self._mute = mute
        self._failures = failures
        self._reconciler = reconciler
        self._database = database
        self._external_sources = external_sources
        self._staging = staging

    def lose_database(self, error: SourceError) -> None:
        """Fail what reads the database: its changes since the state's position are lost.

        The rows that these views last showed stay. A rebuild begins with a new slot.
        """
        self._database.close_stream()
        readers = [
            definition
            for definition in self._failures.definitions()
            if reads_database(definition, self._external_sources)
        ]
        self._failures.fail(readers, error)
        if not self._failures.definitions():
            self.forget_all(leaves_slot=True)
            return
        self._epochs.commit(sync=True)
        self._database.drop_slot(leaves_used=True)
        self._mute.forget_database()
        self._engine.positions.forget_database()
        self._database.forget_tables()
        self._reconciler.forget_source()
        self._database.forget_slot()
        self._epochs.commit(sync=True)

    def forget_all(self, *, leaves_slot: bool = False) -> None:
        """Leave no slot and no progress: nothing depends on the sources any more.

        leaves_slot: a slot that another reader uses stays; otherwise SourceError
        source.slot_in_use.
        """
        self._epochs.commit(sync=True)
        self._database.close_stream()
        self._external_sources.open([])
        failpoint("source.reset.before")
        self._database.drop_slot(leaves_used=leaves_slot)
        failpoint("source.reset.slot")
        # The sink does not get the same epochs again, whatever the next view requests.
        self._epochs.writer.drain()
        self._engine.clear_outbox()
        self._epochs.forget_sink()
        self._database.forget_tables()
        # On disk first: an older state would lack epochs that the sink no longer reports.
        self._engine.commit(None, written=0, sync=True)
        self._external_sources.release_unread()
        failpoint("source.reset.state")
        self._staging.forget_progress()
        failpoint("source.reset.progress")
        self._reconciler.forget_source()
        self._database.forget_slot()
