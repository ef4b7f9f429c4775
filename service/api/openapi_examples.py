"""Examples for the OpenAPI description: an answer of each call, a problem of each status.

Every status that an operation may answer has a problem here; nothing in it is of a real service.
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
    "options": {"backfill": "auto", "group": "default"},
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
    "hint": "see GET /views",
}
PROBLEMS: dict[str, tuple[str, dict[str, Any]]] = {
    "400": (
        "what was given cannot be understood",
        {
            "title": 'column "amont" does not exist',
            "code": "sql.undefined_column",
            "position": {"line": 1, "column": 20},
        },
    ),
    "401": ("a token is needed", {"title": "this needs a token", "code": "auth.missing"}),
    "403": ("the token's role is too low", {"title": "not allowed", "code": "auth.role"}),
    "404": ("there is no such thing", _NOT_FOUND),
    "409": (
        "not as things stand",
        {"title": 'view "public.revenue" exists already', "code": "view.name_taken"},
    ),
    "410": (
        "not kept any more",
        {"title": "the changes since the token are gone", "code": "changes.expired"},
    ),
    "412": (
        "it is another one by now",
        {"title": "it is not what it was", "code": "request.changed"},
    ),
    "422": (
        "the request does not fit",
        {"title": "the request is not valid", "code": "request.invalid"},
    ),
    "429": (
        "too many at a time",
        {"title": "too many queries are running", "code": "request.too_many"},
    ),
    "500": ("a fault of the service", {"title": "an error of the service", "code": "internal"}),
    "503": (
        "not just now; another try may do",
        {"title": "the source cannot be reached", "code": "source.unreachable"},
    ),
    "504": (
        "time is up",
        {"title": "the position has not been reached in time", "code": "view.wait_timeout"},
    ),
}
