"""Requested changes of a view as a whole, in tidemark.views: columns `change` and `replacing`.

A change is in progress from its request until the sink shows it or it is cancelled. Its id ensures
that its outcome is never reported for another change.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from connectors.postgres.analysis.table_names import UNKNOWN, KnownNames
from connectors.postgres.catalog.catalog import ViewRow
from connectors.sink import SinkTable
from dataflow.errors import TidemarkError
from dataflow.sql.lateness import window_of
from service.engine import output_fields
from service.engine.definition import ViewDefinition
from service.views.name_tracking import names_facts, names_in
from storage import clock

VERSION, RENAME, RUNTIME = "version", "rename", "runtime"
# What users read as the kind of a change of the runtime.
MOVE = "move"
IN_PROGRESS, FAILED, CANCELLED = "in progress", "failed", "cancelled"


def new_version(
    row: ViewRow,
    query: str,
    options: Mapping[str, Any],
    warnings: list[str],
    kind: str,
    *,
    names: KnownNames = UNKNOWN,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (change, replacing) for another version of a view.

    kind: "replace", "rebuild" or "resume". names: those in the query.
    """
    last = row.replacing or {}
    version = max(row.version, last.get("version") or 0) + 1
    change = {
        "id": uuid.uuid4().hex,
        "kind": VERSION,
        "version": version,
        "query": query,
        "names": names_facts(names),
        "options": dict(options),
        "warnings": warnings,
    }
    replacing = _in_progress(change["id"], kind) | {"version": version, "warnings": warnings}
    return change, replacing | ({"query": query} if query != row.query else {})


def numbered(row: ViewRow) -> Mapping[str, Any] | None:
    """Return the requested change; a new version gets a number that the view has not had.

    After a sink rewind, a request may carry the number of a version that already exists.
    """
    change = row.change
    if change is None or change["kind"] != VERSION or change["version"] > row.version:
        return change
    return {**change, "version": row.version + 1}


def version_of(
    row: ViewRow, change: Mapping[str, Any] | None, built: ViewDefinition | None = None
) -> tuple[str, int, KnownNames]:
    """Return query, number and names of a version of a view.

    built: the version, if it is built. Otherwise the version to build: of the change, or the
    view's.
    """
    if built is not None:
        return built.query, built.version, built.names
    if change is None:
        return row.query, row.version, names_in(row.plan)
    return change["query"], change["version"], names_in(change)


def new_name(
    row: ViewRow, schema: str, name: str, readers: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (change, replacing) for another name.

    readers: by identity, the query of each view that reads this one, with the new name in it.
    """
    change = {
        "id": uuid.uuid4().hex,
        "kind": RENAME,
        "schema": schema,
        "name": name,
        "readers": dict(readers),
    }
    return change, _in_progress(change["id"], RENAME) | {"version": row.version}


def new_runtime(
    row: ViewRow, runtime: str, group: str, warnings: list[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (change, replacing) for another runtime, "local" or "spark", in a new group."""
    facts = {"runtime": runtime, "group": group, "warnings": warnings}
    change = {"id": uuid.uuid4().hex, "kind": RUNTIME, **facts}
    return change, _in_progress(change["id"], MOVE) | {"version": row.version, **facts}


def _in_progress(identifier: str, kind: str) -> dict[str, Any]:
    return {"id": identifier, "kind": kind, "status": IN_PROGRESS, "requested_at": clock.wall()}


def abandoned(replacing: Mapping[str, Any] | None, error: TidemarkError) -> dict[str, Any]:
    """Return the `replacing` column of a change that failed."""
    facts = {k: v for k, v in (replacing or {}).items() if k != "progress"}
    return {**facts, "status": FAILED, **problem_facts(error)}


def problem_facts(error: TidemarkError) -> dict[str, str]:
    """Return an error in the form that the catalog stores."""
    return {"code": error.code, "detail": error.described, "hint": error.hint}


def table_of(row: ViewRow) -> SinkTable:
    """Return the view's table according to the catalog."""
    found = output_fields.from_json(row.fields or ())
    names = [f.name for f in found]
    return SinkTable(row.schema, row.name, found, tuple(names.index(k) for k in row.key or ()))


def published_of(row: ViewRow) -> SinkTable:
    """Return what the view's readers get according to the catalog: its table or its final rows."""
    table = table_of(row)
    return replace(table, final=window_of(row.options, [f.name for f in table.fields]))
