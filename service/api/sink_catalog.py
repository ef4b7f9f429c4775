"""Additional sinks: add, show and drop them.

Invariant: options, target and view are checked before the sink enters the catalog, so that only
later changes can make it fail. Thread-safe.
"""

from __future__ import annotations

import uuid
from functools import partial

from connectors.postgres.catalog import sink_records
from connectors.postgres.catalog.catalog import ViewRow
from connectors.postgres.catalog.sink_records import SinkRow
from connectors.sink import SinkTable
from dataflow.errors import TidemarkError
from service.access.authorization import Authorization
from service.access.tokens import Caller
from service.api.connector_calls import ConnectorCalls
from service.api.models import CreateSink, SinkModel
from service.api.problems import problem_of_row
from service.engine import output_fields
from service.factory.service_factory import ServiceFactory
from service.sinks.sink_workers import ERASED, LIVE
from service.views.groups import group_of
from service.views.lifecycle import ViewState
from service.views.view_facts import busy
from service.views.view_lookup import find_view

DROPPED = "dropped"


class SinkCatalog:
    """One per API process; thread-safe."""

    def __init__(
        self,
        factory: ServiceFactory,
        authorization: Authorization,
        calls: ConnectorCalls | None = None,
    ) -> None:
        self._factory = factory
        self._calls = calls or ConnectorCalls()
        self._authorization = authorization
        self._control = factory.control()

    def add(self, view: str, body: CreateSink, by: Caller) -> SinkModel:
        """Request a sink of a live view.

        TidemarkError view.not_live, view.busy, sink.exists, and errors of its options and target.
        """
        row = self._view(view)
        self._authorization.require(by, "sink.add", row)
        if row.status != ViewState.LIVE or row.desired != LIVE:
            raise TidemarkError(
                "view.not_live",
                f'view "{row.title}" is not live',
                detail=f"it is {row.status}",
                hint="add sinks once the view is live",
            )
        if row.change is not None:
            # The new version may have other columns or another name, which the sink would not have.
            raise busy(row)
        taken = sink_records.find_sink(self._control, row.identity, body.name)
        if taken is not None:
            raise sink_records.name_taken(taken)
        names = [f["name"] for f in row.fields or []]
        key = tuple(names.index(name) for name in row.key or [])
        table = SinkTable(row.schema, row.name, output_fields.from_json(row.fields or []), key)
        check = partial(self._factory.checked_options, body.type, body.options, table, body.name)
        options = self._calls.result("sink", body.name, by.name, check)
        sink = SinkRow(
            row.schema,
            row.name,
            body.name,
            body.type,
            uuid.uuid4().hex,
            row.identity,
            group_of(row),
            options,
        )
        stored = sink_records.insert_sink(self._control, sink)
        if stored is None:
            raise busy(self._view(view))
        return _model(stored)

    def list(self, view: str) -> list[SinkModel]:
        """Return the sinks of a view, oldest first."""
        return [_model(sink) for sink in self._sinks(self._view(view))]

    def show(self, view: str, name: str) -> SinkModel:
        """Return one sink with its status. TidemarkError sink.not_found."""
        return _model(self._sink(self._view(view), name))

    def drop(self, view: str, name: str, by: Caller, *, is_erased: bool) -> str:
        """Request the drop of a sink and return its identity. is_erased: delete its data too."""
        row = self._view(view)
        self._authorization.require(by, "sink.drop", row)
        sink = self._sink(row, name)
        desired = ERASED if is_erased else DROPPED
        sink_records.update_sink(self._control, sink.identity, desired=desired, status="dropping")
        return sink.identity

    def erase_all(self, view: str, by: Caller) -> None:
        """Request that all sinks of a view are dropped with their data."""
        row = self._view(view)
        self._authorization.require(by, "sink.drop", row)
        sink_records.drop_sinks(self._control, row.identity, is_erased=True)

    def exists(self, identity: str) -> bool:
        """Return True while a sink of this identity exists."""
        return any(s.identity == identity for s in sink_records.list_sinks(self._control))

    def _sinks(self, row: ViewRow) -> list[SinkRow]:
        found = sink_records.list_sinks(self._control)
        return [s for s in found if s.view_identity == row.identity]

    def _sink(self, row: ViewRow, name: str) -> SinkRow:
        found = sink_records.find_sink(self._control, row.identity, name)
        if found is None:
            raise TidemarkError(
                "sink.not_found",
                f'view "{row.title}" has no sink "{name}"',
                hint="check the name: the list of the view's sinks has all of them",
            )
        return found

    def _view(self, name: str) -> ViewRow:
        return find_view(self._control, name)


def _model(row: SinkRow) -> SinkModel:
    return SinkModel(
        name=row.name,
        view=f"{row.schema}.{row.view}",
        type=row.type,
        status=row.status,
        options=dict(row.options),
        epoch=row.epoch,
        positions=dict(row.positions or {}),
        backlog_bytes=row.backlog_bytes,
        error=problem_of_row(row),
        created_at=row.created_at.isoformat() if row.created_at else "",
        live_at=row.live_at.isoformat() if row.live_at else None,
    )
