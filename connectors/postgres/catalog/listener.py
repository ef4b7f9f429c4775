"""A session that waits for changes of the catalog (channel "tidemark", sent by triggers).

Changes while no session listened are unknown, so each reconnect counts as a change. One thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from multiprocessing.connection import wait
from typing import TypeVar

import psycopg2

from connectors.postgres.schema.channels import CHANNEL
from connectors.postgres.session.liveness_watchdog import Watched
from connectors.postgres.session.quoting import quote_name
from connectors.postgres.session.session import connect
from dataflow.errors import TidemarkError

T = TypeVar("T")

_RETRY_S = 1.0


class Listener:
    """A session that waits for changes of the catalog; a lost one is replaced."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._session: Watched | None = None
        self._is_new = False
        self._retry_at = 0.0

    def wait(self, timeout_s: float) -> bool:
        """Return True when something changed, or may have while no session listened."""
        if self._session is None or self._session.closed:
            started = time.monotonic()
            # Do not delay the caller with one attempt after another while the sink is down.
            if started < self._retry_at or not self._has_opened():
                time.sleep(max(0.0, timeout_s - (time.monotonic() - started)))
                return False
        if self._is_new:
            self._is_new = False
            return True
        try:
            session = self._opened()
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

    def run(self, act: Callable[[Watched], T]) -> T:
        """Return what `act` returns in this session; once more in a new one if it was lost.

        Errors of `act` as they are; TidemarkError as of `connect`.
        """
        was_open = self._session is not None and not self._session.closed
        session = self._opened()
        try:
            return act(session)
        except psycopg2.Error:
            if not (was_open and session.closed):
                raise
        return act(self._opened())

    def close(self) -> None:
        """End the session; the next `wait` opens a new one."""
        if self._session is not None:
            self._session.close()
            self._session = None

    def _has_opened(self) -> bool:
        try:
            self._opened()
        except TidemarkError as error:
            # A standby accepts no listener: statements there report it.
            if not (error.is_temporary or error.code == "sink.read_only"):
                raise
            self._retry_at = time.monotonic() + _RETRY_S
            return False
        return True

    def _opened(self) -> Watched:
        if self._session is None or self._session.closed:
            self._session = connect(
                self._dsn, side="sink", application_name="tidemark listen", setup=_listen
            )
            self._is_new = True
        return self._session


def _listen(session: Watched) -> None:
    session.autocommit = True
    with session.cursor() as cursor:
        cursor.execute(f"LISTEN {quote_name(CHANNEL)}")
