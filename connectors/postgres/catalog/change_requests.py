"""Changes of views that users requested, and their progress, in tidemark.views.

Invariant: each view has at most one change in progress. It has an id, so a late report never
applies to another change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from psycopg2.extras import Json

from connectors.postgres.catalog.catalog import Control
from connectors.postgres.session.quoting import quote_name
from connectors.view_states import DesiredState, ViewState

_STAYS = f"desired <> '{DesiredState.DROPPED}'"


def request_change(
    control: Control, identity: str, seen: str, change: Mapping[str, Any], **changes: Any
) -> bool:
    """Request a change of a view and set the given columns.

    seen: the desired state that the caller read. Return False when another change is in progress,
    the view is gone, or its desired state differs from `seen`.
    """
    sets = "".join(f", {quote_name(c)} = %s" for c in changes)
    sql = (
        f"UPDATE tidemark.views SET updated_at = now(), change = %s{sets} WHERE identity = %s "
        f"AND change IS NULL AND desired = %s AND {_STAYS} RETURNING 1"
    )
    values = (Json(dict(change)), *map(_adapted, changes.values()), identity, seen)
    return bool(control.rows(sql, *values))


def request_pause(control: Control, identity: str) -> bool:
    """Request the pause of a live view.

    Return False when a change is in progress, the view is to be dropped, or it is no longer live.
    (A rewound sink may have forgotten that it was.)
    """
    sql = (
        f"UPDATE tidemark.views SET updated_at = now(), desired = '{DesiredState.PAUSED}' "
        f"WHERE identity = %s AND change IS NULL AND status = '{ViewState.LIVE}' AND {_STAYS} "
        "RETURNING 1"
    )
    return bool(control.rows(sql, identity))


def end_change(control: Control, identity: str, change_id: str, **changes: Any) -> bool:
    """Withdraw a change or report it as cancelled; return False when it is not in progress."""
    sets = "".join(f", {quote_name(c)} = %s" for c in changes)
    sql = (
        f"UPDATE tidemark.views SET updated_at = now(), change = NULL{sets} "
        "WHERE identity = %s AND change->>'id' = %s RETURNING 1"
    )
    return bool(control.rows(sql, *map(_adapted, changes.values()), identity, change_id))


def _adapted(value: Any) -> Any:
    return Json(value) if isinstance(value, dict | list) else value
