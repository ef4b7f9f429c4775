"""The catalog of additional sinks in a simulated database: statements of sink_records.py."""

from __future__ import annotations

import re
from dataclasses import astuple, replace
from typing import Any

from connectors.postgres.catalog.sink_records import SinkRow
from tests.simulation.rows import as_json
from tests.simulation.sink import Database

_JSON = {"options", "positions"}


def answer(database: Database, sql: str, values: list[Any]) -> list[tuple[Any, ...]]:
    """What a statement about tidemark.sinks does, and its rows."""
    if sql.startswith("SELECT"):
        # All are of one service.
        if "WHERE service = %s ORDER" in sql:
            return [astuple(row) for row in database.sinks]
        return [astuple(r) for r in database.sinks if [r.view_identity, r.name] == values]
    if sql.startswith("INSERT"):
        # The view's identity and group are given once more, and the service, which is the only one.
        given = dict(zip(_columns(sql), values[1:-1], strict=True))
        del given["service"]
        row = SinkRow(**given)
        database.sinks = [*database.sinks, row]
        database.version += 1
        return [astuple(row)]
    if sql.startswith("DELETE"):
        return _delete(database, values[0])
    if "CASE WHEN" in sql:
        return _drop_all(database, *values)
    *given, identity = values
    reported = dict(zip(re.findall(r'"(\w+)" = %s', sql), given, strict=True))
    return _update(database, identity, reported)


def _columns(sql: str) -> list[str]:
    return sql[sql.index("(") + 1 : sql.index(")")].split(", ")


def _update(database: Database, identity: str, reported: dict[str, Any]) -> list[tuple[Any, ...]]:
    reported = {c: as_json(v) if c in _JSON else v for c, v in reported.items()}
    found = [row for row in database.sinks if row.identity == identity]
    database.sinks = [
        replace(row, **reported) if row.identity == identity else row for row in database.sinks
    ]
    database.version += bool(found) and "desired" in reported
    return [(1,) for _ in found]


def _drop_all(database: Database, is_erased: bool, view_identity: str) -> list[tuple[Any, ...]]:
    for row in [r for r in database.sinks if r.view_identity == view_identity]:
        desired = "erased" if is_erased or row.desired == "erased" else "dropped"
        _update(database, row.identity, {"status": "dropping", "desired": desired})
    return []


def _delete(database: Database, identity: str) -> list[tuple[Any, ...]]:
    before = len(database.sinks)
    database.sinks = [row for row in database.sinks if row.identity != identity]
    database.version += 1
    return [(1,)] * (before - len(database.sinks))
