"""Create, validate, drop and describe views.

State is in the control tables and the pipeline's figures only, so an API process can be killed
and started at any time. Thread-safe.
Invariant: a request is checked completely before it enters the catalog. A refused request leaves
nothing behind.
"""

from __future__ import annotations

import functools
import json
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from connectors.postgres.catalog import history_records, sink_records, verification_records
from connectors.postgres.catalog.catalog import SourceRow, TimeFacts, ViewRow
from connectors.postgres.session.lsn import format_lsn, parse_lsn
from connectors.sink import Progress
from connectors.source import MAIN_SOURCE
from dataflow.errors import TidemarkError
from dataflow.plan.explain import explain_text
from dataflow.plan.properties.view_key import reason_without_key
from dataflow.schema import VIEW_SOURCE, stored
from service.access.authorization import Authorization
from service.access.tokens import Caller
from service.api.clock import planned_with_clock
from service.api.health import StatusInputs, service_standing, view_standing, warnings_of
from service.api.models import (
    CreateView,
    DataflowAnswer,
    Health,
    HistoryModel,
    PlanAnswer,
    Validation,
    ViewModel,
    ViewOptions,
    field_models,
)
from service.api.placement import SPARK, placed
from service.api.shared_nodes import dataflow_of, shared_with_others, shown
from service.api.source_reads import SourceReads, lines_of
from service.api.status_collector import Standings
from service.backfill.engine_choice import work_of
from service.engine import output_fields
from service.engine.definition import ViewDefinition
from service.engine.state_version import versions
from service.factory.computed_views import with_views_computed
from service.factory.planning import NO_HISTORY, TimeOptions, clock_of, plan_definition
from service.factory.service_factory import SOURCE, ServiceFactory
from service.metrics.metrics import read_dataflow
from service.runtime.deep_stack import deeply
from service.runtime.settings import DEFAULT_GROUP, Settings
from service.runtime.view_names import parse_name, path_name
from service.verify.estimate import SHORT_S, check_rows, estimated
from service.views.dependencies import children_of
from service.views.groups import follows_database, group_of
from service.views.lifecycle import READABLE, DesiredState, ViewEvent, ViewState, change
from service.views.plan_facts import plan_facts, requirement_facts
from service.views.requested_changes import table_of
from service.views.view_facts import key_names, kind_of, require_parents
from service.views.view_lookup import find_view
from storage.failpoints import failpoint

MAX_POSITION = 2**64 - 1


class Catalog:
    """The views of a service; one per API process, thread-safe."""

    def __init__(
        self,
        settings: Settings,
        factory: ServiceFactory,
        authorization: Authorization,
        standings: Standings,
    ) -> None:
        self._settings = settings
        self._factory = factory
        self._authorization = authorization
        self._standings = standings
        self._control = factory.control()
        sources = self._control.list_sources
        self._placed = functools.partial(placed, settings=settings, sources=sources)
        self._sink = factory.sink()

    # --- creating ----------------------------------------------------------------------------

    def create(self, body: CreateView, by: Caller, identity: str = "") -> str:
        """Request a view and return its name in the form of URL paths.

        Fail if the query cannot be maintained. by: the caller; its database role will own the view
        and must be able to read the view's tables. identity: makes the call idempotent.
        """
        schema, name = parse_name(body.name)
        self._control.ensure()
        self._authorization.require(by, "view.create")
        requester = by.db_role
        rows = self._control.list_views()
        identity, options = identity or uuid.uuid4().hex, body.options.model_dump()
        definition = self._planned(
            identity, (schema, name), body.query, rows, by=by, options=body.options
        )
        estimate = estimated(self._factory, definition, rows, body.options.backfill, SHORT_S)
        place = self._placed(definition, body.options, estimate)
        definition, group = place.definition, place.group
        options |= {"runtime": place.runtime, "group": group}
        require_parents(definition, rows, group)
        self._authorization.require_schema(by, schema)
        self._authorization.require_parents(requester, definition.views_named())
        self._sink.check(definition.table)
        if body.options.history not in (None, NO_HISTORY):
            self._factory.view_tables().check_history(definition.table)
        self._check_slot(definition, [r for r in rows if group_of(r) == group], group)
        self._factory.source.check_given(
            [r for r in definition.relations() if r.name.source == SOURCE]
        )
        plan = definition.plan
        warnings = [*plan.warnings, *place.warnings, *check_rows(estimate, body.options.max_rows)]
        self._control.insert_view(
            ViewRow(
                schema,
                name,
                body.query,
                definition.identity,
                kind=kind_of(plan),
                options=options,
                key=key_names(plan),
                fields=output_fields.to_json(stored(plan.root.fields)),
                plan=deeply(lambda: plan_facts(definition, estimate)),
                warnings=warnings,
                created_by=requester,
            )
        )
        failpoint("api.view.created")
        return path_name(schema, name)

    def validate(self, query: str, by: Caller, options: ViewOptions | None = None) -> Validation:
        """Return what the query would become if this caller created it with these options."""
        options = options or ViewOptions.model_validate({})
        time = TimeOptions.of(options.model_dump())
        self._control.ensure()
        self._authorization.require(by, "view.validate")
        requester = by.db_role
        rows = self._control.list_views()
        definition = self._planned("", ("", ""), query, rows, by=by, options=options, is_trial=True)
        self._authorization.require_parents(requester, definition.views_named())
        plan = definition.plan
        estimate = estimated(self._factory, definition, rows, options.backfill)
        place = self._placed(definition, options, estimate)
        warnings = [*plan.warnings, *place.warnings, *check_rows(estimate, None)]
        why_no_key = reason_without_key(plan.root)
        found = deeply(lambda: requirement_facts(place.definition.plan))
        reads = SourceReads(rows, self._control.list_sources()).of(found, place.group)
        text = deeply(lambda: explain_text(place.definition.plan))
        return Validation(
            kind=kind_of(plan),
            key=key_names(plan),
            why_no_key=why_no_key,
            why_bag=why_no_key,
            fields=field_models(output_fields.to_json(stored(plan.root.fields))),
            warnings=warnings,
            in_postgres=list(plan.evaluates),
            estimated_source_rows=sum(max(0, r.row_estimate) for r in definition.relations()),
            backfill=estimate.engine if estimate else self._engine_of(definition, options),
            runtime=place.runtime,
            reads=reads,
            asks=reads,
            plan="\n".join([text, *lines_of(reads)]),
            estimate=estimate,
            now=clock_of(plan, time),
            time_zone=time.time_zone,
        )

    def _planned(
        self,
        identity: str,
        name: tuple[str, str],
        query: str,
        rows: Sequence[ViewRow],
        *,
        by: Caller,
        options: ViewOptions,
        is_trial: bool = False,
    ) -> ViewDefinition:
        """Return a view's definition; on Spark it computes the views that its query names.

        is_trial: declare nothing. SourceError source.no_grant and the errors of `plan_definition`.
        """

        def plan(sources: Sequence[SourceRow]) -> ViewDefinition:
            found = plan_definition(
                identity,
                name,
                query,
                self._factory,
                rows,
                sources=sources,
                requester=by.db_role,
                options=options.model_dump(),
            )
            self._authorization.require_feeds(by, found.relations(), query)
            is_alone = options.runtime == SPARK
            return with_views_computed(found, self._factory, rows, sources) if is_alone else found

        return planned_with_clock(self._control, self._factory, plan, is_trial=is_trial)

    def _engine_of(self, definition: ViewDefinition, options: ViewOptions) -> str:
        """Return the engine of a view's backfill by the sizes of its relations alone."""
        work = work_of(definition.relations(), None)
        return self._factory.choose_engine(work, options.backfill).engine

    def _check_slot(
        self, definition: ViewDefinition, others: Sequence[ViewRow], group: str
    ) -> None:
        """Fail if a view is the first of its group to need a slot, and there can be none.

        others: the views of the group.
        """
        relations = definition.relations()
        is_first = not any(map(follows_database, others))
        needs_slot = any(r.name.source == SOURCE for r in relations) or not (relations or others)
        if needs_slot and is_first:
            ServiceFactory(self._settings.for_group(group)).source.check()

    def drop(self, name: str, by: Caller, before: Callable[[], None] | None = None) -> str:
        """Request the drop of a view and return its identity. Fail while other views read it.

        before: called after all checks have passed.
        """
        row = self._row(name)
        self._authorization.require(by, "view.drop", row)
        children = children_of(row, self._control.list_views())
        if children:
            raise TidemarkError(
                "view.has_children",
                f'view "{row.title}" is read by other views',
                detail=", ".join(c.title for c in children),
                hint="drop those views first",
            )
        dependents = self._factory.view_tables().dependents(table_of(row))
        if dependents:
            raise TidemarkError(
                "view.has_dependents",
                f'view "{row.title}" cannot be dropped: other objects depend on its table',
                detail=", ".join(dependents),
                hint="drop those objects first",
            )
        if before is not None:
            before()
        change(
            self._control, row.identity, ViewEvent.DROP, "asked for", desired=DesiredState.DROPPED
        )
        return row.identity

    def exists(self, identity: str) -> bool:
        """Return True while the view, or a sink of it, exists."""
        if any(r.identity == identity for r in self._control.list_views()):
            return True
        sinks = sink_records.list_sinks(self._control)
        return any(sink.view_identity == identity for sink in sinks)

    # --- reading -------------------------------------------------------------------------------

    def view(self, name: str) -> ViewModel:
        """Return one view with its current status."""
        row = self._row(name)
        verified = verification_records.newest(self._control)
        inputs = self._standings.inputs()
        counts = self._control.count_errors(), self._control.time_facts()
        reads = self._reads_beside(row)
        return self._model(row, counts, verified, inputs, self._past(), source_reads=reads)

    def views(self, by: Caller, most: int | None = None, after: str = "") -> list[ViewModel]:
        """Return the views that the caller may see, ordered by name.

        most: at most so many. after: only those after this name. TidemarkError view.bad_name.
        """
        self._control.ensure()
        after_name = parse_name(after) if after else ("", "")
        counts = self._control.count_errors(), self._control.time_facts()
        verified = verification_records.newest(self._control)
        all_rows = self._control.list_views()
        rows = self._authorization.visible(by, all_rows)
        rows.sort(key=lambda r: (r.schema, r.name))
        found = [r for r in rows if (r.schema, r.name) > after_name][:most]
        inputs = replace(self._standings.inputs(), views=all_rows)
        past, reads = self._past(), self._source_reads(all_rows)
        return [
            self._model(row, counts, verified, inputs, past, source_reads=reads) for row in found
        ]

    def plan(self, name: str) -> PlanAnswer:
        """Return the plan of a view, and the parts that it shares with other views."""
        row = self._row(name)
        facts = row.plan or {}
        shared = shared_with_others(row.title, self._dataflow_figures(row)["nodes"])
        reads = self._reads_beside(row).of_view(row)
        return PlanAnswer(
            text="\n".join([facts.get("text", ""), *lines_of(reads), *map(shown, shared)]),
            tree=facts.get("tree", {}),
            in_postgres=facts.get("in_postgres", []),
            shared=shared,
        )

    def dataflow(self, name: str) -> DataflowAnswer:
        """Return the nodes that compute a view, with figures while it runs."""
        row = self._row(name)
        return dataflow_of(
            row.title, self._dataflow_figures(row), (row.plan or {}).get("nodes", [])
        )

    def metrics(self) -> dict[str, dict[str, Any] | None]:
        """Return the newest figures of each group's pipeline, the default group first."""
        return self._standings.figures()

    def health(self) -> Health:
        """Return the status of the service, its reasons and figures."""
        groups = self._standings.figures()
        status, reasons = service_standing(self._standings.inputs(groups))
        default = groups.pop(DEFAULT_GROUP)
        found = versions()
        return Health(
            status=status, versions=found, pipeline=default, groups=groups, reasons=reasons
        )

    # --- waiting -------------------------------------------------------------------------------

    def check_wait(self, name: str, position: str) -> int:
        """Return the position as a number; fail if the view does not exist."""
        self._row(name)
        try:
            return parse_lsn(position)
        except ValueError as error:
            raise TidemarkError(
                "position.bad",
                str(error),
                hint="use the result of SELECT pg_current_wal_flush_lsn()",
            ) from None

    def visible_position(self, name: str) -> int | None:
        """Return the position that the view's rows show; None while it is not live.

        TidemarkError view.paused: its position does not advance.
        """
        # The position comes first: whatever takes a view out is reported before the next one.
        progress = self._progress(group_of(self._row(name)))
        row = self._row(name)
        if row.status == ViewState.PAUSED and row.change is None:
            raise TidemarkError(
                "view.paused",
                f'view "{row.title}" is paused',
                detail=f"its rows show position {(row.positions or {}).get(SOURCE, 'none')}",
                hint="resume the view",
            )
        if row.status != ViewState.LIVE:
            return None
        if progress is None:
            return None
        # The view reads no table of the database, so every position is visible.
        return progress.positions.get(SOURCE, MAX_POSITION)

    def current_position(self) -> int:
        """Return the source's current commit position."""
        return self._factory.source.current_position()

    def nudge_source(self) -> None:
        """Commit a WAL message, so that the position of an idle source advances at once."""
        self._factory.source.heartbeat()

    def wait_timeout(self, name: str, position: str, reached: int | None) -> TidemarkError:
        """Return the error of a wait that timed out."""
        shown = "none yet" if reached is None else format_lsn(reached)
        return TidemarkError(
            "view.wait_timeout",
            f'view "{name}" has not reached position {position} in time',
            detail=f"visible now: {shown}",
            hint="check the view's status and lag, or raise timeout_s",
        )

    def format_position(self, position: int) -> str:
        """Return a position in PostgreSQL's notation."""
        return format_lsn(position)

    # --- inside --------------------------------------------------------------------------------

    def _row(self, name: str) -> ViewRow:
        return find_view(self._control, name)

    def _dataflow_figures(self, row: ViewRow) -> dict[str, Any]:
        """Return the node figures that the pipeline of the view's group wrote last."""
        return read_dataflow(self._settings.for_group(group_of(row)).state)

    def _source_reads(self, rows: Sequence[ViewRow]) -> SourceReads:
        return SourceReads(rows, self._control.list_sources())

    def _reads_beside(self, row: ViewRow) -> SourceReads:
        """Return what is read beside a view; of the database and of views nothing has to be
        known."""
        read = {facts["source"] for facts in (row.plan or {}).get("asks", [])}
        if read <= {MAIN_SOURCE, VIEW_SOURCE}:
            return SourceReads((), ())
        return self._source_reads(self._control.list_views())

    def _progress(self, group: str) -> Progress | None:
        return self._control.read_progress(self._settings.for_group(group).sink_key)

    def _past(self) -> dict[tuple[str, str], HistoryModel]:
        """Return the retained pasts by view."""
        return {
            name: HistoryModel(
                table=found.relation,
                retained_s=found.retained_s,
                begun_epoch=found.begun_epoch,
                oldest_epoch=found.oldest_epoch,
                oldest_at=found.oldest_at,
            )
            for name, found in history_records.histories(self._control).items()
        }

    def _model(
        self,
        row: ViewRow,
        counts: tuple[dict[str, int], dict[str, TimeFacts]],
        verified: dict[str, dict[str, Any]],
        inputs: StatusInputs,
        past: dict[tuple[str, str], HistoryModel],
        *,
        source_reads: SourceReads,
    ) -> ViewModel:
        errors, times = counts[0], counts[1].get(row.title, TimeFacts())
        group = group_of(row)
        figures = inputs.figures.get(group) or {}
        standing = view_standing(inputs, row)
        reads = source_reads.of_view(row)
        position, positions = None, {}
        if row.status == ViewState.PAUSED:
            positions = dict(row.positions or {})
        if row.status == ViewState.LIVE:
            progress = self._progress(group)
            read = {source for source, _ in (row.plan or {}).get("reads", [])} | {SOURCE}
            if progress is not None:
                positions = {s: p for s, p in progress.positions.items() if s in read}
            position = positions.get(SOURCE)
        lag = None
        # While the source is unreachable, its position is unknown.
        if position is not None and not figures.get("source_error"):
            lag = max(0, figures.get("source_position", 0) - position)
        return ViewModel(
            name=row.name,
            schema_name=row.schema,
            query=row.query,
            status=ViewState(standing.status),
            kind=row.kind or "",
            key=list(row.key or []),
            fields=field_models(row.fields or []),
            options=dict(row.options),
            group=group,
            warnings=[*row.warnings, *warnings_of(inputs, row)],
            rows=self._sink.row_count(table_of(row)) if row.status in READABLE else None,
            positions={s: _shown(p) for s, p in positions.items()},
            lag_bytes=lag,
            backfill=None if row.progress is None else dict(row.progress),
            plan="\n".join([(row.plan or {}).get("text", ""), *lines_of(reads)]),
            errors=errors.get(row.title, 0),
            late_rows=times.late_rows,
            watermarks={column: at.isoformat() for column, at in times.watermarks.items()},
            verification=verified.get(row.identity),
            history=past.get((row.schema, row.name)),
            error=standing.error,
            created_at=row.created_at.isoformat() if row.created_at else "",
            live_at=row.live_at.isoformat() if row.live_at else None,
            version=row.version,
            reads=reads,
            replacing=None if row.replacing is None else dict(row.replacing),
        )


def _shown(position: Any) -> str:
    if isinstance(position, str):
        return position
    return format_lsn(position) if isinstance(position, int) else json.dumps(position)
