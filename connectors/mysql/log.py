"""Reads the binary log of a server: every event, in transactions (decision 38).

pymysqlreplication connects, asks for the log and reads its packets. It is given a connection that
hands every packet to this module, because the library drops events that it does not know.
Invariant: every event is understood, or is of a type that carries no changes, or stops the source
by name. Nothing is ever skipped because it is unknown.

Sources: MySQL's libs/mysql/binlog/event/*.h; MariaDB's sql/log_event.h, and sql/log_event.cc
(binlog_buf_uncompress) for compressed events.
"""

from __future__ import annotations

import logging
import secrets
import struct
import threading
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from connectors.mysql.bounded_connection import MOST_PACKET_BYTES, bounded
from connectors.mysql.charsets import Charsets
from connectors.mysql.options import MAX_SERVER_ID
from connectors.mysql.positions import Gtid, LogPosition
from connectors.mysql.server import MARIADB, Server, package, refused
from connectors.mysql.shapes import Shape, read_shape, table_of
from connectors.mysql.statements import BEGIN, COMMIT, ROLLBACK, Watch, Watched, judge
from connectors.mysql.transactions import (
    DELETE,
    INSERT,
    TRUNCATE,
    UPDATE,
    RowEvent,
    RowSet,
    Transaction,
)
from connectors.outside.logins import MySqlLogin
from dataflow.errors import SourceError, TemporaryError, TidemarkError

HEARTBEAT_S = 1.0
# Without an event or a heartbeat for so long, the server is lost.
SILENT_S = 10
_HEADER = struct.Struct("<IBIIIH")
_DUMP_COMMANDS = (0x12, 0x1E)
_ARTIFICIAL = 0x20
_CHECKSUM_BYTES, _CRC32 = 4, 1
_OFFSET_BITS = (1 << 32) - 1
# What an event, or a packet of the library, raises that is not as it should be.
_OF_CONTENT = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, struct.error)

QUERY, STOP, ROTATE, INTVAR, RAND, USER_VAR, FORMAT, XID = 2, 3, 4, 5, 13, 14, 15, 16
APPEND_BLOCK, DELETE_FILE, BEGIN_LOAD, EXECUTE_LOAD, TABLE_MAP = 9, 11, 17, 18, 19
INCIDENT, HEARTBEAT, IGNORABLE, ROWS_QUERY, GTID, ANONYMOUS_GTID = 26, 27, 28, 29, 33, 34
PREVIOUS_GTIDS, TRANSACTION_CONTEXT, VIEW_CHANGE, XA_PREPARE, PARTIAL_UPDATE = 35, 36, 37, 38, 39
TRANSACTION_PAYLOAD, HEARTBEAT_2 = 40, 41
ANNOTATE, BINLOG_CHECKPOINT, MARIADB_GTID, GTID_LIST, START_ENCRYPTION = 160, 161, 162, 163, 164
QUERY_COMPRESSED = 165

# Events without changes: context of statements, which are judged themselves, and bookkeeping.
IGNORED = frozenset(
    {STOP, INTVAR, RAND, USER_VAR, APPEND_BLOCK, DELETE_FILE, BEGIN_LOAD, IGNORABLE, ROWS_QUERY}
    | {PREVIOUS_GTIDS, TRANSACTION_CONTEXT, VIEW_CHANGE, ANNOTATE, BINLOG_CHECKPOINT, GTID_LIST}
    | {START_ENCRYPTION}
)
# type -> (what it does, whether it has an extra header, whether MariaDB compressed it).
ROWS: Mapping[int, tuple[str, bool, bool]] = {
    **{23 + i: (kind, False, False) for i, kind in enumerate((INSERT, UPDATE, DELETE))},
    **{30 + i: (kind, True, False) for i, kind in enumerate((INSERT, UPDATE, DELETE))},
    **{166 + i: (kind, False, True) for i, kind in enumerate((INSERT, UPDATE, DELETE))},
    **{169 + i: (kind, True, True) for i, kind in enumerate((INSERT, UPDATE, DELETE))},
}
_STANDALONE, _ONE_PHASE = 1, 1


@dataclass(frozen=True)
class LogRequest:
    """What to read.

    begin: where. watch: the tables whose rows are kept. is_by_gtid: begin at the GTIDs, not at the
    file. server_id: what the reader calls itself, 0 for a random number. is_endless: wait for what
    comes at the end. max_bytes: of a transaction in memory.
    """

    begin: LogPosition
    watch: Watch
    is_by_gtid: bool = False
    server_id: int = 0
    is_endless: bool = True
    max_bytes: int = 8 << 20


class LogReader:
    """Reads a log in the calling thread; `close` may be called from any.

    take: receives each transaction, also those without rows of watched tables. on_shape: checks a
    table's columns when they are first seen. beat: called once a second while nothing comes.
    """

    def __init__(
        self,
        login: MySqlLogin,
        name: str,
        request: LogRequest,
        take: Callable[[Transaction], None],
        *,
        on_shape: Callable[[Watched, Shape], None] = lambda watched, shape: None,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        self._login = login
        self._name = name
        self._request = request
        self._take = take
        self._on_shape = on_shape
        self._beat = beat
        self.charsets = Charsets({})
        self._server: Server | None = None
        self._streams: list[Any] = []
        self._is_closed = False
        self._lock = threading.Lock()
        self._file, self._offset = request.begin.file, request.begin.offset
        self._has_checksum = False
        self._tables: dict[int, tuple[Shape, Watched] | None] = {}
        self._shapes: dict[bytes, Shape] = {}
        self._open: Transaction | None = None
        self._is_group = False
        self._handlers: dict[int, Callable[[bytes], None]] = {
            QUERY: self._query,
            QUERY_COMPRESSED: self._query_compressed,
            EXECUTE_LOAD: self._execute_load,
            FORMAT: self._format,
            XID: lambda body: self._commit(),
            TABLE_MAP: self._table_map,
            GTID: self._gtid,
            ANONYMOUS_GTID: lambda body: self._begin(None),
            MARIADB_GTID: self._mariadb_gtid,
            XA_PREPARE: self._xa_prepare,
            HEARTBEAT: lambda body: self._beat(),
            HEARTBEAT_2: lambda body: self._beat(),
        }
        self._time_us = self._origin = 0
        self._identity = request.begin.server
        # What events with rows have in common, by the id of their shape and their bitmaps.
        self._row_sets: dict[tuple[int, bytes, bytes], RowSet] = {}

    def run(self) -> None:
        """Read until `close`, or to the end of the log. TidemarkError."""
        client = package()
        self._server = Server(self._login, self._name)
        try:
            self.charsets = Charsets.of(self._server)
            self._identity = self._server.identity()
            variables = self._server.variables("binlog_checksum")
            self._has_checksum = variables.get("binlog_checksum", "NONE") != "NONE"
            stream = self._stream(client)
            try:
                # Every event has been handled when the library returns, at the end of the log.
                stream.fetchone()
                if self._request.is_endless:
                    raise self._ended()
            except (client.Error, OSError, *_OF_CONTENT) as error:
                raise self._refused(error) from None
            finally:
                self._close_streams()
        finally:
            self._server.close()

    def close(self) -> None:
        """Stop reading; a waiting `run` ends with source.unreachable."""
        self._is_closed = True
        self._close_streams(is_abort=True)

    def _stream(self, client: Any) -> Any:
        """Return the library's reader; it connects with its first packet."""
        from pymysqlreplication import BinLogStreamReader

        # It warns on stderr of what is reported here as an error.
        logging.getLogger("pymysqlreplication").setLevel(logging.CRITICAL)

        request, begin = self._request, self._request.begin
        assert self._server is not None
        is_mariadb = self._server.flavor == MARIADB
        where: dict[str, Any] = {"log_file": begin.file, "log_pos": begin.offset}
        if request.is_by_gtid:
            where = {"auto_position": str(begin.gtids), "is_mariadb": is_mariadb}
        return BinLogStreamReader(
            connection_settings={
                **self._login.settings(),
                "connect_timeout": SILENT_S,
                "read_timeout": SILENT_S,
                "program_name": "tidemark",
            },
            server_id=request.server_id or 1 + secrets.randbelow(MAX_SERVER_ID),
            resume_stream=True,
            blocking=request.is_endless,
            slave_heartbeat=HEARTBEAT_S,
            enable_logging=False,
            pymysql_wrapper=lambda **settings: self._connect(client, settings),
            **where,
        )

    def _connect(self, client: Any, settings: dict[str, Any]) -> Any:
        """Return the library's connections: first the log's, then one for its own questions.

        It would silently ask again where it was in the middle of a transaction: a third one is
        refused.
        """
        with self._lock:
            if self._is_closed or len(self._streams) == 2:
                raise self._ended()
        kind = bounded(client, None if self._streams else _tapped(client, self._packet))
        # The library uses the old name of this setting.
        database = settings.pop("db", None)
        found = kind(**settings, database=database)
        with self._lock:
            self._streams.append(found)
        return found

    def _close_streams(self, *, is_abort: bool = False) -> None:
        with self._lock:
            for connection in self._streams:
                _shut(connection, is_abort=is_abort)

    def _ended(self) -> TemporaryError:
        return TemporaryError(
            "source.unreachable",
            f'mysql source "{self._name}" has ended the connection',
            hint="check host and port, and that the server runs",
        )

    def _refused(self, error: Exception) -> TidemarkError:
        code = error.args[0] if error.args else 0
        if code == 1236:
            return log_gone(self._name, str(error), self._request)
        if isinstance(error, _OF_CONTENT):
            return self._broken(repr(error))
        return refused(error, "reading the log", self._name)

    # --- packets and events --------------------------------------------------------------------

    def _packet(self, data: bytes) -> None:
        """Handle an event as the server sends it, behind a byte of 0."""
        if not self._is_closed:
            self._event(data[1:])

    def _event(self, event: bytes) -> None:
        timestamp, kind, self._origin, _, offset, flags = _HEADER.unpack_from(event)
        if kind == ROTATE:
            self._rotate(event, is_artificial=bool(flags & _ARTIFICIAL) or not timestamp)
            return
        body = event[_HEADER.size :]
        if kind == FORMAT:
            self._has_checksum = body[-_CHECKSUM_BYTES - 1] == _CRC32
        elif self._has_checksum:
            body, checksum = body[:-_CHECKSUM_BYTES], body[-_CHECKSUM_BYTES:]
            if zlib.crc32(event[:-_CHECKSUM_BYTES]).to_bytes(4, "little") != checksum:
                raise self._broken(f"the checksum of an event of type {kind} is wrong")
        if offset and not flags & _ARTIFICIAL and kind not in (HEARTBEAT, HEARTBEAT_2):
            self._offset = _beyond(self._offset, offset)
        self._time_us = timestamp * 1_000_000
        if kind in ROWS:
            self._rows(body, kind)
        elif kind in self._handlers:
            self._handlers[kind](body)
        elif kind not in IGNORED:
            self._unknown(kind, body)

    def _rotate(self, event: bytes, *, is_artificial: bool) -> None:
        body = event[_HEADER.size :]
        if zlib.crc32(event[:-_CHECKSUM_BYTES]).to_bytes(4, "little") == event[-4:]:
            body = body[:-_CHECKSUM_BYTES]
        self._offset, self._file = int.from_bytes(body[:8], "little"), body[8:].decode()
        if not is_artificial:
            self._tables.clear()

    def _unknown(self, kind: int, body: bytes) -> None:
        if kind == INCIDENT:
            raise SourceError(
                "mysql.incident",
                f'the log of mysql source "{self._name}" lacks changes: the server says so',
                detail=f"an incident event at {self._file}:{self._offset}",
                hint="rebuild the views that read the source",
            )
        if kind == TRANSACTION_PAYLOAD:
            raise SourceError(
                "mysql.compressed_event",
                f'mysql source "{self._name}" has a compressed transaction',
                detail=f"at {self._file}:{self._offset}: a session has switched "
                "binlog_transaction_compression on",
                hint="switch it off for all sessions, then rebuild the views that read the source",
            )
        if kind == PARTIAL_UPDATE:
            found = self._tables.get(int.from_bytes(body[:6], "little"))
            if found is not None:
                raise self._incomplete(found[1], "a JSON value was logged as a difference")
            return
        raise SourceError(
            "mysql.unknown_event",
            f'the log of mysql source "{self._name}" has an event of unknown type {kind}',
            detail=f"before {self._file}:{self._offset}; it may hold changes",
            hint="report the type and the server's version; rebuild the views to begin after it",
        )

    def _broken(self, detail: str) -> SourceError:
        return SourceError(
            "mysql.broken_event",
            f'the log of mysql source "{self._name}" has an event that cannot be read',
            detail=f"before {self._file}:{self._offset}: {detail}",
            hint="check the server's disk; if it recurs, rebuild the views that read the source",
        )

    def _incomplete(self, watched: Watched, detail: str) -> SourceError:
        return SourceError(
            "mysql.row_image",
            f'the log does not hold whole rows of table "{watched.relation}"',
            detail=f"before {self._file}:{self._offset}: {detail}",
            hint="set binlog_row_image=FULL and binlog_row_value_options='' for all sessions, "
            "then rebuild the views that read it",
            relation=watched.relation,
        )

    # --- transactions --------------------------------------------------------------------------

    def _begin(self, gtid: Gtid | None, *, is_group: bool = False) -> None:
        self._open = Transaction(self._request.begin, gtid)
        self._is_group = is_group

    def _current(self) -> Transaction:
        if self._open is None:
            self._begin(None)
        assert self._open is not None
        return self._open

    def _commit(self) -> None:
        found = self._current()
        found.end = replace(
            self._request.begin, file=self._file, offset=self._offset, server=self._identity
        )
        found.time_us = self._time_us
        self._open, self._is_group = None, False
        self._take(found)

    def _format(self, body: bytes) -> None:
        # A server that has crashed leaves a transaction without an end, which it never committed.
        if self._offset <= _HEADER.size + len(body) + 4:
            self._open = None
        self._tables.clear()

    def _gtid(self, body: bytes) -> None:
        text = body[1:17].hex()
        parts = (text[:8], text[8:12], text[12:16], text[16:20], text[20:])
        self._begin(Gtid("-".join(parts), int.from_bytes(body[17:25], "little")))

    def _mariadb_gtid(self, body: bytes) -> None:
        number, domain, flags = struct.unpack_from("<QIB", body)
        gtid = Gtid(str(domain), number, self._origin)
        self._begin(gtid, is_group=not flags & _STANDALONE)

    def _xa_prepare(self, body: bytes) -> None:
        current = self._current()
        if body[0] != _ONE_PHASE and not current.is_empty:
            relation = next(iter(current.events())).relation
            raise SourceError(
                "mysql.xa_transaction",
                f'table "{relation}" was changed by an XA transaction',
                detail=f"before {self._file}:{self._offset}: its rows are logged when it is "
                "prepared, not when it is committed",
                hint="write watched tables without XA, then rebuild the views that read it",
                relation=relation,
            )
        self._commit()

    def _query(self, body: bytes) -> None:
        schema_size, status_size = body[8], int.from_bytes(body[11:13], "little")
        at = 13 + status_size
        schema = body[at : at + schema_size].decode()
        self._statement(body[at + schema_size + 1 :].decode(errors="replace"), schema)

    def _query_compressed(self, body: bytes) -> None:
        at = 13 + int.from_bytes(body[11:13], "little") + body[8] + 1
        self._query(body[:at] + self._uncompressed(body[at:]))

    def _execute_load(self, body: bytes) -> None:
        """LOAD DATA in the format STATEMENT has 13 bytes of its own before the variables."""
        self._query(body[:13] + body[26:])

    def _statement(self, statement: str, schema: str) -> None:
        verdict = judge(statement, schema, self._request.watch)
        if verdict.error is not None:
            verdict.error.detail = f"{verdict.error.detail} (before {self._file}:{self._offset})"
            raise verdict.error
        if verdict.boundary == BEGIN:
            self._current()
            self._is_group = True
            return
        if verdict.boundary == ROLLBACK:
            gtid = self._current().gtid
            self._open = Transaction(self._request.begin, gtid)
        for relation in verdict.truncated:
            self._current().add(RowEvent(relation, TRUNCATE), self._request.max_bytes)
        if verdict.boundary in (COMMIT, ROLLBACK) or not self._is_group:
            self._commit()

    # --- rows ----------------------------------------------------------------------------------

    def _table_map(self, body: bytes) -> None:
        number, schema, table = table_of(body)
        watched = self._request.watch.get((schema.lower(), table.lower()))
        if watched is None:
            self._tables[number] = None
            return
        key = body[8:]
        shape = self._shapes.get(key)
        if shape is None:
            try:
                shape = read_shape(body, watched.relation)
            except (ValueError, IndexError, KeyError) as error:
                raise self._broken(f"a table map: {error!r}") from None
            self._prepare(shape)
            self._on_shape(watched, shape)
            self._shapes[key] = shape
        self._tables[number] = shape, watched

    def _prepare(self, shape: Shape) -> None:
        assert self._server is not None
        for column in shape.columns:
            if column.collation and column.family in ("text", "enum", "set"):
                self.charsets.prepare(column.collation, self._server)

    def _rows(self, body: bytes, kind: int) -> None:
        what, has_extra, is_compressed = ROWS[kind]
        number = int.from_bytes(body[:6], "little")
        if number not in self._tables:
            raise self._broken(f"rows of table {number}, which no event describes")
        found = self._tables[number]
        if found is None:
            self._current()
            return
        shape, watched = found
        at = 8 + (int.from_bytes(body[8:10], "little") if has_extra else 0)
        count, at = _number(body, at)
        if count != len(shape.columns):
            raise self._broken(f"rows of {count} columns of a table with {len(shape.columns)}")
        size = (count + 7) // 8
        masks = [body[at + i * size : at + (i + 1) * size] for i in range(1 + (what == UPDATE))]
        at += size * len(masks)
        images = self._uncompressed(body[at:]) if is_compressed else body[at:]
        rows = self._row_set(shape, watched, (masks[0], masks[-1]))
        counted = rows.count(images)
        if counted < 0 or (what == UPDATE and counted % 2):
            raise self._broken("images of rows that end elsewhere than their event")
        event = RowEvent(watched.relation, what, rows, images, counted)
        self._current().add(event, self._request.max_bytes)

    def _row_set(self, shape: Shape, watched: Watched, masks: tuple[bytes, bytes]) -> RowSet:
        """Return what the rows of an event have in common. SourceError mysql.row_image."""
        # A shape is not forgotten while the reader lives, so its id is not used again.
        key = (id(shape), *masks)
        found = self._row_sets.get(key)
        if found is None:
            found = RowSet(watched.relation, shape, masks)
            self._check_present(found, watched)
            self._row_sets[key] = found
        return found

    def _check_present(self, rows: RowSet, watched: Watched) -> None:
        for mask in rows.masks:
            for column, is_there in zip(rows.shape.columns, mask.tolist(), strict=True):
                if not is_there and column.name.lower() in watched.columns:
                    raise self._incomplete(watched, f'rows without column "{column.name}"')

    def _uncompressed(self, data: bytes) -> bytes:
        """Return what MariaDB compressed: a byte with the size of the length, the length, zlib."""
        size = data[0] & 7
        length = int.from_bytes(data[1 : 1 + size], "big")
        if data[0] & 0xF0 != 0x80:
            raise SourceError(
                "mysql.compressed_event",
                f'mysql source "{self._name}" has an event of unknown compression',
                detail=f"before {self._file}:{self._offset}: {data[0]:#x}",
                hint="set log_bin_compress=OFF, then rebuild the views that read the source",
            )
        if length > MOST_PACKET_BYTES:
            raise self._broken(f"a compressed event of {length:,} bytes")
        inflate = zlib.decompressobj()
        try:
            # One byte more shows that it is longer than it says.
            found = inflate.decompress(data[1 + size :], length + 1)
        except zlib.error as error:
            raise self._broken(f"a compressed event: {error}") from None
        if len(found) != length or not inflate.eof:
            raise self._broken("a compressed event of another length")
        return found


def log_gone(name: str, detail: str, request: LogRequest) -> SourceError:
    """Return the error for a log that no longer has the position, or never had."""
    relation = next((watched.relation for watched in request.watch.values()), None)
    return SourceError(
        "mysql.log_gone",
        f'the log of mysql source "{name}" no longer has the position {request.begin}',
        detail=detail,
        hint="keep logs longer (binlog_expire_logs_seconds, expire_logs_days); rebuild the views",
        relation=relation,
    )


def _beyond(before: int, offset: int) -> int:
    """Return the offset whose lower 32 bits an event's header has; a file may have more.

    >>> _beyond(4_294_967_000, 200), _beyond(500, 300)
    (4294967496, 300)
    """
    found = (before & ~_OFFSET_BITS) | offset
    return found + (_OFFSET_BITS + 1) if before - found > _OFFSET_BITS // 2 else found


def _number(body: bytes, at: int) -> tuple[int, int]:
    """Return (a number of 1 to 9 bytes, where it ends)."""
    first = body[at]
    if first < 251:
        return first, at + 1
    size = {252: 2, 253: 3, 254: 8}[first]
    return int.from_bytes(body[at + 1 : at + 1 + size], "little"), at + 1 + size


def _tapped(client: Any, on_packet: Callable[[bytes], None]) -> type:
    """Return a class of connections that hand over each packet of the log."""

    class TappedConnection(client.connections.Connection):
        """Packets belong to the log once the command for it was sent."""

        _is_log = False

        def _write_bytes(self, data: bytes) -> None:
            self._is_log = self._is_log or (len(data) > 4 and data[4] in _DUMP_COMMANDS)
            super()._write_bytes(data)

        def _read_packet(self, *arguments: Any) -> Any:
            packet = super()._read_packet(*arguments)
            if not self._is_log or not packet.is_ok_packet():
                return packet
            on_packet(packet.get_all_data())
            return _HANDLED

    return TappedConnection


class _HandledPacket:
    """What the library gets for an event: a packet of neither kind, which it passes over."""

    def is_eof_packet(self) -> bool:
        return False

    def is_ok_packet(self) -> bool:
        return False


_HANDLED = _HandledPacket()


def _shut(connection: Any, *, is_abort: bool) -> None:
    """Close a connection; from another thread only its socket, which wakes up the reader."""
    with suppress(OSError, AttributeError):
        if is_abort:
            connection.abort()
        else:
            connection._force_close()
