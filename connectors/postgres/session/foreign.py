"""Sessions with databases of others: what they connect with, and which databases are none.

Whoever declares a source or sink chooses a database that the service opens from its own machine,
where it may be trusted without a password. Invariant: such a session is refused if the database is
one of the service's own, or if its login has the service's rights on the service's own servers. The
server itself says which it is, at each connection, whatever its host was called.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import psycopg2
from psycopg2.extensions import TRANSACTION_STATUS_IDLE, make_dsn, parse_dsn
from psycopg2.extensions import connection as Connection

from connectors.option_reader import ERRORS
from connectors.outside.logins import PostgresLogin
from connectors.postgres.session.quoting import LEADS_TO_SUPERUSER
from connectors.secrets import resolve
from dataflow.errors import TemporaryError, TidemarkError

# For how long the identity of an own database is reused.
KNOWN_S = 60.0
# Keywords that an error shows of a foreign login.
SHOWN = ("host", "port", "user", "dbname", "sslmode")
_CONTROL = "SELECT system_identifier::text FROM pg_control_system()"
_FACTS = """
SELECT has_function_privilege('pg_catalog.pg_control_system()', 'EXECUTE'),
       extract(epoch FROM pg_postmaster_start_time())::text, oid::bigint, session_user::text
FROM pg_database WHERE datname = current_database()
"""
# Rights over the server's machine count as those of a superuser.
_IS_POWERFUL = f"""
SELECT {LEADS_TO_SUPERUSER.format("r.oid")} OR EXISTS (
    SELECT FROM pg_roles AS o WHERE pg_has_role(r.oid, o.oid, 'MEMBER') AND (
        o.rolname = ANY (%s) OR o.rolname IN (
            'pg_execute_server_program', 'pg_read_server_files', 'pg_write_server_files')))
FROM pg_roles AS r WHERE r.rolname = session_user
"""

# Opens a session with an own database: its DSN, and "source" or "sink".
Open = Callable[[str, str], Connection]


class ForeignDsn(str):
    """A connection string with every keyword that libpq would otherwise find elsewhere.

    Only its password may be a reference, to a secret that options may name.
    """

    @staticmethod
    def of(login: PostgresLogin) -> ForeignDsn:
        """Return the string for connections made now. Errors as of `PostgresLogin.keywords`."""
        keywords = login.keywords()
        return ForeignDsn(make_dsn(**{n: v for n, v in keywords.items() if is_known(n)}))

    def keywords(self) -> dict[str, str]:
        """Return the parts with the secret resolved. SourceError secret.missing."""
        found = parse_dsn(str(self))
        return {**found, "password": resolve(found["password"])}


class Facts(NamedTuple):
    """Which database a session is in, and as whom. system: "" if the role may not read it."""

    system: str
    started: str
    database: int
    role: str

    def is_same_server(self, other: Facts) -> bool:
        """Return True for two databases of one server, or of one and its standby."""
        return self.started == other.started or "" != self.system == other.system


class OwnDatabases:
    """The databases of the service itself. Usable from several threads.

    Until `install`, as in executors elsewhere, none is known and none is refused.
    """

    def __init__(self) -> None:
        self._dsns: tuple[tuple[str, str], ...] = ()
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, Facts]] = {}

    def install(self, source: str, sink: str, *, are_allowed: bool) -> None:
        """Set the service's DSNs, once when a process starts. are_allowed: refuse nothing."""
        named = {dsn: side for dsn, side in ((sink, "sink"), (source, "source")) if dsn}
        with self._lock:
            self._dsns = () if are_allowed else tuple((side, dsn) for dsn, side in named.items())
            self._known.clear()

    def refuse(self, session: Connection, side: str, open: Open) -> None:
        """Refuse a new foreign session with a database or a login of the service.

        SourceError, SinkError `<side>.own_database`; TemporaryError `<side>.unreachable` if an own
        database cannot be asked now.
        """
        if not self._dsns:
            return
        found = facts_of(session)
        own = [self._own(own_side, dsn, side, open) for own_side, dsn in self._dsns]
        same = [facts for facts in own if found is not None and found.is_same_server(facts)]
        if found is None or not same:
            return
        if any(facts.database == found.database for facts in same):
            raise _own_database(side, "it is a database of the service itself")
        roles = [facts.role for facts in same]
        if _ask(session, _IS_POWERFUL, (roles,)) != (False,):
            why = f'role "{found.role}" has the rights of the service or of a superuser'
            raise _own_database(side, f"{why}, on the service's own server")

    def _own(self, own_side: str, dsn: str, side: str, open: Open) -> Facts:
        with self._lock:
            at, known = self._known.get(dsn, (float("-inf"), None))
        if known is not None and time.monotonic() - at < KNOWN_S:
            return known
        try:
            session = open(dsn, own_side)
            try:
                known = facts_of(session) or known
            finally:
                session.close()
        except TidemarkError as error:
            if known is None:
                raise _unknown(side, error.described) from None
        if known is None:
            raise _unknown(side, f"the service's {own_side} does not say which database it is")
        with self._lock:
            self._known[dsn] = time.monotonic(), known
        return known


OWN = OwnDatabases()


def facts_of(session: Connection) -> Facts | None:
    """Return which database a new session is in; None if the server does not say it.

    Another product that speaks the protocol may lack these functions; PostgreSQL has them.
    """
    found = _ask(session, _FACTS)
    if found is None:
        return None
    may_read, started, database, role = found
    (system,) = (_ask(session, _CONTROL) if may_read else None) or ("",)
    return Facts(str(system), str(started), int(database), str(role))


def _ask(session: Connection, sql: str, values: Sequence[Any] | None = None) -> Any:
    """Return the row of a query; None if the server cannot answer it. psycopg2.Error if lost."""
    try:
        with session.cursor() as cursor:
            if not session.autocommit:
                # Of sessions that are not pinned; it ends with the transaction.
                cursor.execute("SET LOCAL search_path TO pg_catalog, pg_temp")
            cursor.execute(sql, values)
            return cursor.fetchone()
    except psycopg2.Error:
        if session.closed:
            raise
        return None
    finally:
        if not session.closed and session.info.transaction_status != TRANSACTION_STATUS_IDLE:
            session.rollback()


@cache
def is_known(keyword: str) -> bool:
    """Return True if this libpq has the keyword: one that it lacks has no default either."""
    try:
        parse_dsn(f"{keyword}=1")
    except psycopg2.ProgrammingError:
        return False
    return True


def _own_database(side: str, why: str) -> TidemarkError:
    hint = "use another database, and a role of its own; TIDEMARK_ALLOW_OWN_DATABASE permits it"
    what, kind = f"the {side} must not be a database of the service", ERRORS[side]
    return kind(f"{side}.own_database", what, detail=why, hint=hint)


def _unknown(side: str, detail: str) -> TidemarkError:
    what = f"the {side} cannot be compared with the service's own databases"
    hint = "no action needed if it is a short failure: it is tried again"
    return TemporaryError(f"{side}.unreachable", what, detail=detail, hint=hint)
