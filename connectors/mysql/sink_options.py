"""Options of a sink in MySQL or MariaDB: how to reach the server, and the table.

Invariant: accepted options are complete and consistent, and hold references to secrets only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from connectors.mysql.options import read_login
from connectors.option_reader import OptionReader
from connectors.outside.logins import MySqlLogin
from connectors.sink import SinkTable

PAGE = "docs/MYSQL_SINK.md"
# Of the server's names.
NAME_LENGTH = 64
Mode = Literal["rows", "changes"]


@dataclass(frozen=True)
class TableOptions:
    """One table that a view is written to."""

    login: MySqlLogin
    database: str
    table: str
    mode: Mode
    has_rows: bool

    @staticmethod
    def of(options: Mapping[str, Any], table: SinkTable) -> TableOptions:
        """Read the options. SinkError sink.bad_option; SourceError secret.plain."""
        reader = OptionReader(options, "sink", page=PAGE)
        login = read_login(reader, PAGE)
        database, name = reader.take("database", str), reader.take("table", str, table.name)
        for option, text in (("database", database), ("table", name)):
            if not 0 < len(text) <= NAME_LENGTH or "\0" in text or text.endswith(" "):
                hint = f"use 1 to {NAME_LENGTH} characters"
                raise reader.refused(option, "is not a name", detail=text, hint=hint)
        mode = reader.choice("mode", ("rows", "changes"), "rows")
        initial = reader.choice("initial", ("rows", "changes"), "rows")
        if initial == "changes" and mode == "rows":
            hint = 'choose mode "changes", or begin with the rows'
            raise reader.refused("initial", "cannot be changes in mode rows", hint=hint)
        reader.end()
        return TableOptions(login, database, name, cast(Mode, mode), initial == "rows")

    @property
    def title(self) -> str:
        """The table's readable name."""
        return f"{self.database}.{self.table}"
