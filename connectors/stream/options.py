"""The options of streams (docs/STREAMS.md): read once, and refused by name.

Invariant: no option holds a secret itself. A header, parameter or message that needs one has a
reference, which is resolved for each connection.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from connectors.formats.declared import declare_columns, read_path
from connectors.option_reader import OptionReader
from connectors.outside.address import parse_url
from connectors.polled.rows import DAY_MS, DEAD_LETTER, FAIL, SKIP, read_number
from connectors.url_options import (
    read_headers,
    read_secret,
    read_texts,
    read_url,
    refuse_secrets,
)

PAGE = "docs/STREAMS.md"
CONTINUE = "continue"
APPEND, UPSERT = "append", "upsert"
WEBSOCKET_SCHEMES = ("ws", "wss")
SCHEMES = (*WEBSOCKET_SCHEMES, "http", "https")
# What a message knows beside its content, and the types that a column of it may have.
RECEIVED_AT, CONNECTION, SEQUENCE = "_received_at", "_connection", "_sequence"
ID, EVENT = "_id", "_event"
METADATA: Mapping[str, tuple[str, ...]] = {
    RECEIVED_AT: ("timestamp with time zone",),
    CONNECTION: ("bigint",),
    SEQUENCE: ("bigint",),
    ID: ("text",),
    EVENT: ("text",),
}
_FORMATS = ("json", "text")
_OF_HANDSHAKE = ("upgrade", "last-event-id", "accept")
_RETAINED_ROWS = 1_000_000

Conditions = tuple[tuple[tuple[str, ...], frozenset[bytes]], ...]


@dataclass(frozen=True)
class Login:
    """user, password: of a basic login; token: a bearer token; references, or "". ca: a file."""

    user: str = ""
    password: str = ""
    token: str = ""
    ca: str = ""


@dataclass(frozen=True)
class Connecting:
    """How one relation's connection is opened, and when it counts as dead; times in seconds.

    subscribe: JSON messages that are sent after connecting. keepalive: another one, sent each
    keepalive_s. events: of server-sent events, those that are read; () for all. idle_s: without
    any sign of life for so long, 0 for none.
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    login: Login = field(default_factory=Login)
    subprotocols: tuple[str, ...] = ()
    subscribe: tuple[Any, ...] = ()
    keepalive: Any = None
    keepalive_s: float = 20.0
    events: frozenset[str] = frozenset()
    timeout_s: float = 30.0
    ping_s: float = 20.0
    idle_s: float = 0.0
    max_bytes: int = 1 << 20

    @property
    def is_websocket(self) -> bool:
        """Whether the URL's scheme is that of WebSockets."""
        return parse_url(self.url, SCHEMES).scheme in WEBSOCKET_SCHEMES


@dataclass(frozen=True)
class StreamRelation:
    """One relation. columns: () if they are still to be discovered.

    key: () for a relation in which each row is added. rows: path of the rows in a message.
    where: conditions on messages. delete_when: conditions on rows that remove the row of their key.
    replays: the server sends what came after Last-Event-ID. on_gap: CONTINUE or FAIL. retain_rows:
    how many rows are stored for new views, of a relation without a key.
    """

    name: str
    connecting: Connecting
    columns: tuple[Mapping[str, Any], ...]
    key: tuple[str, ...]
    format: str
    rows: tuple[str, ...]
    where: Conditions
    delete_when: Conditions
    on_error: str
    on_gap: str
    replays: bool
    retain_rows: int
    buffer_bytes: int

    def value_columns(self) -> list[Mapping[str, Any]]:
        """Return the columns that are in messages, without those of METADATA."""
        return [column for column in self.columns if column.get("name") not in METADATA]


def read_options(options: Mapping[str, Any]) -> list[StreamRelation]:
    """Return the relations of a source. SourceError source.bad_option, format.*."""
    reader = OptionReader(options, "source", page=PAGE)
    url = read_url(reader, "url", reader.take("url", str), SCHEMES)
    headers, query = read_headers(reader, _OF_HANDSHAKE), read_texts(reader, "query")
    login = _login(reader)
    defaults = _Defaults(url, headers, query, login, _Shared.of(reader, _Shared()))
    given = reader.take("relations", dict)
    reader.end()
    if not given:
        raise reader.refused("relations", "is empty", hint='give {"name": {"columns": [...]}}')
    return [_relation(str(name), own, defaults) for name, own in given.items()]


@dataclass(frozen=True)
class _Shared:
    """What a relation has of its source if it does not say otherwise; times in milliseconds."""

    timeout_ms: int = 30_000
    ping_ms: int = 20_000
    idle_ms: int = 0
    max_message_bytes: int = 1 << 20
    buffer_bytes: int = 16 << 20
    on_error: str = FAIL
    on_gap: str = CONTINUE

    @classmethod
    def of(cls, reader: OptionReader, before: _Shared) -> _Shared:
        """Read them, with defaults."""
        return cls(
            read_number(reader, "timeout_ms", before.timeout_ms, 600_000),
            read_number(reader, "ping_ms", before.ping_ms, DAY_MS),
            read_number(reader, "idle_ms", before.idle_ms, DAY_MS, least=0),
            read_number(reader, "max_message_bytes", before.max_message_bytes, 256 << 20),
            read_number(reader, "buffer_bytes", before.buffer_bytes, 4 << 30, least=1 << 16),
            reader.choice("on_error", (FAIL, SKIP, DEAD_LETTER), before.on_error),
            reader.choice("on_gap", (CONTINUE, FAIL), before.on_gap),
        )


@dataclass(frozen=True)
class _Defaults:
    url: str
    headers: Mapping[str, str]
    query: Mapping[str, str]
    login: Login
    shared: _Shared


def _relation(name: str, supplied: Any, defaults: _Defaults) -> StreamRelation:
    reader = OptionReader(supplied, "source", f"relations.{name}", PAGE)
    shared = _Shared.of(reader, defaults.shared)
    connecting = _connecting(reader, defaults, shared)
    columns = tuple(reader.take("columns", list, []))
    if not all(isinstance(column, Mapping) for column in columns):
        raise reader.refused("columns", "must be objects")
    key = tuple(map(str, reader.take("key", list, [])))
    form = reader.choice("format", _FORMATS, _FORMATS[0])
    rows = read_path(reader.take("rows", str, "$"), "rows")
    where, delete_when = _conditions(reader, "where"), _conditions(reader, "delete_when")
    if form != "json" and (rows or where or delete_when):
        raise reader.refused("rows", "where and delete_when need the format json")
    if delete_when and not key:
        raise reader.refused("delete_when", "needs a key")
    replays = bool(reader.optional("replays", bool))
    if replays and connecting.is_websocket:
        raise reader.refused("replays", "is of server-sent events: WebSockets have no event ids")
    retain_rows = read_number(reader, "retain_rows", _RETAINED_ROWS, 1 << 40)
    reader.end()
    _check_columns(reader, columns, key)
    return StreamRelation(
        name,
        connecting,
        columns,
        key,
        form,
        rows,
        where,
        delete_when,
        shared.on_error,
        shared.on_gap,
        replays,
        retain_rows,
        shared.buffer_bytes,
    )


def _connecting(reader: OptionReader, defaults: _Defaults, shared: _Shared) -> Connecting:
    path = reader.take("path", str, "")
    url = read_url(
        reader, "path", defaults.url.rstrip("/") + path if path else defaults.url, SCHEMES
    )
    subscribe = reader.raw("subscribe")
    messages = () if subscribe is None else tuple(_listed(subscribe))
    refuse_secrets(reader, "subscribe", list(messages))
    keepalive = reader.raw("keepalive")
    refuse_secrets(reader, "keepalive", keepalive)
    found = Connecting(
        url,
        {**defaults.headers, **read_headers(reader, _OF_HANDSHAKE)},
        {**defaults.query, **read_texts(reader, "query")},
        defaults.login,
        tuple(map(str, reader.take("subprotocols", list, []))),
        messages,
        keepalive,
        read_number(reader, "keepalive_ms", 20_000, DAY_MS) / 1000,
        frozenset(map(str, reader.take("events", list, []))),
        shared.timeout_ms / 1000,
        shared.ping_ms / 1000,
        shared.idle_ms / 1000,
        shared.max_message_bytes,
    )
    if not found.is_websocket and (messages or keepalive is not None or found.subprotocols):
        raise reader.refused("subscribe", "keepalive and subprotocols need ws:// or wss://")
    if found.is_websocket and found.events:
        raise reader.refused("events", "are of server-sent events", hint="use where")
    return found


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else [value]


def _conditions(reader: OptionReader, option: str) -> Conditions:
    """Return (path, texts of which it has one) of each condition; all must hold."""
    found = []
    for path, values in reader.take(option, dict, {}).items():
        texts = [_text(reader, option, value) for value in _listed(values)]
        found.append((read_path(str(path), option), frozenset(texts)))
    return tuple(found)


def _text(reader: OptionReader, option: str, value: Any) -> bytes:
    if isinstance(value, bool):
        return b"true" if value else b"false"
    if not isinstance(value, str | int):
        raise reader.refused(option, "compares with texts, whole numbers, true and false")
    return str(value).encode()


def _check_columns(
    reader: OptionReader, columns: Sequence[Mapping[str, Any]], key: Sequence[str]
) -> None:
    if not columns:
        return
    for column in declare_columns(columns):
        types = METADATA.get(column.field.name)
        if types is not None and column.field.type.name not in types:
            name = column.field.name
            raise reader.refused("columns", f'"{name}" must be of type {types[0]}')
    if all(column.get("name") in METADATA for column in columns):
        raise reader.refused("columns", "has no column of messages")
    if found := sorted({*key} & {*METADATA}):
        raise reader.refused("key", f'cannot have "{found[0]}"')


def _login(reader: OptionReader) -> Login:
    user, ca = reader.take("user", str, ""), reader.take("ca", str, "")
    password, token = read_secret(reader, "password"), read_secret(reader, "token")
    if bool(user) != bool(password) or (user and token):
        raise reader.refused("user", "needs password, and excludes token")
    return Login(user, password, token, ca)
