"""Sessions whose server may fall silent: no call waits for an answer that cannot come any more.

TCP's keepalives tell of a host that is gone. They do not tell when something in between (a proxy,
a balancer, a pooler) holds our end of the connection and has lost the other one; nor can a
statement's time-out help, which is the server's. So calls that take long are looked into: a thread
asks the server, by a session of its own, whether it is still at work for us. Invariant: a call is
ended only when the server itself waits for us, or nobody could be asked for `PATIENCE.silence_s`;
then it fails as a lost connection does, and its outcome is as unknown.
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
from connectors.postgres.session.backend_probe import PATIENCE

# tcpi_last_data_recv, in milliseconds (linux/tcp.h).
_LAST_RECEIVED = 52
_CANCEL_S = 2.0
_STRIKES = 2


class _Call:
    """Entered while an answer of the server is awaited."""

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
    """A session whose calls are watched. since: when the call that runs began, 0: none does;
    number: of that call; is_ours: it waits for us just now, not for the server."""

    _cursors: type[ext.cursor]

    @property
    def beside(self) -> type[WatchedSession]:
        """Of which kind a session is that asks after this one."""
        return WatchedSession

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        self.lock = threading.Lock()
        self.number = 0
        self.since = 0.0
        self.most_s = 0.0
        self.is_ours = False
        self.why_cut = ""
        self.call = _Call(self)
        self.keywords: dict[str, Any] | None = None
        self.pid = 0
        self.opened_at = time.monotonic()
        self._looked_at_number = self._strikes = 0
        self._sign_at = self._look_at = 0.0
        self._is_asking = False
        super().__init__(*arguments, **keywords)
        self.cursor_factory = self._cursors

    def watch(self, keywords: dict[str, Any], most_s: float = 0.0) -> None:
        """Watch the calls from now on. keywords: libpq's, for sessions that ask after this one;
        most_s: how long a call may take in any case, 0: as long as the server works at it."""
        if self.info.host.startswith("/"):
            return
        # Where the DSN names several hosts: the one that this session is with.
        place = {"host": self.info.host, "port": str(self.info.port)}
        self.keywords, self.pid = {**keywords, **place}, self.info.backend_pid
        for name in ("replication", "hostaddr", "target_session_attrs", "load_balance_hosts"):
            self.keywords.pop(name, None)
        self.most_s = most_s
        _watcher.add(self)

    def commit(self) -> None:
        """As psycopg2 has it."""
        with self.call:
            super().commit()

    def rollback(self) -> None:
        """As psycopg2 has it."""
        with self.call:
            super().rollback()

    def cancel(self) -> None:
        """Cancel what runs, from another thread; where even that is not answered, end it."""
        number = self.number
        thread = threading.Thread(
            target=backend_probe.cancel, args=(self,), name="cancel", daemon=True
        )
        thread.start()
        thread.join(_CANCEL_S)
        if thread.is_alive():
            self.cut("the statement was cancelled, and the server does not answer", number)

    def cut(self, why: str, number: int) -> None:
        """End a call by its connection, from another thread, if it is still this one."""
        with self.lock:
            if not self.since or self.number != number or self.closed:
                return
            self.why_cut = why
            with socket.socket(fileno=os.dup(self.fileno())) as ours:
                ours.shutdown(socket.SHUT_RDWR)

    # --- the watcher's side ------------------------------------------------------------------

    def look(self, now: float) -> None:
        """See to a call that takes long; called often, by one thread."""
        since, number = self.since, self.number
        if not since or self.is_ours:
            self._looked_at_number = 0
            return
        if self.most_s and now - since > self.most_s:
            self.cut(f"no answer within {self.most_s:.0f} s", number)
            return
        if number != self._looked_at_number:
            self._looked_at_number, self._strikes = number, 0
            self._sign_at, self._look_at = since, since + PATIENCE.first_look_s
        if now < self._look_at or self._is_asking or self.most_s:
            return
        if now - self._sign_at > PATIENCE.first_look_s and self._has_received():
            self._sign(now)
            return
        self._is_asking = True
        thread = threading.Thread(target=self._ask, args=(number,), name="asking", daemon=True)
        thread.start()

    def _sign(self, now: float) -> None:
        self._strikes, self._sign_at, self._look_at = 0, now, now + PATIENCE.first_look_s

    def _has_received(self) -> bool:
        """Whether bytes have come lately: a long answer is on its way."""
        with self.lock:
            if not self.since or self.closed:
                return True
            with socket.socket(fileno=os.dup(self.fileno())) as ours:
                facts = ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
        (received_ms,) = struct.unpack_from("=I", facts, _LAST_RECEIVED)
        return received_ms < 1000 * PATIENCE.next_look_s

    def _ask(self, number: int) -> None:
        try:
            verdict = backend_probe.ask(self)
            now = time.monotonic()
            if verdict in (backend_probe.Verdict.WORKING, backend_probe.Verdict.UNKNOWN):
                self._sign(now)
                return
            self._look_at = now + PATIENCE.next_look_s
            self._strikes += verdict is backend_probe.Verdict.WAITING
            if self._strikes >= _STRIKES:
                self.cut("the server waits for us, and we for it: the connection is lost", number)
            elif now - self._sign_at > PATIENCE.silence_s:
                self.cut(f"no sign of life for {now - self._sign_at:.0f} s", number)
            if self.why_cut:
                backend_probe.terminate_orphan(self)
        except (psycopg2.Error, OSError):
            # It has ended meanwhile.
            self._look_at = time.monotonic() + PATIENCE.next_look_s
        finally:
            self._is_asking = False


class _Ours:
    """A file that COPY reads or writes: meanwhile it is the server who waits."""

    def __init__(self, session: Watched, file: Any) -> None:
        self._session = session
        self._file = file

    def read(self, size: int = -1) -> Any:
        """What COPY FROM STDIN sends."""
        self._session.is_ours = True
        try:
            return self._file.read(size)
        finally:
            self._resume()

    def write(self, data: Any) -> Any:
        """What COPY TO STDOUT has brought."""
        self._session.is_ours = True
        try:
            return self._file.write(data)
        finally:
            self._resume()

    def _resume(self) -> None:
        # Each piece that passes is a sign of life: a call of its own.
        self._session.number += 1
        self._session.since = time.monotonic()
        self._session.is_ours = False


class _Calls:
    """The calls of a cursor that wait for the server."""

    connection: Any

    def execute(self, *arguments: Any, **keywords: Any) -> Any:
        """As psycopg2 has it."""
        with self.connection.call:
            return super().execute(*arguments, **keywords)  # type: ignore[misc]

    def copy_expert(self, sql: Any, file: Any, size: int = 8192) -> Any:
        """As psycopg2 has it."""
        with self.connection.call:
            return super().copy_expert(sql, _Ours(self.connection, file), size)  # type: ignore[misc]


class _Cursor(_Calls, ext.cursor):
    pass


class _ReplicationCursor(_Calls, extras.ReplicationCursor):
    def start_replication_expert(self, *arguments: Any, **keywords: Any) -> Any:
        """As psycopg2 has it."""
        with self.connection.call:
            return super().start_replication_expert(*arguments, **keywords)


class WatchedSession(Watched):
    """An ordinary session."""

    _cursors = _Cursor


class WatchedReplication(Watched, extras.LogicalReplicationConnection):
    """A replication connection, up to the start of its stream."""

    _cursors = _ReplicationCursor


class _Watcher:
    """One thread a process, started with its first session."""

    def __init__(self) -> None:
        self._sessions: weakref.WeakSet[Watched] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, session: Watched) -> None:
        """Watch it until it is gone."""
        with self._lock:
            self._sessions.add(session)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="silence", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            time.sleep(min(1.0, PATIENCE.silence_s / 20))
            with self._lock:
                sessions = list(self._sessions)
            for session in sessions:
                try:
                    session.look(time.monotonic())
                except (psycopg2.Error, OSError):
                    # Closed between two of our steps.
                    continue


_watcher = _Watcher()
