"""Options of a sink in another PostgreSQL: how to reach it, and the table.

Invariant: accepted options are complete and consistent, and hold references to secrets only. The
address that was checked is the one that is opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from psycopg2.extensions import make_dsn

from connectors import netguard
from connectors.option_reader import OptionReader
from connectors.postgres.session.quoting import NAME_BYTES
from connectors.secrets import has_reference, refuse_plain, resolve
from connectors.sink import SinkTable
from connectors.table_options import Tls

PAGE = "docs/POSTGRES_SINK.md"
Mode = Literal["rows", "changes"]
# libpq must find none of the credentials that the service's own user has.
_NOT_THE_SERVICES = {
    "passfile": "/nonexistent",
    "sslcert": "/nonexistent",
    "gssencmode": "disable",
}


@dataclass(frozen=True)
class TableOptions:
    """One table that a view is written to. password: a reference, or "" for none."""

    host: str
    port: int
    database: str
    user: str
    password: str
    tls: Tls | None
    schema: str
    table: str
    mode: Mode
    has_rows: bool

    @staticmethod
    def of(options: Mapping[str, Any], table: SinkTable) -> TableOptions:
        """Read the options. SinkError sink.bad_option; SourceError secret.plain."""
        reader = OptionReader(options, "sink", page=PAGE)
        login = [reader.take(name, str) for name in ("host", "database", "user")]
        for name, value in zip(("host", "database", "user"), login, strict=True):
            if has_reference(value) or "\0" in value or not value or value.startswith("/"):
                raise reader.refused(name, "must be a plain name")
        port = reader.take("port", int, 5432)
        if not 0 < port < 1 << 16:
            raise reader.refused("port", "must be between 1 and 65535", detail=str(port))
        password = reader.take("password", str, "")
        if password:
            refuse_plain("password", password)
        tls = _tls(reader.under("tls"))
        named = reader.take("table", str, f"{table.schema}.{table.name}")
        schema, _, name = named.rpartition(".")
        for part in (schema or "public", name):
            if not part or "\0" in part or len(part.encode()) > NAME_BYTES:
                hint = f"write schema.name, each of at most {NAME_BYTES} bytes"
                raise reader.refused("table", "is not a table's name", detail=named, hint=hint)
        mode = reader.choice("mode", ("rows", "changes"), "rows")
        initial = reader.choice("initial", ("rows", "changes"), "rows")
        if initial == "changes" and mode == "rows":
            hint = 'choose mode "changes", or begin with the rows'
            raise reader.refused("initial", "cannot be changes in mode rows", hint=hint)
        reader.end()
        host, database, user = login
        return TableOptions(
            host,
            port,
            database,
            user,
            password,
            tls,
            schema or "public",
            name,
            cast(Mode, mode),
            initial == "rows",
        )

    def dsn(self) -> str:
        """Return the connection string with the secret resolved, for a connection made now.

        SourceError secret.missing, host.forbidden, path.forbidden; TemporaryError host.unknown.
        """
        address = netguard.check_host(self.host, self.port)[0]
        tls = {"sslmode": "prefer"} if self.tls is None else _settings(self.tls)
        return make_dsn(
            host=self.host,
            hostaddr=address,
            port=str(self.port),
            dbname=self.database,
            user=self.user,
            password=resolve(self.password),
            **{**_NOT_THE_SERVICES, **tls},
        )

    @property
    def title(self) -> str:
        """The table's readable name."""
        return f"{self.schema}.{self.table}"


def _tls(reader: OptionReader | None) -> Tls | None:
    if reader is None:
        return None
    found = Tls.of(reader)
    if bool(found.certificate_file) != bool(found.key_file):
        raise reader.refused("key_file", "and certificate_file require each other")
    return found


def _settings(tls: Tls) -> dict[str, str]:
    """Return libpq's settings. SourceError path.forbidden."""
    found = {
        "sslmode": "verify-full" if tls.verifies_host else "verify-ca",
        "sslrootcert": tls.ca_file or "system",
        "sslcert": tls.certificate_file,
        "sslkey": tls.key_file,
    }
    for path in tls.files:
        netguard.check_certificate(path)
    return {name: value for name, value in found.items() if value}
