"""The options of ClickHouse sources (docs/CLICKHOUSE.md): read once, and refused by name.

Invariant: no option holds a secret itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from connectors.formats.declared import declare_columns
from connectors.option_reader import OptionReader
from connectors.polled.cursor import CursorOptions
from connectors.polled.rows import (
    DEAD_LETTER,
    RowOptions,
    SharedOptions,
    read_number,
    read_rows,
    read_shared,
)
from connectors.secrets import refuse_plain
from connectors.url_options import read_url
from dataflow.types import TypeKind

PAGE = "docs/CLICKHOUSE.md"
MAX_ROWS = 1_000_000
# Physical units of a cursor's column in what `overlap` counts.
_UNITS = {
    TypeKind.INT2: 1,
    TypeKind.INT4: 1,
    TypeKind.INT8: 1,
    TypeKind.DATE: 1,
    TypeKind.TIMESTAMPTZ: 1_000_000,
}


@dataclass(frozen=True)
class Server:
    """Where queries go. user, password: references or plain names, ""; ca: a file, or "".

    settings: of ClickHouse, for each query. timeout_s: of a request. max_bytes: of an answer.
    """

    url: str
    database: str
    user: str
    password: str
    ca: str
    settings: Mapping[str, str]
    timeout_s: float
    max_bytes: int


@dataclass(frozen=True)
class QueryRelation:
    """One relation: a table, or the rows of a query. cursor: None if rows are compared by key."""

    rows: RowOptions
    table: str
    query: str
    is_final: bool
    cursor: CursorOptions | None

    @property
    def name(self) -> str:
        """Its name within the source."""
        return self.rows.name

    def text(self) -> str:
        """Return what stands after FROM."""
        if self.query:
            return f"({self.query})"
        return ".".join(map(quoted, self.table.split("."))) + (" FINAL" if self.is_final else "")


@dataclass(frozen=True)
class ClickHouseOptions:
    """A source. max_rows: of one relation that is compared by key."""

    server: Server
    relations: tuple[QueryRelation, ...]
    max_rows: int


def quoted(name: str) -> str:
    """Return a name as ClickHouse reads any name.

    >>> quoted("a`b")
    '`a\\\\`b`'
    """
    escaped = name.replace("\\", "\\\\").replace("`", "\\`")
    return f"`{escaped}`"


def read_options(options: Mapping[str, Any]) -> ClickHouseOptions:
    """Return the options of a source. SourceError source.bad_option, secret.plain."""
    reader = OptionReader(options, "source", page=PAGE)
    url = read_url(reader, "url", reader.take("url", str))
    user, password = reader.take("user", str, ""), reader.take("password", str, "")
    if password:
        refuse_plain("password", password)
    settings = reader.take("settings", dict, {})
    if not all(isinstance(value, str | int) for value in settings.values()):
        raise reader.refused("settings", "must be texts and whole numbers")
    server = Server(
        url,
        reader.take("database", str, ""),
        user,
        password,
        reader.take("ca", str, ""),
        {str(name): str(value) for name, value in settings.items()},
        read_number(reader, "timeout_ms", 30_000, 600_000) / 1000,
        read_number(reader, "max_bytes", 256 << 20, 4 << 30),
    )
    shared = read_shared(reader)
    max_rows = read_number(reader, "max_rows", MAX_ROWS, 100_000_000)
    given = reader.take("relations", dict)
    reader.end()
    if not given:
        raise reader.refused("relations", "is empty", hint='give {"name": {"key": ["id"]}}')
    relations = tuple(_relation(str(name), own, shared) for name, own in given.items())
    return ClickHouseOptions(server, relations, max_rows)


def _relation(name: str, supplied: Any, shared: SharedOptions) -> QueryRelation:
    reader = OptionReader(supplied, "source", f"relations.{name}", PAGE)
    table, query = reader.take("table", str, ""), reader.take("query", str, "")
    if table and query:
        raise reader.refused("table", "excludes query")
    is_final = bool(reader.optional("final", bool))
    if query and is_final:
        raise reader.refused("final", "is of a table", hint="write FINAL in the query")
    column = reader.take("cursor", str, "")
    overlap = read_number(reader, "overlap", 0, 1 << 40, least=0)
    rows = read_rows(reader, name, shared, is_append=bool(column))
    if column and reader.raw("key") is not None:
        raise reader.refused("key", "is not needed with a cursor: rows are only added")
    if column and rows.on_error == DEAD_LETTER:
        hint = "use fail or skip"
        raise reader.refused("on_error", f"cannot be {DEAD_LETTER} with a cursor", hint=hint)
    reader.end()
    cursor = CursorOptions(column, overlap * _unit(reader, rows, column)) if column else None
    return QueryRelation(rows, table or ("" if query else name), query, is_final, cursor)


def _unit(reader: OptionReader, rows: RowOptions, cursor: str) -> int:
    """Return the physical unit of the cursor's column. SourceError source.bad_option."""
    if not rows.columns:
        return 1
    kinds = {c.field.name: c.field.type.kind for c in declare_columns(rows.columns)}
    if cursor not in kinds:
        raise reader.refused("cursor", "is no declared column", detail=cursor)
    if kinds[cursor] not in _UNITS:
        hint = "declare it as bigint, date or timestamptz"
        raise reader.refused("cursor", "must be a whole number, a date or a time", hint=hint)
    return _UNITS[kinds[cursor]]
