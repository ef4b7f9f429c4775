"""Lifecycle operations of a view: replace, rebuild, pause, resume, rename, move, runtime, cancel.

This is the API's side. It checks a request completely, then enters it into the catalog; the
pipeline executes it. Thread-safe.
Invariant: a request that would be refused is never entered, and its error names the obstacle. A
view has at most one change in progress.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from connectors.postgres.analysis.table_names import UNKNOWN, KnownNames
from connectors.postgres.catalog import change_requests, sink_records
from connectors.postgres.catalog.catalog import ViewRow, name_taken
from connectors.sink import SinkTable
from dataflow.errors import SqlError, TidemarkError
from dataflow.sql.parse.renaming import with_renamed_table
from service.access.authorization import Authorization
from service.access.tokens import Caller
from service.api.clock import planned_with_clock
from service.api.placement import AUTO, LOCAL, SPARK
from service.backfill.row_difference import is_one_shape
from service.engine.definition import ViewDefinition
from service.factory.computed_views import planned_in_group, why_not_computed
from service.factory.on_spark import check_on_spark
from service.factory.planning import NO_HISTORY, plan_definition
from service.factory.service_factory import ServiceFactory
from service.pipeline.view_handovers import read_by_others
from service.pipeline.view_replacement import (
    REPORTED_BY_NAME,
    WINDOWS_AGAIN,
    has_dependents,
    readers_lost,
    readers_refuse,
    sinks_refuse,
    why_unreported,
)
from service.runtime.view_names import parse_name, path_name
from service.verify.estimate import SHORT_S, check_rows, estimated
from service.views.dependencies import children_of, readers_of
from service.views.groups import follows_database, group_of, is_own_group, is_spark_group, new_group
from service.views.lifecycle import CHANGEABLE, DesiredState, ViewState
from service.views.name_tracking import names_in
from service.views.requested_changes import (
    CANCELLED,
    FAILED,
    new_name,
    new_runtime,
    new_version,
    published_of,
    table_of,
)
from service.views.view_facts import (
    busy,
    require_free,
    require_not_pausing,
    require_parents,
    require_status,
)
from service.views.view_lookup import find_view
from storage.failpoints import failpoint


@dataclass(frozen=True)
class AcceptedRequest:
    """An accepted request. name: of the view when it is done, in the form of URL paths. change: its
    id, "" for a pause and for a request that is already done."""

    identity: str
    name: str
    change: str = ""
    status: str = ""


class Life:
    """The lifecycle operations; one per API process, thread-safe. Names are as users write them.

    by: the caller. Every method raises the errors of `Authorization.require`.
    """

    def __init__(self, factory: ServiceFactory, authorization: Authorization) -> None:
        self._factory = factory
        self._authorization = authorization
        self._control = factory.control()
        self._tables = factory.view_tables()

    # --- another version -------------------------------------------------------------------------

    def replace(
        self, name: str, query: str, options: Mapping[str, Any] | None = None, *, by: Caller
    ) -> AcceptedRequest:
        """Request another query for a view. options: those to change; the group cannot change.

        Both the view's owner and the caller must be able to read the query's tables.
        TidemarkError view.not_live, view.busy, view.cycle, view.has_sinks, view.children_refuse,
        view.has_dependents, and the errors of creating such a view.
        """
        row = self._to_change(name, "view.replace", by)
        changed = {**row.options, **(options or {})}
        if changed.get("group") != row.options.get("group"):
            raise TidemarkError(
                "view.other_group",
                f'view "{row.title}" is in group "{group_of(row)}"',
                detail="a view cannot change its group",
                hint="drop the view and create it in the other group",
            )
        is_on_spark = is_spark_group(group_of(row))
        runtime = SPARK if is_on_spark else LOCAL
        if changed.get("runtime", runtime) not in (runtime, AUTO):
            raise TidemarkError(
                "view.other_runtime",
                f'view "{row.title}" is maintained {"by Spark" if is_on_spark else "locally"}',
                detail="another query does not change the runtime",
                hint="change the runtime before or afterwards: tidemark runtime NAME spark",
            )
        changed["runtime"] = runtime
        if changed.get("history") not in (None, NO_HISTORY):
            self._tables.check_history(table_of(row))
        definition = self._planned(row, query, is_existing=True, options=changed)
        for role in self._authorization.readers_of(by, row.created_by):
            if role != row.created_by:
                self._planned(row, query, is_existing=True, requester=role, options=changed)
            self._authorization.require_parents(role, definition.views_named())
        return self._request_version(row, definition, changed, "replace")

    def rebuild(self, name: str, *, by: Caller) -> list[AcceptedRequest]:
        """Request that a view is computed again from a new snapshot.

        Of a failed view, also rebuild the views that failed with it, whoever owns them. The effect
        is that of `replace` with the view's own query, under the current names of its tables.
        """
        row = self._to_change(name, "view.rebuild", by)
        definition = self._planned(row, row.query, names_in(row.plan), is_existing=True)
        accepted = [self._request_version(row, definition, row.options, "rebuild")]
        return accepted + (self._rebuild_readers(row) if row.status == ViewState.FAILED else [])

    def _rebuild_readers(self, row: ViewRow) -> list[AcceptedRequest]:
        """Request rebuilds of the views that read this one and failed for the same reason.

        They are planned once it is live: its table may not exist before.
        """
        reasons = {row.code, "view.parent_failed"}
        accepted = []
        for found in _staying(row, self._control.list_views()):
            if found.status == ViewState.FAILED and found.change is None and found.code in reasons:
                names = names_in(found.plan)
                change = new_version(found, found.query, found.options, [], "rebuild", names=names)
                accepted.append(self._request(found, *change))
        return accepted

    def _to_change(self, name: str, operation: str, by: Caller) -> ViewRow:
        row = self._row(name, operation, by)
        # A view whose rows are withheld may get a query that its owner may read.
        if row.withheld is None:
            require_status(row, ViewState.LIVE, ViewState.FAILED)
        require_free(row)
        require_not_pausing(row)
        return row

    def _request_version(
        self, row: ViewRow, definition: ViewDefinition, options: Mapping[str, Any], kind: str
    ) -> AcceptedRequest:
        warnings = self._check_spark(row, definition) + self._check_version(row, definition)
        if kind == "replace":
            rows = self._control.list_views()
            estimate = estimated(self._factory, definition, rows, "auto", SHORT_S)
            warnings += check_rows(estimate, options.get("max_rows", options.get("most_rows")))
        query, names = definition.query, definition.names
        return self._request(row, *new_version(row, query, options, warnings, kind, names=names))

    def _request(
        self, row: ViewRow, change: dict[str, Any], replacing: dict[str, Any], **fields: str
    ) -> AcceptedRequest:
        """Enter a change into the catalog. TidemarkError view.busy if another one came first."""
        if not change_requests.request_change(
            self._control, row.identity, row.desired, change, replacing=replacing, **fields
        ):
            raise busy(row)
        failpoint("api.change.requested")
        return AcceptedRequest(row.identity, path_name(row.schema, row.name), change["id"])

    def _planned(
        self,
        row: ViewRow,
        query: str,
        names: KnownNames = UNKNOWN,
        *,
        is_existing: bool = False,
        requester: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> ViewDefinition:
        """Return the definition of another version of a view.

        names: the names of its tables in the query. is_existing: the view exists, so a query that
        names it is refused as a cycle instead of read as a table. requester: the role whose rights
        count, by default the owner. options: those of the version, by default the view's own.
        """
        rows = self._control.list_views()
        name = ("", "") if is_existing else (row.schema, row.name)
        found = planned_with_clock(
            self._control,
            self._factory,
            lambda sources: plan_definition(
                row.identity,
                name,
                query,
                self._factory,
                rows,
                sources=sources,
                requester=row.created_by if requester is None else requester,
                names=names,
                options=row.options if options is None else options,
            ),
        )
        table = replace(found.table, schema=row.schema, name=row.name)
        return replace(found, table=table)

    def _check_spark(self, row: ViewRow, definition: ViewDefinition) -> list[str]:
        """Fail if Spark is to maintain the version and cannot; return warnings of what it cannot
        split."""
        planned = self._in_its_group(row, definition)
        if not is_spark_group(group_of(row)):
            return []
        return check_on_spark(planned, self._factory.settings, self._control.list_sources())

    def _in_its_group(self, row: ViewRow, definition: ViewDefinition) -> ViewDefinition:
        """Return a version of a view as its group builds it."""
        rows, sources = self._control.list_views(), self._control.list_sources()
        return planned_in_group(definition, self._factory, rows, sources, group_of(row))

    def _check_version(self, row: ViewRow, definition: ViewDefinition) -> list[str]:
        """Fail if the version is not possible; return its warnings."""
        rows = self._control.list_views()
        _require_no_cycle(row, definition, rows)
        require_parents(definition, rows, group_of(row))
        before, table = table_of(row), definition.table
        self._require_readers(row, definition, rows)
        why = why_unreported(before, table)
        if definition.published.final or published_of(row).final:
            why = why or WINDOWS_AGAIN
        if why:
            self._require_no_sinks(row, why)
        if is_one_shape(before, table):
            return []
        found = self._tables.dependents(before)
        if found:
            raise has_dependents(row.title, found)
        not_carried = self._tables.not_carried_over(before, table)
        return [f"not carried over to the new table: {title}" for title in not_carried]

    def _require_readers(
        self, row: ViewRow, definition: ViewDefinition, rows: Sequence[ViewRow]
    ) -> None:
        """Fail unless the views that read this one can read the new version too."""
        readers = []
        for child in children_of(row, rows):
            if child.status not in CHANGEABLE or child.change is not None:
                raise busy(child)
            if child.status == ViewState.FAILED:
                continue
            try:
                readers.append(self._planned(child, child.query, names_in(child.plan)))
            except SqlError as error:
                # Someone dropped a table manually: the reader fails for it, and can be rebuilt.
                if error.code != "sql.undefined_table":
                    raise
        missing = readers_lost(definition, readers) or self._not_computed(row, definition, rows)
        if missing:
            raise readers_refuse(row.title, missing)

    def _not_computed(
        self, row: ViewRow, definition: ViewDefinition, rows: Sequence[ViewRow]
    ) -> dict[str, list[str]]:
        """Return by title the views that compute this one and could not compute the new version."""
        found = {}
        for reader in _staying(row, rows):
            if is_own_group(group_of(reader)) and reader.status != ViewState.FAILED:
                planned = self._planned(reader, reader.query, names_in(reader.plan))
                if why := why_not_computed(definition, planned):
                    found[reader.title] = [why]
        return found

    def cancel(self, name: str, *, by: Caller) -> AcceptedRequest:
        """Cancel the change in progress; the view is unchanged. TidemarkError view.no_change."""
        row = self._row(name, "view.cancel", by)
        change = row.change
        replacing = {**(row.replacing or {}), "status": CANCELLED}
        fields = {"desired": DesiredState.PAUSED} if row.status == ViewState.PAUSED else {}
        is_ended = change is not None and change_requests.end_change(
            self._control, row.identity, change["id"], replacing=replacing, **fields
        )
        if not is_ended:
            raise TidemarkError(
                "view.no_change",
                f'view "{row.title}" has no change in progress',
                detail="it may have just completed",
                hint="see its `replacing`",
            )
        return AcceptedRequest(row.identity, path_name(row.schema, row.name))

    # --- pauses ----------------------------------------------------------------------------------

    def pause(
        self, name: str, *, by: Caller, cascade: bool = False, is_resumed: bool = False
    ) -> list[AcceptedRequest]:
        """Request that a view keeps its rows and is no longer maintained.

        cascade: also the views that read it. is_resumed: they are resumed soon, so that additional
        sinks may wait for them. TidemarkError as `require_pausable`.
        """
        row, *readers = self.require_pausable(name, by=by, cascade=cascade, is_resumed=is_resumed)
        for found in (*reversed(readers), row):
            if not change_requests.request_pause(self._control, found.identity):
                raise busy(found)
        return [
            AcceptedRequest(r.identity, path_name(r.schema, r.name), status=ViewState.PAUSED)
            for r in (row, *readers)
        ]

    def require_pausable(
        self, name: str, *, by: Caller, cascade: bool = False, is_resumed: bool = False
    ) -> list[ViewRow]:
        """Return the views that would be paused with a view, itself first; request nothing.

        cascade, is_resumed: as for `pause`.

        TidemarkError view.not_live, view.busy, view.has_sinks, view.has_children; auth.rights.
        """
        row = self._row(name, "view.pause", by)
        rows = self._control.list_views()
        # A reader that is being resumed waits for this view.
        readers = [r for r in _staying(row, rows) if r.desired != DesiredState.PAUSED]
        if readers and not cascade:
            raise TidemarkError(
                "view.has_children",
                f'view "{row.title}" is read by other views',
                detail=", ".join(r.title for r in readers),
                hint="pause those first, or pause all of them with cascade",
            )
        for found in (row, *readers):
            self._authorization.require(by, "view.pause", found)
            require_free(found)
            require_status(found, ViewState.LIVE)
            if not is_resumed:
                self._require_no_sinks(found, "they would not be updated but look current")
            elif published_of(found).final:
                self._require_no_sinks(found, WINDOWS_AGAIN)
        return [row, *readers]

    def resume(self, name: str, *, by: Caller, cascade: bool = False) -> list[AcceptedRequest]:
        """Request that a paused view is rebuilt and maintained again.

        cascade: also the paused views that read it. TidemarkError view.not_paused, and the errors
        of `replace`.
        """
        row = self._row(name, "view.resume", by)
        if row.status != ViewState.PAUSED:
            raise TidemarkError(
                "view.not_paused",
                f'view "{row.title}" is not paused',
                detail=f"it is {row.status}",
                hint="see its status",
            )
        rows = self._control.list_views()
        readers = (
            [r for r in _staying(row, rows) if r.status == ViewState.PAUSED] if cascade else []
        )
        awaited = frozenset(r.identity for r in (row, *readers))
        planned = []
        for found in (row, *readers):
            self._authorization.require(by, "view.resume", found)
            require_free(found)
            definition = self._planned(found, found.query, names_in(found.plan))
            require_parents(definition, rows, group_of(found), awaited)
            planned.append((found, definition, self._check_spark(found, definition)))
        return [
            self._request(
                r,
                *new_version(r, d.query, r.options, warnings, "resume", names=d.names),
                desired=DesiredState.LIVE,
            )
            for r, d, warnings in planned
        ]

    # --- names -----------------------------------------------------------------------------------

    def rename(self, name: str, new: str, *, by: Caller) -> AcceptedRequest:
        """Request another name in the same schema, on which the caller needs CREATE.

        TidemarkError view.bad_name, view.name_taken, sink.name_taken, view.has_sinks, view.busy.
        """
        row = self._row(name, "view.rename", by)
        self._authorization.require_schema(by, row.schema)
        try:
            _, plain = parse_name(f"x.{new}")
        except TidemarkError as error:
            raise TidemarkError(
                "view.bad_name",
                f'"{new}" is not a name without a schema',
                detail=error.detail,
                hint="to change the schema, move the view",
            ) from None
        return self._move(row, SinkTable(row.schema, plain, (), (0,)))

    def move(self, name: str, schema: str, *, by: Caller) -> AcceptedRequest:
        """Request another schema. TidemarkError of `rename`, sink.schema_missing."""
        row = self._row(name, "view.move", by)
        # Parsed as part of a name, so that it is folded and refused in the same way.
        folded, _ = parse_name(f"{schema}.x")
        self._authorization.require_schema(by, folded)
        return self._move(row, SinkTable(folded, row.name, (), (0,)))

    def _move(self, row: ViewRow, table: SinkTable) -> AcceptedRequest:
        require_status(row, *CHANGEABLE)
        require_free(row)
        require_not_pausing(row)
        self._require_no_sinks(row, REPORTED_BY_NAME)
        rows = self._control.list_views()
        other = self._control.other_service_of(table.schema, table.name)
        if other or any((r.schema, r.name) == (table.schema, table.name) for r in rows):
            raise name_taken(table.title, other)
        self._tables.check(replace(table_of(row), schema=table.schema, name=table.name))
        queries = _renamed_queries(row, table, children_of(row, rows))
        accepted = self._request(row, *new_name(row, table.schema, table.name, queries))
        return replace(accepted, name=path_name(table.schema, table.name))

    # --- runtimes --------------------------------------------------------------------------------

    def change_runtime(self, name: str, runtime: str, *, by: Caller) -> AcceptedRequest:
        """Request that a view is maintained "local" or by "spark" from now on, in a new group.

        Its state, its additional sinks and its history go along. A view that has this runtime is
        unchanged. TidemarkError view.not_live, view.busy, view.has_children, and the errors of
        `check_on_spark` and `PostgresSource.check`.
        """
        row = self._row(name, "view.runtime", by)
        is_spark = runtime == SPARK
        if is_spark == is_spark_group(group_of(row)) and row.change is None:
            return AcceptedRequest(row.identity, path_name(row.schema, row.name))
        require_status(row, ViewState.LIVE)
        require_free(row)
        require_not_pausing(row)
        readers = children_of(row, self._control.list_views())
        # Those that compute it do not notice.
        readers = [r for r in readers if group_of(r) == group_of(row)]
        if readers:
            raise read_by_others(row.title, [r.title for r in readers])
        definition = self._planned(row, row.query, names_in(row.plan), is_existing=True)
        definition = self._in_its_group(row, definition)
        warnings: list[str] = []
        if is_spark:
            sources = self._control.list_sources()
            warnings = check_on_spark(definition, self._factory.settings, sources)
        group = new_group(is_spark=is_spark)
        if follows_database(row):
            source = self._factory.beside(group).source
            source.check()
            source.close()
        return self._request(row, *new_runtime(row, runtime, group, warnings))

    # --- waiting ---------------------------------------------------------------------------------

    def is_done(self, accepted: AcceptedRequest) -> bool:
        """Return True once the request is done. Raise the error of a request that failed."""
        row = next((r for r in self._control.list_views() if r.identity == accepted.identity), None)
        if row is None:
            raise TidemarkError(
                "view.not_found", "the view was dropped", hint="nothing: it was dropped meanwhile"
            )
        if accepted.status:
            return row.status == accepted.status
        if not accepted.change or (row.change or {}).get("id") == accepted.change:
            return not accepted.change
        facts = row.replacing or {}
        if facts.get("id") == accepted.change and facts.get("status") in (FAILED, CANCELLED):
            raise failure_of(row, facts)
        return True

    def name_now(self, accepted: AcceptedRequest) -> str:
        """Return the view's current name for URL paths; a rename may still be in progress."""
        rows = self._control.list_views()
        row = next((r for r in rows if r.identity == accepted.identity), None)
        return accepted.name if row is None else path_name(row.schema, row.name)

    # --- inside ----------------------------------------------------------------------------------

    def _row(self, name: str, operation: str, by: Caller) -> ViewRow:
        """Return the view of this name; fail unless the caller may do the operation on it."""
        self._control.ensure()
        row = find_view(self._control, name)
        self._authorization.require(by, operation, row)
        return row

    def _require_no_sinks(self, row: ViewRow, why: str) -> None:
        found = sink_records.list_sinks(self._control)
        if names := [s.name for s in found if s.view_identity == row.identity]:
            raise sinks_refuse(row.title, names, why)


def _renamed_queries(row: ViewRow, table: SinkTable, children: Iterable[ViewRow]) -> dict[str, str]:
    """Return, by identity, the queries of the readers with the view's new name."""
    queries, refused = {}, {}
    for child in children:
        if group_of(child) != group_of(row):
            refused[child.title] = ["it computes this view, in a group of its own"]
            continue
        if child.status not in CHANGEABLE or child.change is not None:
            raise busy(child)
        old, new = (row.schema, row.name), (table.schema, table.name)
        try:
            queries[child.identity] = with_renamed_table(child.query, old, new)
        except ValueError as error:
            refused[child.title] = [str(error)]
    if refused:
        raise readers_refuse(row.title, refused)
    return queries


def failure_of(row: ViewRow, facts: Mapping[str, Any]) -> TidemarkError:
    """Return the error of a change that failed or was cancelled."""
    kind = facts.get("kind", "change")
    if facts["status"] == CANCELLED:
        return TidemarkError(
            "view.cancelled",
            f'the {kind} of view "{row.title}" was cancelled',
            hint="request it again",
        )
    return TidemarkError(
        facts.get("code") or "view.failed",
        f'the {kind} of view "{row.title}" failed; the view is unchanged',
        detail=facts.get("detail") or "",
        hint=facts.get("hint") or "",
    )


def _require_no_cycle(row: ViewRow, definition: ViewDefinition, rows: Sequence[ViewRow]) -> None:
    below = {(r.schema, r.name) for r in (row, *_staying(row, rows))}
    found = [p for p in definition.views_named() if (p.schema, p.name) in below]
    if found:
        raise TidemarkError(
            "view.cycle",
            f'view "{row.title}" would read itself',
            detail=f"the query reads {', '.join(map(str, found))}",
            hint="a view must not read itself, directly or through other views",
        )


def _staying(row: ViewRow, rows: Sequence[ViewRow]) -> list[ViewRow]:
    """Return the views that read this one, directly or indirectly, and are not being dropped."""
    return [r for r in readers_of(row, rows) if r.desired != DesiredState.DROPPED]
