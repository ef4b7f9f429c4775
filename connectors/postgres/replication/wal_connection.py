"""One replication connection, down to the bytes of the COPY BOTH stream.

psycopg2 opens it, starts the stream and ends it. In between we read and write through the same
libpq by ctypes (`connection.pgconn_ptr`, as psycopg2's manual describes), because of one invariant:
only what `send_status` receives counts as confirmed. psycopg2's own reader confirms the end of
every keepalive by itself after the first confirmation. Then a slot could be ahead of our state,
which is how we detect another reader. Protocol: PostgreSQL manual, "Streaming Replication
Protocol". One thread at a time.
"""

from __future__ import annotations

import ctypes
import select
import struct
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import psycopg2
import psycopg2.errors
from psycopg2 import _psycopg, extras

from connectors.postgres.replication import slot_errors
from connectors.postgres.session.backend_probe import TIME_LIMITS
from connectors.postgres.session.lsn import format_lsn, parse_lsn
from connectors.postgres.session.session import APPLICATION_NAME, connect, to_error, translated
from dataflow.errors import SourceError, TemporaryError, TidemarkError
from dataflow.types import EPOCH_2000_US
from storage import clock

STREAM_APPLICATION = f"{APPLICATION_NAME} stream"
_HEADER = 25
_START_WAIT_S = 5.0
_SQLSTATE, _UNDEFINED_OBJECT = ord("C"), b"42704"


def _libpq() -> ctypes.PyDLL:
    """Return the libpq that psycopg2 itself is linked to: the module resolves its symbols."""
    library = ctypes.PyDLL(_psycopg.__file__)
    pointer, int32 = ctypes.c_void_p, ctypes.c_int
    signatures = {
        "PQgetCopyData": (int32, [pointer, ctypes.POINTER(pointer), int32]),
        "PQputCopyData": (int32, [pointer, ctypes.c_char_p, int32]),
        "PQconsumeInput": (int32, [pointer]),
        "PQflush": (int32, [pointer]),
        "PQfreemem": (None, [pointer]),
        "PQerrorMessage": (ctypes.c_char_p, [pointer]),
        "PQgetResult": (pointer, [pointer]),
        "PQresultErrorMessage": (ctypes.c_char_p, [pointer]),
        "PQresultErrorField": (ctypes.c_char_p, [pointer, int32]),
        "PQclear": (None, [pointer]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


_pq = _libpq()


class WalConnection:
    """A replication connection to the DSN's database."""

    def __init__(
        self, dsn: str, *, lock_timeout: str = "30s", application: str = STREAM_APPLICATION
    ) -> None:
        try:
            self._connection = connect(
                dsn,
                application_name=application,
                is_replication=True,
                # A stream is one command without an end.
                settings={"lock_timeout": lock_timeout, "statement_timeout": "0"},
            )
        except TidemarkError as error:
            raise _refused(error) from None
        self._cursor: Any = self._connection.cursor()
        self._pointer = ctypes.c_void_p(self._connection.pgconn_ptr)
        self._out = ctypes.c_void_p()

    @property
    def server_version(self) -> int:
        """Return PostgreSQL's version number, as 150018."""
        return self._connection.server_version

    def fileno(self) -> int:
        """Return the socket, for select()."""
        return self._connection.fileno()

    def command(self, text: str) -> list[tuple]:
        """Return the rows of a replication command or a simple query."""
        with translated("source", "a replication command failed"):
            self._cursor.execute(text)
            return self._cursor.fetchall()

    def identify(self) -> tuple[str, int, int, str]:
        """Run IDENTIFY_SYSTEM: (system identifier, timeline, flushed position, database)."""
        system, timeline, position, database = self.command("IDENTIFY_SYSTEM")[0][:4]
        return str(system), int(timeline), parse_lsn(position), database

    def timeline_history(self, timeline: int) -> str:
        """Run TIMELINE_HISTORY: where each earlier timeline was left; "" for the first."""
        if timeline == 1:
            return ""
        content = self.command(f"TIMELINE_HISTORY {timeline}")[0][1]
        return content if isinstance(content, str) else bytes(content).decode(errors="replace")

    def let_fail_over(self, slot: str) -> None:
        """Run ALTER_REPLICATION_SLOT: standbys may copy the slot. PostgreSQL 17 and later."""
        with translated("source", f'cannot change replication slot "{slot}"'):
            self._cursor.execute(f'ALTER_REPLICATION_SLOT "{slot}" (FAILOVER true)')

    def create_temporary_slot(self, name: str) -> tuple[int, str]:
        """Create a temporary slot: (consistent point, snapshot name).

        Both live as long as this connection is idle. TemporaryError source.busy when running
        transactions do not end within lock_timeout.
        """
        try:
            self._cursor.execute(
                f'CREATE_REPLICATION_SLOT "{name}" TEMPORARY LOGICAL pgoutput EXPORT_SNAPSHOT'
            )
            _, position, snapshot, _ = self._cursor.fetchone()
        except psycopg2.errors.LockNotAvailable as error:
            raise slot_errors.slot_wait_over(name, str(error).strip()) from None
        except psycopg2.errors.ConfigurationLimitExceeded as error:
            raise slot_errors.no_free_slot(str(error).strip()) from None
        except psycopg2.Error as error:
            raise to_error(error, "source", f'cannot create replication slot "{name}"') from error
        return parse_lsn(position), snapshot

    def start(self, slot: str, position: int, publications: Sequence[str]) -> None:
        """Start streaming; wait a few seconds for a former reader of the slot to go.

        SourceError source.slot_in_use, source.slot_missing, source.slot_lost.
        """
        protocol = {14: "2", 15: "3"}.get(self.server_version // 10000, "4")
        options = {
            "proto_version": protocol,
            "publication_names": ",".join(f'"{name}"' for name in publications),
            "messages": "true",
        }
        # The stream may pause as long as a sink does: from now on the server detects our loss by
        # wal_sender_timeout.
        self.command("SELECT set_config('tcp_user_timeout', '0', false)")
        deadline = time.monotonic() + _START_WAIT_S
        while True:
            try:
                self._cursor.start_replication(
                    slot_name=slot,
                    slot_type=extras.REPLICATION_LOGICAL,
                    start_lsn=format_lsn(position),
                    options=options,
                    decode=False,
                )
                return
            except psycopg2.errors.ObjectInUse as error:
                if time.monotonic() > deadline:
                    raise slot_errors.in_use(slot, _pid_in(str(error))) from None
                time.sleep(0.05)
            except psycopg2.errors.UndefinedObject as error:
                what = f'replication slot "{slot}" does not exist'
                raise SourceError("source.slot_missing", what, detail=str(error).strip()) from None
            except psycopg2.errors.ObjectNotInPrerequisiteState as error:
                what = f'replication slot "{slot}" was invalidated by the server'
                raise SourceError("source.slot_lost", what, detail=str(error).strip()) from None
            except psycopg2.Error as error:
                raise to_error(error, "source", f'cannot read slot "{slot}"') from error

    def read(self) -> bytes | None:
        """Return the next payload, None when nothing has arrived; never waits.

        The first byte is the kind: w (WAL follows after 24 bytes) or k (keepalive). TemporaryError
        when the stream or the connection has ended.
        """
        size = _pq.PQgetCopyData(self._pointer, ctypes.byref(self._out), 1)
        if size == 0:
            if not _pq.PQconsumeInput(self._pointer):
                raise self._lost()
            size = _pq.PQgetCopyData(self._pointer, ctypes.byref(self._out), 1)
        if size > 0:
            payload = ctypes.string_at(self._out, size)  # type: ignore[arg-type]
            _pq.PQfreemem(self._out)
            return payload
        if size == 0:
            return None
        raise self._lost()

    def send_status(self, received: int, confirmed: int, *, needs_reply: bool = False) -> None:
        """Report our positions to the server; confirmed 0 confirms nothing."""
        now_us = int(clock.wall() * 1e6) - EPOCH_2000_US
        status = struct.pack(">cQQQqB", b"r", received, confirmed, confirmed, now_us, needs_reply)
        if _pq.PQputCopyData(self._pointer, status, len(status)) != 1:
            raise self._lost()
        deadline = time.monotonic() + TIME_LIMITS.liveness_timeout_s
        while (left := _pq.PQflush(self._pointer)) != 0:
            if left < 0:
                raise self._lost()
            if time.monotonic() > deadline:
                raise TemporaryError("source.unreachable", "the source no longer accepts data")
            waiting = select.poll()
            waiting.register(self, select.POLLOUT)
            waiting.poll(1000)

    def close(self) -> None:
        """End the connection; a temporary slot ends with it."""
        self._connection.close()

    def _lost(self) -> TidemarkError:
        text, state = "", b""
        result = _pq.PQgetResult(self._pointer)
        if result:
            state = _pq.PQresultErrorField(result, _SQLSTATE) or b""
            text = (_pq.PQresultErrorMessage(result) or b"").decode(errors="replace")
            _pq.PQclear(result)
        text = text or (_pq.PQerrorMessage(self._pointer) or b"").decode(errors="replace")
        text = " ".join(text.split())
        # By its SQLSTATE: the message comes in the server's language.
        if state == _UNDEFINED_OBJECT:
            return SourceError(
                "source.publication_missing",
                "the publication does not exist, or was recreated",
                detail=text,
                hint=slot_errors.REBUILD_HINT,
            )
        return TemporaryError(
            "source.unreachable", "the replication stream has ended", detail=text or "no reason"
        )


def wal_of(payload: bytes) -> bytes:
    """Return the output plugin's message from a payload of kind w."""
    return payload[_HEADER:]


def keepalive_of(payload: bytes) -> tuple[int, bool]:
    """Return (position up to which everything was sent, whether a reply is requested) of kind k."""
    return int.from_bytes(payload[1:9], "big"), payload[17] == 1


def commit_of(wal: bytes) -> tuple[int, int]:
    """Return (end position, microseconds since 1970) of a commit (tag C)."""
    _, _, end, clock = struct.unpack_from(">BQQq", wal, 1)
    return end, clock + EPOCH_2000_US


def xid_of(wal: bytes) -> int:
    """Return the transaction of a begin (tag B)."""
    return int.from_bytes(wal[17:21], "big")


def _refused(error: TidemarkError) -> TidemarkError:
    """Classify a refused replication connection, whose reasons libpq gives in words only."""
    if "max_wal_senders" in error.detail or "replication connections" in error.detail:
        return slot_errors.no_free_wal_sender(error.detail)
    if "walsender" in error.detail or "REPLICATION attribute" in error.detail:
        return SourceError(
            "source.privilege",
            "the role may not replicate",
            detail=error.detail,
            hint="ALTER ROLE ... REPLICATION;",
        )
    return error


def _pid_in(text: str) -> int | None:
    words = text.replace(".", " ").split()
    return next((int(b) for a, b in pairwise(words) if a == "PID"), None)
