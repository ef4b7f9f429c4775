"""The lease on a sink: one service at a time writes under a key, identified by a token.

The writing session holds an advisory lock, which ends with it. A second service is refused by name,
and after a kill the sink is free at once. The token is the fence: a new owner stores its own in
tidemark.owners and terminates the previous owner's sessions. From then on the sink rejects
everything an earlier owner still tries to write, however long it slept. The token also identifies
the slot's reader.
"""

from __future__ import annotations

import secrets
import time
from typing import Any

import psycopg2
from psycopg2.extensions import connection as Connection

from connectors.postgres.session.session import APPLICATION_NAME, translated
from connectors.postgres.session.timeline import has_changed, timeline_of
from connectors.sink import SinkPromoted
from dataflow.errors import SinkError

FENCED_STATE = "TM001"

# Seconds for a disconnected session to end.
RELEASE_S = 5.0
_LOCK = 0x71DE
# The owners with the sessions that hold their locks.
_HELD = """FROM tidemark.owners AS o LEFT JOIN pg_locks AS l
ON l.locktype = 'advisory' AND l.granted AND l.classid = %s
AND l.objid::bigint = (hashtext(o.sink_key)::bigint & 4294967295)
AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"""
_SINK, _AUXILIARY, _STREAM = "tidemark sink", "tidemark auxiliary", "tidemark stream"


class Claim:
    """One process's lease under a sink's progress key. location: where it runs, for messages."""

    def __init__(self, key: str, location: str) -> None:
        self._key = key
        self._location = location
        self._token = secrets.token_hex(8)
        self._displaced: set[str] = set()
        self._is_taken = False
        self._timeline: str | None = None

    @property
    def is_taken(self) -> bool:
        """Return whether it was ever ours."""
        return self._is_taken

    @property
    def token(self) -> str:
        """Return the token stored in tidemark.owners while it is ours."""
        return self._token

    @property
    def sink_application(self) -> str:
        """Return the application_name of sessions that write to the sink."""
        return f"{_SINK} {self._token}"

    @property
    def other_application(self) -> str:
        """Return the name of auxiliary sessions: staging, dropping and reading."""
        return f"{_AUXILIARY} {self._token}"

    @property
    def stream_application(self) -> str:
        """Return the application_name of the slot's reader."""
        return f"{_STREAM} {self._token}"

    def may_end(self, application: str) -> bool:
        """Return whether a slot reader is an earlier one of ours, or of an owner before us."""
        return application.rpartition(" ")[2] in {self._token, *self._displaced}

    def take(self, session: Connection) -> None:
        """Take the sink for this writing session, which has no open transaction; or retake it.

        SinkError sink.in_use while another service has it, sink.fenced when another one took it
        since; SinkPromoted when a standby took over since; TemporaryError.
        """
        with translated("sink", "cannot claim the sink"), session.cursor() as cursor:
            self._await_lock(cursor)
            cursor.execute(
                "SELECT token, place FROM tidemark.owners WHERE sink_key = %s", (self._key,)
            )
            found = cursor.fetchone()
            if self._is_taken:
                if found is None or found[0] != self._token:
                    raise fenced(found[1] if found else "its record was deleted")
                # The promoted server may lack view changes that users or we made since the newest
                # epoch.
                if has_changed(self._timeline, cursor):
                    raise SinkPromoted()
                return
            if found is not None:
                self._displaced.add(found[0])
            cursor.execute(
                "INSERT INTO tidemark.owners (sink_key, token, place) VALUES (%s, %s, %s) "
                "ON CONFLICT (sink_key) DO UPDATE SET token = excluded.token, "
                "place = excluded.place, since = now()",
                (self._key, self._token, self._location),
            )
            self._is_taken = True
            self._timeline = timeline_of(cursor)
            # From here on their unfinished writes cannot commit.
            self._end(cursor, [f"tidemark % {token}" for token in self._displaced])

    def forget(self, cursor: Any) -> None:
        """Remove the record, unless another service took over. The lease ends with its session."""
        cursor.execute(
            "DELETE FROM tidemark.owners WHERE sink_key = %s AND token = %s",
            (self._key, self._token),
        )

    def require(self, cursor: Any) -> None:
        """Require, in a transaction, that no other service took over. SinkError sink.fenced."""
        if not self._is_taken:
            return
        try:
            cursor.execute("SELECT tidemark.require_owner(%s, %s)", (self._key, self._token))
        except psycopg2.Error as error:
            if error.pgcode == FENCED_STATE:
                raise fenced(str(error.diag.message_primary)) from None
            raise

    def _await_lock(self, cursor: Any) -> None:
        deadline = time.monotonic() + RELEASE_S
        while True:
            if hold(cursor, self._key):
                return
            # End an earlier session of our own that the network cut off.
            self._end(cursor, [self.sink_application])
            if time.monotonic() > deadline:
                raise self._in_use(cursor)
            time.sleep(0.05)

    @staticmethod
    def _end(cursor: Any, applications: list[str]) -> None:
        """Terminate these sessions except our own, and wait for their end."""
        if not applications:
            return
        deadline = time.monotonic() + RELEASE_S
        while time.monotonic() < deadline:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = "
                "current_database() AND pid <> pg_backend_pid() AND application_name LIKE ANY(%s)",
                (applications,),
            )
            if not cursor.fetchall():
                return
            time.sleep(0.02)

    def _in_use(self, cursor: Any) -> SinkError:
        cursor.execute(
            f"SELECT o.place, o.since::text, l.pid {_HELD} WHERE o.sink_key = %s",
            (_LOCK, self._key),
        )
        location, since, pid = cursor.fetchone() or ("unknown", "unknown", None)
        return SinkError(
            "sink.in_use",
            f'another service writes to the sink under "{self._key}"',
            detail=_held_by(location, since, pid),
            hint="stop it, or choose another --prefix; if its machine is gone, end its "
            "session: SELECT pg_terminate_backend(pid)",
        )


def hold(cursor: Any, key: str) -> bool:
    """Hold a sink's lock until the session ends, without a claim; return whether it was free."""
    cursor.execute("SELECT pg_try_advisory_lock(%s, hashtext(%s))", (_LOCK, key))
    return cursor.fetchone()[0]


def holders(cursor: Any, service: str) -> list[str]:
    """Return where the processes run that hold the leases of a service, in words."""
    cursor.execute(
        f"SELECT o.place, o.since::text, l.pid {_HELD} WHERE l.pid IS NOT NULL"
        " AND split_part(o.sink_key, '/', 1) = %s ORDER BY o.sink_key",
        (_LOCK, service),
    )
    return [_held_by(*row) for row in cursor.fetchall()]


def _held_by(location: str, since: str, pid: int | None) -> str:
    return f"{location}, since {since}; its session in the sink has pid {pid}"


def applications_of(claim: Claim | None) -> tuple[str, str]:
    """Return the application_name of the writing session, and of auxiliary ones."""
    return (claim.sink_application, claim.other_application) if claim else (_SINK, APPLICATION_NAME)


def fenced(owner: str) -> SinkError:
    """Return the refusal of a service that was replaced."""
    return SinkError(
        "sink.fenced",
        "another service has taken over the sink",
        detail=owner,
        hint="another service writes under the same key: stop it, or choose another --prefix",
    )
