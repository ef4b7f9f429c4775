"""The options of MongoDB sources (docs/MONGODB.md): read once, and refused by name.

Invariant: no option holds a secret itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from connectors.formats.declared import declare_columns
from connectors.option_reader import OptionReader
from connectors.outside.address import AddressError, parse_server
from connectors.outside.logins import MongoLogin
from connectors.polled.rows import (
    DEAD_LETTER,
    RowOptions,
    SharedOptions,
    read_number,
    read_rows,
    read_shared,
)
from connectors.secrets import refuse_plain

PAGE = "docs/MONGODB.md"
ID = "_id"
POLL, STREAM = "poll", "stream"
MAX_ROWS = 1_000_000
DEFAULT_PORT = 27017


@dataclass(frozen=True)
class CollectionRelation:
    """One relation: the documents of a collection that a filter finds."""

    rows: RowOptions
    database: str
    collection: str
    filter: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Its name within the source."""
        return self.rows.name

    def fields(self) -> list[str] | None:
        """Return the fields of documents that are read; None for all."""
        paths = [column.path for column in declare_columns(self.rows.columns)]
        return list(dict.fromkeys(path[0] for path in paths)) if all(paths) else None


@dataclass(frozen=True)
class MongoOptions:
    """A source. servers: host and port, asked in turn. ca: a file, or "" for the system's.

    max_rows: of one relation. timeout_s: of a request. is_streamed: changes come by change streams.
    """

    servers: tuple[tuple[str, int], ...]
    relations: tuple[CollectionRelation, ...]
    login: MongoLogin
    is_tls: bool
    ca: str
    timeout_s: float
    max_rows: int
    is_streamed: bool = False


def read_options(options: Mapping[str, Any]) -> MongoOptions:
    """Return the options of a source. SourceError source.bad_option, secret.plain."""
    reader = OptionReader(options, "source", page=PAGE)
    servers = tuple(_server(reader, str(text)) for text in reader.take("servers", list))
    if not servers:
        raise reader.refused("servers", "is empty", hint='give ["host:27017"]')
    login = _login(reader)
    is_tls, ca = bool(reader.optional("tls", bool)), reader.take("ca", str, "")
    database = reader.take("database", str, "")
    shared = read_shared(reader)
    is_streamed = reader.choice("changes", (POLL, STREAM), POLL) == STREAM
    timeout_ms = read_number(reader, "timeout_ms", 30_000, 600_000)
    max_rows = read_number(reader, "max_rows", MAX_ROWS, 100_000_000)
    given = reader.take("relations", dict)
    reader.end()
    if not given:
        raise reader.refused("relations", "is empty", hint='give {"name": {"columns": [...]}}')
    relations = tuple(_relation(str(n), own, database, shared) for n, own in given.items())
    if is_streamed:
        for relation in relations:
            _check_streamed(reader, relation)
    timeout_s = timeout_ms / 1000
    return MongoOptions(servers, relations, login, is_tls, ca, timeout_s, max_rows, is_streamed)


def _check_streamed(reader: OptionReader, relation: CollectionRelation) -> None:
    """Refuse what needs all documents of a relation at once."""
    rows, where = relation.rows, f"relations.{relation.name}"
    paths = {c["name"]: c.get("path", f"$.{c['name']}") for c in rows.columns if "name" in c}
    if len(rows.key) != 1 or (rows.columns and paths.get(rows.key[0]) != f"$.{ID}"):
        raise reader.refused(f"{where}.key", f"must be the column of {ID} with change streams")
    if rows.on_error == DEAD_LETTER:
        hint = "use fail or skip"
        raise reader.refused(f"{where}.on_error", "cannot be dead_letter here", hint=hint)


def _relation(name: str, supplied: Any, database: str, shared: SharedOptions) -> CollectionRelation:
    if isinstance(supplied, Mapping):
        supplied = {"key": [ID], **supplied}
    reader = OptionReader(supplied, "source", f"relations.{name}", PAGE)
    database = reader.take("database", str, database)
    if not database:
        raise reader.refused("database", "is missing")
    collection = reader.take("collection", str, name)
    where = reader.take("filter", dict, {})
    rows = read_rows(reader, name, shared)
    reader.end()
    return CollectionRelation(rows, database, collection, where)


def _server(reader: OptionReader, text: str) -> tuple[str, int]:
    try:
        return parse_server(text, DEFAULT_PORT)
    except AddressError:
        raise reader.refused("servers", 'must be a list of "host:port"', detail=text) from None


def _login(reader: OptionReader) -> MongoLogin:
    user, password = reader.take("user", str, ""), reader.take("password", str, "")
    if bool(user) != bool(password):
        raise reader.refused("user", "and password need each other")
    if password:
        refuse_plain("password", password)
    return MongoLogin(user, password, reader.take("auth_source", str, "admin"))
