"""Examples for the OpenAPI description: a response of each call, a problem of each status.

Every status that an operation may return has an example here. All data is made up.
"""

from __future__ import annotations

from typing import Any

_FIELDS = [
    {"name": "region", "type": "text", "nullable": True},
    {"name": "revenue", "type": "numeric", "nullable": True},
]
_QUERY = "SELECT region, sum(amount) AS revenue FROM orders GROUP BY region"
_POSITIONS = {"source": "0/1A2B3C"}
_VIEW: dict[str, Any] = {
    "name": "revenue",
    "schema": "public",
    "query": _QUERY,
    "status": "live",
    "kind": "keyed",
    "key": ["region"],
    "fields": _FIELDS,
    "options": {"backfill": "auto", "runtime": "local", "group": "default"},
    "group": "default",
    "warnings": [],
    "rows": 4,
    "positions": _POSITIONS,
    "lag_bytes": 0,
    "backfill": None,
    "plan": "aggregate by region",
    "errors": 0,
    "created_at": "2026-01-02T03:04:05+00:00",
    "live_at": "2026-01-02T03:04:06+00:00",
}
_SINK: dict[str, Any] = {
    "name": "events",
    "view": "public.revenue",
    "type": "kafka",
    "status": "live",
    "options": {"bootstrap_servers": "localhost:9092", "topic": "revenue"},
    "epoch": 42,
    "positions": _POSITIONS,
    "backlog_bytes": 0,
    "created_at": "2026-01-02T03:04:05+00:00",
    "live_at": "2026-01-02T03:04:06+00:00",
}
_SUBSCRIPTION: dict[str, Any] = {
    "view": "public.revenue",
    "name": "billing",
    "status": "ready",
    "epoch": 42,
    "newest_epoch": 57,
    "oldest_epoch": 7,
    "created_by": "local",
    "created_at": "2026-01-02T03:04:05.000000Z",
    "acknowledged_at": "2026-01-02T03:04:06.000000Z",
}
_POINT: dict[str, Any] = {
    "epoch": 42,
    "committed_at": "2026-01-02T03:04:05.000000Z",
    "positions": _POSITIONS,
}
_ROW = {"region": "north", "revenue": "812.50"}

ANSWERS: dict[str, Any] = {
    "GET /views": {"views": [_VIEW], "next": None},
    "POST /views": _VIEW,
    "GET /views/{name}": _VIEW,
    "GET /views/{name}/wait": {"position": "0/1A2B3C", "waited_ms": 2.5},
    "GET /views/{name}/rows": {
        "fields": _FIELDS,
        "rows": [_ROW],
        "next": None,
        "epoch": 42,
        "positions": _POSITIONS,
    },
    "POST /query": {
        "fields": _FIELDS,
        "rows": [_ROW],
        "has_more": False,
        "views": {"default": {"epoch": 42, "positions": _POSITIONS}},
        "position": "0/1A2B90",
    },
    "GET /views/{name}/diff": {
        "fields": _FIELDS,
        "rows": [_ROW],
        "weights": [1],
        "from": _POINT,
        "to": {**_POINT, "epoch": 57},
        "next": None,
    },
    "GET /views/{view}/subscriptions": {"subscriptions": [_SUBSCRIPTION]},
    "POST /views/{view}/subscriptions": _SUBSCRIPTION,
    "GET /views/{view}/subscriptions/{subscription}": _SUBSCRIPTION,
    "POST /views/{view}/subscriptions/{subscription}/acknowledge": _SUBSCRIPTION,
    "GET /views/{view}/sinks": {"sinks": [_SINK], "next": None},
    "POST /views/{view}/sinks": _SINK,
    "GET /views/{view}/sinks/{sink}": _SINK,
    "GET /sources": {"sources": [], "next": None},
    "GET /dead-letters": {"dead_letters": []},
    "POST /dead-letters/retry": {"count": 3},
    "POST /dead-letters/drop": {"count": 3},
    "GET /health": {"status": "ok", "pipeline": None, "groups": {}, "reasons": []},
}

_NOT_FOUND = {
    "title": 'view "public.revenu" does not exist',
    "code": "view.not_found",
    "hint": "check the name: the list of views has all of them",
}
PROBLEMS: dict[str, tuple[str, dict[str, Any]]] = {
    "400": (
        "the request cannot be interpreted",
        {
            "title": 'column "amont" does not exist',
            "code": "sql.undefined_column",
            "position": {"line": 1, "column": 20},
        },
    ),
    "401": ("a token is needed", {"title": "this needs a token", "code": "auth.missing"}),
    "403": ("the token's role is too low", {"title": "not allowed", "code": "auth.role"}),
    "404": ("the object does not exist", _NOT_FOUND),
    "409": (
        "the current state does not allow it",
        {"title": 'view "public.revenue" exists already', "code": "view.name_taken"},
    ),
    "410": (
        "no longer retained",
        {"title": "the changes since the token are no longer retained", "code": "changes.expired"},
    ),
    "412": (
        "the resource has changed",
        {"title": "the resource has changed", "code": "request.changed"},
    ),
    "422": (
        "the request is not valid",
        {"title": "the request is not valid", "code": "request.invalid"},
    ),
    "429": (
        "too many concurrent requests",
        {"title": "too many queries are running", "code": "request.too_many"},
    ),
    "500": (
        "an internal error of the service",
        {"title": "internal error of the service", "code": "internal"},
    ),
    "503": (
        "temporarily unavailable; try again",
        {"title": "the source cannot be reached", "code": "source.unreachable"},
    ),
    "504": (
        "timed out",
        {"title": "the position has not been reached in time", "code": "view.wait_timeout"},
    ),
}
