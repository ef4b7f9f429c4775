"""Options of a MySQL or MariaDB source: how to reach the server, and which tables are relations.

Invariant: accepted options are complete and consistent, and hold references to secrets only. What
only the server can tell is checked in `preflight.py`.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from connectors import netguard
from connectors.feed_source import DeclaredRelation
from connectors.option_reader import OptionReader
from connectors.secrets import refuse_plain, resolve
from connectors.table_options import (
    Naming,
    Tls,
    named_tables,
    read_buffer_bytes,
    read_table,
    read_tls,
    require_each_once,
)
from dataflow.errors import SourceError

FAIL, SKIP, DEAD_LETTER = "fail", "skip", "dead_letter"
POLICIES = (FAIL, SKIP, DEAD_LETTER)
REJECT, AS_NULL = "reject", "null"
MAX_SERVER_ID = 2**32 - 1
PAGE = "docs/MYSQL.md"
_NAMING = Naming("mysql", "database", "shop")


@dataclass(frozen=True)
class Login:
    """How to reach the server. password is a reference, or "" for none."""

    host: str
    port: int
    user: str
    password: str = ""
    tls: Tls | None = None

    def settings(self) -> dict[str, Any]:
        """Return PyMySQL's settings with the secret resolved, for a connection made now.

        SourceError secret.missing, secret.forbidden, host.forbidden, path.forbidden.
        TemporaryError host.unknown.
        """
        addresses = netguard.check_host(self.host, self.port)
        found: dict[str, Any] = {
            # The address that was checked is the one that is opened; TLS verifies the name.
            "host": self.host if self.tls else addresses[0],
            "port": self.port,
            "user": self.user,
            "password": resolve(self.password),
        }
        if self.tls is None:
            return {**found, "ssl_disabled": True}
        return {**found, "ssl": _context(self.tls)}


@dataclass(frozen=True)
class TableOptions:
    """One table as a relation.

    schema, table: the server's names. columns: (name, SQL type). key: () for a table without one.
    on_error: of POLICIES. zero_dates: REJECT or AS_NULL.
    """

    relation: str
    schema: str
    table: str
    columns: tuple[tuple[str, str], ...] = ()
    key: tuple[str, ...] = ()
    on_error: str = FAIL
    zero_dates: str = REJECT

    @property
    def title(self) -> str:
        """The server's name of the table."""
        return f"{self.schema}.{self.table}"

    def declared(self) -> DeclaredRelation:
        """Return the declared relation for the service."""
        return DeclaredRelation(self.relation, self.columns, self.key, is_full=not self.key)


@dataclass(frozen=True)
class MySqlOptions:
    """All options of a source.

    server_id: what the feed calls itself to the server, 0 for a random number. buffer_bytes: limit
    of read-ahead, and of a transaction in memory.
    """

    login: Login
    tables: tuple[TableOptions, ...]
    server_id: int = 0
    buffer_bytes: int = 16 << 20

    def table_of(self, relation: str) -> TableOptions:
        """Return the table of a declared relation."""
        return next(t for t in self.tables if t.relation == relation)


def read_options(options: Mapping[str, Any], *, needs_columns: bool = True) -> MySqlOptions:
    """Read options from JSON. SourceError source.bad_option, secret.plain.

    >>> found = read_options({"host": "db", "user": "me", "tables": ["shop.orders"]},
    ...                      needs_columns=False)
    >>> found.tables[0].relation, found.tables[0].title
    ('orders', 'shop.orders')
    """
    reader = OptionReader(options, "source", page=PAGE)
    login = read_login(reader, PAGE)
    server_id = reader.take("server_id", int, 0)
    if not 0 <= server_id <= MAX_SERVER_ID:
        raise reader.refused("server_id", f"must be 1 to {MAX_SERVER_ID}")
    buffer_bytes = read_buffer_bytes(reader)
    shared = {
        "on_error": reader.choice("on_error", POLICIES, FAIL),
        "zero_dates": reader.choice("zero_dates", (REJECT, AS_NULL), REJECT),
    }
    named = named_tables(reader, _NAMING)
    reader.end()
    tables = tuple(
        _table(name, OptionReader(one, "source", f"tables.{name}", PAGE), shared, needs_columns)
        for name, one in named.items()
    )
    # The server may not tell upper from lower case.
    require_each_once(reader, ((table.relation, table.title.lower()) for table in tables))
    return MySqlOptions(login, tables, server_id, buffer_bytes)


def read_login(reader: OptionReader, page: str) -> Login:
    """Read how to reach the server. Errors `<side>.bad_option`; SourceError secret.plain."""
    host, user = reader.take("host", str), reader.take("user", str)
    port = reader.take("port", int, 3306)
    if not host or not 0 < port < 65536:
        raise reader.refused("host or port", "is not an address")
    password = reader.take("password", str, "")
    if password:
        refuse_plain("password", password)
    return Login(host, port, user, password, read_tls(reader, page))


def _context(tls: Tls) -> ssl.SSLContext:
    """Return the context of a connection made now. SourceError path.forbidden, source.tls."""
    for path in tls.files:
        netguard.check_certificate(path)
    try:
        found = ssl.create_default_context(cafile=tls.ca_file or None)
        found.check_hostname = tls.verifies_host
        if tls.certificate_file:
            found.load_cert_chain(tls.certificate_file, tls.key_file or None)
    except (OSError, ssl.SSLError) as error:
        what = 'the certificates of option "tls" cannot be read'
        raise SourceError("source.tls", what, detail=str(error), hint="check tls") from None
    return found


def _table(
    name: str, reader: OptionReader, shared: Mapping[str, str], needs_columns: bool
) -> TableOptions:
    found = read_table(name, reader, _NAMING, needs_columns=needs_columns)
    on_error = reader.choice("on_error", POLICIES, shared["on_error"])
    zero_dates = reader.choice("zero_dates", (REJECT, AS_NULL), shared["zero_dates"])
    reader.end()
    if found.columns and not found.key and on_error != FAIL:
        raise reader.refused(
            "on_error",
            f"cannot be {on_error} for a table without a key",
            detail="a rejected row that is deleted later could not be identified",
            hint="declare the table's key, or keep on_error fail",
        )
    table = found.schema, found.table, found.columns, found.key
    return TableOptions(name, *table, on_error, zero_dates)
