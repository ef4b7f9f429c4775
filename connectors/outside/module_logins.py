"""What a database's Python module is given to connect with, beside the options of a source.

A module of the DB-API connects by itself, so this cannot be complete: the operator allows modules
by name. Invariant: what is known to complete a login by the service's own is set, or refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from connectors.option_reader import OptionReader
from connectors.outside.logins import LIBPQ_DEFAULTS

# Modules over libpq, which take each of its keywords.
LIBPQ = ("psycopg2", "psycopg")
# What each libpq of the last years has; a newer module may have more.
_SINCE_12 = ("passfile", "options", "sslmode", "sslcert", "sslkey", "sslrootcert", "sslcrl")
_SINCE_12 += ("gssencmode", "krbsrvname", "requirepeer", "target_session_attrs")
# Where the session is ours, it says these. An empty password is none.
_OF_SESSIONS = {
    "hostaddr": "",
    "port": "5432",
    "password": "",
    "application_name": "tidemark",
    "client_encoding": "UTF8",
    "connect_timeout": "10",
}
# Files of logins, and files that a server may ask for; as the modules call them.
_REFUSED = (
    *("service", "servicefile", "passfile"),
    *("read_default_file", "read_default_group", "option_files", "option_groups"),
    *("default_file", "default_group", "local_infile", "allow_local_infile", "unix_socket"),
)


def check_module_login(reader: OptionReader, module: str, connect: Mapping[str, Any]) -> None:
    """Refuse what names a login of the service's, or leaves one open. SourceError
    source.bad_option.
    """
    for name in connect:
        if name in _REFUSED:
            raise reader.refused(f"connect.{name}", "is not for the options of a source")
    if module not in LIBPQ:
        return
    for name in ("dsn", "conninfo"):
        if name in connect:
            hint = "give host, user, password and dbname"
            raise reader.refused(f"connect.{name}", "must be given in parts", hint=hint)
    for names in (("host",), ("user",), ("dbname", "database")):
        if not any(connect.get(name) for name in names):
            raise reader.refused(f"connect.{names[0]}", "is missing")


def module_login(
    module: str,
    connect: Mapping[str, Any],
    is_known: Callable[[str], bool] = _SINCE_12.__contains__,
) -> dict[str, Any]:
    """Return what the module's `connect` is called with. is_known: whether its libpq has a keyword.

    >>> module_login("psycopg2", {"host": "db"})["passfile"]
    '/nonexistent'
    >>> module_login("sqlite3", {"database": "/data/a.db"})
    {'database': '/data/a.db'}
    """
    if module not in LIBPQ:
        return dict(connect)
    plain = {name: value for name, value in LIBPQ_DEFAULTS.items() if is_known(name)}
    return {**plain, **_OF_SESSIONS, **connect}
