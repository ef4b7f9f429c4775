"""How the newest verification of each view went, in tidemark.views.

Apart from `control`, since nobody but who verifies and who tells of it needs it.
"""

from __future__ import annotations

from typing import Any

from psycopg2.extras import Json

from connectors.postgres.catalog.catalog import Control

# Of all API processes one verifies on an interval: who holds this lock.
_LOCK = 7_954_889_273_471_284


def tell(control: Control, identity: str, facts: dict[str, Any]) -> None:
    """Note a verification; nothing when the view is gone."""
    sql = "UPDATE tidemark.views SET verification = %s WHERE identity = %s RETURNING 1"
    control.rows(sql, Json(facts), identity)


def newest(control: Control) -> dict[str, dict[str, Any]]:
    """The newest verification by the view's identity; those never verified are absent."""
    sql = "SELECT identity, verification FROM tidemark.views WHERE verification IS NOT NULL"
    return dict(control.rows(sql))


def take_turn(control: Control) -> bool:
    """Whether we are the one who verifies on an interval; as long as the session lasts."""
    return bool(control.rows("SELECT pg_try_advisory_lock(%s)", _LOCK)[0][0])
