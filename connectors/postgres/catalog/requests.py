"""Requests from psql, taken and answered: the service's side of tidemark.requests.

Invariant: one session at a time works on a request. The session takes it by a statement that locks
it, and when that session ends, the request is free again. So the requests of a killed API process
are taken up again, by itself or by another.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import Any

import psycopg2
from psycopg2.extensions import connection as Connection
from psycopg2.extras import Json

from connectors.postgres.schema.channels import CHANNEL, DEFAULT_SERVICE, REQUESTS, WAKE_UP
from connectors.postgres.schema.stored_roles import current_name, current_oid
from connectors.postgres.session.session import (
    connect,
    is_outlived,
    translated,
    without_transactions,
)
from dataflow.errors import TidemarkError

RETENTION_DAYS = 1

_MINE = "(SELECT a.backend_start FROM pg_stat_activity AS a WHERE a.pid = pg_backend_pid())"
_TAKE = f"""
UPDATE tidemark.requests SET status = CASE status WHEN 'waiting' THEN 'taken' ELSE status END,
    taken_pid = pg_backend_pid(), taken_start = {_MINE}
WHERE id = (
    SELECT r.id FROM tidemark.requests AS r
    WHERE r.service = %s AND r.ended_at IS NULL AND (r.taken_pid IS NULL OR NOT EXISTS (
        SELECT FROM pg_stat_activity AS a
        WHERE a.pid = r.taken_pid AND a.backend_start = r.taken_start))
    ORDER BY r.id LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING id, operation, arguments, {current_name("asker", "asker_oid")}, status, identity, target,
    extract(epoch FROM asked_at)::double precision, {current_oid("asker", "asker_oid")}::bigint
"""
_FORGET = f"DELETE FROM tidemark.requests WHERE ended_at < now() - interval '{RETENTION_DAYS} day'"
_END = (
    """
UPDATE tidemark.requests SET status = %s, code = %s, sqlstate = %s, error = %s, detail = %s,
    hint = %s, result = %s, ended_at = clock_timestamp(),
    arguments = CASE WHEN operation LIKE '%%\\_source' THEN arguments - 'options' ELSE arguments END
WHERE id = %s AND ended_at IS NULL;
"""
    + _FORGET
)
_REGISTER = f"""
DELETE FROM tidemark.listeners AS l WHERE l.service = %(service)s AND NOT EXISTS (
    SELECT FROM pg_stat_activity AS a
    WHERE a.pid = l.backend_pid AND a.backend_start = l.backend_start);
{_FORGET};
INSERT INTO tidemark.listeners (backend_pid, backend_start, service)
SELECT pg_backend_pid(), {_MINE}, %(service)s
"""


@dataclass(frozen=True)
class Request:
    """A row of tidemark.requests.

    target: the identity of the view that it concerns, once known; identity: of the view that it
    creates; requested_at: seconds since 1970.
    """

    id: int
    operation: str
    arguments: Mapping[str, Any]
    requester: str
    status: str
    identity: str
    target: str | None
    requested_at: float
    requester_oid: int | None = None


@dataclass(frozen=True)
class Outcome:
    """How a request ended: a failure when it has a code.

    said: the message of a success; warnings: shown beside it; facts: more details, for
    `tidemark.my_requests`.
    """

    said: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    code: str = ""
    sqlstate: str = ""
    error: str = ""
    detail: str = ""
    hint: str = ""
    warnings: Sequence[str] = ()


class Requests:
    """One session that receives notifications of requests to a service; for one thread.

    TemporaryError sink.unreachable when it is lost: the next call opens a new one.
    """

    def __init__(self, dsn: str, service: str = DEFAULT_SERVICE) -> None:
        self._dsn = dsn
        self._service = service
        self._session: Connection | None = None
        self._wake_in, self._wake_out = socket.socketpair()

    def wait(self, timeout_s: float) -> None:
        """Sleep until a request arrives or a view changes, at most timeout_s."""
        session = self._opened()
        with translated("sink", "cannot listen for requests"):
            session.poll()
            if not session.notifies:
                wait([session.fileno(), self._wake_out], timeout_s)
                session.poll()
            session.notifies.clear()

    def wake(self) -> None:
        """Make `wait` return now; from any thread."""
        self._wake_in.send(b"!")

    def take(self) -> Request | None:
        """Take the oldest request that no session works on; None when there is none."""
        found = self._rows(_TAKE, (self._service,))
        return Request(*found[0]) if found else None

    def end(self, request: Request, outcome: Outcome) -> None:
        """Report how it ended; waiting sessions see it at their next poll."""
        status = "failed" if outcome.code else "done"
        facts = (outcome.code, outcome.sqlstate, outcome.error, outcome.detail, outcome.hint)
        values = [fact or None for fact in facts]
        result = {**outcome.facts, "said": outcome.said, "warnings": list(outcome.warnings)}
        self._rows(_END, (status, *values, Json(result), request.id))

    def close(self) -> None:
        """Unregister: new requests no longer count on this service."""
        if self._session is not None and not self._session.closed:
            self._rows("DELETE FROM tidemark.listeners WHERE backend_pid = pg_backend_pid()")
        self.drop()
        self._wake_in.close()
        self._wake_out.close()

    def drop(self) -> None:
        """Disconnect, as after a loss."""
        if self._session is not None:
            self._session.close()
            self._session = None

    def _rows(self, sql: str, parameters: Any = None) -> list[tuple[Any, ...]]:
        session = self._opened()
        try:
            with translated("sink", "cannot read requests from psql"), session.cursor() as cursor:
                cursor.execute(sql, parameters)
                return cursor.fetchall() if cursor.description else []
        except TidemarkError as error:
            if error.__cause__ is not None and is_outlived(error.__cause__):
                self.drop()
            raise

    def _opened(self) -> Connection:
        if self._session is None or self._session.closed:
            self._session = connect(
                self._dsn, side="sink", application_name="tidemark requests", setup=self._register
            )
        return self._session

    def _register(self, session: Connection) -> None:
        session.autocommit = True
        with translated("sink", "cannot listen for requests"), session.cursor() as cursor:
            cursor.execute(f"LISTEN {REQUESTS}; LISTEN {CHANNEL}")
            cursor.execute(_REGISTER, {"service": self._service})


class WakeUp:
    """A session that sleeps in the sink until `tidemark.wait` wakes it; for one thread."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._session: Connection | None = None

    def wait(self, timeout_s: float) -> bool:
        """Sleep up to timeout_s; return whether it was woken. TemporaryError when it is lost."""
        if self._session is None or self._session.closed:
            self._session = connect(
                self._dsn, side="sink", application_name=WAKE_UP, setup=without_transactions
            )
        try:
            with (
                translated("sink", "cannot wait for a wake-up"),
                self._session.cursor() as cursor,
            ):
                cursor.execute("SELECT tidemark.await_ring(%s)", (timeout_s,))
                return bool((cursor.fetchone() or (False,))[0])
        except Exception as error:
            # The cancellation may hit just before the sleep or after it.
            if isinstance(error.__cause__, psycopg2.errors.QueryCanceled):
                return True
            self.close()
            raise

    def ring(self) -> None:
        """Make `wait` return now; from any thread."""
        session = self._session
        if session is not None and not session.closed:
            session.cancel()

    def close(self) -> None:
        """End the session; the next `wait` opens a new one."""
        if self._session is not None:
            self._session.close()
            self._session = None
