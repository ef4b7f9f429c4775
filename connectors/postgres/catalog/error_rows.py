"""tidemark.errors page by page: the source rows left out of a view.

Newest first. A page begins after the last row of the previous one, by time and hash. Rows that are
repaired or added in between shift nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from connectors.postgres.catalog.catalog import Control

_COLUMNS = "hash::text, operator, sqlstate, message, source_row, count, first_seen"


@dataclass(frozen=True)
class LeftOut:
    """A source row left out of a view `count` times, identified by its hash."""

    hash: str
    operator: str
    sqlstate: str
    message: str
    source_row: str
    count: int
    first_seen: datetime


def read_left_out(
    control: Control, view: str, limit: int, after: tuple[datetime, str] | None
) -> list[LeftOut]:
    """Return error rows of a view ("schema.name"), newest first, after (first_seen, hash)."""
    beyond, values = "", []
    if after is not None:
        beyond, values = "AND (first_seen, hash) < (%s, %s::uuid) ", [*after]
    sql = (
        f"SELECT {_COLUMNS} FROM tidemark.errors WHERE view = %s {beyond}"
        "ORDER BY first_seen DESC, hash DESC LIMIT %s"
    )
    return [LeftOut(*row) for row in control.execute(sql, view, *values, limit)]
