"""The pipeline's side of the control tables: what users desire, and how it goes.

The sink may be down while views continue: `StatusReports` stores what could not be written, so
nothing here stops an epoch. Invariant: a view is reported live only once the epoch that swaps its
table in is committed in the sink.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from connectors.postgres.catalog.catalog import Control, SourceRow, ViewRow
from connectors.postgres.catalog.change_requests import request_change
from connectors.postgres.replication.slot import LOST
from connectors.sink import Progress, Sink, SinkTable
from dataflow.errors import TemporaryError, TidemarkError
from dataflow.schema import VIEW_SOURCE, RelationName
from service.backfill.view_build import ViewBuild
from service.engine.definition import ViewDefinition
from service.engine.departures import Departures
from service.engine.engine import Engine
from service.factory.computed_views import changed_below, planned_in_group
from service.factory.planning import plan_definition
from service.pipeline.source_status_reporter import SourceStatusReporter
from service.runtime.log import log
from service.views import lifecycle, requested_changes
from service.views.dependencies import parents_of, readers_of
from service.views.groups import group_of
from service.views.lifecycle import READABLE, DesiredState, ViewEvent, ViewState
from service.views.name_tracking import names_in
from service.views.status_reports import STANDING, StatusReports
from service.views.view_facts import is_being_rebuilt, is_pausing, require_possible
from storage.failpoints import failpoint

if TYPE_CHECKING:
    from service.factory.service_factory import ServiceFactory

# A view that is paused although nobody requested that.
_UNREQUESTED_PAUSE = (ViewState.PAUSED, DesiredState.LIVE, None)
_RENAMED = "renamed at the source: "


def is_lost(row: ViewRow) -> bool:
    """Return True if a desired view has failed because its slot was lost."""
    is_failed = (row.status, row.desired) == (ViewState.FAILED, DesiredState.LIVE)
    return is_failed and row.code in LOST


def _not_rebuilt(row: ViewRow) -> TidemarkError:
    """Return why a view fails that computes views which are others now."""
    last = row.replacing or {}
    return TidemarkError(
        last.get("code") or "view.failed",
        f'view "{row.title}" cannot be rebuilt, and a view that its query names is another one now',
        detail=last.get("detail") or "",
        hint=last.get("hint") or "",
    )


def source_row(factory: ServiceFactory) -> SourceRow:
    """Return the catalog's row of the database as one group reads it. TemporaryError."""
    source = factory.source
    identity = source.identity()
    return SourceRow(
        factory.source_row,
        factory.shown_source,
        slot=source.slot_name,
        # One that an administrator made is not the service's to remove.
        publication=None if source.has_given_publication else source.publication_name,
        system_identifier=identity.system,
        timeline=identity.timeline,
        facts={"database": identity.database},
    )


class CatalogReconciler:
    """The reconciler of a pipeline, used by its thread.

    sink_progress: as of the last refresh, if any.
    """

    def __init__(self, control: Control, engine: Engine, factory: ServiceFactory) -> None:
        self._control = control
        self._engine = engine
        self._factory = factory
        self._reports = StatusReports(control)
        self._departures = Departures(engine.store)
        self.sources = SourceStatusReporter(control, factory.settings.sink_key, factory.feed_source)
        self._rows = self._all_rows = list[ViewRow]()
        self._is_called = True
        self.sink_progress: Progress | None = None
        self.require_server = control.require_server

    @property
    def sink_epoch(self) -> int | None:
        """Return the sink's epoch as of the last refresh, if any."""
        return None if self.sink_progress is None else self.sink_progress.epoch

    def claim(self) -> None:
        """Make sure that the control tables are there."""
        self._control.ensure()

    def is_called(self) -> bool:
        """Return True if the catalog has changed since the last refresh."""
        called, self._is_called = self._control.wait(0) or self._is_called, False
        return called

    def wait(self, timeout_s: float) -> None:
        """Sleep until the catalog changes, at most timeout_s."""
        self._is_called = self._control.wait(timeout_s) or self._is_called

    def refresh(self) -> bool:
        """Read the catalog; False when the sink cannot be reached just now."""
        try:
            rows = self._control.list_views()
            self.sources.refresh()
            # After the rows: a rewound sink, or a partial refresh, must not be acted upon.
            progress = self._control.read_progress(self._factory.settings.sink_key)
            self._all_rows, self._rows = rows, self._own(rows)
            self._reports.refreshed()
            self.sink_progress = progress
            return True
        except TemporaryError as error:
            log.warning("catalog.retry", code=error.code)
            return False

    # --- desired state ----------------------------------------------------------------------

    @property
    def rows(self) -> list[ViewRow]:
        """Return this group's views, as of the last refresh."""
        return self._rows

    def to_drop(self) -> list[ViewRow]:
        """Return the views to drop, children first."""
        found = [r for r in self._rows if r.desired == DesiredState.DROPPED]
        # A parent may be younger than its child, which has had another query since.
        return sorted(found, key=lambda row: len(readers_of(row, self._rows)))

    def to_build(self, builds: Mapping[str, ViewBuild]) -> list[ViewRow]:
        """Return the views to build: those neither building nor live nor failed, and new
        versions.
        """
        live = {d.identity for d in self._engine.views.values()} | self._departures.identities()
        # Until the sink has the newest version, its staged rows and this row are outdated.
        rows = (
            r
            for r in self._rows
            if r.desired == DesiredState.LIVE
            and r.identity not in builds
            and not self._reports.is_in_flight(r.identity)
        )
        return [r for r in rows if self.replacement(r) is not None or self._is_to_build(r, live)]

    def _is_to_build(self, row: ViewRow, live: set[str]) -> bool:
        is_idle = row.status in (ViewState.FAILED, ViewState.PAUSED)
        is_failed = is_idle or self._reports.is_failed(row.identity)
        return not is_failed and row.identity not in live

    def row(self, identity: str) -> ViewRow | None:
        """Return the catalog's row of a view of this group."""
        return next((r for r in self._rows if r.identity == identity), None)

    def replacement(self, row: ViewRow) -> Mapping[str, Any] | None:
        """Return the requested version of a view, unless it is built or was abandoned."""
        change, live = requested_changes.numbered(row), self.live(row.identity)
        if change is None or change["kind"] != requested_changes.VERSION:
            return None
        if live is not None and live.version >= change["version"]:
            return None
        return None if self._reports.is_abandoned(change) else change

    @property
    def requests_replacement(self) -> bool:
        """Return True if another version of any view is requested."""
        return any(self.replacement(row) is not None for row in self._rows)

    def is_desired(self, build: ViewBuild) -> bool:
        """Return True if the version that is being built is still desired."""
        row, version = self.row(build.definition.identity), build.definition.version
        if row is None or version == row.version:
            return row is not None
        change = self.replacement(row)
        return change is not None and change["version"] == version

    def to_pause(self) -> list[ViewRow]:
        """Return the views to pause."""
        # A report that is still pending would be written after the pause, and call the view live.
        return [r for r in self._rows if is_pausing(r) and self._reports.is_resolved(r.identity)]

    def paused_views(self) -> list[str]:
        """Return the identities of the views that are paused, or about to be."""
        return [
            r.identity
            for r in self._rows
            if r.desired != DesiredState.DROPPED
            and (r.status == ViewState.PAUSED or r.desired == DesiredState.PAUSED)
        ]

    def to_rename(self) -> list[ViewRow]:
        """Return the views for which another name is requested."""
        return [r for r in self._rows if r.change and self._is_rename(r.change)]

    def _is_rename(self, change: Mapping[str, Any]) -> bool:
        is_rename = change["kind"] == requested_changes.RENAME
        return is_rename and not self._reports.is_abandoned(change)

    def to_hand_over(self) -> list[ViewRow]:
        """Return the views that another runtime is requested for."""
        return [
            r
            for r in self._rows
            if r.change is not None
            and r.change["kind"] == requested_changes.RUNTIME
            and r.desired != DesiredState.DROPPED
            and not self._reports.is_abandoned(r.change)
        ]

    def rebuild_outdated(self) -> None:
        """Request rebuilds of live views that compute a view which has another query by now.

        One that cannot be rebuilt fails: its rows are no longer those of its query.
        """
        for row in self._rows:
            live = self.live(row.identity)
            if live is None or row.status != ViewState.LIVE or row.change is not None:
                continue
            below = changed_below(live, self._all_rows)
            if not below:
                continue
            last = row.replacing or {}
            if last.get("computes") == below and last.get("status") == requested_changes.FAILED:
                self.fail_view(row.identity, _not_rebuilt(row))
                continue
            names = names_in(row.plan)
            change, replacing = requested_changes.new_version(
                row, row.query, row.options, list(row.warnings), "rebuild", names=names
            )
            log.info("view.outdated", view=row.title)
            request_change(
                self._control,
                row.identity,
                row.desired,
                change,
                replacing=replacing | {"computes": below},
            )

    def groups(self) -> set[str]:
        """Return the groups that the catalog names, as of the last refresh."""
        return {group_of(r) for r in self._all_rows}

    def options(self, row: ViewRow) -> Mapping[str, Any]:
        """Return the options of the version that is to be built."""
        change = self.replacement(row)
        return row.options if change is None else change["options"]

    def has_views(self) -> bool:
        """Return True if any view is desired."""
        return any(r.desired == DesiredState.LIVE for r in self._own(self._control.list_views()))

    def has_rows(self) -> bool:
        """Return True if the catalog has any view of this group, even one to be dropped."""
        return bool(self._own(self._control.list_views()))

    def define(self, row: ViewRow, known: ViewDefinition | None = None) -> ViewDefinition:
        """Plan a view again, as the source is now: the version that is to be built, or this one."""
        name = row.schema, row.name
        query, version, names = requested_changes.version_of(row, self.replacement(row), known)
        more = {
            "sources": self.sources.rows,
            "requester": row.created_by,
            "names": names,
            "options": self.options(row),
        }
        found = plan_definition(row.identity, name, query, self._factory, self._all_rows, **more)
        found = planned_in_group(found, self._factory, self._all_rows, self.sources.rows)
        return replace(found, version=version)

    def are_parents_live(self, definition: ViewDefinition) -> bool:
        """Return True if every parent is live in the version that this view was planned over.

        The catalog may not know of another version yet. TidemarkError as `require_possible`: a
        parent has failed or is paused.
        """
        for row in self._rows:
            if RelationName(VIEW_SOURCE, row.schema, row.name) in definition.parents():
                require_possible(row)
        return definition.is_planned_over(self._engine.views)

    def awaits_parents(self, row: ViewRow) -> bool:
        """Return True if a view reads a failed one that is to be rebuilt, or one with other columns
        than its row has yet.

        Until then there may be no table to plan over.
        """
        parents = parents_of(row)
        return any(
            (is_being_rebuilt(r) or self._is_retyped(r))
            and RelationName(VIEW_SOURCE, r.schema, r.name) in parents
            for r in self._rows
        )

    def _is_retyped(self, row: ViewRow) -> bool:
        live = self.live(row.identity)
        if live is None:
            return False
        both = (live.table.fields, requested_changes.table_of(row).fields)
        now, told = ([(f.name, f.type.name) for f in fields] for fields in both)
        return now != told

    def failed(self) -> set[str]:
        """Return the identities of the views that the catalog calls failed."""
        return {r.identity for r in self._rows if r.status == ViewState.FAILED}

    def failed_names(self) -> set[RelationName]:
        """Return the names of the failed views that no epoch on its way to the sink replaces.

        Valid before the outbox is replayed: afterwards nothing is on its way, and a later version
        of a failed view was refused.
        """
        return {
            RelationName(VIEW_SOURCE, r.schema, r.name)
            for r in self._rows
            if r.status == ViewState.FAILED
            and ((live := self.live(r.identity)) is None or live.version <= r.version)
        }

    def error_of(self, identity: str) -> TidemarkError:
        """Why a view has failed, as the catalog has it."""
        row = next(r for r in self._rows if r.identity == identity)
        code, what = row.code or "view.failed", f'view "{row.title}" has failed'
        return TidemarkError(code, what, detail=row.detail or "", hint=row.hint or "")

    def live(self, identity: str) -> ViewDefinition | None:
        """Return the live view of this identity."""
        return next((d for d in self._engine.views.values() if d.identity == identity), None)

    def is_renamed(self, row: ViewRow) -> bool:
        """Return whether a live view has another name than its row had when it was read."""
        live = self.live(row.identity)
        return live is not None and (live.table.schema, live.table.name) != (row.schema, row.name)

    # --- how it goes ---------------------------------------------------------------------------

    def fail_view(self, identity: str, error: TidemarkError) -> None:
        """Report that a view cannot be built or maintained; it stays failed until it is dropped."""
        self._reports.taken_out(identity, ViewEvent.FAIL, requested_changes.problem_facts(error))

    @property
    def owes_failures(self) -> bool:
        """Return True if the catalog may still call a view live that has left the dataflow."""
        return self._reports.owes_failures

    def refuse(self, row: ViewRow, error: TidemarkError) -> None:
        """Report that a request cannot be built; an existing view is unchanged."""
        change = self.replacement(row)
        if change is None:
            self.fail_view(row.identity, error)
        else:
            self.abandon(row, error)

    def abandon(self, row: ViewRow, error: TidemarkError) -> None:
        """Report that the requested change comes to nothing."""
        assert row.change is not None
        facts: dict[str, Any] = {"replacing": requested_changes.abandoned(row.replacing, error)}
        if row.status == ViewState.PAUSED:
            facts["desired"] = DesiredState.PAUSED
        log.warning("change.abandoned", view=row.title, why=error.described)
        self._reports.abandoned(row.identity, row.change, facts)

    def paused(self, row: ViewRow) -> None:
        """Report a pause of a view that was not live, at an unknown position."""
        facts = dict.fromkeys(("progress", "epoch", "positions"))
        self._reports.happened(row.identity, ViewEvent.PAUSE, "it was not live", **facts)

    def degrade_view(self, identity: str, error: TidemarkError) -> None:
        """Report that a view will be rebuilt, and shows its last rows until then."""
        self._reports.taken_out(identity, ViewEvent.DEGRADE, requested_changes.problem_facts(error))

    def degrade_lost(self, error: TidemarkError) -> None:
        """Report that the view error.relation, whose state is lost, will be rebuilt, if it is
        live."""
        for row in self._rows:
            name = None if error.relation is None else (error.relation.schema, error.relation.name)
            if (row.schema, row.name) == name and row.status == ViewState.LIVE:
                self.degrade_view(row.identity, error)
        self.refresh()

    def note_names(self, renamed: Mapping[str, tuple[str, ...]]) -> None:
        """Warn of earlier names in views' queries; withdraw warnings that no longer apply."""
        for row in self._rows:
            if row.identity in renamed:
                words = [f"{_RENAMED}{word}" for word in renamed[row.identity]]
                kept = [w for w in row.warnings if not w.startswith(_RENAMED)]
                if [*kept, *words] != list(row.warnings):
                    self._reports.write(row.identity, warnings=[*kept, *words])

    def fail_build(self, build: ViewBuild, error: TidemarkError) -> None:
        """Report an error that ended a build; a temporary one is retried."""
        row, facts = self.row(build.definition.identity), requested_changes.problem_facts(error)
        is_replacement = row is not None and row.version != build.definition.version
        if error.is_temporary and not is_replacement:
            self._reports.write(build.definition.identity, **facts)
        elif error.is_temporary and row is not None:
            self._reports.write(row.identity, replacing={**(row.replacing or {}), **facts})
        elif row is not None:
            self.refuse(row, error)

    def report_waiting(self, identity: str, error: TidemarkError | None) -> None:
        """Report what a view waits for before it is live; None when it continues."""
        row = self.row(identity)
        if row is None or row.status in (ViewState.FAILED, ViewState.PAUSED):
            return
        facts: dict[str, Any] = dict.fromkeys(("code", "detail", "hint"))
        if error is not None:
            facts |= requested_changes.problem_facts(error)
        if row.status != ViewState.LIVE:
            self._reports.write(identity, **facts)
        elif row.replacing is not None and row.change is not None:
            self._reports.write(identity, replacing={**row.replacing, **facts})

    def joined(self, build: ViewBuild, epoch: int) -> None:
        """Report that the view is in the engine; it is live once `epoch` is in the sink."""
        self._reports.joined(build.definition.identity, epoch, build.initial_load.count)

    def complete(self, written: int) -> None:
        """Call live what joined up to epoch `written`."""
        self._reports.written(written)

    def complete_recovered(self) -> None:
        """Report what recovery completed: the sink has the engine's epochs.

        A pause that nobody requested is withdrawn.
        """
        live = {d.identity for d in self._engine.views.values()}
        for row in self._rows:
            if row.identity in live and row.status not in (*READABLE, ViewState.FAILED):
                self._reports.shown(row.identity, self._engine.epoch, row.row_estimate)
            elif (row.status, row.desired, row.change) == _UNREQUESTED_PAUSE:
                why = "the pause is no longer requested"
                self._reports.happened(row.identity, ViewEvent.RECALL, why)

    def rebuild_lost(self) -> None:
        """Rebuild views that are called live but have no state, before anything new is shown.

        Likewise views that failed by a lost slot, if the state was discarded since.
        """
        is_new = self._engine.positions.progress is None
        kept = {d.identity for d in self._engine.views.values()} | self._departures.identities()
        for row in self._rows:
            is_desired = row.status == ViewState.LIVE and row.desired != DesiredState.DROPPED
            if is_desired and row.identity not in kept:
                log.warning("view.state_lost", view=row.title)
                lifecycle.change(self._control, row.identity, ViewEvent.RECALL, "its state is gone")
            elif is_new and is_lost(row):
                facts, why = dict.fromkeys(STANDING), "the state of the lost slot was discarded"
                lifecycle.change(self._control, row.identity, ViewEvent.RECALL, why, **facts)
        self.refresh()

    def report(self, builds: Mapping[str, ViewBuild]) -> None:
        """Report the progress of builds, and what could not be written before."""
        for build in builds.values():
            if build.end is None and not build.is_comparison:
                self._report_progress(build)
        self._reports.retry()

    def _report_progress(self, build: ViewBuild) -> None:
        facts, row = build.status.facts(), self.row(build.definition.identity)
        if row is None:
            return
        if row.version != build.definition.version:
            if self.is_desired(build):
                self._reports.write(
                    row.identity, replacing={**(row.replacing or {}), "progress": facts}
                )
            return
        why = f"its build reports: {build.status.phase}"
        self._reports.happened(row.identity, build.status.event, why, progress=facts)

    def drop(self, row: ViewRow, sink: Sink) -> None:
        """Remove a view's table and then its row."""
        key = (0,) if row.kind == "keyed" else ()
        sink.drop([SinkTable(row.schema, row.name, (), key)])
        failpoint("view.drop.table")
        self._reports.forget(row.identity)
        self._control.delete_view(row.identity)
        self._rows = [r for r in self._rows if r.identity != row.identity]

    # --- the source ------------------------------------------------------------------------------

    def source_identity(self) -> tuple[object, ...] | None:
        """Return the server that the state was built from; None before the first view."""
        row = self._control.get_source(self._factory.source_row)
        if row is None or row.system_identifier is None:
            return None
        return (row.system_identifier, row.timeline, row.facts["database"])

    def remember_source(self) -> None:
        """Note which server the state is built from."""
        self._control.upsert_source(source_row(self._factory))

    def forget_source(self) -> None:
        """Forget the source after the last view: the next one may come from another server."""
        self._control.delete_source(self._factory.source_row)

    def close(self) -> None:
        """End the sessions."""
        self._control.close()

    def _own(self, rows: list[ViewRow]) -> list[ViewRow]:
        return [r for r in rows if group_of(r) == self._factory.settings.group]
