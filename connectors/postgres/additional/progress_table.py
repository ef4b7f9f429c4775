"""The progress of sinks in another PostgreSQL: a row for each, in the schema of its table.

The row also names the writer. A new writer ends the session of the earlier one and puts its own
token there; every transaction locks the row and finds the token, or writes nothing. All functions
work on the caller's cursor, inside the caller's transaction.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from psycopg2 import errors as states

from connectors.postgres.session.quoting import quote_name

NAME = "tidemark_sink_progress"
# The writer's earlier session may wait for a network that is gone, and holds the row's lock.
_END_EARLIER = """SELECT pg_terminate_backend(a.pid, 5000) FROM pg_stat_activity AS a
WHERE a.pid = %s AND a.backend_start = %s AND a.pid <> pg_backend_pid()"""
_OWN_START = "SELECT backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()"
# Two writers that create it at the same moment wait for each other.
_LOCK_KEY = 0x7469_6465_7369_6E6B


@dataclass(frozen=True)
class Standing:
    """A sink's row. epoch: None before the first one. table_oid: of the table, once it is there.

    is_created: the table is our own and not one that was given.
    """

    owner: str
    epoch: int | None
    table_oid: int | None
    is_created: bool


def progress_name(schema: str) -> str:
    """Return the name of a schema's progress table in statements."""
    return f"{quote_name(schema)}.{NAME}"


class ProgressTable:
    """The progress table of one schema, for one sink."""

    def __init__(self, schema: str, identity: str) -> None:
        self.sql = progress_name(schema)
        self._identity = identity

    def ensure(self, cursor: Any) -> None:
        """Create the table, unless it is there."""
        cursor.execute("SELECT to_regclass(%s)", (self.sql,))
        if cursor.fetchone()[0] is not None:
            return
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK_KEY,))
        cursor.execute(
            f"CREATE TABLE IF NOT EXISTS {self.sql} (sink text PRIMARY KEY, title text NOT NULL, "
            "table_name text NOT NULL, epoch bigint, positions jsonb, table_oid oid, "
            "is_created boolean NOT NULL, owner text NOT NULL, owner_pid integer, "
            "owner_start timestamptz, updated_at timestamptz NOT NULL)"
        )

    def find(self, cursor: Any, *, is_locked: bool = False) -> Standing | None:
        """Return the sink's row; None without one. is_locked: lock it for this transaction."""
        cursor.execute("SELECT to_regclass(%s)", (self.sql,))
        if cursor.fetchone()[0] is None:
            return None
        lock = " FOR UPDATE" if is_locked else ""
        cursor.execute(
            f"SELECT owner, epoch, table_oid::bigint, is_created FROM {self.sql} "
            f"WHERE sink = %s{lock}",
            (self._identity,),
        )
        row = cursor.fetchone()
        return None if row is None else Standing(*row)

    def end_earlier(self, cursor: Any) -> None:
        """End the session of the writer that the row names, if it is still there."""
        cursor.execute(
            f"SELECT owner_pid, owner_start FROM {self.sql} WHERE sink = %s", (self._identity,)
        )
        for found in cursor.fetchall():
            cursor.execute(_END_EARLIER, found)

    def claim(self, cursor: Any, owner: str, title: str, table_name: str) -> None:
        """Name the writer, with its session."""
        cursor.execute(
            f"INSERT INTO {self.sql} (sink, title, table_name, is_created, owner, owner_pid, "
            f"owner_start, updated_at) SELECT %s, %s, %s, false, %s, pg_backend_pid(), "
            f"({_OWN_START}), now() "
            "ON CONFLICT (sink) DO UPDATE SET owner = excluded.owner, "
            "owner_pid = excluded.owner_pid, owner_start = excluded.owner_start",
            (self._identity, title, table_name, owner),
        )

    def begin(self, cursor: Any, table_sql: str, *, is_created: bool) -> None:
        """Note the table that the first rows go to."""
        cursor.execute(
            f"UPDATE {self.sql} SET table_oid = %s::regclass, is_created = %s WHERE sink = %s",
            (table_sql, is_created, self._identity),
        )

    def advance(self, cursor: Any, epoch: int, positions: Mapping[str, Any]) -> None:
        """Set the progress."""
        cursor.execute(
            f"UPDATE {self.sql} SET epoch = %s, positions = %s, updated_at = now() WHERE sink = %s",
            (epoch, json.dumps(dict(positions)), self._identity),
        )

    def remove(self, cursor: Any) -> None:
        """Delete the sink's row, and the table with its last row, unless another sink uses it."""
        cursor.execute(f"DELETE FROM {self.sql} WHERE sink = %s", (self._identity,))
        cursor.execute("SAVEPOINT removed")
        try:
            # Other sinks must not wait behind this one.
            cursor.execute(f"LOCK TABLE {self.sql} IN ACCESS EXCLUSIVE MODE NOWAIT")
            cursor.execute(f"SELECT 1 FROM {self.sql} LIMIT 1")
            if cursor.fetchone() is None:
                cursor.execute(f"DROP TABLE {self.sql}")
        except (states.LockNotAvailable, states.InsufficientPrivilege):
            cursor.execute("ROLLBACK TO removed")
