"""Every operation of the API, and what it requires: the one table of authorization.

ROUTES and PROCEDURES map REST and psql to operations; COMMANDS lists CLI commands that run without
a service. `service/access/authorization.py` decides by this table. Invariant: a route or procedure
missing from both maps is refused, and tests/security/test_authorization.py fails for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from starlette.routing import compile_path

from service.access.tokens import Role


class Need(Enum):
    """What an operation requires of a database role, in addition to the API role.

    - NOTHING: the answer contains nothing of a view's rows or query
    - LISTED: the answer contains only views that the role owns or may read
    - VISIBLE: the role owns the view or has SELECT on its table
    - READ: the role has SELECT on the view's table
    - OWNED: the role owns the view, or is a member of its owner
    - QUERY: PostgreSQL runs the query with the role's privileges
    - CREATE: as QUERY, plus CREATE on the view's schema
    - DECLARE: EXECUTE on the procedures for sources
    - DECLARED: as DECLARE, and the role declared the source, or is a member of its declarer
    - READERS: the right to read the source's relation; for a change, as OWNED on all views that
    read it
    - SERVICE: a token without a database role, which acts as the service
    """

    NOTHING = "nothing"
    LISTED = "listed"
    VISIBLE = "seen"
    READ = "read"
    OWNED = "owned"
    QUERY = "query"
    CREATE = "create"
    DECLARE = "declare"
    DECLARED = "declared"
    READERS = "readers"
    SERVICE = "service"


OF_A_VIEW = (Need.VISIBLE, Need.READ, Need.OWNED)


@dataclass(frozen=True)
class Operation:
    """least: the minimum API role. is_dear: PostgreSQL analyzes or runs a user's query, or the
    service contacts other hosts: then reaches_others is set too (service/api/call_limits.py).
    """

    name: str
    least: Role
    need: Need
    is_dear: bool = False
    reaches_others: bool = False


_PUBLIC, _READER, _OPERATOR, _ADMIN = Role.PUBLIC, Role.READER, Role.OPERATOR, Role.ADMIN
OPERATIONS: Mapping[str, Operation] = {
    o.name: o
    for o in (
        # Load balancers have no token; without one, the answer only says whether all is well.
        Operation("health", _PUBLIC, Need.NOTHING),
        Operation("health.live", _PUBLIC, Need.NOTHING),
        # The console's files; their data needs a token.
        Operation("console", _PUBLIC, Need.NOTHING),
        Operation("description", _READER, Need.NOTHING),
        Operation("metrics", _READER, Need.NOTHING),
        Operation("overview", _READER, Need.LISTED),
        Operation("table.list", _READER, Need.QUERY),
        Operation("view.list", _READER, Need.LISTED),
        Operation("view.show", _READER, Need.VISIBLE),
        Operation("view.plan", _READER, Need.VISIBLE),
        Operation("view.wait", _READER, Need.VISIBLE),
        Operation("view.rows", _READER, Need.READ),
        Operation("view.changes", _READER, Need.READ),
        Operation("subscription.list", _READER, Need.READ),
        # A reader has only readers of its own.
        Operation("subscription.change", _READER, Need.READ),
        Operation("view.errors", _READER, Need.READ),
        Operation("view.verify", _READER, Need.READ, is_dear=True),
        # By CALL: all differences are stored in the sink, with rows.
        Operation("view.verify_kept", _OPERATOR, Need.OWNED, is_dear=True),
        Operation("query", _READER, Need.QUERY, is_dear=True),
        Operation("view.validate", _READER, Need.QUERY, is_dear=True),
        Operation("view.create", _OPERATOR, Need.CREATE, is_dear=True),
        Operation("view.drop", _OPERATOR, Need.OWNED),
        Operation("view.replace", _OPERATOR, Need.OWNED, is_dear=True),
        Operation("view.cancel", _OPERATOR, Need.OWNED),
        Operation("view.rebuild", _OPERATOR, Need.OWNED, is_dear=True),
        Operation("view.pause", _OPERATOR, Need.OWNED),
        Operation("view.resume", _OPERATOR, Need.OWNED, is_dear=True),
        Operation("view.rename", _OPERATOR, Need.OWNED),
        Operation("view.move", _OPERATOR, Need.OWNED),
        Operation("view.runtime", _OPERATOR, Need.OWNED, is_dear=True),
        Operation("sink.list", _READER, Need.VISIBLE),
        Operation("sink.add", _OPERATOR, Need.OWNED, is_dear=True, reaches_others=True),
        Operation("sink.drop", _OPERATOR, Need.OWNED),
        Operation("source.list", _READER, Need.LISTED),
        Operation("source.declare", _OPERATOR, Need.DECLARE, is_dear=True, reaches_others=True),
        # What it retains for us is released at its own server.
        Operation("source.drop", _OPERATOR, Need.DECLARE, is_dear=True, reaches_others=True),
        Operation("source.retry", _OPERATOR, Need.DECLARE),
        Operation("source.grant", _OPERATOR, Need.DECLARED),
        Operation("source.revoke", _OPERATOR, Need.DECLARED),
        Operation("dead_letter.list", _READER, Need.READERS),
        Operation("dead_letter.change", _OPERATOR, Need.READERS),
        Operation("token", _ADMIN, Need.SERVICE),
    )
}

# Ends of paths whose answers may be endless.
STREAMS = ("/changes", "/stream")

# (method, path pattern of the route). HEAD is treated as GET, a WebSocket as GET.
ROUTES: Mapping[tuple[str, str], str] = {
    ("GET", "/health"): "health",
    ("GET", "/health/live"): "health.live",
    ("GET", "/"): "console",
    ("GET", "/docs"): "console",
    ("GET", "/assets/{name}"): "console",
    ("GET", "/openapi.json"): "description",
    ("GET", "/metrics"): "metrics",
    ("GET", "/overview"): "overview",
    ("GET", "/tables"): "table.list",
    ("POST", "/query"): "query",
    ("POST", "/views"): "view.create",
    ("GET", "/views"): "view.list",
    ("POST", "/views/validate"): "view.validate",
    ("GET", "/views/{name}"): "view.show",
    ("DELETE", "/views/{name}"): "view.drop",
    ("GET", "/views/{name}/wait"): "view.wait",
    ("GET", "/views/{name}/plan"): "view.plan",
    ("GET", "/views/{name}/dataflow"): "view.plan",
    ("GET", "/views/{name}/rows"): "view.rows",
    ("GET", "/views/{name}/diff"): "view.rows",
    ("GET", "/views/{name}/changes"): "view.changes",
    ("GET", "/views/{name}/changes/ws"): "view.changes",
    ("GET", "/views/{name}/stream"): "view.changes",
    ("GET", "/views/{name}/errors"): "view.errors",
    ("POST", "/views/{name}/verify"): "view.verify",
    ("POST", "/views/{name}/replace"): "view.replace",
    ("DELETE", "/views/{name}/replace"): "view.cancel",
    ("POST", "/views/{name}/rebuild"): "view.rebuild",
    ("POST", "/views/{name}/pause"): "view.pause",
    ("POST", "/views/{name}/resume"): "view.resume",
    ("POST", "/views/{name}/rename"): "view.rename",
    ("POST", "/views/{name}/move"): "view.move",
    ("POST", "/views/{name}/runtime"): "view.runtime",
    ("POST", "/views/{view}/subscriptions"): "subscription.change",
    ("GET", "/views/{view}/subscriptions"): "subscription.list",
    ("GET", "/views/{view}/subscriptions/{subscription}"): "subscription.list",
    ("POST", "/views/{view}/subscriptions/{subscription}/acknowledge"): "subscription.change",
    ("DELETE", "/views/{view}/subscriptions/{subscription}"): "subscription.change",
    ("POST", "/views/{view}/sinks"): "sink.add",
    ("GET", "/views/{view}/sinks"): "sink.list",
    ("GET", "/views/{view}/sinks/{sink}"): "sink.list",
    ("DELETE", "/views/{view}/sinks/{sink}"): "sink.drop",
    ("POST", "/sources"): "source.declare",
    ("POST", "/sources/discover"): "source.declare",
    ("GET", "/sources"): "source.list",
    ("GET", "/sources/{name}"): "source.list",
    ("PUT", "/sources/{name}"): "source.declare",
    ("DELETE", "/sources/{name}"): "source.drop",
    ("POST", "/sources/{name}/retry"): "source.retry",
    ("POST", "/sources/{name}/reset"): "source.declare",
    ("POST", "/sources/{name}/grants"): "source.grant",
    ("DELETE", "/sources/{name}/grants"): "source.revoke",
    ("GET", "/dead-letters"): "dead_letter.list",
    ("POST", "/dead-letters/retry"): "dead_letter.change",
    ("POST", "/dead-letters/drop"): "dead_letter.change",
    ("POST", "/tokens"): "token",
    ("GET", "/tokens"): "token",
    ("DELETE", "/tokens/{name}"): "token",
}
PROCEDURES: Mapping[str, str] = {
    "create_view": "view.create",
    "drop_view": "view.drop",
    "replace_view": "view.replace",
    "rebuild_view": "view.rebuild",
    "pause_view": "view.pause",
    "resume_view": "view.resume",
    "rename_view": "view.rename",
    "move_view": "view.move",
    "change_runtime": "view.runtime",
    "cancel_change": "view.cancel",
    "verify_view": "view.verify_kept",
    "create_source": "source.declare",
    "drop_source": "source.drop",
    "retry_source": "source.retry",
    "grant_source": "source.grant",
    "revoke_source": "source.revoke",
}
# Commands that need no running service. Whoever runs one has the service's settings, or the
# databases' passwords, so they act as the service.
COMMANDS = frozenset(
    {
        *("serve", "demo", "doctor", "init", "restore", "checkpoints", "uninstall"),
        *("token create --direct", "token revoke --direct"),
    }
)

_READING = ("GET", "HEAD", "OPTIONS")
# Paths without parameters come first: a view may be called "validate".
_PATTERNS = sorted(
    ((method, path, compile_path(path)[0], name) for (method, path), name in ROUTES.items()),
    key=lambda entry: ("{" in entry[1], entry[1]),
)


def operation_at(method: str, path: str) -> tuple[Operation, Mapping[str, str]] | None:
    """Return the operation of a request and its path parameters; None if no route matches.

    >>> operation, parameters = operation_at("HEAD", "/views/a")
    >>> operation.name, parameters
    ('view.show', {'name': 'a'})
    >>> operation_at("PATCH", "/views/a") is None
    True
    """
    requested = "GET" if method == "HEAD" else method
    for method, _, pattern, name in _PATTERNS:
        found = pattern.match(path) if method == requested else None
        if found:
            return OPERATIONS[name], found.groupdict()
    return None


def role_for(method: str, path: str) -> Role:
    """Return the minimum API role of a request; without a route, reader to read, operator
    otherwise.

    >>> role_for("GET", "/views/a").word, role_for("DELETE", "/views/a").word
    ('reader', 'operator')
    >>> role_for("HEAD", "/health").word, role_for("GET", "/tokens").word
    ('public', 'admin')
    """
    found = operation_at(method, path)
    if found is not None:
        return found[0].least
    return Role.READER if method in _READING else Role.OPERATOR


def route_operation(method: str, path: str) -> str:
    """Return the operation of a route pattern; HEAD is GET without its body.

    >>> route_operation("HEAD", "/views") == route_operation("GET", "/views")
    True
    """
    return ROUTES["GET" if method == "HEAD" else method, path]
