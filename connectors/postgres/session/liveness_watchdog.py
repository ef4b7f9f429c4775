"""Sessions whose server may fall silent: no call waits for an answer that can no longer come.

TCP keepalives detect a dead host. They do not detect a proxy, balancer or pooler that keeps our end
of the connection and lost the other one. A statement timeout does not help either, since the server
enforces it. So a watchdog thread checks long calls: it asks the server, in a session of its own,
whether it still works for us. Invariant: a call is ended only when the server itself waits for us,
or could not be asked for `TIME_LIMITS.liveness_timeout_s`. Then it fails like a lost connection,
with an equally unknown outcome.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
import weakref
from types import TracebackType
from typing import Any

import psycopg2
from psycopg2 import extensions as ext
from psycopg2 import extras

from connectors.postgres.session import backend_probe
from connectors.postgres.session.backend_probe import TIME_LIMITS

# tcpi_last_data_recv, in milliseconds (linux/tcp.h).
_LAST_RECEIVED = 52
_CANCEL_S = 2.0
# Keywords of an ordinary session with one host.
_OF_ONE_HOST = {"replication": "", "target_session_attrs": "any", "load_balance_hosts": "disable"}
_STRIKES = 2


class _Call:
    """Entered while a call waits for the server."""

    __slots__ = ("_session",)

    def __init__(self, session: Watched) -> None:
        self._session = session

    def __enter__(self) -> None:
        session = self._session
        session.number += 1
        session.since = time.monotonic()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        session = self._session
        with session.lock:
            session.since = 0.0
        if session.why_cut and isinstance(error, psycopg2.Error):
            raise psycopg2.OperationalError(session.why_cut) from error


class Watched(ext.connection):
    """A session whose calls are watched.

    since: when the running call began, 0 without one; number: of that call; is_ours: the server
    waits for us, as in COPY.
    """

    _cursors: type[ext.cursor]

    @property
    def probe_class(self) -> type[WatchedSession]:
        """Return the class of sessions that probe this one."""
        return WatchedSession

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        self.lock = threading.Lock()
        self.number = 0
        self.since = 0.0
        self.max_s = 0.0
        self.is_ours = False
        self.why_cut = ""
        self.call = _Call(self)
        self.keywords: dict[str, Any] | None = None
        self.pid = 0
        self.opened_at = time.monotonic()
        self._probed_number = self._strikes = 0
        self._sign_at = self._probe_at = 0.0
        self._is_probing = False
        try:
            super().__init__(*arguments, **keywords)
        except psycopg2.Error:
            # libpq keeps the socket of a refused login, for as long as the error is kept.
            self.close()
            raise
        self.cursor_factory = self._cursors

    def watch(self, keywords: dict[str, Any], max_s: float = 0.0) -> None:
        """Watch the calls from now on.

        keywords: libpq's, for probing sessions; max_s: the limit of a call, 0: as long as the
        server works on it.
        """
        if self.info.host.startswith("/"):
            return
        # If the DSN names several hosts, probe the one of this session.
        address = {"host": self.info.host, "port": str(self.info.port)}
        self.keywords, self.pid = {**keywords, **address}, self.info.backend_pid
        for name, plain in _OF_ONE_HOST.items():
            # What says so itself keeps it: the environment has no effect on a foreign login.
            if self.keywords.get(name) != plain:
                self.keywords.pop(name, None)
        if "," in self.keywords.get("hostaddr", ""):
            del self.keywords["hostaddr"]
        self.max_s = max_s
        _watcher.add(self)

    def commit(self) -> None:
        """See psycopg2."""
        with self.call:
            super().commit()

    def rollback(self) -> None:
        """See psycopg2."""
        with self.call:
            super().rollback()

    def cancel(self) -> None:
        """Cancel the running statement, from another thread; cut it if the server does not
        answer."""
        number = self.number
        thread = threading.Thread(
            target=backend_probe.cancel, args=(self,), name="cancel", daemon=True
        )
        thread.start()
        thread.join(_CANCEL_S)
        if thread.is_alive():
            self.cut("the statement was cancelled, but the server does not answer", number)

    def cut(self, why: str, number: int) -> None:
        """End a call by closing its connection, from another thread, if it still runs."""
        with self.lock:
            if not self.since or self.number != number or self.closed:
                return
            self.why_cut = why
            with socket.socket(fileno=os.dup(self.fileno())) as ours:
                ours.shutdown(socket.SHUT_RDWR)

    # --- called by the watcher ---------------------------------------------------------------

    def probe(self, now: float) -> None:
        """Check a call that takes long; called often, by one thread."""
        since, number = self.since, self.number
        if not since or self.is_ours:
            self._probed_number = 0
            return
        if self.max_s and now - since > self.max_s:
            self.cut(f"no answer within {self.max_s:.0f} s", number)
            return
        if number != self._probed_number:
            self._probed_number, self._strikes = number, 0
            self._sign_at, self._probe_at = since, since + TIME_LIMITS.first_probe_s
        if now < self._probe_at or self._is_probing or self.max_s:
            return
        if now - self._sign_at > TIME_LIMITS.first_probe_s and self._has_received():
            self._sign(now)
            return
        self._is_probing = True
        thread = threading.Thread(target=self._run_probe, args=(number,), name="probe", daemon=True)
        thread.start()

    def _sign(self, now: float) -> None:
        self._strikes, self._sign_at, self._probe_at = 0, now, now + TIME_LIMITS.first_probe_s

    def _has_received(self) -> bool:
        """Return whether bytes arrived lately, as in a long answer."""
        with self.lock:
            if not self.since or self.closed:
                return True
            with socket.socket(fileno=os.dup(self.fileno())) as ours:
                facts = ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
        (received_ms,) = struct.unpack_from("=I", facts, _LAST_RECEIVED)
        return received_ms < 1000 * TIME_LIMITS.next_probe_s

    def _run_probe(self, number: int) -> None:
        try:
            verdict = backend_probe.probe(self)
            now = time.monotonic()
            if verdict in (backend_probe.Verdict.WORKING, backend_probe.Verdict.UNKNOWN):
                self._sign(now)
                return
            self._probe_at = now + TIME_LIMITS.next_probe_s
            self._strikes += verdict is backend_probe.Verdict.WAITING
            if self._strikes >= _STRIKES:
                self.cut("the connection is lost: both ends wait for each other", number)
            elif now - self._sign_at > TIME_LIMITS.liveness_timeout_s:
                self.cut(f"no sign of life for {now - self._sign_at:.0f} s", number)
            if self.why_cut:
                backend_probe.terminate_orphan(self)
        except (psycopg2.Error, OSError):
            # The call ended meanwhile.
            self._probe_at = time.monotonic() + TIME_LIMITS.next_probe_s
        finally:
            self._is_probing = False


class _Ours:
    """A file that COPY reads or writes: meanwhile the server waits for us."""

    def __init__(self, session: Watched, file: Any) -> None:
        self._session = session
        self._file = file

    def read(self, size: int = -1) -> Any:
        """Return what COPY FROM STDIN sends."""
        self._session.is_ours = True
        try:
            return self._file.read(size)
        finally:
            self._resume()

    def write(self, data: Any) -> Any:
        """Take what COPY TO STDOUT received."""
        self._session.is_ours = True
        try:
            return self._file.write(data)
        finally:
            self._resume()

    def _resume(self) -> None:
        # Each piece is a sign of life: it counts as a new call.
        self._session.number += 1
        self._session.since = time.monotonic()
        self._session.is_ours = False


class _Calls:
    """The calls of a cursor that wait for the server."""

    connection: Any

    def execute(self, *arguments: Any, **keywords: Any) -> Any:
        """See psycopg2."""
        with self.connection.call:
            return super().execute(*arguments, **keywords)  # type: ignore[misc]

    def copy_expert(self, sql: Any, file: Any, size: int = 8192) -> Any:
        """See psycopg2."""
        with self.connection.call:
            return super().copy_expert(sql, _Ours(self.connection, file), size)  # type: ignore[misc]


class _Cursor(_Calls, ext.cursor):
    pass


class _ReplicationCursor(_Calls, extras.ReplicationCursor):
    def start_replication_expert(self, *arguments: Any, **keywords: Any) -> Any:
        """See psycopg2."""
        with self.connection.call:
            return super().start_replication_expert(*arguments, **keywords)


class WatchedSession(Watched):
    """An ordinary session."""

    _cursors = _Cursor


class WatchedReplication(Watched, extras.LogicalReplicationConnection):
    """A replication connection, until its stream starts."""

    _cursors = _ReplicationCursor


class _Watcher:
    """One thread per process, started with its first session."""

    def __init__(self) -> None:
        self._sessions: weakref.WeakSet[Watched] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, session: Watched) -> None:
        """Watch a session until it is gone."""
        with self._lock:
            self._sessions.add(session)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="silence", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            time.sleep(min(1.0, TIME_LIMITS.liveness_timeout_s / 20))
            with self._lock:
                sessions = list(self._sessions)
            for session in sessions:
                try:
                    session.probe(time.monotonic())
                except (psycopg2.Error, OSError):
                    # Closed between two steps of ours.
                    continue


_watcher = _Watcher()
