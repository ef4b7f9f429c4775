"""The timeline of a server's WAL.

A changed timeline means that a standby was promoted. It may lack the newest acknowledged changes.
"""

from __future__ import annotations

from typing import Any

import psycopg2

# The first eight digits of a WAL file's name; every role may read it.
_TIMELINE = (
    "SELECT CASE WHEN NOT pg_is_in_recovery()"
    " THEN left(pg_walfile_name(pg_current_wal_lsn()), 8) END"
)


def timeline_of(cursor: Any) -> str | None:
    """Return the server's timeline; None on a standby or without the privilege.

    After an error, roll back the open transaction, if any.
    """
    try:
        cursor.execute(_TIMELINE)
    except psycopg2.Error as error:
        if error.pgcode is None:
            # The session was lost.
            raise
        return None
    return cursor.fetchone()[0]


def has_changed(previous: str | None, cursor: Any) -> bool:
    """Return whether the server's timeline differs from `previous`."""
    return previous is not None and timeline_of(cursor) not in (None, previous)
