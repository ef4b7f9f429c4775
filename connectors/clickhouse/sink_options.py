"""Options of a sink in ClickHouse.

Invariant: unknown, missing or contradictory options are refused before anything is reached.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

from connectors import netguard, secrets
from connectors.lake.location import max_delay_s, plain_name
from connectors.option_reader import OptionReader
from connectors.outside.address import AddressError, parse_url
from connectors.sink import SinkTable

PAGE = "docs/CLICKHOUSE_SINK.md"
MAX_DELAY_S = 1.0
_PORTS = {"http": 8123, "https": 8443}
Mode = Literal["changes", "rows"]


@dataclass(frozen=True)
class ClickHouseOptions:
    """url: of the HTTP interface, without a path. password: a reference, or empty."""

    url: str
    user: str
    password: str = field(repr=False)
    ca_file: str
    database: str
    table: str
    mode: Mode
    max_delay_s: float

    @staticmethod
    def of(options: Mapping[str, Any], table: SinkTable) -> ClickHouseOptions:
        """Read the options. SinkError sink.bad_option, secret.plain."""
        reader = OptionReader(options, "sink", page=PAGE)
        url = _interface(reader, reader.take("url", str).rstrip("/"))
        password = reader.take("password", str, "")
        if password:
            secrets.refuse_plain("password", password)
        mode = reader.choice("mode", ("changes", "rows"), "rows" if table.key else "changes")
        initial = reader.choice("initial", ("rows", "changes"), "rows")
        if mode == "rows" and not table.key:
            hint = 'choose mode "changes": the view has no primary key'
            raise reader.refused("mode", "cannot be rows for this view", hint=hint)
        if mode == "rows" and initial != "rows":
            raise reader.refused("initial", "must be rows for mode rows")
        made = ClickHouseOptions(
            url,
            reader.take("user", str, "default"),
            password,
            reader.take("ca_file", str, ""),
            reader.take("database", str, "default"),
            reader.take("table", str, plain_name(table)),
            cast(Mode, mode),
            max_delay_s(reader, MAX_DELAY_S),
        )
        reader.end()
        return made

    def check(self) -> None:
        """Refuse an address that must not be reached. SourceError host.forbidden."""
        netguard.check_url(self.url)
        netguard.check_certificate(self.ca_file)

    def name(self, suffix: str = "") -> str:
        """Return the quoted name of the table, or of one beside it."""
        return f"{quoted(self.database)}.{quoted(self.table + suffix)}"


def _interface(reader: OptionReader, text: str) -> str:
    """Return a URL with its port: ClickHouse has ports of its own. SinkError sink.bad_option."""
    hint = "https://host:8443, with user and password as options of their own"
    try:
        found = parse_url(text)
    except AddressError as error:
        raise reader.refused("url", str(error), hint=hint) from None
    if found.path or found.query:
        raise reader.refused("url", "is not the URL of an HTTP interface", hint=hint)
    # A default port is not named in a rebuilt URL, so whether one was given is seen in the text.
    if re.search(r":\d+\Z", text) is None:
        found = replace(found, port=_PORTS[found.scheme])
    return str(found)


def quoted(name: str) -> str:
    """Return an identifier of ClickHouse.

    >>> quoted("a`b")
    '`a\\\\`b`'
    """
    escaped = name.replace("\\", "\\\\").replace("`", "\\`")
    return f"`{escaped}`"


def literal(text: str) -> str:
    """Return a string of ClickHouse's SQL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
