"""A session that waits for changes of the catalog (channel "tidemark", sent by triggers).

Changes while no session listened are unknown, so each reconnect counts as a change. One thread.
"""

from __future__ import annotations

import time
from multiprocessing.connection import wait

import psycopg2
from psycopg2.extensions import connection as Connection

from connectors.postgres.schema.schema_setup import CHANNEL
from connectors.postgres.session.quoting import quote_name
from connectors.postgres.session.session import connect
from dataflow.errors import TemporaryError

_RETRY_S = 1.0


class Listener:
    """A session that waits for changes of the catalog; a lost one is replaced."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._session: Connection | None = None
        self._retry_at = 0.0

    def wait(self, timeout_s: float) -> bool:
        """Return True when something changed, or may have while no session listened."""
        if self._session is None or self._session.closed:
            started = time.monotonic()
            # Do not delay the caller with one attempt after another while the sink is down.
            if started >= self._retry_at and self._open():
                return True
            time.sleep(max(0.0, timeout_s - (time.monotonic() - started)))
            return False
        try:
            session = self._session
            session.poll()
            if not session.notifies:
                wait([session.fileno()], timeout_s)
                session.poll()
            is_changed = bool(session.notifies)
            session.notifies.clear()
            return is_changed
        except (psycopg2.Error, OSError, ValueError):
            self.close()
            return False

    def close(self) -> None:
        """End the session; the next `wait` opens a new one."""
        if self._session is not None:
            self._session.close()
            self._session = None

    def _open(self) -> bool:
        try:
            session = connect(self._dsn, side="sink", application_name="tidemark listen")
        except TemporaryError:
            self._retry_at = time.monotonic() + _RETRY_S
            return False
        session.autocommit = True
        with session.cursor() as cursor:
            cursor.execute(f"LISTEN {quote_name(CHANNEL)}")
        self._session = session
        return True
