"""What is asked of a view as a whole, as the catalog keeps it: tidemark.views.change, replacing.

A change is under way from the moment it is asked for until the sink shows it, or it is given up;
it has an id, so that what becomes of it is never told of another one.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from connectors.postgres.analysis.table_names import UNKNOWN, KnownNames
from connectors.postgres.catalog.catalog import ViewRow
from connectors.sink import SinkTable
from dataflow.errors import TidemarkError
from service.engine import output_fields
from service.engine.definition import ViewDefinition
from service.views.name_tracking import names_facts, names_in
from storage import clock

VERSION, RENAME = "version", "rename"
UNDER_WAY, FAILED, CANCELLED = "under way", "failed", "cancelled"


def new_version(
    row: ViewRow,
    query: str,
    options: Mapping[str, Any],
    warnings: list[str],
    kind: str,
    *,
    names: KnownNames = UNKNOWN,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(change, replacing) for another version of a view. kind:
    "replace", "rebuild", "resume"; names: those in the query."""
    told = row.replacing or {}
    version = max(row.version, told.get("version") or 0) + 1
    change = {
        "id": uuid.uuid4().hex,
        "kind": VERSION,
        "version": version,
        "query": query,
        "names": names_facts(names),
        "options": dict(options),
        "warnings": warnings,
    }
    replacing = _told(change["id"], kind) | {"version": version, "warnings": warnings}
    return change, replacing | ({"query": query} if query != row.query else {})


def numbered(row: ViewRow) -> Mapping[str, Any] | None:
    """The change that is asked for; another version with a number that the view has not had. A sink
    that was set back may have been asked for it before it was told of one with this number."""
    change = row.change
    if change is None or change["kind"] != VERSION or change["version"] > row.version:
        return change
    return {**change, "version": row.version + 1}


def version_of(
    row: ViewRow, change: Mapping[str, Any] | None, known: ViewDefinition | None = None
) -> tuple[str, int, KnownNames]:
    """Query, number, and the names in the query, of a version of a view: of the known one, else of
    the one that is to be built, which a change asks for or the view has."""
    if known is not None:
        return known.query, known.version, known.names
    if change is None:
        return row.query, row.version, names_in(row.plan)
    return change["query"], change["version"], names_in(change)


def new_name(
    row: ViewRow, schema: str, name: str, readers: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(change, replacing) for another name. readers: by identity the query of each view that
    reads this one, with the new name in it."""
    change = {
        "id": uuid.uuid4().hex,
        "kind": RENAME,
        "schema": schema,
        "name": name,
        "readers": dict(readers),
    }
    return change, _told(change["id"], RENAME) | {"version": row.version}


def _told(identifier: str, kind: str) -> dict[str, Any]:
    return {"id": identifier, "kind": kind, "status": UNDER_WAY, "asked_at": clock.wall()}


def abandoned(replacing: Mapping[str, Any] | None, error: TidemarkError) -> dict[str, Any]:
    """What is told of a change that came to nothing."""
    kept = {k: v for k, v in (replacing or {}).items() if k != "progress"}
    return {**kept, "status": FAILED, **problem_facts(error)}


def problem_facts(error: TidemarkError) -> dict[str, str]:
    """An error as the catalog keeps it."""
    return {"code": error.code, "detail": error.described, "hint": error.hint}


def table_of(row: ViewRow) -> SinkTable:
    """The view's table as the catalog knows it."""
    found = output_fields.from_json(row.fields or ())
    names = [f.name for f in found]
    return SinkTable(row.schema, row.name, found, tuple(names.index(k) for k in row.key or ()))
