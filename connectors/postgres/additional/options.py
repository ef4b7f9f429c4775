"""Options of a sink in another PostgreSQL: how to reach it, and the table.

Invariant: accepted options are complete and consistent, and hold references to secrets only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from connectors.option_reader import OptionReader
from connectors.outside.logins import PostgresLogin, read_postgres_login
from connectors.postgres.session.foreign import ForeignDsn
from connectors.postgres.session.quoting import NAME_BYTES
from connectors.sink import SinkTable

PAGE = "docs/POSTGRES_SINK.md"
Mode = Literal["rows", "changes"]


@dataclass(frozen=True)
class TableOptions:
    """One table that a view is written to."""

    login: PostgresLogin
    schema: str
    table: str
    mode: Mode
    has_rows: bool

    @staticmethod
    def of(options: Mapping[str, Any], table: SinkTable) -> TableOptions:
        """Read the options. SinkError sink.bad_option; SourceError secret.plain."""
        reader = OptionReader(options, "sink", page=PAGE)
        login = read_postgres_login(reader, PAGE, "prefer")
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
        return TableOptions(login, schema or "public", name, cast(Mode, mode), initial == "rows")

    def dsn(self) -> ForeignDsn:
        """Return the connection string for a connection made now.

        SourceError host.forbidden, path.forbidden; TemporaryError host.unknown.
        """
        return ForeignDsn.of(self.login)

    @property
    def title(self) -> str:
        """The table's readable name."""
        return f"{self.schema}.{self.table}"
