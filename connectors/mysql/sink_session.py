"""A sink's connection to MySQL or MariaDB, and the mapping of its errors.

The session holds a lock by the sink's name: whoever opens the sink later ends the holder's
connection first, so an earlier writer's open transaction is over. Used by one thread; `abort` may
come from any.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from connectors.mysql.bounded_connection import MOST_ANSWER_BYTES, bounded
from connectors.mysql.server import BUSY, package
from connectors.mysql.sink_options import TableOptions
from connectors.mysql.written_table import rows_changed
from connectors.secrets import hide
from connectors.view_sink import lost
from dataflow.errors import SinkError, TemporaryError, TidemarkError

CONNECT_TIMEOUT_S = 10
# Statements are small; what takes longer has lost its server.
READ_TIMEOUT_S = 60
LOCK_TIMEOUT_S = 20
_LOGIN = {1045, 1130, 1251, 1698, 1820, 1862, 2059, 2061, 3118, 4151}
_PRIVILEGE = {1044, 1142, 1143, 1227, 1370, 4105}
_TLS = {2026, 3159}
_READ_ONLY = {1290, 1792, 1836, 3032}
_TOO_LARGE = {1118, 1153, 1406, 1264}
_TABLE, _DATABASE, _DUPLICATE, _COLUMN = 1146, 1049, 1062, 1054
# Server or connection went away, was killed, or something that comes back is used up.
_AWAY = {1021, 1037, 1038, 1040, 1041, 1053, 1077, 1079, 1105, 1114, 1152, 1158, 1159, 1160, 1161}
_AWAY |= {1180, 1184, 1203, 1226, 1317, 1927, 2002, 2003, 2006, 2013, 2014, 2055}
_AWAY |= {3024, 3169, 4031}
_SETTINGS = (
    "SET time_zone = '+00:00', sql_mode = 'STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE', "
    f"innodb_lock_wait_timeout = {LOCK_TIMEOUT_S}, net_write_timeout = {READ_TIMEOUT_S}"
)

T = TypeVar("T")


class SinkSession:
    """One connection, in a transaction from the first statement after each commit."""

    def __init__(self, options: TableOptions, title: str) -> None:
        self._title = title
        self._package = package()
        settings = {
            **options.login.settings(),
            "database": options.database,
            "charset": "utf8mb4",
            "autocommit": False,
            "connect_timeout": CONNECT_TIMEOUT_S,
            "read_timeout": READ_TIMEOUT_S,
            "write_timeout": READ_TIMEOUT_S,
            "program_name": "tidemark sink",
        }
        self._connection = self._do("connecting", lambda: bounded(self._package)(**settings))
        try:
            self.rows(_SETTINGS)
        except TidemarkError:
            self.close()
            raise

    def run(self, sql: bytes) -> int:
        """Run a statement; return the number of rows that it met. TidemarkError."""
        self._connection.begin_answer(READ_TIMEOUT_S, MOST_ANSWER_BYTES)
        return self._do("a statement", lambda: self._connection.query(sql))

    def rows(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Return all rows of a query; values replace %s. TidemarkError."""

        def run() -> list[tuple[Any, ...]]:
            self._connection.begin_answer(READ_TIMEOUT_S, MOST_ANSWER_BYTES)
            with self._connection.cursor() as cursor:
                cursor.execute(sql, tuple(values) or None)
                return list(cursor.fetchall())

        return self._do("a query", run)

    def commit(self) -> None:
        """Commit; after a TemporaryError the outcome is unknown."""
        self._connection.begin_answer(READ_TIMEOUT_S, MOST_ANSWER_BYTES)
        self._do("committing", self._connection.commit)

    def take_lock(self, name: str) -> None:
        """End the connection that holds the lock of this name, and take it."""
        holder = self.rows("SELECT IS_USED_LOCK(%s), CONNECTION_ID()", (name,))[0]
        if holder[0] is not None and holder[0] != holder[1]:
            try:
                self.rows(f"KILL {int(holder[0])}")
            except SinkError as error:
                # It has ended by itself.
                if error.code != "sink.failed":
                    raise
        if self.rows("SELECT GET_LOCK(%s, %s)", (name, LOCK_TIMEOUT_S)) != [(1,)]:
            raise TemporaryError(
                "sink.busy",
                f'the sink "{self._title}" is held by another connection',
                hint="the earlier writer's connection is being ended",
            )

    def close(self) -> None:
        """Close the connection; what is not committed is lost."""
        with suppress(self._package.Error, OSError):
            self._connection.close()

    def abort(self) -> None:
        """Wake up the thread that waits for the server; its call ends with an error."""
        self._connection.abort()

    def _do(self, doing: str, action: Callable[[], T]) -> T:
        try:
            return action()
        except (self._package.Error, OSError) as error:
            raise self._refused(error, doing) from None

    def _refused(self, error: Exception, doing: str) -> TidemarkError:
        code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
        detail, named = hide(f"{doing}: {error}"), f'mysql sink "{self._title}"'
        if code == _TABLE:
            return lost(detail)
        if code in (_DUPLICATE, _COLUMN):
            return rows_changed(detail)
        if code in BUSY:
            return TemporaryError("sink.busy", f"{named} is busy", detail=detail)
        if code in _AWAY or code == 0:
            hint = "check host and port, and that the server runs"
            what = f"{named} cannot be reached"
            return TemporaryError("sink.unreachable", what, detail=detail, hint=hint)
        for codes, name, why, hint in _REFUSALS:
            if code in codes:
                return SinkError(name, f"{named} {why}", detail=detail, hint=hint)
        return SinkError("sink.failed", f"{named} refuses a statement", detail=detail)


_REFUSALS = (
    (_LOGIN, "sink.login", "rejects the user", "check user and password"),
    (
        _PRIVILEGE,
        "sink.privilege",
        "denies the user access",
        "GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, DROP on the database",
    ),
    (_TLS, "sink.tls", "cannot be reached over TLS", "check tls: ca_file, verify_host"),
    ({_DATABASE}, "sink.database", "lacks the database", "create it, or check its name"),
    (_READ_ONLY, "sink.read_only", "cannot be written", "name the primary"),
    (
        _TOO_LARGE,
        "sink.row_too_wide",
        "cannot store a row that is so wide",
        "raise max_allowed_packet, or leave columns out of the view",
    ),
)
