"""Authorization: the one decision for REST, psql and everything else that acts for a caller.

A caller has an API role, and may have a database role. Without a database role it acts as the
service, and may do everything its API role allows. With one, PostgreSQL's current privileges count:
on views, on their schemas, and on what a query reads. Which hosts and folders sources and sinks may
reach is a setting of the service, the same for all callers (service/runtime/security_limits.py).
Invariant: a database role that can no longer be used may do nothing; the service's own privileges
never replace it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fastapi import Request as HttpRequest
from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection

from connectors.postgres.catalog import role_facts, source_readers
from connectors.postgres.catalog.catalog import ViewRow
from connectors.postgres.catalog.requests import Request
from connectors.postgres.catalog.role_facts import RoleFacts, ViewRights
from connectors.postgres.schema.stored_roles import DROPPED
from connectors.postgres.session.quoting import quote_name
from connectors.source import MAIN_SOURCE
from dataflow.errors import SinkError, SourceError, TidemarkError
from dataflow.schema import Relation, RelationName
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
from service.views.view_lookup import find_view, require_readable

_DECLARING = {
    "source.declare": "tidemark.create_source(text, text, jsonb)",
    "source.drop": "tidemark.drop_source(text, jsonb)",
    "source.retry": "tidemark.retry_source(text, jsonb)",
    "source.grant": "tidemark.grant_source(text, text, jsonb)",
    "source.revoke": "tidemark.revoke_source(text, text, jsonb)",
}
# These read rows of a view, though they need more than the right to read it.
_READING = ("view.verify_kept",)
# For these, privileges at the source count too, if that is another database.
_AT_SOURCE = (Need.QUERY, Need.CREATE, Need.OWNED, Need.DECLARE, Need.DECLARED)


class Authorization:
    """One per API process; thread-safe."""

    def __init__(self, factory: ServiceFactory) -> None:
        self._factory = factory
        self._control = factory.control()

    def require(self, caller: Caller, name: str, view: ViewRow | None = None) -> None:
        """Require that a caller may do an operation. view: the one it concerns.

        TidemarkError auth.role, auth.db_role, auth.rights, view.not_owner, view.rights_revoked.
        """
        operation = OPERATIONS[name]
        require_role(caller, operation.least)
        if view is not None and (operation.need is Need.READ or name in _READING):
            require_readable(view)
        if not caller.db_role or operation.least is Role.PUBLIC:
            return
        facts = self._usable(caller, operation)
        if operation.need is Need.SERVICE:
            raise _no_right(
                f'role "{caller.db_role}" may not use this operation',
                "use a token without a database role",
            )
        if name in _DECLARING:
            self._require_declaring(caller.db_role, _DECLARING[name])
        if operation.need in OF_A_VIEW and view is not None:
            rights = self._rights(caller, [view]).get(view.identity, ViewRights())
            _require_view(caller.db_role, operation.need, view, rights, facts)

    def require_named(self, caller: Caller, name: str, title: str) -> None:
        """Do the same with the view's name. TidemarkError also view.not_found, view.bad_name."""
        is_about_one = OPERATIONS[name].need in OF_A_VIEW
        if is_about_one:
            self._control.ensure()
        self.require(caller, name, find_view(self._control, title) if is_about_one else None)

    def visible(self, caller: Caller, views: Sequence[ViewRow]) -> list[ViewRow]:
        """Return the views that a caller may see in a list: those its role owns or may read."""
        if not caller.db_role:
            return list(views)
        facts, rights = self._usable(caller, OPERATIONS["view.list"]), self._rights(caller)
        return [v for v in views if _is_visible(rights.get(v.identity, ViewRights()), facts)]

    def require_declared(self, caller: Caller, name: str, source: str) -> None:
        """Require that a caller may give and take rights on a source.

        Without a database role it acts as the service, which may for every source. With one, that
        role declared it or is a member of its declarer. TidemarkError source.not_owner, and the
        errors of `require`.
        """
        self.require(caller, name)
        role = caller.db_role
        if role and not source_readers.owns(self._control, role, source):
            declarer = source_readers.declarers(self._control).get(source)
            raise TidemarkError(
                "source.not_owner",
                f'role "{role}" did not declare source "{source}"',
                detail=f'"{declarer}" declared it' if declarer else "the service declared it",
                hint="ask its declarer, or an operator of the service",
            )

    def readable_relations(self, caller: Caller, name: str) -> set[tuple[str, str]] | None:
        """Return the (source, relation) pairs of declared sources whose rows a caller may read;
        None: all.

        A reader without a database role reads views only.
        """
        require_role(caller, OPERATIONS[name].least)
        if caller.db_role:
            self._usable(caller, OPERATIONS[name])
            return source_readers.readable(self._control, caller.db_role)
        return None if caller.role >= Role.OPERATOR else set()

    def require_feeds(self, caller: Caller, relations: Iterable[Relation], query: str) -> None:
        """Require that a caller without a database role may read the feeds among these relations.

        The rights of a database role are checked where those on tables are, as the query is
        analyzed. SourceError source.no_grant.
        """
        if caller.db_role or caller.role >= Role.OPERATOR:
            return
        for relation in relations:
            if relation.name.source != MAIN_SOURCE and not relation.is_single:
                who = f'token "{caller.name}", a reader without a database role,'
                name = relation.name
                raise source_readers.no_grant(who, name.source, name.name, query=query)

    def owned_relations(
        self, caller: Caller, name: str, views: Iterable[ViewRow]
    ) -> set[tuple[str, str]] | None:
        """Return the (source, relation) pairs all of whose views a caller owns; None: all pairs."""
        operation = OPERATIONS[name]
        require_role(caller, operation.least)
        if not caller.db_role:
            return None
        facts, rights = self._usable(caller, operation), self._rights(caller)
        found: dict[tuple[str, str], list[bool]] = {}
        for view in views:
            is_own = rights.get(view.identity, ViewRights()).is_owner or facts.is_of_service
            for source, relation in (view.plan or {}).get("reads", []):
                if view.desired != DesiredState.DROPPED:
                    found.setdefault((source, relation), []).append(is_own)
        return {relation for relation, each in found.items() if all(each)}

    def require_records(
        self, caller: Caller, name: str, found: set[tuple[str, str]] | None, *requested: str
    ) -> None:
        """Require that `found` contains a source, or some of its relations.

        found: from `readable_relations` or `owned_relations`. requested: the source, then
        relations. TidemarkError auth.rights.
        """
        source, *relations = requested
        if found is None:
            return
        here = {relation for of, relation in found if of == source}
        if here and here.issuperset(relations):
            return
        missing = next((r for r in relations if r not in here), "")
        title = f"{source}.{missing}" if missing else source
        who = f'role "{caller.db_role}"' if caller.db_role else f'token "{caller.name}"'
        if name == "dead_letter.change":
            raise _no_right(
                f'{who} does not own all views that read "{title}"',
                "only the owner of all views that read a relation may retry or drop its records",
            )
        refusal = source_readers.no_grant(who, source, missing, role=caller.db_role or "ROLE")
        raise _no_right(refusal.what, refusal.hint)

    def readers_of(self, caller: Caller, owner: str) -> tuple[str, ...]:
        """Return the roles that must be allowed to read what a view's query reads, its owner first.

        Both the caller and the owner must be: the view shows the answer to its readers.
        """
        if not caller.db_role or caller.db_role == owner:
            return (owner,)
        facts = role_facts.find_role(self._control, caller.db_role, caller.db_role_oid)
        is_service = caller.is_session and facts is not None and facts.is_of_service
        return (owner,) if is_service else (owner, caller.db_role)

    def require_schema(self, caller: Caller, schema: str) -> None:
        """Require CREATE on a schema, as for a table. SinkError sink.privilege.

        A missing schema is reported elsewhere.
        """
        role = caller.db_role
        if role and role_facts.may_create_in(self._control, role, schema) is False:
            raise SinkError(
                "sink.privilege",
                f'role "{role}" may not create views in schema "{schema}"',
                hint=f"GRANT USAGE, CREATE ON SCHEMA {quote_name(schema)} TO {quote_name(role)};",
            )

    def require_parents(self, role: str, parents: Iterable[RelationName]) -> None:
        """Require that a role may read the views that a query reads, if they are not in the source
        database.

        SinkError sink.privilege.
        """
        if not self._factory.is_sink_apart or not self._factory.role_of(role):
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
        """Return the caller's database role if the service can act as it.

        A role that logged in itself (psql) only has to exist.
        """
        role = caller.db_role
        self._control.ensure()
        facts = role_facts.find_role(self._control, role, caller.db_role_oid)
        if facts is None:
            raise _unusable(role, "it does not exist in the sink, or not any more")
        if caller.is_session:
            return facts
        if facts.is_super:
            raise _unusable(role, "it is a superuser, and no token may act as one")
        if not self._factory.is_sink_apart and not facts.may_be_set:
            raise _unusable(role, "the service's role is not a member of it")
        if self._factory.is_sink_apart and operation.need in _AT_SOURCE:
            try:
                self._factory.source.check_role(role)
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
    """Require an API role, or one that includes it. TidemarkError auth.role."""
    if caller.role < least:
        raise TidemarkError(
            "auth.role",
            f'this operation needs the API role "{least.word}"',
            detail=f'token "{caller.name}" has the role "{caller.role.word}"',
            hint="ask an admin for a token with that role",
        )


def of_session(request: Request) -> Caller:
    """Return the caller of a CALL: a role that logged in to PostgreSQL."""
    return Caller(
        "psql",
        Role.OPERATOR,
        request.requester,
        is_session=True,
        db_role_oid=request.requester_oid,
    )


def operation_of(procedure: str) -> str:
    """Return the operation of a procedure. TidemarkError request.invalid."""
    if procedure not in PROCEDURES:
        raise TidemarkError(
            "request.invalid",
            f'operation "{procedure}" does not exist',
            hint="list the procedures with \\df tidemark.*",
        )
    return PROCEDURES[procedure]


async def authorize(request: HTTPConnection) -> None:
    """Authorize a request by its route and path; every route depends on this.

    A WebSocket is authorized once it is open, so that it can report the reason of a refusal.
    """
    if request.scope["type"] == "websocket":
        return
    assert isinstance(request, HttpRequest)
    name = route_operation(request.method, request.scope["route"].path)
    await authorize_view(request, name)


async def authorize_view(connection: HTTPConnection, name: str) -> None:
    """Authorize an operation, on the view in the connection's path if it concerns one."""
    caller, path = connection.state.caller, connection.path_params
    title = path.get("view") or path.get("name") or ""
    decision: Authorization = connection.app.state.authorization
    if caller.db_role or OPERATIONS[name].need is Need.READ:
        await run_in_threadpool(decision.require_named, caller, name, title)
    else:
        require_role(caller, OPERATIONS[name].least)


def _require_view(
    role: str, need: Need, view: ViewRow, rights: ViewRights, facts: RoleFacts
) -> None:
    is_owner = rights.is_owner or facts.is_of_service
    if need is Need.OWNED and not is_owner:
        hint = "ask its owner"
        if rights.may_join:
            hint += f", or GRANT {quote_name(view.created_by)} TO {quote_name(role)};"
        raise TidemarkError(
            "view.not_owner",
            f'role "{role}" does not own view "{view.title}"',
            detail=f'its owner is "{view.created_by}"',
            hint=hint,
        )
    is_enough = rights.may_read if need is Need.READ else _is_visible(rights, facts)
    if need is not Need.OWNED and not is_enough:
        name = f"{quote_name(view.schema)}.{quote_name(view.name)}"
        raise _no_right(
            f'role "{role}" may not read view "{view.title}"',
            f"GRANT SELECT ON {name} TO {quote_name(role)}; and USAGE on its schema, in the sink",
        )


def _is_visible(rights: ViewRights, facts: RoleFacts) -> bool:
    return rights.is_owner or rights.may_read or facts.is_of_service


def _no_right(what: str, hint: str) -> TidemarkError:
    return TidemarkError(
        "auth.rights", what, detail="this is the database role of the token", hint=hint
    )


def _unusable(role: str, why: str) -> TidemarkError:
    title = role.removeprefix(DROPPED)
    return TidemarkError(
        "auth.db_role",
        f'database role "{title}" can no longer be used',
        detail=why,
        hint="a role that is created again is another one: create another token for it; or, after a"
        " restore on another server, run SELECT tidemark.bind_roles() in the sink"
        if role.startswith(DROPPED)
        else f"GRANT {quote_name(title)} TO the service's role, or use another token",
    )
