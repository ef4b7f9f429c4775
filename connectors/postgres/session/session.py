"""Ordinary psycopg2 sessions, and the translation of their errors into ours.

Every session of Tidemark is opened here with the settings of `session_settings` pinned. So
PostgreSQL's text output is the same everywhere: snapshot, stream, evaluator, sink. Invariant: no
password ever appears in an error, a log line or a `repr`. `Session` is usable from several threads;
a connection is not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg2
from psycopg2.extensions import TRANSACTION_STATUS_IDLE, make_dsn, parse_dsn
from psycopg2.extensions import connection as Connection
from psycopg2.sql import Composable

from connectors.postgres.session.backend_probe import TIME_LIMITS
from connectors.postgres.session.foreign import OWN, SHOWN, ForeignDsn
from connectors.postgres.session.liveness_watchdog import (
    Watched,
    WatchedReplication,
    WatchedSession,
)
from connectors.postgres.session.session_pool import POOL
from connectors.postgres.session.session_settings import PINNED, later_settings
from connectors.postgres.session.start_refusals import start_refusal
from connectors.secrets import escaped, is_reference, remember, resolve_setting, without
from dataflow.errors import SinkError, SourceError, TemporaryError, TidemarkError

T = TypeVar("T")

APPLICATION_NAME = "tidemark"
# Names in our statements mean PostgreSQL's own objects, whatever a role, a database or a schema
# that others may write to has of these names (the pattern of CVE-2018-1058).
PINNED_PATH = "pg_catalog, pg_temp"

# How often the server checks, within a statement, that its client is alive: a killed process must
# not hold its locks until the statement's end. Other systems refuse the setting.
_ALIVE = """SELECT set_config('client_connection_check_interval', '1s', false)
WHERE version() LIKE '%linux%'"""
# How long to wait for a table that another long transaction has locked.
_LOCK_TIMEOUT = "30s"
# Of sessions for single statements: some run all the time, and none has much to compute.
_SHORT_SETTINGS = {"jit": "off", "plan_cache_mode": "force_generic_plan"}
_SECRETS = ("password", "sslpassword")
_ERRORS: dict[str, type[TidemarkError]] = {"source": SourceError, "sink": SinkError}


@dataclass
class Limits:
    """Statement timeouts in seconds, 0 for none.

    statement_s: an ordinary statement. long_statement_s: one that reads or writes whole tables
    (snapshots, COPY, an epoch).
    """

    statement_s: float = 60.0
    long_statement_s: float = 86_400.0


# Of this process, set from the settings at start; remote executors use the defaults.
LIMITS = Limits()

# SQLSTATEs and classes for which a retry may succeed (PostgreSQL, appendix A).
_TEMPORARY_STATES = {"57P01", "57P02", "57P03", "57P05", "53300", "40001", "40P01", "55P03"}
# The server's disk or memory is full, or its disk fails: not the statement's fault.
_TEMPORARY_STATES |= {"53100", "53200", "58030"}
_TEMPORARY_CLASSES = {"08"}

# A session keeps these although their cause may be over: ALTER DATABASE ... SET is for new ones.
_OLD_SETTING_STATES = {"25006"}


def connect(
    dsn: str,
    *,
    side: str = "source",
    application_name: str = APPLICATION_NAME,
    settings: Mapping[str, str] | None = None,
    is_replication: bool = False,
    is_long: bool = False,
    is_users: bool = False,
    setup: Callable[[Watched], object] | None = None,
) -> Watched:
    """Open a session with pinned settings; `settings` adds to them or overrides them.

    The caller owns it and closes it. setup: called with it; a session whose setup fails is closed
    here, and psycopg2's errors are translated.

    Its search_path is PINNED_PATH. The login's own stays the default, which the sandbox restores to
    parse a user's text. is_users: the session is handed to a user, with the login's path.

    is_long: its statements read or write whole tables (`Limits`), wait for locks as long, and end
    when this process does. side is the code's first word and selects the error class: "source" or
    "sink". Calls are watched (`liveness_watchdog`). TemporaryError `<side>.unreachable`, or a
    refusal `<side>.login`, `<side>.database`, `<side>.dsn`, `<side>.own_database`.
    """
    pinned = {**_own_settings(is_long=is_long), **(settings or {})}
    path = "" if is_users else pinned.pop("search_path", PINNED_PATH)
    if is_replication:
        pinned["search_path"], path = PINNED_PATH, ""
    keywords = _keywords(dsn, side)
    supplied = f"{keywords['options']} " if keywords.get("options") else ""
    arguments: dict[str, Any] = {
        **TIME_LIMITS.transport(),
        "connect_timeout": str(TIME_LIMITS.connect_s),
        **keywords,
        "application_name": application_name,
        "client_encoding": "UTF8",
        "options": supplied + _options(pinned),
    }
    if keywords.get("target_session_attrs") == "read-write":
        # libpq mistakes our read-only sessions for a standby's.
        arguments["target_session_attrs"] = "primary"
    factory = WatchedReplication if is_replication else WatchedSession
    try:
        connection = psycopg2.connect(make_dsn(**arguments), connection_factory=factory)
    except psycopg2.Error as error:
        raise _refused_start(error, _shown(dsn, keywords), side) from None
    try:
        connection.watch(arguments)
        with translated(side, "cannot set up a session"):
            _pin(connection, pinned, path)
            if is_long:
                _set(connection, _ALIVE)
            _refuse_own(dsn, connection, side)
            if setup is not None:
                setup(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def refuse_own(connection: Connection, side: str) -> None:
    """Refuse a new session of a user's source or sink as of `OwnDatabases.refuse`."""
    OWN.refuse(connection, side, lambda own, own_side: connect(own, side=own_side))


def _refuse_own(dsn: str, connection: Connection, side: str) -> None:
    if isinstance(dsn, ForeignDsn):
        refuse_own(connection, side)


def without_transactions(connection: Connection) -> None:
    """Let each statement of a new session commit by itself; a setup for `connect`."""
    connection.autocommit = True


def _own_settings(*, is_long: bool) -> dict[str, str]:
    limit_ms = round(1000 * (LIMITS.long_statement_s if is_long else LIMITS.statement_s))
    return {
        **PINNED,
        "statement_timeout": f"{limit_ms}",
        "lock_timeout": f"{limit_ms}" if is_long else _LOCK_TIMEOUT,
        # A role's or database's setting for people would abort our long transactions.
        "idle_in_transaction_session_timeout": "0",
        "idle_session_timeout": "0",
        # The server notices that we are gone, and releases our locks.
        **TIME_LIMITS.server_settings(),
    }


def redact(dsn: str) -> str:
    """Return the DSN for display: secrets are replaced by ***.

    >>> redact("postgresql://me:secret@db/shop")
    'user=me password=*** dbname=shop host=db'
    """
    try:
        keywords = parse_dsn(escaped(dsn))
    except psycopg2.Error:
        return "(unreadable DSN)"
    return make_dsn(**{k: "***" if k in _SECRETS else v for k, v in keywords.items()})


def to_error(
    error: BaseException, side: str, doing: str, *, code: str = "", hint: str = ""
) -> TidemarkError:
    """Return our error for a psycopg2 error.

    A lost connection or a restarting server is a TemporaryError. Everything else is permanent,
    under `code` ("<side>.failed" by default, "<side>.privilege" for missing rights). doing: the
    attempt, in lower case with the object's name.
    """
    text = _text(error)
    state = getattr(error, "pgcode", None)
    if state == "57014":
        # Our timeout, unless someone cancelled it; the next try may meet less load.
        hint = hint or "check for locks and load; TIDEMARK_STATEMENT_TIMEOUT_S is the limit"
        return TemporaryError(f"{side}.busy", doing, detail=text, hint=hint)
    if is_temporary(error):
        if state is None or state[:2] in ("08", "57"):
            what, hint = f"the {side} cannot be reached", hint or "check that the server runs"
            detail = f"{doing}: {text}"
            return TemporaryError(f"{side}.unreachable", what, detail=detail, hint=hint)
        return TemporaryError(f"{side}.busy", doing, detail=text, hint=hint)
    if state == "25006" and side == "sink":
        hint = hint or "point the DSN at the primary; check default_transaction_read_only"
        what, detail = "the sink is read-only", f"{doing}: {text}"
        return SinkError("sink.read_only", what, detail=detail, hint=hint)
    if state == "42501":
        hint = hint or "grant the privilege named in the detail to the role of the DSN"
        return _ERRORS[side](f"{side}.privilege", doing, detail=text, hint=hint)
    return _ERRORS[side](code or f"{side}.failed", doing, detail=text, hint=hint)


def is_outlived(error: BaseException) -> bool:
    """Return whether a new session may take what this one has refused.

    Its connection is lost, or it began with a setting that is another one by now.
    """
    return is_temporary(error) or getattr(error, "pgcode", None) in _OLD_SETTING_STATES


def is_temporary(error: BaseException) -> bool:
    """Return whether the same statement may succeed on a new session."""
    state = getattr(error, "pgcode", None)
    if state is not None:
        return state in _TEMPORARY_STATES or state[:2] in _TEMPORARY_CLASSES
    return isinstance(error, psycopg2.OperationalError | psycopg2.InterfaceError | OSError) or (
        # libpq's "server closed the connection unexpectedly" comes as the base class.
        type(error) is psycopg2.DatabaseError
    )


@contextmanager
def translated(side: str, doing: str, *, code: str = "", hint: str = "") -> Iterator[None]:
    """Turn psycopg2's errors raised inside into ours, as `to_error` does."""
    try:
        yield
    except psycopg2.Error as error:
        raise to_error(error, side, doing, code=code, hint=hint) from error


class Session:
    """Single statements, each in a session that the process's pool lends for it.

    Each statement commits by itself. A statement on a session that turns out to be lost is sent
    once more on a new one, so it must tolerate repetition. Nothing that a statement sets in its
    session may last. Usable from several threads, one at a time.
    """

    def __init__(
        self, dsn: str, side: str = "source", application_name: str = APPLICATION_NAME
    ) -> None:
        self.dsn = dsn
        self.side = side
        self._application_name = application_name
        self._lock = threading.Lock()

    def rows(
        self, sql: str | Composable, parameters: Any = None, *, doing: str = ""
    ) -> list[tuple[Any, ...]]:
        """Return all rows of the statement, [] when it returns none; errors as of `to_error`."""

        def act(session: Watched) -> list[tuple[Any, ...]]:
            with session.cursor() as cursor:
                cursor.execute(sql, parameters)
                return cursor.fetchall() if cursor.description else []

        with translated(self.side, doing or "a statement failed"):
            return self.run(act)

    def run(self, act: Callable[[Watched], T]) -> T:
        """Return what `act` returns in a session that is lent for it, with `autocommit`.

        act: as a statement, it may be repeated after a loss. Errors of `act` as they are;
        TidemarkError as of `connect`.
        """

        def open() -> Watched:
            return connect(
                self.dsn,
                side=self.side,
                application_name=self._application_name,
                settings=_SHORT_SETTINGS,
                setup=without_transactions,
            )

        with self._lock:
            return POOL.run(self._key, open, act)

    def execute(self, sql: str | Composable, parameters: Any = None, *, doing: str = "") -> None:
        """Run a statement for its effect."""
        self.rows(sql, parameters, doing=doing)

    @property
    def server_version(self) -> int:
        """Return PostgreSQL's version number, as 150018."""
        return int(self.rows("SHOW server_version_num")[0][0])

    def close(self) -> None:
        """Close the idle sessions that the process has there; the next statement opens one."""
        POOL.close(self._key)

    @property
    def _key(self) -> tuple[str, str]:
        return self.dsn, self._application_name


def _keywords(dsn: str, side: str) -> dict[str, str]:
    """Return the DSN's parts with secret references resolved: the whole DSN or each value may be
    one. Of a foreign one, it is the password alone, and only what options may name."""
    if isinstance(dsn, ForeignDsn):
        return dsn.keywords()
    try:
        text = resolve_setting(dsn) if is_reference(dsn) else dsn
        found = {k: resolve_setting(v) for k, v in parse_dsn(escaped(text)).items()}
        for name in _SECRETS:
            remember(found.get(name, ""))
        return found
    except psycopg2.Error:
        # libpq quotes the part that it could not parse, which may contain the password.
        raise _ERRORS[side](
            f"{side}.dsn",
            f"the {side}'s DSN cannot be read",
            hint="use postgresql://user:password@host:5432/database, special characters as %XX",
        ) from None


def _options(settings: Mapping[str, str]) -> str:
    def escape(value: str) -> str:
        return value.replace("\\", "\\\\").replace(" ", "\\ ")

    return " ".join(f"-c {name}={escape(value)}" for name, value in settings.items())


def _pin(connection: Connection, pinned: Mapping[str, str], path: str) -> None:
    """Pin settings again that PGTZ and PGDATESTYLE in the environment changed despite `options`.

    The path is set here and not by `options`, so that the login's own stays the default.
    """
    reported = connection.info.parameter_status
    later = later_settings(connection.server_version)
    todo = [f"SET search_path TO {path}"] if path else []
    todo += [f"SET {name} TO '{pinned.get(name, value)}'" for name, value in later.items()]
    for name in ("TimeZone", "DateStyle", "IntervalStyle"):
        actual = reported(name)
        if actual is not None and actual != pinned[name]:
            todo.append(f"SET {name} TO '{pinned[name]}'")
    if todo:
        _set(connection, "; ".join(todo))


def _set(connection: Connection, statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)
    # psycopg2 opened a transaction for it, except on a replication connection.
    if connection.info.transaction_status != TRANSACTION_STATUS_IDLE:
        connection.commit()


def _shown(dsn: str, keywords: dict[str, str]) -> dict[str, str]:
    """Return what an error shows of a login."""
    return {n: keywords[n] for n in SHOWN} if isinstance(dsn, ForeignDsn) else keywords


def _refused_start(error: psycopg2.Error, keywords: dict[str, str], side: str) -> TidemarkError:
    text = _text(error)
    for secret in _SECRETS:
        text = without(text, keywords.get(secret, ""))
    found = start_refusal(text)
    kind = TemporaryError if found.is_temporary else _ERRORS[side]
    detail = f"{redact(make_dsn(**keywords))}: {text}"
    what = f"the {side} {found.what}"
    return kind(f"{side}.{found.name}", what, detail=detail, hint=found.hint)


def _text(error: BaseException) -> str:
    diagnostics = getattr(error, "diag", None)
    if diagnostics is not None and diagnostics.message_primary:
        detail = diagnostics.message_detail
        return diagnostics.message_primary + (f": {detail}" if detail else "")
    return " ".join(str(error).split())
