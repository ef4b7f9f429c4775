"""Views that another runtime is requested for: their group hands them over to a new one.

The new group's slot is made first, after its publication: a slot that is copied would decode rows
with a catalog that does not have the publication yet. Once the stream has passed its beginning, at
an epoch that the sink has, the view's state is written for the new group. One commit of this state
takes the view out, and the epoch of that commit gives it to the new group, in one transaction of
the sink. Invariant: after a kill at any moment the catalog names the one group that has the view,
and what is left of the other one is removed (decision 36).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from connectors.postgres.catalog.catalog import ViewRow
from connectors.sink import Handover, Progress, ViewChange
from dataflow.errors import TemporaryError, TidemarkError
from dataflow.schema import Relation
from service.backfill.builds import Builds
from service.engine.definition import ViewDefinition
from service.engine.departures import Departure, Departures
from service.engine.engine import Engine
from service.factory.on_spark import ONE_BUCKET, READ_HERE
from service.factory.service_factory import ServiceFactory
from service.ingest.declared_sources import retains_changes
from service.ingest.external_sources import external_relations, is_main
from service.ingest.table_watch import SourceWatch
from service.pipeline.epochs import Epochs
from service.pipeline.reconciler import CatalogReconciler, source_row
from service.pipeline.source_subscriptions import SourceSubscriptions
from service.runtime.disk_errors import disk_error
from service.runtime.log import log
from service.runtime.long_work import finished
from service.runtime.runtime import Runtime
from service.runtime.settings import DEFAULT_GROUP, GROUPS
from service.sinks.sink_workers import SinkWorkers
from service.views.dependencies import children_of
from service.views.groups import is_spark_group
from service.views.handover_folder import HandoverFolder, folders_in
from service.views.lifecycle import ViewState
from service.views.wait_reasons import Waiting, waits_for
from storage.errors import StorageError
from storage.failpoints import failpoint

if TYPE_CHECKING:
    from service.engine.handover import Carried


class ViewHandovers:
    """Used by the pipeline's thread.

    factory: of this group. while_waiting: called twice a second while a state is written.
    """

    def __init__(
        self,
        *,
        engine: Engine,
        epochs: Epochs,
        builds: Builds,
        reconciler: CatalogReconciler,
        subscriptions: SourceSubscriptions,
        sink_workers: SinkWorkers,
        watch: SourceWatch,
        waiting: Waiting,
        factory: ServiceFactory,
        while_waiting: Callable[[], object],
        runtime: Runtime,
    ) -> None:
        self._engine = engine
        self._epochs = epochs
        self._builds = builds
        self._reconciler = reconciler
        self._subscriptions = subscriptions
        self._sink_workers = sink_workers
        self._watch = watch
        self._waiting = waiting
        self._factory = factory
        self._while_waiting = while_waiting
        self._runtime = runtime
        self._departures = Departures(engine.store)
        self._preparations: dict[str, _Preparation] = {}
        # Groups whose folders were found without the group that has made them.
        self._orphans = set[str]()
        # Up to where the sink was written when the catalog was last acted upon.
        self._written_before = -1

    def reconcile(self, *, is_blocked: bool) -> None:
        """Hand over the views for which that is requested, and remove what earlier requests left.

        is_blocked: the sink is ahead of the state, or behind it by more than the outbox has.
        """
        self._complete()
        rows = self._reconciler.to_hand_over()
        self._discard({row.change["group"] for row in rows if row.change is not None})
        for row in rows:
            try:
                self._advance(row, is_blocked=is_blocked)
            except TidemarkError as error:
                if error.is_temporary:
                    log.warning("handover.retry", view=row.title, code=error.code)
                    self._waiting.note(row.identity, error)
                else:
                    self._abandon(row, error)

    # --- before ----------------------------------------------------------------------------------

    def _advance(self, row: ViewRow, *, is_blocked: bool) -> None:
        definition = self._reconciler.live(row.identity)
        if definition is None and row.status == ViewState.FAILED:
            raise self._reconciler.error_of(row.identity)
        if definition is None or row.identity in self._builds:
            return
        self._require_alone(row, definition)
        preparation = self._prepared(row, definition)
        if preparation is None:
            return
        is_passed = self._engine.position >= preparation.position
        if not is_passed or is_blocked or not self._sink_workers.are_listed:
            return
        if self._epochs.is_sink_drained():
            self._hand_over(row, definition)

    def _require_alone(self, row: ViewRow, definition: ViewDefinition) -> None:
        """Require that nothing of its group depends on a view, nor it on a slot of the group.

        TidemarkError view.has_children, view.move_failed.
        """
        declared = (row for row in self._reconciler.sources.rows if not row.is_database)
        slots = {row.name for row in declared if retains_changes(row.type)}
        read = slots & external_relations(definition.relations()).keys()
        if read:
            raise TidemarkError(
                "view.move_failed",
                f'view "{row.title}" reads a source that retains changes for its group',
                detail=", ".join(sorted(read)),
                hint="drop it, and create it with the other runtime",
            )
        readers = [r.title for r in children_of(row, self._reconciler.rows)]
        readers += [d.table.title for d in self._engine.readers_of(definition.name)]
        if readers:
            raise read_by_others(row.title, sorted(set(readers)))

    def _prepared(self, row: ViewRow, definition: ViewDefinition) -> _Preparation | None:
        """Return the finished preparation of a group; begin or repeat it if there is none.

        TidemarkError as `PostgresSource.ensure_slot` and `watch`.
        """
        folder = self._folder(row)
        found = self._preparations.get(folder.group)
        if found is None:
            folder.mark(self._factory.settings.group)
            failpoint("view.handover.marked")
            relations = [r for r in definition.relations() if is_main(r)]
            is_followed = self._engine.position > 0
            needs_slot = is_followed and bool(relations or not definition.relations())
            found = _Preparation(self._factory.beside(folder.group), relations, needs_slot)
            self._preparations[folder.group] = found
            self._runtime.begin(found.run, f"handover-{row.name}")
        if not found.is_done:
            self._waiting.note(row.identity, waits_for("a slot of its own is being created"))
            return None
        if found.error is not None:
            del self._preparations[folder.group]
            raise found.error
        self._waiting.over(row.identity)
        return found

    def _folder(self, row: ViewRow) -> HandoverFolder:
        assert row.change is not None
        return HandoverFolder(self._factory.settings.home, row.change["group"])

    def _abandon(self, row: ViewRow, error: TidemarkError) -> None:
        """Report that the view stays; what was made for it is removed at the next turn."""
        self._waiting.over(row.identity)
        self._reconciler.abandon(row, error)

    def _discard(self, requested: set[str]) -> None:
        """Remove what was made for groups that no view goes to any more."""
        used = requested | self._reconciler.groups() | {d.group for d in self._departures.all()}
        own, orphans = self._factory.settings.group, set[str]()
        for folder in folders_in(self._factory.settings.home):
            if folder.group in used:
                continue
            if own == DEFAULT_GROUP and self._is_orphan(folder):
                orphans.add(folder.group)
            # The catalog may have been read before the group that made the folder has ended.
            if folder.giver == own or folder.group in orphans & self._orphans:
                self._remove(folder)
        self._orphans = orphans

    def _is_orphan(self, folder: HandoverFolder) -> bool:
        """Return whether the group that made a folder has ended."""
        groups = self._factory.settings.home / GROUPS
        return folder.giver != DEFAULT_GROUP and not (groups / folder.giver).is_dir()

    def _remove(self, folder: HandoverFolder) -> None:
        from service.factory.handed_state import discard_state

        preparation = self._preparations.get(folder.group)
        if preparation is not None and not preparation.is_done:
            return
        self._preparations.pop(folder.group, None)
        try:
            discard_state(self._factory.beside(folder.group), folder)
            log.info("handover.discarded", group=folder.group)
        except TidemarkError as error:
            log.warning("handover.retry", group=folder.group, code=error.code)

    # --- the handover ----------------------------------------------------------------------------

    def _hand_over(self, row: ViewRow, definition: ViewDefinition) -> None:
        """Write the state of the new group, and give the view to it in one epoch."""
        # Most processes never hand a view over, and need none of what these import.
        from service.factory.handed_state import write_state

        folder = self._folder(row)
        given = self._carried(definition)
        # What the new group continues from must not be lost here by a crash of the machine.
        self._epochs.commit(sync=True)
        factory = self._factory.beside(folder.group)
        copy = partial(self._engine.copy_to, definition.name)
        parts = copy, self._watch.known(definition.relations())
        try:
            write = partial(write_state, factory, folder, definition, given, parts)
            finished(write, self._while_waiting, "handover")
        except (TidemarkError, StorageError, OSError) as error:
            self._abandon(row, _refusal(row, error))
            if is_spark_group(self._factory.settings.group):
                # The driver may be in the middle of an epoch, which the next process finishes.
                raise TemporaryError("view.move_failed", str(error)) from error
            return
        failpoint("view.handover.stored")
        self._engine.remove(definition.name)
        self._departures.add(Departure(definition, given.progress.epoch, folder.group))
        found = self._change(row, definition, given.progress, factory.settings.sink_key)
        epoch = self._engine.change_views([found])
        assert epoch.progress.epoch == given.progress.epoch
        self._epochs.finish(epoch, sync=True)
        failpoint("view.handover.committed")
        self._preparations.pop(folder.group, None)
        log.info(
            "handover.committed",
            view=row.title,
            group=folder.group,
            epoch=given.progress.epoch,
            bytes=folder.nbytes(),
        )

    def _carried(self, definition: ViewDefinition) -> Carried:
        """Return what the new group continues from, and stop writing to the view's sinks."""
        from service.engine.handover import carried, epochs_of

        given = carried(self._engine.positions, definition, self._engine.epoch + 1)
        sinks = self._sink_workers.hand_over(definition.identity)
        if not sinks.entries:
            return given
        find, least = self._engine.find_epoch, sinks.least
        epochs = epochs_of(definition.table, find, least, given.progress)
        return replace(given, sinks=sinks.entries, epochs=epochs)

    def _change(
        self, row: ViewRow, definition: ViewDefinition, progress: Progress, sink_key: str
    ) -> ViewChange:
        change, table = row.change, definition.table
        assert change is not None
        place = {"runtime": change["runtime"], "group": change["group"]}
        of_spark = (ONE_BUCKET, READ_HERE)
        kept = [w for w in row.warnings if not any(phrase in w for phrase in of_spark)]
        external = [
            (name.source, name.name)
            for relations in external_relations(definition.relations()).values()
            for name in relations
        ]
        return ViewChange(
            definition.identity,
            table,
            table,
            {"options": {**row.options, **place}, "warnings": [*kept, *change["warnings"]]},
            ends=change["id"],
            hands_over=Handover(sink_key, progress.epoch, progress.positions, tuple(external)),
        )

    # --- after -----------------------------------------------------------------------------------

    def _complete(self) -> None:
        """Stop reading for views that the sink shows in their new group."""
        own = {row.identity for row in self._reconciler.rows}
        for found in self._departures.all() if self._builds.are_resumed else ():
            identity = found.definition.identity
            if identity in own and self._written_before < found.epoch:
                continue
            if identity in own:
                # The sink refused it, or was rewound: it is still ours, and is built again.
                log.warning("handover.refused", view=found.definition.table.title)
            self._departures.forget(identity)
            self._epochs.commit()
            self._subscriptions.release(found.definition.relations())
        self._written_before = self._epochs.writer.written


class _Preparation:
    """Slot and publication of a new group, made in a thread.

    position: from which on the slot has all changes, 0 without a slot.
    """

    def __init__(
        self, factory: ServiceFactory, relations: Sequence[Relation], needs_slot: bool
    ) -> None:
        self._factory = factory
        self._relations = relations
        self._needs_slot = needs_slot
        self.position = 0
        self.error: TidemarkError | None = None
        self.is_done = False

    def run(self) -> None:
        """Make them; may be repeated."""
        try:
            if self._needs_slot:
                self._make()
        except TidemarkError as error:
            self.error = error
        except Exception as error:
            log.exception("handover.failed")
            self.error = TidemarkError(
                "view.move_failed", "a slot cannot be made", detail=str(error)
            )
        finally:
            self.is_done = True

    def _make(self) -> None:
        source, control = self._factory.source, self._factory.control()
        try:
            source.drop_lost_slot()
            # First the tables: what the slot sends was then written under the publication.
            source.watch(self._relations)
            position = source.ensure_slot()
            control.upsert_source(source_row(self._factory))
            failpoint("view.handover.prepared")
            source.heartbeat()
            self.position = position
        finally:
            source.close()
            control.close()


def read_by_others(title: str, readers: Sequence[str]) -> TidemarkError:
    """Return the refusal of a view that other views of its group read."""
    return TidemarkError(
        "view.has_children",
        f'view "{title}" is read by other views',
        detail=", ".join(readers),
        hint="they would show another position than it: drop them first",
    )


def _refusal(row: ViewRow, error: Exception) -> TidemarkError:
    """Return why a state could not be written, as the report of the change."""
    if isinstance(error, TidemarkError):
        return error
    found = disk_error(error, "the move of a view")
    return found or TidemarkError(
        "view.move_failed",
        f'the state of view "{row.title}" cannot be written for another group',
        detail=str(error),
        hint="see the log, and request it again",
    )
