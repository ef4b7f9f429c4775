"""What the catalog keeps of the life of views: changes that are asked for, and how they go.

Invariant: of each view one change is under way at most; it has an id, so that what is told late is
never told of another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from psycopg2.extras import Json

from connectors.postgres.catalog.catalog import Control
from connectors.postgres.session.quoting import quote_name
from connectors.view_states import DesiredState, ViewState

_STAYS = f"desired <> '{DesiredState.DROPPED}'"


def ask_change(
    control: Control, identity: str, seen: str, change: Mapping[str, Any], **changes: Any
) -> bool:
    """Ask for a change of a view and set the given columns; False when another one is under way,
    the view is gone, or what is wanted of it (seen: when it was looked at) is something else."""
    sets = "".join(f", {quote_name(c)} = %s" for c in changes)
    sql = (
        f"UPDATE tidemark.views SET updated_at = now(), change = %s{sets} WHERE identity = %s "
        f"AND change IS NULL AND desired = %s AND {_STAYS} RETURNING 1"
    )
    values = (Json(dict(change)), *map(_adapted, changes.values()), identity, seen)
    return bool(control.rows(sql, *values))


def ask_pause(control: Control, identity: str) -> bool:
    """Ask for a live view to stand still; False when a change of it is under way, it is to be
    dropped, or is not live any more (a sink that was set back may know it as asked for alone)."""
    sql = (
        f"UPDATE tidemark.views SET updated_at = now(), desired = '{DesiredState.PAUSED}' "
        f"WHERE identity = %s AND change IS NULL AND status = '{ViewState.LIVE}' AND {_STAYS} "
        "RETURNING 1"
    )
    return bool(control.rows(sql, identity))


def end_change(control: Control, identity: str, change_id: str, **changes: Any) -> bool:
    """Take a change back, or tell that it was given up; False when it is not under way."""
    sets = "".join(f", {quote_name(c)} = %s" for c in changes)
    sql = (
        f"UPDATE tidemark.views SET updated_at = now(), change = NULL{sets} "
        "WHERE identity = %s AND change->>'id' = %s RETURNING 1"
    )
    return bool(control.rows(sql, *map(_adapted, changes.values()), identity, change_id))


def _adapted(value: Any) -> Any:
    return Json(value) if isinstance(value, dict | list) else value
