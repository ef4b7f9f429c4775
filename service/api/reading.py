"""Rows of views, and one-shot queries.

Invariant: each response is read in one READ ONLY snapshot, under a timeout, and names the
snapshot's position. Nothing is stored. Thread-safe.
"""

from __future__ import annotations

import json
from typing import Any

from connectors.postgres.analysis.stub_relations import name_of
from connectors.postgres.catalog.catalog import ViewRow
from connectors.postgres.query.history_rows import read_difference
from connectors.postgres.query.one_shot import Answer, OneShot, prepare, run
from connectors.postgres.query.view_rows import Past, read_page
from connectors.postgres.schema.sink_target import target_of
from dataflow.errors import SinkError, SqlError, TidemarkError
from dataflow.lexer import tokens
from service.api.models import Query
from service.api.row_pages import (
    DifferenceOptions,
    RowOptions,
    difference_json,
    difference_points,
    page_json,
    page_request,
)
from service.factory.service_factory import ServiceFactory
from service.ingest.declared_sources import relations_of
from service.runtime.settings import DEFAULT_GROUP
from service.runtime.view_names import path_name
from service.sinks.sink_workers import shown_positions
from service.views.groups import group_of
from service.views.lifecycle import READABLE, DesiredState
from service.views.requested_changes import table_of
from service.views.view_lookup import find_view, require_readable, view_not_found

READ_TIMEOUT_S = 30.0
_GONE = ("sink.table_missing", "sink.table_changed", "sink.no_progress")


class Reading:
    """One per API process; thread-safe."""

    def __init__(self, factory: ServiceFactory) -> None:
        self._settings = factory.settings
        self._control = factory.control()

    def page(self, view: str, options: RowOptions, role: str = "") -> tuple[bytes, str]:
        """Return a page of a view's rows as JSON, and its entity tag.

        role: whose rights on the view's past count, "" for the service's.

        TidemarkError view.not_found, view.not_live and the rows.* of `page_request`, `read_page`.
        SinkError sink.table_missing, sink.table_changed if someone changed the table manually.
        """
        self._control.ensure()
        row = find_view(self._control, view)
        while True:
            try:
                return self._page(row, options, role)
            except SinkError as error:
                # The view may have been dropped, renamed or replaced since the lookup.
                before, row = row, find_view(self._control, view)
                if error.code in _GONE and row.desired == DesiredState.DROPPED:
                    raise view_not_found(row.schema, row.name) from None
                if error.code not in _GONE or table_of(row) == table_of(before):
                    raise

    def _page(self, row: ViewRow, options: RowOptions, role: str) -> tuple[bytes, str]:
        past = Past(options.as_of, role) if options.as_of else None
        if row.status not in READABLE and past is None:
            raise TidemarkError(
                "view.not_live",
                f'view "{row.title}" is not live',
                detail=f"it is {row.status}",
                hint="read it once it is live",
            )
        request = page_request(table_of(row), options)
        key = self._settings.for_group(group_of(row)).sink_key
        page = read_page(self._settings.sink, key, request, READ_TIMEOUT_S, past)
        return page_json(request, page)

    def difference(self, view: str, options: DifferenceOptions, role: str) -> bytes:
        """Return a page of what a view has at one point and lacks at another, as JSON.

        role: whose rights count, "" for the service's. TidemarkError view.not_found,
        rows.bad_page, history.*, auth.rights.
        """
        self._control.ensure()
        table = table_of(find_view(self._control, view))
        points, skipped = difference_points(options)
        window = skipped, options.limit
        found = read_difference(
            self._settings.sink, table, points, window, role=role, timeout_s=READ_TIMEOUT_S
        )
        return difference_json(table, found, skipped)

    def prepare(
        self, body: Query, role: str, *, reads_tables: bool = True
    ) -> tuple[str, OneShot, list[str]]:
        """Return (DSN of the database, prepared query, names of the views that it reads).

        role: whose rights count in the database, "" for the service's own. reads_tables: without a
        role, allow tables besides maintained views.
        SqlError; TidemarkError query.not_allowed, query.two_databases, query.feed_not_kept,
        view.rights_revoked.
        """
        self._control.ensure()
        rows = self._control.list_views()
        settings = self._settings
        dsns = list(dict.fromkeys((settings.sink, settings.source)))
        refusals: list[SqlError] = []
        for dsn in dsns:
            try:
                found = prepare(dsn, body.query, role, reads_tables=reads_tables)
            except SqlError as error:
                if error.code != "sql.undefined_table":
                    raise
                refusals.append(error)
                continue
            views = [r for r in rows if _tables(r) & set(found.relations)]
            for row in views:
                require_readable(row)
            return dsn, found, [path_name(r.schema, r.name) for r in views]
        raise self._explained(body.query, rows, refusals)

    def _explained(
        self, query: str, rows: list[ViewRow], refusals: list[SqlError]
    ) -> TidemarkError:
        """Return the error of a query whose relations are in no single database."""
        words = {name_of(token) for token in tokens(query)}
        feeds = [r for s in self._control.list_sources() for r in relations_of(s)]
        named = next((r.name for r in feeds if r.name.name in words), None)
        if named is not None:
            return TidemarkError(
                "query.feed_not_kept",
                f'rows of relation "{named.name}" of source "{named.source}" are not stored',
                hint="create a view of it, and query that view",
                position=refusals[-1].position,
            )
        view = next((r.title for r in rows if r.name in words), None)
        if view is not None and len(refusals) > 1:
            return TidemarkError(
                "query.two_databases",
                f'the query reads view "{view}" and a table of the source: two databases',
                detail=f"in the sink: {refusals[0].what}; at the source: {refusals[1].what}",
                hint="create a view of the join, or query only one of the databases",
                position=refusals[-1].position,
            )
        return refusals[-1]

    def run(self, dsn: str, query: OneShot, body: Query) -> bytes:
        """Run the query and return its answer as JSON. SqlError; TemporaryError query.timeout."""
        answer = run(dsn, query, body.limit, body.timeout_s)
        is_sink = dsn == self._settings.sink
        head = {
            "fields": [
                {"name": f.name, "type": f.type.name, "nullable": f.is_nullable}
                for f in query.fields
            ],
            "has_more": answer.has_more,
            "views": self._shown(answer) if is_sink else {},
            "position": answer.position if dsn == self._settings.source else None,
        }
        shown = json.dumps(head, ensure_ascii=False)[:-1]
        return f'{shown}, "rows": [{",".join(answer.rows)}]}}'.encode()

    def _shown(self, answer: Answer) -> dict[str, Any]:
        """Return epoch and positions of each group of views of this service."""
        own = self._settings.sink_key
        return {
            key.removeprefix(own).lstrip("/") or DEFAULT_GROUP: {
                "epoch": progress.epoch,
                "positions": shown_positions(progress.positions),
            }
            for key, progress in answer.progress.items()
            if key == own or key.startswith(f"{own}/")
        }


def _tables(row: ViewRow) -> set[tuple[str, str]]:
    """Return the name of the table that a plan contains for a view."""
    target = target_of(table_of(row))
    return {(target.schema, target.name)}
