"""Connections to a MySQL or MariaDB server, what it is, and the mapping of its errors.

The only module that imports PyMySQL, when a server is first reached. Values come as the bytes that
the server sends, texts in UTF-8 and times in UTC. Invariant: an error or a log never contains the
password.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, Self

from connectors.extras import extra_required
from connectors.mysql.bounded_connection import MOST_ANSWER_BYTES, bounded
from connectors.mysql.positions import GtidSet, LogPosition
from connectors.outside.logins import MySqlLogin
from connectors.secrets import hide
from dataflow.errors import SourceError, TemporaryError, TidemarkError

CONNECT_TIMEOUT_S = 10
# A query that sends nothing for so long has lost its server; scans send rows all the time.
READ_TIMEOUT_S = 300
MARIADB, MYSQL = "MariaDB", "MySQL"
# Any answer as a whole, other than the rows of a table.
ANSWER_TIMEOUT_S = 60
FETCH_ROWS, FETCH_BYTES = 4096, 16 << 20

Row = tuple[bytes | None, ...]

# Wrong, of an unknown kind, expired, of a locked account, or from a host that is not admitted.
_LOGIN = {1045, 1130, 1251, 1698, 1820, 1862, 2059, 2061, 3118, 4151}
_PRIVILEGE = {1044, 1142, 1143, 1227, 1370, 4105}
_TLS = {2026, 3159}
_GONE = {1146, 1049}
# A lock timeout, a deadlock, a table that was altered since the snapshot that reads it.
BUSY = {1205, 1213, 1412}
# The server ends or starts, or is out of something that comes back.
_AWAY = {1040, 1053, 1077, 1079, 1152, 1158, 1159, 1160, 1161, 1184, 1203, 1226}
_AWAY |= {1927, 2002, 2003, 2006, 2013, 2014, 2055, 3024, 3169, 4031}


def package() -> Any:
    """Import PyMySQL. TidemarkError package.missing."""
    with extra_required('source type "mysql"'):
        import pymysql
        import pymysqlreplication
    del pymysqlreplication
    return pymysql


class Server:
    """One connection. Used by one thread; `abort` may come from any.

    name: of the source. Used with `with`. Raise as `refused` says.
    """

    def __init__(self, login: MySqlLogin, name: str, connection_class: type | None = None) -> None:
        self.name = name
        self._package = package()
        settings = {
            **login.settings(),
            "charset": "utf8mb4",
            "use_unicode": False,
            # Only what sends values: those that come stay bytes.
            "conv": dict(self._package.converters.encoders),
            "autocommit": True,
            "connect_timeout": CONNECT_TIMEOUT_S,
            "read_timeout": READ_TIMEOUT_S,
            "program_name": "tidemark",
        }
        kind = bounded(self._package, connection_class)
        self.connection = self._do("connecting", lambda: kind(**settings))
        try:
            self._do("setting the session", self._set_session)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection, also one that is lost."""
        with suppress(self._package.Error, OSError):
            self.connection.close()

    def abort(self) -> None:
        """Wake up the thread that waits for the server; its call ends with an error."""
        self.connection.abort()

    def rows(self, sql: str, values: Sequence[object] = ()) -> list[Row]:
        """Return all rows of a query; values replace %s."""

        def run() -> list[Row]:
            self.connection.begin_answer(ANSWER_TIMEOUT_S, MOST_ANSWER_BYTES)
            with self.connection.cursor() as cursor:
                cursor.execute(sql, tuple(values) or None)
                return list(cursor.fetchall())

        return self._do("a query", run)

    def texts(self, sql: str, values: Sequence[object] = ()) -> list[tuple[str, ...]]:
        """Return all rows of a query as texts, "" for NULL."""
        return [
            tuple("" if value is None else value.decode() for value in row)
            for row in self.rows(sql, values)
        ]

    def scan(self, sql: str) -> Iterator[list[Row]]:
        """Yield the rows of a query while they arrive: FETCH_ROWS or FETCH_BYTES at a time."""
        self.connection.begin_answer(None, None)
        cursor = self.connection.cursor(self._package.cursors.SSCursor)

        def some() -> list[Row]:
            rows, end = list[Row](), self.connection.received + FETCH_BYTES
            while len(rows) < FETCH_ROWS and self.connection.received < end:
                row = cursor.fetchone()
                if row is None:
                    break
                rows.append(row)
            return rows

        try:
            self._do("a query", lambda: cursor.execute(sql))
            while rows := self._do("reading rows", some):
                yield rows
        finally:
            # Closing reads what is left, of a connection that may be lost.
            with suppress(self._package.Error, OSError):
                cursor.close()

    @cached_property
    def version(self) -> str:
        """As the server says it, "10.11.6-MariaDB"."""
        return self.texts("SELECT VERSION()")[0][0]

    @property
    def flavor(self) -> str:
        """MARIADB or MYSQL."""
        return MARIADB if "mariadb" in self.version.lower() else MYSQL

    def variables(self, *names: str) -> dict[str, str]:
        """Return these global variables; those that the server does not know are missing."""
        marks = ", ".join(["%s"] * len(names))
        found = self.texts(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({marks})", names)
        return {name.lower(): value for name, value in found}

    def identity(self) -> str:
        """Return whose binary log it is: the UUID of a MySQL server, or MariaDB's server_id."""
        found = self.variables("server_uuid", "server_id")
        return found.get("server_uuid") or found.get("server_id", "")

    def log_end(self) -> LogPosition:
        """Return the end of the log: everything that this server shows now is before it."""
        return LogPosition(*self._status(), self._executed(), self.identity())

    def unlogged(self, schema: str) -> str:
        """Return the filter by which the server's log lacks a database; "" if there is none."""
        logged, ignored = (set(filter(None, text.split(","))) for text in self._status_row()[2:4])
        if logged and schema not in logged:
            return "binlog_do_db"
        return "binlog_ignore_db" if schema in ignored else ""

    def open_snapshot(self) -> LogPosition:
        """Begin a consistent read, and return the exact position of what it shows.

        MariaDB knows it without a lock. MySQL's tables are locked against writes for the moment.
        SourceError mysql.snapshot_lock.
        """
        self.rows("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        if self.flavor == MARIADB:
            return self._open_mariadb()
        try:
            self.rows("FLUSH TABLES WITH READ LOCK")
        except SourceError as error:
            if error.code != "source.privilege":
                raise
            raise SourceError(
                "mysql.snapshot_lock",
                f'mysql source "{self.name}" may not lock tables for a snapshot',
                detail=error.detail,
                hint="GRANT RELOAD ON *.* to the user: the lock lasts some milliseconds",
            ) from None
        try:
            self.rows("START TRANSACTION WITH CONSISTENT SNAPSHOT")
            return self.log_end()
        finally:
            self.rows("UNLOCK TABLES")

    def refused(self, error: Exception, doing: str) -> TidemarkError:
        """Return our error for an error of the client.

        TemporaryError source.unreachable, source.busy; SourceError source.login, source.tls,
        source.privilege, source.table_missing, source.failed.
        """
        return refused(error, doing, self.name)

    def _open_mariadb(self) -> LogPosition:
        self.rows("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        found = self.texts("SHOW STATUS LIKE 'binlog_snapshot_%'")
        facts = {name.lower(): value for name, value in found}
        file, offset = facts["binlog_snapshot_file"], int(facts["binlog_snapshot_position"])
        gtids = self.texts("SELECT BINLOG_GTID_POS(%s, %s)", (file, offset))[0][0]
        return LogPosition(file, offset, GtidSet.parse(gtids), self.identity())

    def _status(self) -> tuple[str, int]:
        found = self._status_row()
        return found[0], int(found[1])

    def _status_row(self) -> tuple[str, ...]:
        try:
            found = self.texts("SHOW MASTER STATUS")
        except SourceError as error:
            if error.code == "source.privilege":
                raise
            # MySQL from 8.4.
            found = self.texts("SHOW BINARY LOG STATUS")
        if not found:
            raise setting(self.name, "log_bin", "OFF", "set log_bin and restart the server")
        return found[0]

    def _executed(self) -> GtidSet:
        if self.flavor == MARIADB:
            return GtidSet.parse(self.texts("SELECT @@GLOBAL.gtid_binlog_pos")[0][0])
        if self.variables("gtid_mode").get("gtid_mode", "OFF") != "ON":
            return GtidSet.parse("")
        return GtidSet.parse(self.texts("SELECT @@GLOBAL.gtid_executed")[0][0])

    def _set_session(self) -> None:
        self.connection.begin_answer(ANSWER_TIMEOUT_S, MOST_ANSWER_BYTES)
        with self.connection.cursor() as cursor:
            cursor.execute("SET time_zone = '+00:00', sql_mode = '', net_write_timeout = 600")

    def _do(self, doing: str, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except (self._package.Error, OSError) as error:
            raise self.refused(error, doing) from None


def refused(error: Exception, doing: str, name: str) -> TidemarkError:
    """Return our error for an error of the client of this source; see Server.refused."""
    code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    detail = hide(f"{doing}: {error}")
    named = f'mysql source "{name}"'
    if code in _LOGIN:
        hint = "check user and password"
        return SourceError("source.login", f"{named} rejects the user", detail=detail, hint=hint)
    if code in _PRIVILEGE:
        hint = "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.*, and SELECT on the tables"
        what = f"{named} denies the user access"
        return SourceError("source.privilege", what, detail=detail, hint=hint)
    if code in _TLS or "CERTIFICATE_VERIFY" in str(error):
        hint = "check tls: ca_file, certificate_file, key_file, verify_host"
        what = f"{named} cannot be reached over TLS"
        return SourceError("source.tls", what, detail=detail, hint=hint)
    if code in _GONE:
        what = f"{named} lacks a table"
        hint = "create it again, or drop the views that read it"
        return SourceError("source.table_missing", what, detail=detail, hint=hint)
    if code in BUSY:
        what, hint = f"{named} is busy", "no action needed if it is short: it is tried again"
        return TemporaryError("source.busy", what, detail=detail, hint=hint)
    if code in _AWAY or isinstance(error, OSError) or code == 0:
        what = f"{named} cannot be reached"
        hint = "check host and port, and that the server runs"
        return TemporaryError("source.unreachable", what, detail=detail, hint=hint)
    what = f"{named} refuses a request"
    return SourceError("source.failed", what, detail=detail, hint="see the detail")


def setting(name: str, variable: str, value: str, hint: str) -> SourceError:
    """Return the error for a variable of the server that makes its log unusable."""
    return SourceError(
        "mysql.setting",
        f'mysql source "{name}" needs another value of server variable "{variable}"',
        detail=f"{variable} is {value}",
        hint=hint,
    )


def quoted(name: str) -> str:
    """Return an identifier in backticks.

    >>> quoted("a`b")
    '`a``b`'
    """
    return "`" + name.replace("`", "``") + "`"
