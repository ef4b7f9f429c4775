"""Who may do what: the one decision for REST, psql and whatever else acts for somebody.

A caller has an API role, and may have a database role. Without one it acts as the service, which
may do everything that the API role allows. With one PostgreSQL's own rights count, as they are at
this moment: of the role on views, on their schemas, on what a query reads. Which hosts and folders
sources and sinks reach is a setting of the service, for all callers alike
(service/runtime/security_limits.py).
Invariant: a database role that cannot be acted for any more may do nothing; the service's own
rights never stand in for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fastapi import Request
from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection

from connectors.postgres.catalog import role_facts
from connectors.postgres.catalog.catalog import ViewRow
from connectors.postgres.catalog.role_facts import RoleFacts, ViewRights
from connectors.postgres.session.quoting import quote_name
from dataflow.errors import SinkError, SourceError, TidemarkError
from dataflow.schema import RelationName
from service.access.operations import (
    OF_A_VIEW,
    OPERATIONS,
    PROCEDURES,
    Need,
    Operation,
    route_operation,
)
from service.access.tokens import Caller, Role
from service.factory.service_factory import ServiceFactory
from service.views.lifecycle import DesiredState
from service.views.view_lookup import find_view

_DECLARING = {
    "source.declare": "tidemark.create_source(text, text, jsonb)",
    "source.drop": "tidemark.drop_source(text, jsonb)",
    "source.retry": "tidemark.retry_source(text, jsonb)",
}
# Of these the role's rights at the source count too, where that is another database.
_AT_SOURCE = (Need.QUERY, Need.CREATE, Need.OWNED, Need.DECLARE)


class Authorization:
    """One for an API process; safe for several threads."""

    def __init__(self, parts: ServiceFactory) -> None:
        self._parts = parts
        self._control = parts.control()

    def require(self, caller: Caller, name: str, view: ViewRow | None = None) -> None:
        """Whether a caller may do the operation of this name. view: that it is about.

        TidemarkError auth.role, auth.db_role, auth.rights, view.not_owner.
        """
        operation = OPERATIONS[name]
        require_role(caller, operation.least)
        if not caller.db_role or operation.least is Role.PUBLIC:
            return
        facts = self._usable(caller, operation)
        if operation.need is Need.SERVICE:
            raise _no_right(
                f'role "{caller.db_role}" may not do this',
                "take a token without a database role: tokens give rights that it does not have",
            )
        if operation.need is Need.DECLARE:
            self._require_declaring(caller.db_role, _DECLARING[name])
        if operation.need in OF_A_VIEW and view is not None:
            rights = self._rights(caller, [view]).get(view.identity, ViewRights())
            _require_view(caller.db_role, operation.need, view, rights, facts)

    def require_named(self, caller: Caller, name: str, title: str) -> None:
        """The same, by the name of the view; TidemarkError also view.not_found, view.bad_name."""
        is_about_one = OPERATIONS[name].need in OF_A_VIEW
        if is_about_one:
            self._control.ensure()
        self.require(caller, name, find_view(self._control, title) if is_about_one else None)

    def seen(self, caller: Caller, views: Sequence[ViewRow]) -> list[ViewRow]:
        """The views of which a list may tell a caller: those that its role owns or may read."""
        if not caller.db_role:
            return list(views)
        facts, rights = self._usable(caller, OPERATIONS["view.list"]), self._rights(caller)
        return [v for v in views if _is_seen(rights.get(v.identity, ViewRights()), facts)]

    def relations_of(
        self, caller: Caller, name: str, views: Iterable[ViewRow]
    ) -> set[tuple[str, str]] | None:
        """The (source, relation) whose raw records a caller may read, or change ("dead_letter.
        change"): those that some view reads which it may read, or that all views which read them
        are its own. None: any."""
        operation = OPERATIONS[name]
        require_role(caller, operation.least)
        if not caller.db_role:
            return None
        is_change = operation.least is not Role.READER
        facts, rights = self._usable(caller, operation), self._rights(caller)
        found: dict[tuple[str, str], list[bool]] = {}
        for view in views:
            of = rights.get(view.identity, ViewRights())
            is_own = of.is_owner or facts.is_of_service
            may = is_own if is_change else of.may_read
            for source, relation in (view.plan or {}).get("reads", []):
                if view.desired != DesiredState.DROPPED:
                    found.setdefault((source, relation), []).append(may)
        enough = all if is_change else any
        return {relation for relation, each in found.items() if enough(each)}

    def require_records(
        self, caller: Caller, name: str, found: set[tuple[str, str]] | None, *wanted: str
    ) -> None:
        """Whether what `relations_of` has found for a caller and an operation holds a source, or
        some relations of it (wanted: the source, relations). TidemarkError auth.rights."""
        source, *relations = wanted
        if found is None:
            return
        here = {relation for of, relation in found if of == source}
        if here and here.issuperset(relations):
            return
        title = ", ".join(f'"{source}.{r}"' for r in relations if r not in here) or f'"{source}"'
        does = "own all views that read" if name == "dead_letter.change" else "read a view of"
        raise _no_right(
            f'role "{caller.db_role}" may not {does} {title}',
            "records are shown to those who may SELECT from a view that reads them, and tried again"
            " or dropped by the owner of all such views",
        )

    def readers_of(self, caller: Caller, owner: str) -> tuple[str, ...]:
        """The roles that must be allowed to read what a view's query reads, its owner first: both
        who asks for the query and who owns the view, since it shows the answer to its readers."""
        if not caller.db_role or caller.db_role == owner:
            return (owner,)
        facts = role_facts.find_role(self._control, caller.db_role)
        is_service = caller.is_session and facts is not None and facts.is_of_service
        return (owner,) if is_service else (owner, caller.db_role)

    def require_schema(self, caller: Caller, schema: str) -> None:
        """Whether a caller may have a view in a schema: CREATE, as for a table. SinkError
        sink.privilege; a schema that is missing has its own error elsewhere."""
        role = caller.db_role
        if role and role_facts.may_create_in(self._control, role, schema) is False:
            raise SinkError(
                "sink.privilege",
                f'role "{role}" may not create views in schema "{schema}"',
                hint=f"GRANT USAGE, CREATE ON SCHEMA {quote_name(schema)} TO {quote_name(role)};",
            )

    def require_parents(self, role: str, parents: Iterable[RelationName]) -> None:
        """Whether a role may read maintained views that a query reads, where these lie in another
        database than the one that analyzed it. SinkError sink.privilege."""
        if not self._parts.is_sink_apart or not self._parts.role_of(role):
            return
        for parent in parents:
            if not role_facts.may_select(self._control, role, parent.schema, parent.name):
                raise SinkError(
                    "sink.privilege",
                    f'role "{role}" may not read view "{parent.schema}.{parent.name}"',
                    hint=f"GRANT SELECT ON {quote_name(parent.schema)}.{quote_name(parent.name)}"
                    f" TO {quote_name(role)};",
                )

    # --- what the decision rests on --------------------------------------------------------------

    def _usable(self, caller: Caller, operation: Operation) -> RoleFacts:
        """The caller's database role, which the service can act as. A role that has logged in by
        itself (psql) needs no more than to be there."""
        role = caller.db_role
        self._control.ensure()
        facts = role_facts.find_role(self._control, role)
        if facts is None:
            raise _unusable(role, "it does not exist in the sink")
        if caller.is_session:
            return facts
        if facts.is_super:
            raise _unusable(role, "it is a superuser, whose rights no token gives")
        if not self._parts.is_sink_apart and not facts.may_be_set:
            raise _unusable(role, "the service's role is no member of it")
        if self._parts.is_sink_apart and operation.need in _AT_SOURCE:
            try:
                self._parts.source.check_role(role)
            except SourceError as error:
                if error.code != "source.role":
                    raise
                raise _unusable(role, f"at the source: {error.detail}") from None
        return facts

    def _rights(
        self, caller: Caller, views: Sequence[ViewRow] | None = None
    ) -> dict[str, ViewRights]:
        identities = None if views is None else [v.identity for v in views]
        return role_facts.rights_on_views(self._control, caller.db_role, identities)

    def _require_declaring(self, role: str, procedure: str) -> None:
        if not role_facts.may_call(self._control, role, procedure):
            raise _no_right(
                f'role "{role}" may not declare or drop sources',
                f"GRANT EXECUTE ON PROCEDURE {procedure} TO {quote_name(role)}; in the sink",
            )


def require_role(caller: Caller, least: Role) -> None:
    """Whether a caller has an API role, or one that includes it. TidemarkError auth.role."""
    if caller.role < least:
        raise TidemarkError(
            "auth.role",
            f"this needs the role {least.word}",
            detail=f'token "{caller.name}" is of a {caller.role.word}',
            hint="ask an admin for a token of that role",
        )


def of_session(role: str) -> Caller:
    """Who asks by CALL: a role that has logged in to PostgreSQL, and may call the procedure."""
    return Caller("psql", Role.OPERATOR, role, is_session=True)


def operation_of(procedure: str) -> str:
    """The operation of a procedure. TidemarkError request.invalid."""
    if procedure not in PROCEDURES:
        raise TidemarkError(
            "request.invalid",
            f'there is no operation "{procedure}"',
            hint="the procedures of schema tidemark are those that this service knows",
        )
    return PROCEDURES[procedure]


async def authorize(request: HTTPConnection) -> None:
    """What every route depends on: the decision, by the route that was found and its path. A
    WebSocket asks by itself once it is open, so that it can tell why it is refused."""
    if request.scope["type"] == "websocket":
        return
    assert isinstance(request, Request)
    name = route_operation(request.method, request.scope["route"].path)
    await authorize_view(request, name)


async def authorize_view(connection: HTTPConnection, name: str) -> None:
    """The decision on an operation, on the view in the connection's path where it is about one."""
    caller, path = connection.state.caller, connection.path_params
    title = path.get("view") or path.get("name") or ""
    decision: Authorization = connection.app.state.authorization
    if caller.db_role:
        await run_in_threadpool(decision.require_named, caller, name, title)
    else:
        require_role(caller, OPERATIONS[name].least)


def _require_view(
    role: str, need: Need, view: ViewRow, rights: ViewRights, facts: RoleFacts
) -> None:
    is_owner = rights.is_owner or facts.is_of_service
    if need is Need.OWNED and not is_owner:
        hint = "let its owner do it"
        if rights.may_join:
            hint += f", or GRANT {quote_name(view.created_by)} TO {quote_name(role)};"
        raise TidemarkError(
            "view.not_owner",
            f'role "{role}" does not own view "{view.title}"',
            detail=f'its owner is "{view.created_by}"',
            hint=hint,
        )
    is_enough = rights.may_read if need is Need.READ else _is_seen(rights, facts)
    if need is not Need.OWNED and not is_enough:
        name = f"{quote_name(view.schema)}.{quote_name(view.name)}"
        raise _no_right(
            f'role "{role}" may not read view "{view.title}"',
            f"GRANT SELECT ON {name} TO {quote_name(role)}; and USAGE on its schema, in the sink",
        )


def _is_seen(rights: ViewRights, facts: RoleFacts) -> bool:
    return rights.is_owner or rights.may_read or facts.is_of_service


def _no_right(what: str, hint: str) -> TidemarkError:
    return TidemarkError(
        "auth.rights", what, detail="it is the database role of the token", hint=hint
    )


def _unusable(role: str, why: str) -> TidemarkError:
    return TidemarkError(
        "auth.db_role",
        f'database role "{role}" cannot be used any more',
        detail=why,
        hint=f"make the role again, GRANT {quote_name(role)} TO the service's role, or take another"
        " token",
    )
