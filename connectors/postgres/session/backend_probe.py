"""Probe the backend of one of our sessions from a second session, which never waits for long.

The probe reports whether the backend works for us or waits for us. Once the session is lost, it
terminates the backend. Invariant: it only ever terminates a backend of our own role with the name
and age of that very session. A pid alone may belong to another session by now, or be a pooler's
invention.
"""

from __future__ import annotations

import ctypes
import threading
import time
from enum import Enum
from typing import Any, Protocol

import psycopg2
from psycopg2 import _psycopg
from psycopg2 import extensions as ext

_WAITS_FOR_US = ("ClientRead", "ClientWrite")
_END_S = 5.0
_END_TRIES = 100
# The pid may belong to another session by now: compare the backend's age with our session's.
_IS_ORPHAN = """
a.pid = %(pid)s AND a.application_name = %(name)s AND abs(
    extract(epoch FROM clock_timestamp() - a.backend_start) - %(age_s)s) < 30
"""
_PROBE = f"""
SELECT pg_backend_pid(), a.state, a.wait_event
FROM (SELECT) one LEFT JOIN pg_stat_activity a ON {_IS_ORPHAN}
"""
_END = f"""
SELECT pg_terminate_backend(a.pid) FROM pg_stat_activity a
WHERE pg_backend_pid() = %(own)s AND {_IS_ORPHAN}
"""


class TimeLimits:
    """Time limits of this process, set from the settings at start.

    liveness_timeout_s: how long a server may give no sign of life before a connection to it counts
    as lost.
    """

    liveness_timeout_s: float = 60.0

    @property
    def first_probe_s(self) -> float:
        """Return how long a call may take before the server is probed, in seconds."""
        return self.liveness_timeout_s / 3

    @property
    def next_probe_s(self) -> float:
        """Return the seconds until the next probe after a bad answer."""
        return self.liveness_timeout_s / 9

    @property
    def connect_s(self) -> int:
        """Return the timeout for opening a session, in seconds."""
        return max(2, round(min(10.0, self.liveness_timeout_s / 6)))

    def transport(self) -> dict[str, str]:
        """Return libpq's settings that detect a dead host."""
        server = self.server_settings()
        keepalives = {n.removeprefix("tcp_"): v for n, v in server.items() if "keepalives" in n}
        return {**keepalives, "keepalives": "1", "tcp_user_timeout": server["tcp_user_timeout"]}

    def server_settings(self) -> dict[str, str]:
        """Return session settings by which the server notices that we are gone."""
        return {
            "tcp_keepalives_idle": str(max(1, round(min(10.0, self.liveness_timeout_s / 6)))),
            "tcp_keepalives_interval": str(max(1, round(min(5.0, self.liveness_timeout_s / 12)))),
            "tcp_keepalives_count": "3",
            "tcp_user_timeout": str(round(min(30.0, self.liveness_timeout_s / 2) * 1000)),
        }


TIME_LIMITS = TimeLimits()


class Verdict(Enum):
    """The state of a call at the server. UNKNOWN: the server cannot tell for this session."""

    WORKING = 1
    WAITING = 2
    UNREACHABLE = 3
    UNKNOWN = 4


class ProbedSession(Protocol):
    """Session fields a probe needs.

    keywords: libpq's, None where the session cannot be probed; pid: of its backend, as the server
    reported.
    """

    lock: threading.Lock
    keywords: dict[str, Any] | None
    pid: int
    opened_at: float

    @property
    def probe_class(self) -> type[Any]:
        """Return the class of the probing session."""
        ...

    @property
    def closed(self) -> int:
        """See psycopg2."""
        ...

    @property
    def pgconn_ptr(self) -> int | None:
        """See psycopg2."""
        ...


def probe(lost: ProbedSession) -> Verdict:
    """Return what the server is doing for one of our sessions."""
    try:
        session = _open_probe(lost)
    except psycopg2.Error as error:
        # A server that refuses is alive.
        return Verdict.UNKNOWN if "FATAL" in str(error) else Verdict.UNREACHABLE
    try:
        with session.cursor() as cursor:
            cursor.execute(_PROBE, _facts(lost))
            own_pid, state, waits_for = cursor.fetchone() or (0, None, None)
        if own_pid != session.pid:
            # A pooler in between assigns its own pids.
            return Verdict.UNKNOWN
        is_at_work = state == "active" and waits_for not in _WAITS_FOR_US
        return Verdict.WORKING if is_at_work else Verdict.WAITING
    except psycopg2.Error:
        return Verdict.UNREACHABLE
    finally:
        session.close()


def end_left(lost: ProbedSession | None) -> None:
    """Terminate the backend of a lost session, with its locks and open transaction.

    That transaction might otherwise still commit. psycopg2.Error while termination is impossible.
    """
    if lost is None or lost.keywords is None:
        return
    session = _open_probe(lost)
    try:
        deadline = time.monotonic() + _END_S
        with session.cursor() as cursor:
            while True:
                cursor.execute(_END, {**_facts(lost), "own": session.pid})
                if not cursor.fetchall():
                    return
                if time.monotonic() > deadline:
                    raise psycopg2.OperationalError("a lost session does not end at the server")
                time.sleep(0.02)
    finally:
        session.close()


def terminate_orphan(lost: ProbedSession) -> None:
    """Terminate the backend of a lost session as soon as the server can be reached."""
    for _ in range(_END_TRIES):
        try:
            end_left(lost)
            return
        except psycopg2.Error:
            time.sleep(TIME_LIMITS.next_probe_s)


def _facts(lost: ProbedSession) -> dict[str, Any]:
    assert lost.keywords is not None
    age_s = time.monotonic() - lost.opened_at
    return {"pid": lost.pid, "name": lost.keywords["application_name"], "age_s": age_s}


def _open_probe(lost: ProbedSession) -> Any:
    """Open a probing session with the same server, which never waits for long."""
    assert lost.keywords is not None
    keywords = {
        **lost.keywords,
        "connect_timeout": str(TIME_LIMITS.connect_s),
        # No function or view of the database's own is found first.
        "options": "-c statement_timeout=5s -c search_path=pg_catalog,pg_temp",
        "application_name": "tidemark probe",
    }
    session = psycopg2.connect(ext.make_dsn(**keywords), connection_factory=lost.probe_class)
    session.watch(keywords, max_s=max(1.0, TIME_LIMITS.next_probe_s))
    session.autocommit = True
    return session


def _library() -> ctypes.CDLL:
    """Return the libpq that psycopg2 is linked to, called without the interpreter's lock.

    psycopg2's own `cancel` holds that lock while it waits.
    """
    library = ctypes.CDLL(_psycopg.__file__)
    library.PQgetCancel.restype = ctypes.c_void_p
    library.PQgetCancel.argtypes = [ctypes.c_void_p]
    library.PQcancel.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int]
    library.PQfreeCancel.argtypes = [ctypes.c_void_p]
    return library


_pq = _library()


def cancel(session: ProbedSession) -> None:
    """Ask the server to cancel the running statement; wait for its answer, however long."""
    with session.lock:
        if session.closed:
            return
        cancellation = _pq.PQgetCancel(session.pgconn_ptr)
    if cancellation:
        reply = ctypes.create_string_buffer(256)
        _pq.PQcancel(cancellation, reply, len(reply))
        _pq.PQfreeCancel(cancellation)
