"""Idle sessions of this process, lent to whoever runs a statement or a short transaction.

Objects that ask a database now and then hold no session of their own. So a process has as many of
these sessions as it has such statements at once, however many objects there are, and an idle
process has none after a while. Invariant: a lent session has one borrower. One that is lost, or
comes back within a transaction, is closed and never lent again. A forked process has none of its
parent's.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TypeVar

import psycopg2
from psycopg2.extensions import TRANSACTION_STATUS_IDLE

from connectors.postgres.session.liveness_watchdog import Watched

T = TypeVar("T")

# Then an unused session is closed; most periodic statements come more often.
IDLE_S = 6.0
# For sessions that are costly to prepare.
LONG_IDLE_S = 60.0
_CHECK_S = 1.0
# The setting of the server, the database or the role may have changed since the session began.
_READ_ONLY = "25006"


@dataclass(frozen=True)
class _Idle:
    session: Watched
    until: float


class SessionPool:
    """Sessions by what they were opened with; usable from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[Hashable, list[_Idle]] = {}
        self._closer: threading.Thread | None = None

    def run(
        self,
        key: Hashable,
        open: Callable[[], Watched],
        act: Callable[[Watched], T],
        idle_s: float = IDLE_S,
    ) -> T:
        """Return what `act` returns in a session; errors of both as they are.

        An idle session that turns out to be lost, or that `act` closes when it fails, is replaced
        by a new one, once: `act` must tolerate repetition. key: sessions of one key are
        interchangeable. idle_s: for how long it is kept afterwards.
        """
        session = self._take(key)
        if session is not None:
            try:
                return self._lend(key, session, act, idle_s)
            except psycopg2.Error:
                if not session.closed:
                    raise
                # What ended it has probably ended the others too.
                self.close(key)
        return self._lend(key, open(), act, idle_s)

    def close(self, key: Hashable) -> None:
        """Close the idle sessions of a key; the next statement opens a new one."""
        with self._lock:
            found = self._idle.pop(key, [])
        for idle in found:
            idle.session.close()

    def _lend(
        self, key: Hashable, session: Watched, act: Callable[[Watched], T], idle_s: float
    ) -> T:
        try:
            return act(session)
        except psycopg2.Error as error:
            if error.pgcode == _READ_ONLY:
                session.close()
                self.close(key)
            raise
        finally:
            self._give_back(key, session, idle_s)

    def _take(self, key: Hashable) -> Watched | None:
        with self._lock:
            found = self._idle.get(key, [])
            while found:
                # The newest: those beyond the usual number grow old.
                session = found.pop().session
                if not session.closed:
                    return session
            return None

    def _give_back(self, key: Hashable, session: Watched, idle_s: float) -> None:
        if session.closed:
            return
        if session.info.transaction_status != TRANSACTION_STATUS_IDLE:
            session.close()
            return
        with self._lock:
            self._idle.setdefault(key, []).append(_Idle(session, time.monotonic() + idle_s))
            if self._closer is None:
                self._closer = threading.Thread(
                    target=self._close_expired, name="idle-sessions", daemon=True
                )
                self._closer.start()

    def _close_expired(self) -> None:
        while True:
            time.sleep(_CHECK_S)
            with self._lock:
                expired = self._remove_expired(time.monotonic())
                if not self._idle:
                    self._closer = None
            for session in expired:
                session.close()
            if self._closer is not threading.current_thread():
                return

    def _remove_expired(self, now: float) -> list[Watched]:
        expired: list[Watched] = []
        for key, found in list(self._idle.items()):
            expired += [idle.session for idle in found if idle.until < now]
            found[:] = [idle for idle in found if idle.until >= now]
            if not found:
                del self._idle[key]
        return expired

    def before_fork(self) -> None:
        """Let no other thread change anything during a fork."""
        self._lock.acquire()

    def after_fork(self) -> None:
        """Continue in the parent."""
        self._lock.release()

    def after_fork_in_child(self) -> None:
        """Forget the parent's sessions; psycopg2 leaves another process's connections alone."""
        self.__init__()


POOL = SessionPool()
os.register_at_fork(
    before=POOL.before_fork,
    after_in_parent=POOL.after_fork,
    after_in_child=POOL.after_fork_in_child,
)
