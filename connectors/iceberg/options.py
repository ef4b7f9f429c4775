"""Options of a sink in an Iceberg table.

Invariant: the client gets no properties of the user's: some of Iceberg's name Python classes or
other machines. Unknown or contradictory options are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from connectors import netguard
from connectors.lake.location import PAGE, Location, max_delay_s, plain_name
from connectors.option_reader import OptionReader
from connectors.outside.address import AddressError, parse_folder, parse_url
from connectors.outside.logins import PostgresLogin, is_plain, read_plain
from connectors.secrets import refuse_plain
from connectors.sink import SinkTable

MAX_DELAY_S = 30.0
_SQLITE, _POSTGRES = "sqlite", "postgresql"
# A part of a table's name is part of the name of a folder too.
_NOT_IN_NAMES = "/\\"


@dataclass(frozen=True)
class IcebergOptions:
    """location: the warehouse. catalog: URL of the SQL catalog. login: to its database, None for a
    file; schema: of the catalog's tables there.
    """

    location: Location
    catalog: str
    login: PostgresLogin | None
    schema: str
    catalog_name: str
    namespace: tuple[str, ...]
    table: str
    max_delay_s: float

    @staticmethod
    def of(options: Mapping[str, Any], table: SinkTable) -> IcebergOptions:
        """Read the options. SinkError sink.bad_option, secret.plain."""
        reader = OptionReader(options, "sink", page=PAGE)
        location = Location.of(reader)
        if location.bucket.ca_file or location.bucket.is_virtual_host:
            name = "ca_file" if location.bucket.ca_file else "virtual_host"
            raise reader.refused(name, "is not supported for Iceberg")
        catalog, password = reader.take("catalog", str), reader.take("password", str, "")
        parts = urlsplit(catalog)
        if (
            parts.scheme not in (_SQLITE, _POSTGRES)
            or parts.query
            or parts.password
            or "#" in catalog
        ):
            hint = "sqlite:////folder/catalog.db or postgresql://user@host/database"
            raise reader.refused("catalog", "is not the URL of an SQL catalog", hint=hint)
        if parts.scheme == _SQLITE:
            try:
                _catalog_path(catalog)
            except AddressError as error:
                hint = "sqlite:////folder/catalog.db, without escapes"
                raise reader.refused("catalog", str(error), hint=hint) from None
        if password:
            refuse_plain("password", password)
        login = None if parts.scheme == _SQLITE else _login(reader, catalog, password)
        schema = read_plain(reader, "catalog_schema", "public")
        reader.choice("initial", ("rows", "changes"), "rows")
        *namespace, name = reader.take("table", str, f"tidemark.{plain_name(table)}").split(".")
        if not namespace or not all(map(_is_name, (*namespace, name))):
            raise reader.refused("table", "must be a namespace and a name", hint="shop.revenue")
        made = IcebergOptions(
            location,
            catalog,
            login,
            schema,
            reader.take("catalog_name", str, "default"),
            tuple(namespace),
            name,
            max_delay_s(reader, MAX_DELAY_S),
        )
        reader.end()
        return made

    @property
    def title(self) -> str:
        """The readable name of the table."""
        return ".".join([*self.namespace, self.table])

    def check(self) -> None:
        """Refuse what must not be reached. SourceError path.forbidden, host.forbidden."""
        self.location.check()
        if self.catalog_file:
            netguard.check_sink_path(self.catalog_file)
        else:
            self.database.address()

    @property
    def database(self) -> PostgresLogin:
        """How the database of a catalog of PostgreSQL is reached."""
        assert self.login is not None
        return self.login

    @property
    def catalog_file(self) -> str:
        """The path of a catalog of SQLite; empty for PostgreSQL."""
        return _catalog_path(self.catalog) if self.catalog.startswith(_SQLITE) else ""

    @property
    def table_folder(self) -> str:
        """The table's folder, below the warehouse."""
        return f"{'.'.join(self.namespace)}/{self.table}"

    @property
    def table_location(self) -> str:
        """The table's location, as its metadata has it."""
        path = self.location.path
        return f"{path if self.location.is_bucket else f'file://{path}'}/{self.table_folder}"


def _login(reader: OptionReader, catalog: str, password: str) -> PostgresLogin:
    """Return how the catalog's database is reached. SinkError sink.bad_option."""
    hint = "postgresql://user@host/database"
    try:
        url = parse_url(catalog, (_POSTGRES,), default_port=5432, may_have_login=True)
    except AddressError as error:
        raise reader.refused("catalog", str(error), hint=hint) from None
    user, database = url.user, unquote(url.path.removeprefix("/"))
    for text in (user, database):
        if not is_plain(text):
            raise reader.refused(
                "catalog", "must name a user and a host, and a database", hint=hint
            )
    return PostgresLogin(
        url.host, url.port, user, password, database=database, without_tls="prefer"
    )


def _is_name(text: str) -> bool:
    return bool(text) and text.isprintable() and not any(c in text for c in _NOT_IN_NAMES)


def _catalog_path(catalog: str) -> str:
    """Return the path that the URL of a file names. AddressError."""
    return parse_folder(catalog.removeprefix(f"{_SQLITE}:///"))
