"""Options of a Kafka source: its topics, their record format, and where to start.

Invariant: accepted options are complete and consistent. Errors that only the cluster or a format
can find are raised there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from connectors.feed_source import DeclaredRelation
from connectors.kafka.connection import Connection
from connectors.option_reader import OptionReader

APPEND, UPSERT = "append", "upsert"
FAIL, SKIP, DEAD_LETTER = "fail", "skip", "dead_letter"
EARLIEST, LATEST, TIMESTAMP, OFFSETS = "earliest", "latest", "timestamp", "offsets"
PARTITION, OFFSET = "_partition", "_offset"
KEY, TIME, HEADERS = "_key", "_timestamp", "_headers"
# Columns with metadata of the record itself; a user declares those that are needed.
METADATA: Mapping[str, tuple[str, ...]] = {
    PARTITION: ("int4", "integer", "int"),
    OFFSET: ("int8", "bigint"),
    TIME: ("timestamptz", "timestamp with time zone"),
    KEY: ("bytea",),
    HEADERS: ("jsonb",),
}
POLICIES = (FAIL, SKIP, DEAD_LETTER)


@dataclass(frozen=True)
class Start:
    """Where a topic's first snapshot starts.

    kind: EARLIEST, LATEST, TIMESTAMP (milliseconds since 1970) or OFFSETS (by partition; others
    start at their beginning).
    """

    kind: str = EARLIEST
    time_ms: int = 0
    offsets: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class TopicOptions:
    """One topic as a relation.

    columns: as declared, {"name", "type", ...}; the format reads the rest. format, key: options of
    the format. key: columns that identify an upsert's row. dead_letter_topic: where malformed
    records are written, None for nowhere. collection: how Debezium names the table in the END of a
    transaction.
    """

    relation: str
    topic: str
    columns: tuple[Mapping[str, Any], ...]
    format: Mapping[str, Any]
    mode: str = APPEND
    key: tuple[str, ...] = ()
    start: Start = Start()
    on_error: str = FAIL
    dead_letter_topic: str | None = None
    collection: str = ""

    @property
    def is_debezium(self) -> bool:
        """Return True if records are Debezium envelopes, which may be delivered again."""
        return str(self.format.get("format", "")).startswith("debezium-")

    def value_columns(self, names: Sequence[str]) -> list[Mapping[str, Any]]:
        """Return the columns that the format reads from records, in the order of these names.

        An object of columns need not preserve order. Key columns are never NULL.
        """
        by_name = {column["name"]: column for column in self.columns}
        return [
            {**by_name[name], "nullable": False} if name in self.key else by_name[name]
            for name in names
            if name not in METADATA
        ]

    def declared(self) -> DeclaredRelation:
        """Return the declared relation for the service."""
        names = tuple(c["name"] for c in self.columns)
        key = self.key
        if self.mode == APPEND:
            key = (PARTITION, OFFSET) if PARTITION in names and OFFSET in names else ()
        columns = tuple((c["name"], c["type"]) for c in self.columns)
        return DeclaredRelation(self.relation, columns, key, self.mode == APPEND)


@dataclass(frozen=True)
class KafkaOptions:
    """All options of a source.

    check_ms: how often topics are described while no records arrive. buffer_bytes: limit of
    read-ahead. transactions: the topic of Debezium's BEGIN and END; None emits events as they
    arrive. transaction_buffer_bytes: limit of events that wait for their END. transaction_wait_s:
    how long they wait until that is reported.
    """

    connection: Connection
    topics: tuple[TopicOptions, ...]
    check_ms: int = 5000
    buffer_bytes: int = 16 << 20
    transactions: str | None = None
    transaction_buffer_bytes: int = 64 << 20
    transaction_wait_s: int = 60

    def topic_of(self, relation: str) -> TopicOptions:
        """Return the topic of a declared relation."""
        return next(t for t in self.topics if t.relation == relation)


def unranged(options: KafkaOptions, topic: TopicOptions) -> str:
    """Return why a topic cannot be read in ranges; "" if it can."""
    if options.transactions is not None:
        return "its source emits whole transactions, which span topics and partitions"
    if topic.is_debezium:
        return "Debezium may send an event twice, which only a reader of all events finds"
    return ""


def read_options(options: Mapping[str, Any], *, needs_columns: bool = True) -> KafkaOptions:
    """Read options from JSON. SourceError source.bad_option, secret.plain."""
    reader = OptionReader(options, "source")
    connection = Connection.of(reader)
    on_error = reader.choice("on_error", POLICIES, FAIL)
    dead_topic = reader.optional("dead_letter_topic", str)
    check_ms = reader.take("check_ms", int, 5000)
    buffer_bytes = reader.take("buffer_bytes", int, 16 << 20)
    if check_ms < 10 or buffer_bytes < 1 << 16:
        raise reader.refused("check_ms or buffer_bytes", "is too small")
    listed = reader.take("topics", dict)
    transactions = reader.optional("transactions", str)
    buffered_bytes = reader.take("transaction_buffer_bytes", int, 64 << 20)
    if buffered_bytes < 1 << 10:
        raise reader.refused("transaction_buffer_bytes", "is too small")
    wait_s = reader.take("transaction_wait_s", int, 60)
    if wait_s < 1:
        raise reader.refused("transaction_wait_s", "is too small")
    reader.end()
    if not listed:
        raise reader.refused("topics", "names no topic")
    topics = tuple(
        _topic(name, OptionReader(one, "source", f"topics.{name}"), on_error, needs_columns)
        for name, one in listed.items()
    )
    topics = tuple(
        replace(one, dead_letter_topic=one.dead_letter_topic or dead_topic)
        if one.on_error == DEAD_LETTER
        else one
        for one in topics
    )
    _check_dead_topics(topics, dead_topic, OptionReader(options, "source"))
    _check_each_once(topics, reader)
    if transactions is not None:
        _check_transactions(topics, transactions, reader)
    topics = tuple(
        replace(one, collection=one.collection or _collection_of(one.topic, transactions))
        for one in topics
    )
    own = transactions, buffered_bytes, wait_s
    return KafkaOptions(connection, topics, check_ms, buffer_bytes, *own)


def _collection_of(topic: str, transactions: str | None) -> str:
    """Return how the END of a transaction names the table of a topic.

    It is the topic's name without the connector's prefix, which is that of the transaction topic.

    >>> _collection_of("eu.shop.dbo.items", "eu.shop.transaction")
    'dbo.items'
    >>> _collection_of("routed.public.items", "eu.transaction")
    'public.items'
    """
    prefix = (transactions or "").rpartition(".")[0] + "."
    own = topic.removeprefix(prefix)
    return own if own != topic else ".".join(topic.split(".")[-2:])


def _check_transactions(topics: Sequence[TopicOptions], name: str, reader: OptionReader) -> None:
    enveloped = [one for one in topics if one.is_debezium]
    if not enveloped or any(one.format["format"] != "debezium-json" for one in enveloped):
        raise reader.refused("transactions", "requires topics in debezium-json")
    if any(one.topic == name for one in topics):
        raise reader.refused("transactions", "is also declared as a relation")
    for one in enveloped:
        if one.columns and all(column["name"] in METADATA for column in one.columns):
            why = "needs a column of the row to be read with its transactions"
            raise reader.refused(f"topics.{one.relation}.columns", why)


def _check_dead_topics(
    topics: Sequence[TopicOptions], of_source: str | None, reader: OptionReader
) -> None:
    if of_source is not None and not any(one.on_error == DEAD_LETTER for one in topics):
        raise reader.refused("dead_letter_topic", f"requires on_error {DEAD_LETTER}")
    read = {one.topic for one in topics}
    for one in topics:
        if one.dead_letter_topic in read:
            raise reader.refused("dead_letter_topic", "names a topic that this source reads")


def _check_each_once(topics: Sequence[TopicOptions], reader: OptionReader) -> None:
    by_topic: dict[str, str] = {}
    for one in topics:
        # A feed identifies the records of its consumer by their topics.
        other = by_topic.setdefault(one.topic, one.relation)
        if other != one.relation:
            raise reader.refused(
                f"topics.{one.relation}.topic",
                f'is also the topic of "{other}"',
                hint="declare a second source for it, or one relation with all columns",
            )


def _topic(name: str, reader: OptionReader, on_error: str, needs_columns: bool) -> TopicOptions:
    if not name or len(name.encode()) > 63:
        raise reader.refused("", "needs a name of 1 to 63 bytes")
    topic = reader.take("topic", str, name)
    format_options = _format(reader)
    columns = _columns(reader, needs_columns)
    mode = reader.choice("mode", (APPEND, UPSERT), APPEND)
    key = _key(reader, mode, [c["name"] for c in columns])
    if KEY in key and str(format_options.get("format", "")).startswith("debezium-"):
        hint = "use the columns of the table's own key, which the envelope contains"
        raise reader.refused("key", f'names "{KEY}", which cannot show removals', hint=hint)
    start = _start(reader)
    policy = reader.choice("on_error", POLICIES, on_error)
    dead = reader.optional("dead_letter_topic", str)
    if dead is not None and policy != DEAD_LETTER:
        raise reader.refused("dead_letter_topic", f"requires on_error {DEAD_LETTER}")
    collection = reader.take("collection", str, "")
    reader.end()
    return TopicOptions(
        name, topic, columns, format_options, mode, key, start, policy, dead, collection
    )


def _format(reader: OptionReader) -> dict[str, Any]:
    found, key = reader.raw("format"), reader.raw("key_format")
    chosen = {"format": found} if isinstance(found, str) else found
    if not isinstance(chosen, Mapping):
        raise reader.refused("format", "must be a name, or an object with a name at `format`")
    if key is None:
        return dict(chosen)
    if not isinstance(key, str | Mapping):
        raise reader.refused("key_format", "must be a name, or an object with a name at `format`")
    return {**chosen, "key": {"format": key} if isinstance(key, str) else dict(key)}


def _columns(reader: OptionReader, is_needed: bool) -> tuple[Mapping[str, Any], ...]:
    found = reader.raw("columns")
    if found is None and not is_needed:
        return ()
    if isinstance(found, Mapping):
        found = [{"name": name, "type": type_name} for name, type_name in found.items()]
    if not isinstance(found, Sequence) or isinstance(found, str) or not found:
        raise reader.refused("columns", "must name each column with its type")
    names: list[str] = []
    for column in found:
        if not isinstance(column, Mapping):
            raise reader.refused("columns", "must be objects with name and type")
        name, type_name = column.get("name"), column.get("type")
        if not (isinstance(name, str) and name and isinstance(type_name, str) and type_name):
            raise reader.refused("columns", "must be objects with name and type")
        types = METADATA.get(name)
        if types is not None and type_name.lower() not in types:
            raise reader.refused("columns", f'must declare "{name}" as {types[0]}')
        if name in names:
            raise reader.refused("columns", f'names "{name}" twice')
        names.append(name)
    return tuple(dict(column) for column in found)


def _key(reader: OptionReader, mode: str, names: Sequence[str]) -> tuple[str, ...]:
    key = reader.optional("key", list)
    if mode == APPEND:
        if key is not None:
            raise reader.refused("key", "requires mode upsert", hint='"mode": "upsert"')
        return ()
    if not key:
        raise reader.refused("key", "is required in mode upsert: the columns that identify a row")
    for name in key:
        if name not in names or name in (PARTITION, OFFSET, TIME, HEADERS):
            raise reader.refused("key", f'names "{name}", which cannot be a key')
    return tuple(key)


def _start(reader: OptionReader) -> Start:
    name, found = "start", reader.raw("start")
    if found is None or found in (EARLIEST, LATEST):
        return Start(found or EARLIEST)
    inner = OptionReader(found, "source", name) if isinstance(found, Mapping) else None
    if inner is None:
        raise reader.refused(name, "must be earliest, latest, or an object", detail=str(found))
    text, offsets = inner.optional("timestamp", str), inner.optional("offsets", dict)
    inner.end()
    if (text is None) == (offsets is None):
        raise reader.refused(name, "must have one of timestamp and offsets")
    if text is not None:
        return Start(TIMESTAMP, _milliseconds(text, reader))
    try:
        found_offsets = sorted((int(p), int(o)) for p, o in (offsets or {}).items())
    except (TypeError, ValueError):
        found_offsets = [(-1, -1)]
    if any(p < 0 or o < 0 for p, o in found_offsets):
        raise reader.refused("start.offsets", "must be offsets by partition", hint='{"0": 1200}')
    return Start(OFFSETS, 0, tuple(found_offsets))


def _milliseconds(text: str, reader: OptionReader) -> int:
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise reader.refused("start.timestamp", "is not a valid time", detail=str(error)) from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return round(found.timestamp() * 1000)
