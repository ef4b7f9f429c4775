"""Why a server, or a pooler before it, does not let a session begin.

libpq gives no SQLSTATE for a refused start, so its words are matched, and those of PostgreSQL and
PgBouncer that it passes on. Sources: src/interfaces/libpq/fe-*.c, src/backend/utils/init/postinit.c
and src/backend/libpq/auth.c of PostgreSQL 18; src/client.c and src/objects.c of PgBouncer 1.18.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class StartRefusal:
    """name: the code's second word. what: follows "the source" or "the sink"."""

    name: str
    what: str
    hint: str
    is_temporary: bool = False


_LOGIN = StartRefusal(
    "login",
    "refuses the login",
    "check user and password of the DSN, and pg_hba.conf on the server",
)
_TLS = StartRefusal(
    "tls",
    "cannot be reached over TLS",
    "check sslmode, sslrootcert, sslcert and sslkey of the DSN, and the server's certificate",
)
_BUSY = StartRefusal(
    "busy",
    "has no free connection",
    "raise max_connections or the limit of the role, database or pooler, or end sessions",
    is_temporary=True,
)
_STARTING = StartRefusal(
    "unreachable",
    "is starting or stopping",
    "nothing if it is short; else see the server's log",
    is_temporary=True,
)
_STANDBY = StartRefusal(
    "unreachable",
    "cannot be reached: no server of the DSN is as target_session_attrs wants it",
    "wait for the promotion, or name the primary",
    is_temporary=True,
)
_POOLER = StartRefusal(
    "pooler",
    "is behind a pooler that does not pass on the session's settings",
    "name the server itself in the DSN: Tidemark sets up each of its sessions",
)
_POOLER_AWAY = StartRefusal(
    "unreachable",
    "cannot be reached: its pooler finds no server",
    "check that the server runs, and the pooler's configuration",
    is_temporary=True,
)
_DATABASE = StartRefusal("database", "has no such database", "check the database name of the DSN")
_CLOSED = StartRefusal(
    "database",
    "admits nobody to the database",
    "ALTER DATABASE ... ALLOW_CONNECTIONS true, or check the database name of the DSN",
)
_PRIVILEGE = StartRefusal(
    "privilege",
    "denies the role access to the database",
    "GRANT CONNECT ON DATABASE ... TO the role of the DSN",
)
_DSN = StartRefusal(
    "dsn",
    "has a DSN with a wrong value",
    "use postgresql://user:password@host:5432/database, special characters as %XX",
)
_UNREACHABLE = StartRefusal(
    "unreachable",
    "cannot be reached",
    "check host and port of the DSN, and that the server accepts connections",
    is_temporary=True,
)

# The first that matches decides: what is temporary may quote a role's or database's name.
_RULES: tuple[tuple[str, StartRefusal], ...] = (
    (r"too many (clients|connections)|remaining connection slots|too many active", _BUSY),
    (r"no more connections allowed", _BUSY),
    (r"database system is (starting up|shutting down|in recovery|not yet accepting)", _STARTING),
    (r"session is (not )?read-only|in hot standby mode", _STANDBY),
    (r"unsupported startup parameter", _POOLER),
    (r"server login failed|pgbouncer cannot connect|query_wait_timeout|server conn", _POOLER_AWAY),
    (r"no pg_hba\.conf entry|authentication failed|no password supplied|no such user", _LOGIN),
    (r"password is (required|expired)|requires a valid client certificate", _LOGIN),
    (r"authentication method .* (not supported|requested)|channel binding", _LOGIN),
    (r"unexpected eof", _UNREACHABLE),
    (r"certificate|private key|SSL error|does not support SSL|SSL is not enabled", _TLS),
    (r"tlsv1|sslv3|SSL routines|SSL required", _TLS),
    (r'database "[^"]*" is not currently accepting', _CLOSED),
    (r"permission denied for database", _PRIVILEGE),
    (r'database "[^"]*" does not exist|no such database', _DATABASE),
    (r'role "', _LOGIN),
    (r"invalid .* value|invalid port|invalid integer value|could not match \d+ host names", _DSN),
)
_COMPILED = tuple((re.compile(words), refusal) for words, refusal in _RULES)


def start_refusal(text: str) -> StartRefusal:
    """Return what libpq's error of a connection means.

    >>> start_refusal('FATAL:  database "shop" does not exist').name
    'database'
    >>> start_refusal('FATAL:  too many connections for role "me"').name
    'busy'
    """
    return next((found for words, found in _COMPILED if words.search(text)), _UNREACHABLE)
