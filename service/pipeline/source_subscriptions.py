"""What is followed of the sources: exactly what views read, for as long as they read it.

A relation that is gone or changed takes out its readers and no others. Invariant: the last view
takes slot, positions and progress with it; nothing is left that would keep WAL for nobody.
"""

from __future__ import annotations

from collections.abc import Sequence

from connectors.sink import NOT_STAGED
from connectors.source import MAIN_SOURCE
from dataflow.errors import SourceError, TemporaryError, TidemarkError
from dataflow.schema import Relation
from service.engine.column_requirements import Read
from service.engine.engine import ViewDefinition
from service.ingest.external_sources import external_relations, is_main
from service.pipeline.context import PipelineContext
from service.pipeline.epochs import Epochs
from service.runtime.log import log
from storage.failpoints import failpoint


class SourceSubscriptions:
    """Used by the pipeline's thread."""

    def __init__(self, core: PipelineContext, epochs: Epochs) -> None:
        self._context = core
        self._epochs = epochs

    def follow(self) -> None:
        """Stream what is read; where just that is streamed already, nothing is opened anew."""
        core = self._context
        if core.feed.follows(self._main_reads()):
            core.sides.open(core.failures.reads())
            self._epochs.commit()
        else:
            self.open()

    def open(self) -> None:
        """Stream what is read; what turns out to be gone fails its views and no others."""
        core = self._context
        core.sides.open(core.failures.reads())
        is_open = False
        while core.engine.position and not is_open:
            shown = self._epochs.mute.get(MAIN_SOURCE, 0)
            try:
                core.feed.open(core.engine.position, self._main_reads(), shown)
                is_open = True
            except TidemarkError as error:
                if not self.fail_readers(error):
                    raise
        core.reconnect.regained()
        # What tables were like before a snapshot is opened is not forgotten.
        self._epochs.commit()

    def look(self) -> None:
        """See what has become of the tables that are read, and let go what cannot go on."""
        try:
            self._context.watch.refresh()
        except TidemarkError as error:
            self._context.feed.close()
            if not self.fail_readers(error):
                raise

    def release(self, relations: Sequence[Relation]) -> None:
        """Stop watching what no view reads any more; the last view takes the slot with it."""
        core = self._context
        reads = core.failures.reads()
        if not reads and not core.desk.has_views():
            self.forget()
            return
        if core.is_build_left:
            # It reads on from where it stood: what it reads must have been told all the while.
            return
        core.feed.narrow(reads)
        used = {_place(relation) for relation, _ in reads}
        unused = [r for r in relations if _place(r) not in used]
        for name, gone in external_relations(unused).items():
            core.engine.positions.forget(name, [n.name for n in gone])
        core.sides.open(reads)
        # On disk first: an older state would miss what is not told any more.
        self._epochs.commit(sync=True)
        try:
            core.parts.source.unwatch([r for r in unused if is_main(r)])
        except TidemarkError as error:
            # What is sent for nobody does no harm to the others.
            log.warning("source.unwatch_failed", code=error.code, why=error.described)

    def forget_unread(self) -> None:
        """Relations that were read by what is gone by now, and where they were: a place that nobody
        moves any more would be told to the sink for ever, after a crash one from before its own.

        What an earlier process was building must have begun again: it reads on from such places.
        """
        core = self._context
        read = external_relations(relation for relation, _ in core.failures.reads())
        for source in core.engine.positions.by_source.keys() - {MAIN_SOURCE}:
            used = {name.name for name in read.get(source, ())}
            unread = core.engine.positions.offsets(source).keys() - used
            if unread:
                core.engine.positions.forget(source, unread)

    def lose(self, error: SourceError) -> None:
        """The database's changes since the state's position can never be told: what reads it fails
        with this error and leaves the dataflow, and its position is forgotten.

        The rows that these views last showed stay. A rebuild begins with a new slot.
        """
        core = self._context
        core.feed.close()
        readers = [d for d in core.failures.definitions() if core.reads_database(d)]
        core.failures.fail(readers, error)
        if not core.failures.definitions():
            self.forget(leaves_slot=True)
            return
        # On disk first: an older state would still have views, and no slot to go on from.
        self._epochs.commit(sync=True)
        self._drop_slot()
        self._epochs.mute.pop(MAIN_SOURCE, None)
        core.engine.positions.forget_database()
        self._forget_database()
        self._epochs.commit(sync=True)

    def _drop_slot(self) -> None:
        try:
            self._context.parts.source.drop_slot()
        except SourceError as error:
            if error.code != "source.slot_in_use":
                raise
            log.warning("source.slot_left", why=error.described)

    def _forget_database(self) -> None:
        core = self._context
        core.watch.forget()
        core.desk.forget_source()
        core.wal_budget.forget()
        core.reconnect.regained()

    def forget(self, *, leaves_slot: bool = False) -> None:
        """Nothing depends on the source's position any more: leave no slot, no progress.

        leaves_slot: a slot that someone else reads stays; else it is SourceError
        source.slot_in_use.
        """
        core = self._context
        # On disk first: an older state would still have views, and no slot to go on from.
        self._epochs.commit(sync=True)
        core.feed.close()
        core.sides.open([])
        failpoint("source.forget.before")
        if leaves_slot:
            self._drop_slot()
        else:
            core.parts.source.drop_slot()
        failpoint("source.forget.slot")
        # What the sink had of this is not told to it again, whatever it is asked for next.
        self._epochs.writer.drain()
        core.engine.clear_outbox()
        self._epochs.forget_sink()
        core.watch.forget()
        # On disk first: an older state would miss what the sink no longer says that it has.
        core.engine.commit(None, written=0, sync=True)
        failpoint("source.forget.state")
        core.staging.forget_progress()
        failpoint("source.forget.progress")
        core.desk.forget_source()
        core.wal_budget.forget()
        core.reconnect.regained()

    # --- views that cannot go on -------------------------------------------------------------

    def fail_readers(self, error: TidemarkError) -> bool:
        """Take out what reads the relation of a refusal; False when that is not all there is to it.

        A batch that was refused was not stepped: the next stream begins with it.
        """
        core, relation = self._context, error.relation
        if error.is_temporary or relation is None:
            return False
        is_of_database = relation.source == MAIN_SOURCE
        if is_of_database and not core.feed.was_opened_for(self._main_reads()):
            # It may be for what nobody reads any more: one that is opened for what is read tells.
            return True
        try:
            failed = core.schema_recovery.take_out(error)
        except TemporaryError as again:
            # Nobody can be judged now: the same is found when the stream is opened again.
            log.warning("source.retry", code=again.code)
            return True
        self.complete_failed(failed)
        return bool(failed)

    def _main_reads(self) -> list[Read]:
        """What is read of the database."""
        return [read for read in self._context.failures.reads() if is_main(read[0])]

    def drop_refused(self) -> None:
        """Take out the views that the sink has refused."""
        writer = self._epochs.writer
        errors = writer.refusals()
        for error in errors:
            failures = self._context.failures
            if error.code == NOT_STAGED:
                failed = failures.degrade(failures.readers_of(error.relation), error)
            else:
                failed = failures.fail_readers(error)
            self.complete_failed(failed)
            for definition in failed:
                # The rows that another version of it has staged are not those that were refused.
                if definition.identity not in self._context.builds:
                    self._context.staging.drop_staged(definition.table)
        if errors:
            writer.forgive()
            self._context.change_logs.forgive()

    def complete_failed(self, failed: Sequence[ViewDefinition]) -> None:
        """Views have left the engine: nothing is read for them any more."""
        if failed:
            self._epochs.commit()
            self.release([r for d in failed for r in d.relations()])


def _place(relation: Relation) -> object:
    """What a relation is, under whatever name it is known."""
    return relation.oid if is_main(relation) else relation.name
