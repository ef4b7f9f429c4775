"""Options of a sink in an Iceberg table.

Invariant: the client gets only properties that are named here, never the user's: some of Iceberg's
name Python classes or other machines. Unknown or contradictory options are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit

from connectors import netguard, secrets
from connectors.lake.location import PAGE, Location, max_delay_s, plain_name
from connectors.option_reader import OptionReader
from connectors.sink import SinkTable

MAX_DELAY_S = 30.0
_SQLITE, _POSTGRES = "sqlite", "postgresql"
_KEYS = {
    "access_key": "s3.access-key-id",
    "secret_key": "s3.secret-access-key",
    "session_token": "s3.session-token",
}


@dataclass(frozen=True)
class IcebergOptions:
    """location: the warehouse. catalog: URL of the SQL catalog. password: a reference, or empty."""

    location: Location
    catalog: str
    password: str = field(repr=False)
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
        if parts.scheme not in (_SQLITE, _POSTGRES) or parts.query or parts.password:
            hint = "sqlite:////folder/catalog.db or postgresql://user@host/database"
            raise reader.refused("catalog", "is not the URL of an SQL catalog", hint=hint)
        if parts.scheme == _SQLITE and not parts.path.startswith("//"):
            raise reader.refused("catalog", "must name an absolute path", hint="sqlite:////a/c.db")
        if parts.scheme == _POSTGRES and not (parts.hostname and parts.username):
            raise reader.refused("catalog", "must name a user and a host")
        if password:
            secrets.refuse_plain("password", password)
        reader.choice("initial", ("rows", "changes"), "rows")
        *namespace, name = reader.take("table", str, f"tidemark.{plain_name(table)}").split(".")
        if not namespace or not all((*namespace, name)):
            raise reader.refused("table", "must be a namespace and a name", hint="shop.revenue")
        made = IcebergOptions(
            location,
            catalog,
            password,
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
        parts = urlsplit(self.catalog)
        if parts.scheme == _SQLITE:
            netguard.check_sink_path(parts.path[1:])
        else:
            netguard.check_url(self.catalog)

    def properties(self) -> dict[str, str]:
        """Return the properties of the catalog and its files. SourceError secret.missing."""
        path, bucket = self.location.path, self.location.bucket
        found = {
            "uri": self._uri(),
            "warehouse": path if self.location.is_bucket else f"file://{path}",
        }
        if not self.location.is_bucket:
            return found
        found |= {"s3.region": bucket.region, "s3.connect-timeout": "5", "s3.request-timeout": "30"}
        if bucket.endpoint:
            found["s3.endpoint"] = bucket.endpoint
        if not bucket.access_key:
            return {**found, "s3.anonymous": "true"}
        keys = {_KEYS[name]: self.location.secret(name) for name in _KEYS}
        return found | {name: value for name, value in keys.items() if value}

    def _uri(self) -> str:
        parts = urlsplit(self.catalog)
        if parts.scheme == _SQLITE:
            return self.catalog
        password = secrets.resolve(self.password)
        login = f"{parts.username}:{quote(password, safe='')}" if password else parts.username
        host = parts.netloc.rpartition("@")[2]
        return f"postgresql+psycopg2://{login}@{host}{parts.path}"
