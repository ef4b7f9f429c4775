"""Which history of WAL a server writes: one that is not the one of before was begun by a standby
that was promoted, and may lack the newest of what had been acknowledged."""

from __future__ import annotations

from typing import Any

import psycopg2

# The first eight digits of a file of WAL say it, to everyone.
_TIMELINE = (
    "SELECT CASE WHEN NOT pg_is_in_recovery()"
    " THEN left(pg_walfile_name(pg_current_wal_lsn()), 8) END"
)


def timeline_of(cursor: Any) -> str | None:
    """The server's; None of a standby, and of a server that does not tell.

    After an error the transaction, if there is one, is to be rolled back.
    """
    try:
        cursor.execute(_TIMELINE)
    except psycopg2.Error as error:
        if error.pgcode is None:
            # The session was lost.
            raise
        return None
    return cursor.fetchone()[0]


def has_changed(known: str | None, cursor: Any) -> bool:
    """Whether a server is another one than that of which this was known."""
    return known is not None and timeline_of(cursor) not in (None, known)
