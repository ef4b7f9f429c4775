"""Options of a PostgreSQL source: how to reach the database, and which tables are relations.

Invariant: accepted options are complete and consistent, and hold references to secrets only. A
connection uses nothing of the service's own environment (PGPASSWORD, a password file, client
certificates). What only the server can tell is checked when it is reached.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from psycopg2.extensions import make_dsn

from connectors import netguard
from connectors.feed_source import DeclaredRelation, Reader
from connectors.option_reader import OptionReader
from connectors.postgres.replication.slot import object_name
from connectors.postgres.replication.transactions import StreamLimits
from connectors.secrets import refuse_plain
from connectors.table_options import (
    NAME_BYTES,
    Naming,
    Tls,
    named_tables,
    read_buffer_bytes,
    read_table,
    read_tls,
    require_each_once,
)
from dataflow.schema import RelationName

PAGE = "docs/POSTGRES.md"
_NAMING = Naming("postgres", "schema", "sales")
# A file that does not exist: nothing is read from the service's home.
_NO_FILE = "/nonexistent"


@dataclass(frozen=True)
class Login:
    """How to reach the database. password is a reference, or "" for none."""

    host: str
    port: int
    user: str
    database: str
    password: str = ""
    tls: Tls | None = None

    def dsn(self) -> str:
        """Return libpq's connection string, for connections made now; it holds the reference.

        SourceError host.forbidden, path.forbidden. TemporaryError host.unknown.
        """
        addresses = netguard.check_host(self.host, self.port)
        found = {
            "host": self.host,
            # The address that was checked is the one that is opened; TLS verifies the name.
            "hostaddr": addresses[0],
            "port": str(self.port),
            "user": self.user,
            "dbname": self.database,
            "password": self.password,
            "passfile": _NO_FILE,
            "gssencmode": "disable",
            "sslmode": "disable",
        }
        if self.tls is not None:
            found |= _tls_settings(self.tls)
        return make_dsn(**found)


@dataclass(frozen=True)
class TableOptions:
    """One table as a relation.

    schema, table: the database's names. columns: (name, SQL type). key: () for a table that is
    read as a multiset, with REPLICA IDENTITY FULL.
    """

    relation: str
    schema: str
    table: str
    columns: tuple[tuple[str, str], ...] = ()
    key: tuple[str, ...] = ()

    @property
    def name(self) -> RelationName:
        """The database's name of the table."""
        return RelationName("", self.schema, self.table)

    @property
    def title(self) -> str:
        """The name in the form of the option."""
        return f"{self.schema}.{self.table}"

    def declared(self) -> DeclaredRelation:
        """Return the declared relation for the service."""
        return DeclaredRelation(self.relation, self.columns, self.key, is_full=not self.key)


@dataclass(frozen=True)
class RemoteOptions:
    """All options of a source. slot, publication: "" for the default; see `names`."""

    login: Login
    tables: tuple[TableOptions, ...]
    slot: str = ""
    publication: str = ""
    buffer_bytes: int = 16 << 20

    def table_of(self, relation: str) -> TableOptions:
        """Return the table of a declared relation."""
        return next(t for t in self.tables if t.relation == relation)

    def names(self, source: str, reader: Reader) -> tuple[str, str]:
        """Return the names of slot and publication for a reader of a source.

        >>> read = read_options({"host": "db", "user": "me", "database": "erp",
        ...                      "tables": ["public.t"]}, needs_columns=False)
        >>> read.names("erp", Reader("tidemark", "default"))
        ('tidemark_default_from_erp', 'tidemark_default_from_erp')
        """
        default = _fitting(f"{reader.prefix}_{reader.group}_from_{source}")
        suffix = "" if reader.group == "default" else f"_{reader.group}"
        slot = _fitting(self.slot + suffix) if self.slot else default
        return slot, _fitting(self.publication + suffix) if self.publication else slot

    def limits(self) -> StreamLimits:
        """Return the memory of a stream."""
        return StreamLimits(
            queue_bytes=self.buffer_bytes, spill_bytes=self.buffer_bytes // 2, is_reserved=True
        )


def read_options(options: Mapping[str, Any], *, needs_columns: bool = True) -> RemoteOptions:
    """Read options from JSON. SourceError source.bad_option, secret.plain.

    >>> found = read_options({"host": "db", "user": "me", "database": "erp",
    ...                       "tables": ["sales.orders"]}, needs_columns=False)
    >>> found.tables[0].relation, found.tables[0].title
    ('orders', 'sales.orders')
    """
    reader = OptionReader(options, "source", page=PAGE)
    login = _login(reader)
    names = [_own_name(reader, option) for option in ("slot", "publication")]
    buffer_bytes = read_buffer_bytes(reader)
    named = named_tables(reader, _NAMING)
    reader.end()
    tables = tuple(
        _table(name, OptionReader(one, "source", f"tables.{name}", PAGE), needs_columns)
        for name, one in named.items()
    )
    require_each_once(reader, ((table.relation, table.title) for table in tables))
    return RemoteOptions(login, tables, *names, buffer_bytes=buffer_bytes)


def _tls_settings(tls: Tls) -> dict[str, str]:
    for path in tls.files:
        netguard.check_certificate(path)
    # libpq verifies the name whenever it uses the system's authorities.
    mode = "verify-full" if tls.verifies_host or not tls.ca_file else "verify-ca"
    return {
        "sslmode": mode,
        "sslrootcert": tls.ca_file or "system",
        "sslcert": tls.certificate_file or _NO_FILE,
        "sslkey": tls.key_file or _NO_FILE,
    }


def _login(reader: OptionReader) -> Login:
    host, user = reader.take("host", str), reader.take("user", str)
    database = reader.take("database", str)
    port = reader.take("port", int, 5432)
    if not host or host.startswith(("/", "@")) or "," in host or not 0 < port < 65536:
        raise reader.refused("host or port", "is not an address")
    password = reader.take("password", str, "")
    if password:
        refuse_plain("password", password)
    tls = read_tls(reader, PAGE)
    if tls is not None and not tls.verifies_host and not tls.ca_file:
        raise reader.refused("tls.verify_host", "can be false only with ca_file")
    return Login(host, port, user, database, password, tls)


def _own_name(reader: OptionReader, option: str) -> str:
    name = reader.take(option, str, "")
    if name and (name != object_name("", name)[1:] or len(name) > NAME_BYTES - 1):
        raise reader.refused(option, "may have lower case letters, digits and _ only")
    return name


def _fitting(name: str) -> str:
    """Return a name of the characters and the length that a slot's may have, distinct if cut."""
    plain = object_name("", name)[1:]
    if plain == name:
        return plain
    return f"{plain[: NAME_BYTES - 9]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _table(name: str, reader: OptionReader, needs_columns: bool) -> TableOptions:
    found = read_table(name, reader, _NAMING, needs_columns=needs_columns)
    reader.end()
    return TableOptions(name, found.schema, found.table, found.columns, found.key)
