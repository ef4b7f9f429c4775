"""The catalog of additional sinks: desired state and status of each.

Invariant: as for views, a row changes by whole statements that commit at once. Changes of the
desired state notify waiting sessions; figures do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any

import psycopg2
from psycopg2.extras import Json

from connectors.postgres.catalog.catalog import Control
from connectors.postgres.schema.stored_roles import current_name
from connectors.postgres.session.quoting import quote_name
from dataflow.errors import SinkError


@dataclass(frozen=True)
class SinkRow:
    """A row of tidemark.sinks. identity is new for each creation and names the sink's writer.

    desired: live, dropped, or erased: dropped together with what the sink has written.
    """

    schema: str
    view: str
    name: str
    type: str
    identity: str
    view_identity: str
    view_group: str
    options: Mapping[str, Any] = field(default_factory=dict)
    status: str = "starting"
    desired: str = "live"
    epoch: int | None = None
    positions: Mapping[str, Any] | None = None
    backlog_bytes: int | None = None
    code: str | None = None
    detail: str | None = None
    hint: str | None = None
    created_by: str = ""
    created_at: datetime | None = None
    updated_at: datetime | None = None
    live_at: datetime | None = None

    @property
    def title(self) -> str:
        """Return schema.view/name, for messages."""
        return f"{self.schema}.{self.view}/{self.name}"


_BY_DATABASE = {"created_by", "created_at", "updated_at"}
_COLUMNS = tuple(f.name for f in fields(SinkRow))
_STORED = ", ".join(current_name(c, "created_oid") if c == "created_by" else c for c in _COLUMNS)
_FIXED = {"schema", "view", "name", "type", "identity", "view_identity", "view_group"}
_CHANGEABLE = frozenset(_COLUMNS) - _BY_DATABASE - _FIXED
_JSON = {"options", "positions"}
# The lock makes a change that is requested at the same time wait for the sink, or the other way.
_LOCKED = """WITH v AS MATERIALIZED (
    SELECT change, options FROM tidemark.views WHERE identity = %s FOR SHARE)"""
_UNCHANGED = """WHERE NOT EXISTS (SELECT FROM v
    WHERE v.change IS NOT NULL OR coalesce(v.options ->> 'group', 'default') <> %s)"""


def insert_sink(control: Control, row: SinkRow) -> SinkRow | None:
    """Request a sink; return the row as stored. SinkError sink.exists.

    Return None if a change of the view is in progress, or another group has it by now.
    """
    columns = [c for c in _COLUMNS if c not in _BY_DATABASE]
    sql = (
        f"INSERT INTO tidemark.sinks ({', '.join(columns)}, service) {_LOCKED} "
        f"SELECT {', '.join(['%s'] * len(columns))}, %s {_UNCHANGED} RETURNING {_STORED}"
    )
    given = [_adapted(c, getattr(row, c)) for c in columns]
    try:
        stored = control.rows(sql, row.view_identity, *given, control.service, row.view_group)
    except psycopg2.errors.UniqueViolation:
        found = find_sink(control, row.view_identity, row.name)
        if found is not None and found.identity == row.identity:
            return found  # the first attempt went through before its session was lost
        raise name_taken(found or row) from None
    return SinkRow(*stored[0]) if stored else None


def name_taken(found: SinkRow) -> SinkError:
    """Return the error for a view that already has a sink of this name."""
    is_going = found.desired != "live"
    return SinkError(
        "sink.exists",
        f'view "{found.schema}.{found.view}" has a sink "{found.name}" already',
        detail="it is being dropped" if is_going else "",
        hint="wait until it is gone" if is_going else "choose another name, or drop it",
    )


def list_sinks(control: Control) -> list[SinkRow]:
    """Return all sinks of the service, oldest first."""
    sql = f"SELECT {_STORED} FROM tidemark.sinks WHERE service = %s ORDER BY created_at, identity"
    return [SinkRow(*row) for row in control.rows(sql, control.service)]


def find_sink(control: Control, view_identity: str, name: str) -> SinkRow | None:
    """Return the sink of this name of a view, or None."""
    sql = f"SELECT {_STORED} FROM tidemark.sinks WHERE view_identity = %s AND name = %s"
    found = control.rows(sql, view_identity, name)
    return SinkRow(*found[0]) if found else None


def update_sink(control: Control, identity: str, **changes: Any) -> bool:
    """Set these columns; return False when the sink is gone."""
    unknown = set(changes) - _CHANGEABLE
    if unknown:
        raise ValueError(f"not columns that change: {sorted(unknown)}")
    sets = "".join(f", {quote_name(c)} = %s" for c in changes)
    sql = f"UPDATE tidemark.sinks SET updated_at = now(){sets} WHERE identity = %s RETURNING 1"
    return bool(control.rows(sql, *(_adapted(c, v) for c, v in changes.items()), identity))


def drop_sinks(control: Control, view_identity: str, *, is_erased: bool) -> None:
    """Request the drop of all sinks of a view; sinks to be erased stay so."""
    sql = (
        "UPDATE tidemark.sinks SET updated_at = now(), status = 'dropping', desired = "
        "CASE WHEN %s OR desired = 'erased' THEN 'erased' ELSE 'dropped' END "
        "WHERE view_identity = %s RETURNING 1"
    )
    control.rows(sql, is_erased, view_identity)


def delete_sink(control: Control, identity: str) -> bool:
    """Delete a sink's row; return False when there was none."""
    sql = "DELETE FROM tidemark.sinks WHERE identity = %s RETURNING 1"
    return bool(control.rows(sql, identity))


def _adapted(column: str, value: Any) -> Any:
    return Json(value) if column in _JSON and value is not None else value
