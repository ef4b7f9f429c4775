"""The subscriptions of sources: exactly the relations that views read, while they read them.

A relation that is gone or changed removes its readers and no others. Invariant: the last view
removes slot, positions and progress; nothing is left that would retain WAL.
"""

from __future__ import annotations

from collections.abc import Sequence

from connectors.source import MAIN_SOURCE
from dataflow.errors import TemporaryError, TidemarkError
from dataflow.schema import Relation
from service.backfill.builds import Builds
from service.engine.column_requirements import Read
from service.engine.engine import Engine, ViewDefinition
from service.ingest.declared_sources import retains_changes
from service.ingest.external_sources import ExternalSources, external_relations, is_main
from service.pipeline.epochs import Epochs
from service.pipeline.followed_database import FollowedDatabase
from service.pipeline.reconciler import CatalogReconciler
from service.pipeline.schema_change_recovery import SchemaChangeRecovery
from service.pipeline.sink_mute import SinkMute
from service.pipeline.source_reset import SourceReset
from service.pipeline.view_failures import Failures
from service.runtime.log import log
from service.sinks.sink_workers import SinkWorkers


class SourceSubscriptions:
    """Used by the pipeline's thread."""

    def __init__(
        self,
        *,
        engine: Engine,
        epochs: Epochs,
        mute: SinkMute,
        builds: Builds,
        failures: Failures,
        reconciler: CatalogReconciler,
        schema_recovery: SchemaChangeRecovery,
        database: FollowedDatabase,
        external_sources: ExternalSources,
        reset: SourceReset,
        sink_workers: SinkWorkers,
    ) -> None:
        self._engine = engine
        self._epochs = epochs
        self._mute = mute
        self._builds = builds
        self._failures = failures
        self._reconciler = reconciler
        self._schema_recovery = schema_recovery
        self._database = database
        self._external_sources = external_sources
        self._reset = reset
        self._sink_workers = sink_workers

    def follow(self) -> None:
        """Stream the read relations; do nothing if exactly these are streamed already."""
        if self._database.follows(self._main_reads()):
            self._external_sources.open(self._failures.reads())
            self._epochs.commit()
        else:
            self.open()

    def open(self) -> None:
        """Stream the read relations; fail the views of those that are gone, and no others."""
        self._external_sources.open(self._failures.reads())
        self._schema_recovery.learn_objects()
        is_open = False
        while self._engine.position and not is_open:
            shown = self._mute.shown_position()
            try:
                self._database.open(self._engine.position, self._main_reads(), shown)
                is_open = True
            except TidemarkError as error:
                if not self.fail_readers(error):
                    raise
        self._database.regained()
        # What tables were like before a snapshot is opened is not forgotten.
        self._epochs.commit()

    def probe_tables(self) -> None:
        """Probe the tables that are read, and fail the views that cannot continue."""
        try:
            self._database.probe_tables()
        except TidemarkError as error:
            if not self.fail_readers(error):
                raise

    def note_changes(self) -> None:
        """Probe the tables before a failure is reported: their change may be its reason.

        Then the views have left already, to be rebuilt. Nothing is noted while the catalog cannot
        be read.
        """
        try:
            self.probe_tables()
        except TemporaryError as error:
            log.warning("source.retry", code=error.code)

    def release(self, relations: Sequence[Relation]) -> None:
        """Stop watching relations that no view reads any more; after the last view, drop the
        slot.

        Not while a paused view has additional sinks: the epochs that they lack stay.
        """
        reads = self._failures.reads()
        if not (reads or self._reconciler.has_views() or self._sink_workers.await_paused):
            self._reset.forget_all()
            return
        if not self._builds.are_resumed:
            # The build continues from its old position: its relations must have been streamed
            # meanwhile.
            return
        self._database.narrow(reads)
        used = {_identity_of(relation) for relation, _ in reads}
        unused = [r for r in relations if _identity_of(r) not in used]
        for name, gone in external_relations(unused).items():
            self._engine.positions.forget(name, [n.name for n in gone])
        self._external_sources.open(reads)
        # On disk first: an older state would miss changes that are no longer streamed.
        self._epochs.commit(sync=True)
        self._external_sources.release_unread()
        self._database.withdraw([r for r in unused if is_main(r)])

    def forget_unread(self) -> None:
        """Forget the positions of relations that nothing reads any more.

        A position that nothing advances would be reported to the sink for ever; after a crash, one
        from before its own. Builds of an earlier process must have restarted, since they continue
        from such positions.
        """
        read = external_relations(relation for relation, _ in self._failures.reads())
        for source in self._engine.positions.by_source.keys() - {MAIN_SOURCE}:
            used = {name.name for name in read.get(source, ())}
            unread = self._engine.positions.offsets(source).keys() - used
            if unread:
                self._engine.positions.forget(source, unread)
        declared = (row for row in self._reconciler.sources.rows if not row.is_database)
        unread = {row.name for row in declared if retains_changes(row.type)} - read.keys()
        if unread:
            # A process that was killed may have left what it no longer read.
            self._epochs.commit(sync=True)
            self._external_sources.release_unread(unread)

    # --- views that cannot continue -------------------------------------------------------------

    def fail_readers(self, error: TidemarkError) -> bool:
        """Take out what reads the relation of a refusal; False when that is not all there is to it.

        A batch that was refused was not stepped: the next stream begins with it.
        """
        relation = error.relation
        if error.is_temporary or relation is None:
            return False
        is_of_database = relation.source == MAIN_SOURCE
        if is_of_database and not self._database.was_opened_for(self._main_reads()):
            # The refusal may concern a relation that is no longer read; reopening the stream shows
            # it.
            return True
        try:
            failed = self._schema_recovery.take_out(error)
        except TemporaryError as again:
            # Nothing can be decided now: reopening the stream finds the same.
            log.warning("source.retry", code=again.code)
            return True
        self.complete_failed(failed)
        return bool(failed)

    def _main_reads(self) -> list[Read]:
        """Return what is read of the database."""
        return [read for read in self._failures.reads() if is_main(read[0])]

    def complete_failed(self, failed: Sequence[ViewDefinition]) -> None:
        """Complete the removal of failed views: nothing is read for them any more."""
        if failed:
            self._epochs.commit()
            self.release([r for d in failed for r in d.relations()])


def _identity_of(relation: Relation) -> object:
    """Return the identity of a relation, whatever its current name."""
    return relation.oid if is_main(relation) else relation.name
