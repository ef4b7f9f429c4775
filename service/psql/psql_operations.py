"""Operations of `CALL tidemark....`: each is REST's operation, with the rights of psql's role.

An operation stores its target view (`note`), requests the work, and returns a `Poll`.
Invariant: an operation that begins twice is executed once. After an API process was killed, the
next one begins its requests again; the stored target shows what is already done. Thread-safe.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from connectors.postgres.catalog.catalog import Control, ViewRow
from connectors.postgres.catalog.requests import Outcome, Request
from dataflow.errors import TidemarkError
from service.access.authorization import Authorization, of_session, operation_of
from service.api.catalog import Catalog
from service.api.models import CreateView
from service.api.sink_catalog import SinkCatalog
from service.api.source_catalog import SourceCatalog
from service.api.source_models import CreateSource
from service.psql.psql_errors import failure_of
from service.runtime.view_names import parse_name, path_name
from service.views.lifecycle import DesiredState, ViewState

# Returns the outcome of a request from the current catalog rows; None while in progress.
Poll = Callable[[Mapping[str, ViewRow]], Outcome | None]


class NoOptions(BaseModel):
    """Options of operations without options. The procedure itself handles `wait`."""

    model_config = ConfigDict(extra="forbid")


class DropOptions(BaseModel):
    """drop_data: also delete the data of the view's additional sinks; earlier: drop_topics."""

    model_config = ConfigDict(extra="forbid")

    drop_data: bool = False
    drop_topics: bool = False


class Subject(BaseModel):
    """The target of an operation."""

    name: str = Field(min_length=1)


class DropView(Subject):
    """The arguments of drop_view."""

    options: DropOptions


class DropSource(Subject):
    """The arguments of drop_source and retry_source."""

    options: NoOptions


class GrantedSource(Subject):
    """The arguments of grant_source and revoke_source. name: a source, or source.relation."""

    role: str = Field(min_length=1)
    options: NoOptions

    @property
    def subject(self) -> tuple[str, str]:
        """Return the source, and the relation or ""."""
        source, _, relation = self.name.partition(".")
        return source, relation


class Owned:
    """Finds the views of requests, which their callers must own."""

    def __init__(self, control: Control, authorization: Authorization) -> None:
        self._control = control
        self._authorization = authorization

    def find(self, request: Request, text: str) -> ViewRow | None:
        """Return the target view; None if it was noted and no longer exists.

        TidemarkError view.bad_name, view.not_found, view.not_owner.
        """
        if request.target is not None:
            rows = self._control.list_views()
            row = next((row for row in rows if row.identity == request.target), None)
        else:
            row = self._named(text)
        if row is not None:
            name = operation_of(request.operation)
            self._authorization.require(of_session(request), name, row)
        return row

    def _named(self, text: str) -> ViewRow:
        schema, name = parse_name(text)
        row = self._control.get_view(schema, name)
        if row is None:
            other = self._control.other_service_of(schema, name)
            raise TidemarkError(
                "view.not_found",
                f'view "{schema}.{name}" does not exist',
                detail=f'it belongs to the service "{other}"' if other else "",
                hint="SELECT schema, name FROM tidemark.status;",
            )
        return row

    def note(self, request: Request, target: str | None) -> None:
        """Store the target view of a request, before anything else is done."""
        self._control.rows(
            "UPDATE tidemark.requests SET status = 'running', target = %s WHERE id = %s "
            "RETURNING 1",
            target,
            request.id,
        )


class Operations:
    """The operations by procedure name; thread-safe."""

    def __init__(
        self,
        owned: Owned,
        control: Control,
        catalog: Catalog,
        sinks: SinkCatalog,
        sources: SourceCatalog,
    ) -> None:
        self.owned = owned
        self._control = control
        self._catalog = catalog
        self._sinks = sinks
        self._sources = sources
        self._by_name: dict[str, Callable[[Request], Poll]] = {
            "create_view": self._create_view,
            "drop_view": self._drop_view,
            "create_source": self._create_source,
            "drop_source": self._drop_source,
            "retry_source": self._retry_source,
            "grant_source": self._grant_source,
            "revoke_source": self._revoke_source,
        }

    def add(self, operations: Mapping[str, Callable[[Request], Poll]]) -> None:
        """Add operations, by procedure name."""
        self._by_name.update(operations)

    def begin(self, request: Request) -> Poll:
        """Begin a request; do nothing twice. TidemarkError."""
        # Refuses names that are not in the table of operations.
        operation_of(request.operation)
        return self._by_name[request.operation](request)

    # --- views -------------------------------------------------------------------------------

    def _create_view(self, request: Request) -> Poll:
        body = parsed(CreateView, request.arguments)
        self.owned.note(request, request.identity)
        if not any(row.identity == request.identity for row in self._control.list_views()):
            self._catalog.create(body, of_session(request), request.identity)
        return lambda rows: _is_live(rows, request.identity)

    def _drop_view(self, request: Request) -> Poll:
        body = parsed(DropView, request.arguments)
        row = self.owned.find(request, body.name)
        if row is not None and row.desired != DesiredState.DROPPED:
            self.owned.note(request, row.identity)
            name = path_name(row.schema, row.name)
            by = of_session(request)
            erase = functools.partial(self._sinks.erase_all, name, by)
            is_erased = body.options.drop_data or body.options.drop_topics
            self._catalog.drop(name, by, erase if is_erased else None)
        identity = row.identity if row is not None else request.target or ""
        return lambda _: None if self._catalog.exists(identity) else Outcome("view is dropped")

    # --- sources -----------------------------------------------------------------------------

    def _create_source(self, request: Request) -> Poll:
        body = parsed(CreateSource, request.arguments)
        if request.status != "running" or self._control.get_source(body.name) is None:
            self.owned.note(request, None)
            self._sources.create(body, of_session(request))
        return lambda _: Outcome(f'source "{body.name}" is declared')

    def _drop_source(self, request: Request) -> Poll:
        name = parsed(DropSource, request.arguments).name
        if request.status != "running" or self._control.get_source(name) is not None:
            by = of_session(request)
            self._sources.show(name, by)
            self.owned.note(request, None)
            self._sources.drop(name, by)
        return lambda _: Outcome(f'source "{name}" is dropped')

    def _retry_source(self, request: Request) -> Poll:
        name = parsed(DropSource, request.arguments).name
        self.owned.note(request, None)
        self._sources.retry(name, of_session(request))
        return lambda _: Outcome(f'source "{name}" is being retried')

    def _grant_source(self, request: Request) -> Poll:
        body = parsed(GrantedSource, request.arguments)
        self.owned.note(request, None)
        self._sources.grant(*body.subject, body.role, of_session(request))
        return lambda _: Outcome(f'"{body.name}" is granted to "{body.role}"')

    def _revoke_source(self, request: Request) -> Poll:
        body = parsed(GrantedSource, request.arguments)
        is_repeated = request.status == "running"
        self.owned.note(request, None)
        try:
            self._sources.revoke(*body.subject, body.role, of_session(request))
        except TidemarkError as error:
            # The process that began the request may have taken it back before it was killed.
            if not (is_repeated and error.code == "source.grant_missing"):
                raise
        return lambda _: Outcome(f'"{body.name}" is revoked from "{body.role}"')


def _is_live(rows: Mapping[str, ViewRow], identity: str) -> Outcome | None:
    """Return the outcome once a view is live, failed or dropped; None before."""
    row = rows.get(identity)
    if row is None or row.desired == DesiredState.DROPPED:
        return failure_of(
            TidemarkError("view.dropped", "the view was dropped while it was being built")
        )
    if row.status == ViewState.FAILED:
        code = row.code or "view.failed"
        return failure_of(
            TidemarkError(
                code, f'view "{row.title}" has failed', detail=row.detail or "", hint=row.hint or ""
            )
        )
    if row.status != ViewState.LIVE:
        return None
    return Outcome(f"view {row.title} is live", warnings=row.warnings)


Model = TypeVar("Model", bound=BaseModel)


def parsed(model: type[Model], arguments: Mapping[str, Any]) -> Model:
    """Return the arguments as REST's model of the same call. TidemarkError request.invalid."""
    try:
        return model.model_validate(dict(arguments))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise TidemarkError(
            "request.invalid",
            f'"{where}" is not valid',
            detail=first["msg"],
            hint="see docs/PSQL.md for the arguments and options of each procedure",
        ) from None
