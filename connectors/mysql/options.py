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
from dataflow.errors import SourceError

FAIL, SKIP, DEAD_LETTER = "fail", "skip", "dead_letter"
POLICIES = (FAIL, SKIP, DEAD_LETTER)
REJECT, AS_NULL = "reject", "null"
MAX_SERVER_ID = 2**32 - 1
_LEAST_BUFFER_BYTES = 1 << 16
PAGE = "docs/MYSQL.md"


@dataclass(frozen=True)
class Tls:
    """TLS options; files are paths on the service's machine."""

    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    verifies_host: bool = True

    def context(self) -> ssl.SSLContext:
        """Return the context of a connection made now. SourceError path.forbidden, source.tls."""
        for path in (self.ca_file, self.certificate_file, self.key_file):
            netguard.check_certificate(path)
        try:
            found = ssl.create_default_context(cafile=self.ca_file or None)
            found.check_hostname = self.verifies_host
            if self.certificate_file:
                found.load_cert_chain(self.certificate_file, self.key_file or None)
        except (OSError, ssl.SSLError) as error:
            what = 'the certificates of option "tls" cannot be read'
            raise SourceError("source.tls", what, detail=str(error), hint="check tls") from None
        return found


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
        return {**found, "ssl": self.tls.context()}


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
    buffer_bytes = reader.take("buffer_bytes", int, 16 << 20)
    if buffer_bytes < _LEAST_BUFFER_BYTES:
        raise reader.refused("buffer_bytes", "is too small", hint=f"{_LEAST_BUFFER_BYTES} or more")
    shared = {
        "on_error": reader.choice("on_error", POLICIES, FAIL),
        "zero_dates": reader.choice("zero_dates", (REJECT, AS_NULL), REJECT),
    }
    named = _named(reader)
    reader.end()
    tables = tuple(
        _table(name, OptionReader(one, "source", f"tables.{name}", PAGE), shared, needs_columns)
        for name, one in named.items()
    )
    by_table: dict[str, str] = {}
    for table in tables:
        if by_table.setdefault(table.title.lower(), table.relation) != table.relation:
            raise reader.refused(
                f"tables.{table.relation}.table",
                f'is also the table of "{by_table[table.title.lower()]}"',
                hint="declare one relation with all columns, or a second source",
            )
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
    found = reader.raw("tls")
    if found is None or found is False:
        return Login(host, port, user, password)
    inner = OptionReader({} if found is True else found, reader.side, "tls", page)
    files = [inner.take(name, str, "") for name in ("ca_file", "certificate_file", "key_file")]
    verifies = inner.optional("verify_host", bool)
    inner.end()
    return Login(host, port, user, password, Tls(*files, verifies_host=verifies is not False))


def _named(reader: OptionReader) -> dict[str, Any]:
    """Return the options of each table by its relation; a list names tables only."""
    found = reader.raw("tables")
    if isinstance(found, list):
        named: dict[str, Any] = {}
        for title in found:
            relation = title.rpartition(".")[2] if isinstance(title, str) else ""
            if not relation or relation in named:
                why = f'needs distinct names of the form "database.table", not {title!r}'
                hint = 'name relations: {"orders": {"table": "shop.orders"}}'
                raise reader.refused("tables", why, hint=hint)
            named[relation] = {"table": title}
        found = named
    if not isinstance(found, Mapping) or not found:
        raise reader.refused("tables", "names no table", hint='["shop.orders"]')
    return {
        str(name): {"table": one} if isinstance(one, str) else one for name, one in found.items()
    }


def _table(
    name: str, reader: OptionReader, shared: Mapping[str, str], needs_columns: bool
) -> TableOptions:
    if not name or len(name.encode()) > 63:
        raise reader.refused("", "needs a name of 1 to 63 bytes")
    schema, _, table = reader.take("table", str).partition(".")
    if not schema or not table:
        raise reader.refused("table", 'must be of the form "database.table"')
    columns = _columns(reader, needs_columns)
    key = tuple(reader.take("key", list, []))
    names = [column for column, _ in columns]
    for column in key:
        if columns and column not in names:
            raise reader.refused("key", f'names "{column}", which is not declared')
    on_error = reader.choice("on_error", POLICIES, shared["on_error"])
    zero_dates = reader.choice("zero_dates", (REJECT, AS_NULL), shared["zero_dates"])
    reader.end()
    if columns and not key and on_error != FAIL:
        raise reader.refused(
            "on_error",
            f"cannot be {on_error} for a table without a key",
            detail="a rejected row that is deleted later could not be identified",
            hint="declare the table's key, or keep on_error fail",
        )
    return TableOptions(name, schema, table, columns, key, on_error, zero_dates)


def _columns(reader: OptionReader, is_needed: bool) -> tuple[tuple[str, str], ...]:
    found = reader.raw("columns")
    if found is None and not is_needed:
        return ()
    if isinstance(found, list):
        pairs = [
            (one.get("name"), one.get("type")) if isinstance(one, Mapping) else (None, None)
            for one in found
        ]
    elif isinstance(found, Mapping):
        pairs = list(found.items())
    else:
        pairs = []
    if not pairs:
        hint = "tidemark sources discover mysql proposes them"
        raise reader.refused("columns", "must name each column with its type", hint=hint)
    names = [name for name, _ in pairs]
    if not all(isinstance(part, str) and part for pair in pairs for part in pair):
        raise reader.refused("columns", "must be names with types")
    for name in names:
        if names.count(name) > 1:
            raise reader.refused("columns", f'names "{name}" twice')
    return tuple((str(name), str(type_name)) for name, type_name in pairs)
