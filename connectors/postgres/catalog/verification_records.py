"""The newest verification of each view, in tidemark.views.

Apart from `catalog`, since only the verifier and its readers need it.
"""

from __future__ import annotations

from typing import Any

from psycopg2.extras import Json

from connectors.postgres.catalog.catalog import Control

# Held by the one API process of a service that verifies on an interval.
_LOCK = "tidemark verify "


def record(control: Control, identity: str, facts: dict[str, Any]) -> None:
    """Store a verification's outcome; do nothing when the view is gone."""
    sql = "UPDATE tidemark.views SET verification = %s WHERE identity = %s RETURNING 1"
    control.rows(sql, Json(facts), identity)


def newest(control: Control) -> dict[str, dict[str, Any]]:
    """Return the newest verification by view identity; views never verified are absent."""
    sql = "SELECT identity, verification FROM tidemark.views WHERE verification IS NOT NULL"
    return dict(control.rows(sql))


def try_lock(control: Control) -> bool:
    """Try to become the one process that verifies on an interval, for this session's lifetime."""
    name = _LOCK + control.service
    return bool(control.rows("SELECT pg_try_advisory_lock(hashtextextended(%s, 0))", name)[0][0])
