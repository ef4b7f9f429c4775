"""The life of views in the pipeline: built, joined to the others, dropped.

Used by the pipeline's thread; a build has a thread of its own until it has caught up. Invariant: a
view joins and leaves at an epoch boundary, so that every reader of the sink sees all views as of
one position.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from connectors.postgres.catalog.catalog import ViewRow
from dataflow.errors import SinkError, TemporaryError, TidemarkError, ViewError
from dataflow.operators.base import view_error
from dataflow.schema import Relation
from service.backfill.backfill_manifest import forget_others, is_left
from service.backfill.build_parts import ExternalRead
from service.backfill.initial_load import Beside
from service.backfill.view_build import ViewBuild
from service.engine.definition import ViewDefinition
from service.ingest.external_sources import is_main
from service.pipeline.context import PipelineContext
from service.pipeline.epochs import Epochs
from service.pipeline.sink_rewind import SinkRewind
from service.pipeline.source_subscriptions import SourceSubscriptions
from service.pipeline.view_replacement import ViewReplacement
from service.runtime import state_owner
from service.runtime.log import log
from service.runtime.settings import DEFAULT_GROUP
from service.views.requested_changes import table_of
from service.views.wait_reasons import WAITS_S, Waiting, waits_for
from storage.failpoints import failpoint

# How long starting builds may keep the others waiting, and how many children work at once.
BEGIN_S = 0.25
MOST_CHILDREN = 4

_PASSING = waits_for("rows from before a change of its table have to pass first")


class ViewLife:
    """is_unused: the group beside the default one has no views any more, and nothing is left."""

    def __init__(
        self, core: PipelineContext, epochs: Epochs, following: SourceSubscriptions
    ) -> None:
        self._context = core
        self._engine = core.engine
        self._desk = core.desk
        self._builds = core.builds
        self._staging = core.staging
        self._epochs = epochs
        self._following = following
        self._replacement = ViewReplacement(core, epochs)
        self._set_back = SinkRewind(core, epochs, following)
        self._folder = core.settings.state / "builds"
        self._held: dict[str, tuple[ViewDefinition, int]] = {}
        self._tried = ""
        self._unsure: set[str] = set()
        self._waiting = Waiting(core.desk.report_waiting, core.host)
        self._has_more = self._awaits_space = False
        self.is_unused = False

    @property
    def is_due(self) -> bool:
        """Whether more builds may begin than began at the last look."""
        return self._has_more or (self._awaits_space and self._has_space())

    def bring_back(self) -> None:
        """At the start: where the sink was set back, begin to bring its tables to the state; where
        the last view had gone but not all that is forgotten with it, go on with that."""
        if self._epochs.is_lagging:
            self._set_back.begin()
        elif self._desk.sink_epoch is not None and not (
            self._engine.views or self._desk.has_views()
        ):
            self._following.forget()

    def reconcile(self) -> None:
        """Do what the catalog asks for: drop, then build what is neither live nor being built."""
        self._following.complete_failed(self._context.failures.remove_unknown())
        for row in self._desk.to_drop():
            self._drop(row)
        self._change()
        self._begin_builds()
        self._attach_followers()
        self._context.change_logs.reconcile(self._desk.rows, is_muted=self._is_sink_elsewhere)
        self._end_unused()

    @property
    def _is_sink_elsewhere(self) -> bool:
        """The sink is ahead of the state, or was set back and is not where that is yet."""
        return bool(self._epochs.mute) or self._epochs.is_returning

    def _begin_builds(self) -> None:
        """Begin with what is to be built, in turn and a few at a time: live views do not wait."""
        self._has_more = self._awaits_space = False
        # Every view is looked at by the database first: while that is away, none is begun.
        if self._context.reconnect.error is not None:
            for row in self._desk.wanted(self._builds):
                self._waiting.note(row.identity, self._context.reconnect.error)
            return
        until, begun = self._context.host.monotonic() + BEGIN_S, len(self._builds)
        is_lagging = self._epochs.is_lagging
        rows = self._set_back.wanted() if is_lagging else self._desk.wanted(self._builds)
        # What could not begin must not stand before the others for ever.
        tried = next((i for i, row in enumerate(rows) if row.identity == self._tried), -1) + 1
        for row in [*rows[tried:], *rows[:tried]]:
            if row.identity in self._unsure or self._is_renamed(row):
                continue
            self._awaits_space = not self._has_space()
            is_late = self._context.host.monotonic() > until
            if self._awaits_space or is_late:
                self._await_turn([r for r in rows if r.identity not in self._builds])
                # Where none could begin, the next look comes in its own time.
                self._has_more = is_late and len(self._builds) > begun
                return
            self._tried = row.identity
            try:
                self._try_build(row)
            except TemporaryError as error:
                log.warning("build.retry", view=row.title, code=error.code)
                self._waiting.note(row.identity, error)

    def _await_turn(self, rows: Sequence[ViewRow]) -> None:
        busy = ", ".join(b.definition.table.title for b in self._builds.values())
        for row in rows:
            self._waiting.note(row.identity, waits_for("its turn comes after others", busy))

    def report_waiting(self) -> None:
        """Say what is waited for, of each view that is not live after more than a moment."""
        for identity, build in self._builds.items():
            if build.is_opening and not build.is_cancelled:
                self._waiting.note(identity, self._why_opening(identity))
            elif build.failure is None:
                self._waiting.over(identity)
        self._waiting.report()

    def _why_opening(self, identity: str) -> TidemarkError:
        least = waits_for("a snapshot of the source is being opened")
        if self._waiting.seconds(identity) < WAITS_S or self._context.reconnect.error is not None:
            return least
        try:
            return self._context.parts.source.open_transactions(round(WAITS_S)) or least
        except TidemarkError as error:
            return error

    def _is_renamed(self, row: ViewRow) -> bool:
        """Whether the view has another name than the catalog had when it was looked at."""
        live = self._desk.live(row.identity)
        return live is not None and (live.table.schema, live.table.name) != (row.schema, row.name)

    def _has_space(self) -> bool:
        """Whether another child may run: each has a process, and its view's rows in memory."""
        working = (b for b in self._builds.values() if b.is_working and b.status.road != "spark")
        return sum(1 for _ in working) < MOST_CHILDREN

    def _change(self) -> None:
        """Give up what is not asked for any more; pause, and give other names."""
        self._unsure.clear()
        for build in self._builds.values():
            if not self._desk.is_desired(build):
                build.cancel()
        paused = self._desk.to_pause()
        renamed = [r for r in self._desk.to_rename() if r.identity not in self._builds]
        if self._is_sink_elsewhere or not (paused or renamed):
            return
        if not (self._epochs.is_sink_drained() and self._context.sink_workers.are_listed):
            return
        if paused:
            self._following.release(self._replacement.pause(paused))
        for row in renamed:
            self._held.pop(row.identity, None)
            # What is built from now on is built under its new name, once that is known.
            self._unsure.add(row.identity)
            try:
                self._replacement.rename(row)
                if self._desk.refresh():
                    self._unsure.discard(row.identity)
            except TidemarkError as error:
                if error.is_temporary:
                    log.warning("rename.retry", view=row.title, code=error.code)
                else:
                    self._unsure.discard(row.identity)
                    self._desk.give_up(row, error)

    def _attach_followers(self) -> None:
        """Begin what the catalog asks for beside the views' tables, once the state is on disk."""
        sink_workers, epochs = self._context.sink_workers, self._epochs
        if sink_workers.reconcile(is_muted=bool(epochs.mute), is_lagging=epochs.is_lagging):
            self._epochs.commit(sync=True)
            sink_workers.start()

    def _end_unused(self) -> None:
        """A group beside the default one ends with its last view; nothing of it is left."""
        is_default = self._context.settings.group == DEFAULT_GROUP
        if is_default or self._engine.views or self._builds:
            return
        if self._desk.has_rows() or self._context.sink_workers.has_rows:
            return
        self._following.forget()
        self.is_unused = True

    # --- builds --------------------------------------------------------------------------------

    def resume_builds(self) -> None:
        """Go on with what was being built, before the stream is read: no change may be missed."""
        # A sink that was set back comes first; what was being built begins again after it.
        for row in () if self._epochs.is_lagging else self._desk.wanted(self._builds):
            if is_left(self._folder, row.identity):
                self._try_build(row)
        in_use = {build.definition.scope for build in self._builds.values()}
        forget_others(self._folder, in_use)

    def _try_build(self, row: ViewRow) -> None:
        """Start a build; the view fails if that is refused. Raises temporary errors alone."""
        try:
            self._start_build(row)
        except Exception as error:
            if isinstance(error, TidemarkError):
                if error.is_temporary:
                    raise
                self._desk.refuse(row, error)
                return
            found = view_error("start of the build", error)
            if found is None:
                raise
            self._desk.refuse(row, self._context.failures.reports.reported(found, row.title))

    def _start_build(self, row: ViewRow) -> None:
        core = self._context
        held = self._held.get(row.identity)
        live = self._desk.live(row.identity) if self._epochs.is_lagging else None
        if held is None and live is None and self._desk.awaits_parents(row):
            return
        # Who builds a view is told from the live one by the definition that it has.
        definition = held[0] if held else replace(live) if live else self._desk.define(row)
        # One that is compared is live over those that it reads, whatever is asked of them now.
        if live is None and not self._desk.are_parents_live(definition):
            self._held.pop(row.identity, None)
            read = ", ".join(str(parent) for parent in definition.parents())
            self._waiting.note(row.identity, waits_for("views that it reads are not live", read))
            return
        self._following.look()
        core.failures.require_names(definition)
        source = core.parts.source
        is_newer = core.feed.is_open and core.failures.is_newer(definition)
        if is_newer or core.watch.is_moving(definition.relations()):
            # Rows from before a table was changed have another shape: let them pass first.
            held = held or (definition, source.heartbeat())
            self._held[row.identity] = held
            if self._engine.position < held[1]:
                self._waiting.note(row.identity, _PASSING)
                return
        self._held.pop(row.identity, None)
        definition = self._engine.in_free_scope(definition)
        before = self._engine.positions.by_source
        is_resumed = is_left(self._folder, row.identity)
        feeds = core.external_snapshots.begin(definition, is_resumed=is_resumed)
        if feeds is None:
            self._waiting.note(row.identity, waits_for("its sources are asked where they stand"))
            return
        self._epochs.unmute_begun(before)
        core.store.drop(definition.scope + "/")
        reads_database = core.reads_database(definition)
        if reads_database and not core.feed.is_open and not self._engine.position:
            self._begin_database()
        self._epochs.commit()
        failpoint("view.build.before")
        source.watch([r for r in definition.relations() if is_main(r)])
        build = self._build_of(row, definition, feeds, reads_database=reads_database)
        self._builds[definition.identity] = build
        try:
            if reads_database:
                self._following.follow()
            else:
                core.sides.open(core.failures.reads())
        except Exception as error:
            del self._builds[definition.identity]
            # Nothing is told to it until the next try: what it alone has noted would not hold then.
            is_temporary = isinstance(error, TidemarkError) and error.is_temporary
            build.close(is_kept=is_temporary and is_resumed)
            raise
        if not build.is_cancelled:
            self._waiting.over(row.identity)
            build.start()
            log.info("build.started", view=definition.table.title, road=build.status.road)

    def _build_of(
        self,
        row: ViewRow,
        definition: ViewDefinition,
        feeds: Mapping[str, ExternalRead],
        *,
        reads_database: bool,
    ) -> ViewBuild:
        core, road = self._context, self._desk.options(row).get("backfill", "auto")
        parts = core.parts.build(definition, road, feeds)
        parts = replace(parts, reads_database=reads_database, beside=self._beside(row))
        columns = self._engine.columns_to_keep(definition, core.failures.reads())
        build = ViewBuild(definition, core.store, self._folder, parts, columns)
        build.status.expected_s = ((row.plan or {}).get("estimate") or {}).get("backfill_s")
        return build

    def _begin_database(self) -> None:
        source = self._context.parts.source
        source.drop_lost_slot()
        position = source.ensure_slot()
        self._desk.remember_source()
        state_owner.note(self._context.store, self._desk.source_identity())
        self._epochs.begin_database(position)

    def _beside(self, row: ViewRow) -> Beside | None:
        """The table that a view may have already."""
        if not row.fields:
            return None
        before = table_of(row)
        has_readers = bool(self._engine.readers_of(before.relation))
        return Beside(before, has_readers, self._engine.find_epoch, self._epochs.behind)

    def advance_builds(self) -> None:
        """Let what is being built catch up, and join once nothing is left."""
        caught_up = set()
        for identity, build in list(self._builds.items()):
            build.passed(self._engine.position)
            if not self._epochs.is_returning:
                build.hold(self._epochs.writer.written)
            if build.is_working:
                continue
            error = build.failure
            if error is not None and error.is_temporary and not build.is_cancelled:
                if not build.is_comparison:
                    self._desk.fail_build(build, error)
                build.start_again()
            elif build.is_cancelled or error is not None:
                self._end_build(identity)
            elif build.catch_up(self._engine.epoch):
                if not self._epochs.mute and self._engine.position >= build.position:
                    caught_up.add(identity)
                    if not self._epochs.is_lagging:
                        self._join(identity)
                elif not build.is_nudged:
                    # The snapshot is ahead of the stream, which has nothing to move it.
                    self._nudge(build)

        if self._epochs.is_lagging:
            self._set_back.settle(caught_up)

    def _nudge(self, build: ViewBuild) -> None:
        if self._context.reconnect.error is None:
            try:
                self._context.parts.source.heartbeat()
                build.is_nudged = True
            except TemporaryError as error:
                log.warning("build.retry", view=build.definition.table.title, code=error.code)

    def _end_build(self, identity: str) -> None:
        self._waiting.forget(identity)
        build = self._builds.pop(identity)
        build.close()
        self._context.store.drop(build.definition.scope + "/")
        self._epochs.commit()
        self._staging.drop_staged(build.definition.table)
        error = build.refusal or (None if build.is_cancelled else build.failure)
        if build.is_comparison:
            self._set_back.failed(build)
        elif error is not None:
            reports, title = self._context.failures.reports, build.definition.table.title
            error = reports.reported(error, title)
            log.warning("build.failed", view=build.definition.table.title, why=error.described)
            self._desk.fail_build(build, error)
        self._following.release(build.definition.relations())

    def _join(self, identity: str) -> None:
        """Make a caught-up view live: its staged rows and what came since, in one epoch."""
        build = self._builds[identity]
        if not self._desk.is_desired(build):
            # It was given up, and is known to be since the last time that all were looked at.
            build.cancel()
            return
        parents = build.definition.parents()
        # What a view's further sinks can be told decides whether another version may come.
        is_ready = self._epochs.writer.has_space and self._context.sink_workers.are_listed
        if not is_ready or (parents and not self._epochs.is_sink_drained()):
            return
        if parents:
            self._following.drop_refused()
            if not all(parent in self._engine.views for parent in parents):
                # Paused meanwhile, or to be built anew: this one is begun again once they are live.
                build.cancel()
            if build.is_cancelled:
                return
        build.failure = self._replacement.why_not(build)
        if build.failure is not None:
            return
        view, gathered, result = build.take_over()
        try:
            for parent in parents:
                for rows in self._staging.read_rows(self._engine.views[parent].table):
                    build.add(view.step({parent: rows}))
                    self._context.store.relieve()
        except ViewError as error:
            build.failure = error
            return
        except SinkError as error:
            if error.relation is None:
                raise
            # Someone has dropped or changed a parent's table: it fails, and so does this view.
            self._following.complete_failed(self._context.failures.fail_readers(error))
            return
        del self._builds[identity]
        epoch, read_before = self._replacement.take_over(build, view, gathered, result)
        failures = self._context.failures
        failed = [d for e in self._engine.refused() for d in failures.fail_readers(e)]
        # What is told of a view as a whole cannot be told again: it is on disk first.
        failpoint("view.join.before")
        self._epochs.finish(epoch, sync=bool(epoch.changes))
        failpoint("view.join.after")
        self._waiting.forget(identity)
        self._desk.joined(build, epoch.progress.epoch)
        build.close()
        self._following.complete_failed(failed)
        if read_before:
            self._following.release(read_before)
        log.info("view.joined", view=view.definition.table.title, epoch=epoch.progress.epoch)

    # --- drops ---------------------------------------------------------------------------------

    def _drop(self, row: ViewRow) -> None:
        self._waiting.forget(row.identity)
        self._held.pop(row.identity, None)
        self._context.external_snapshots.snapshot_offsets.forget(row.identity)
        build = self._builds.get(row.identity)
        if build is not None:
            build.cancel()
            return
        if not self._epochs.is_sink_drained() or self._is_renamed(row):
            return
        # Last the catalog: whoever waits for the drop finds nothing left of it at the source.
        self._following.release(self._take_out(row))
        self._desk.drop(row, self._staging)
        log.info("view.dropped", view=row.title)

    def remove(self, row: ViewRow) -> None:
        """Take a view out of state, sink and catalog; what it read stays as it is."""
        self._take_out(row)
        self._desk.drop(row, self._staging)

    def _take_out(self, row: ViewRow) -> Sequence[Relation]:
        """Take a view out of the state; the relations that it read."""
        self._epochs.writer.drain()
        relations: Sequence[Relation] = ()
        self._context.sink_workers.end_view(row.identity)
        live = self._desk.live(row.identity)
        if live is not None:
            relations = live.relations()
            self._engine.remove(live.name)
            self._epochs.commit()
            failpoint("view.drop.state")
        return relations
