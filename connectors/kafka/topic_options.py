"""Options of a sink in Kafka.

Invariant: unknown, missing or contradictory options are refused before anything is reached. The
settings of the topics follow from the options alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from connectors.kafka.connection import Connection
from connectors.kafka.topic_records import Mode, Values
from connectors.option_reader import OptionReader
from connectors.sink import SinkTable
from connectors.view_sink import Detachment

FOREVER = -1
WEEK_MS = 7 * 24 * 3600 * 1000
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,240}")
_NOT_TOPIC = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(frozen=True)
class TopicOptions:
    """Options of one topic that a view is written to.

    topic: the topic of its rows. markers: the topic of epoch markers and our progress; the option's
    earlier name is `marks`. partitions: 0 uses those of an existing topic, or one. replication: of
    topics that we create, -1 for the broker's default. retention_ms: how long changes are retained,
    -1 forever. registry: URL, for Avro.
    """

    connection: Connection
    topic: str
    markers: str
    mode: Mode
    values: Values
    format: Literal["json", "avro"]
    registry: Mapping[str, Any]
    has_rows: bool
    partitions: int
    replication: int
    retention_ms: int
    transaction_timeout_ms: int

    @staticmethod
    def of(options: Mapping[str, Any], table: SinkTable) -> TopicOptions:
        """Read the options. SinkError sink.bad_option, secret.plain."""
        reader = OptionReader(options, "sink")
        connection = Connection.of(reader)
        title = f"{table.schema}.{table.name}" if table.schema != "public" else table.name
        topic = reader.take("topic", str, _NOT_TOPIC.sub("_", title)[:240])
        earlier = reader.optional("marks", str)
        markers = reader.take("markers", str, earlier or f"{topic}.markers")
        for name, value in (("topic", topic), ("markers", markers)):
            if not _TOPIC.fullmatch(value) or value in (".", ".."):
                hint = "use at most 240 letters, digits, dots, dashes and underscores"
                raise reader.refused(name, "is not a valid topic name", detail=value, hint=hint)
        if markers == topic:
            raise reader.refused("markers", "must differ from the topic of the rows")
        mode = reader.choice("mode", ("changes", "upsert"), "changes")
        values = reader.choice("values", ("after", "before_after"), "after")
        if mode == "upsert" and not table.key:
            hint = 'choose mode "changes": the view has no primary key'
            raise reader.refused("mode", "cannot be upsert for this view", hint=hint)
        if mode == "changes" and values != "after":
            raise reader.refused("values", "requires mode upsert")
        chosen = reader.choice("format", ("json", "avro"), "json")
        registry = reader.raw("registry")
        if (registry is None) == (chosen == "avro"):
            why = "is missing; Avro requires it" if chosen == "avro" else "requires format avro"
            raise reader.refused("registry", why)
        initial = reader.choice("initial", ("rows", "changes"), "rows")
        made = TopicOptions(
            connection,
            topic,
            markers,
            cast(Mode, mode),
            cast(Values, values),
            cast(Literal["json", "avro"], chosen),
            {"url": registry} if isinstance(registry, str) else dict(registry or {}),
            initial == "rows",
            _between(reader, "partitions", 0, (0, 10_000)),
            _between(reader, "replication", -1, (-1, 100)),
            _between(reader, "retention_ms", FOREVER, (-1, 2**62)),
            _between(reader, "transaction_timeout_ms", 60_000, (1_000, 900_000)),
        )
        reader.end()
        return made

    def settings(self) -> dict[str, str]:
        """Return the settings of the topic with the rows."""
        if self.mode == "upsert":
            return {"cleanup.policy": "compact"}
        return {"cleanup.policy": "delete", "retention.ms": str(self.retention_ms)}

    def marker_settings(self) -> dict[str, str]:
        """Return the settings of the topic with the markers.

        Markers of compacted rows are not needed for long.
        """
        retention_ms = WEEK_MS if self.mode == "upsert" else self.retention_ms
        return {"cleanup.policy": "delete", "retention.ms": str(retention_ms)}


def detachment_of(options: TopicOptions) -> Detachment:
    """Return what becomes of the topics when the service leaves them."""
    return Detachment((f'topic "{options.markers}"',), (f'topic "{options.topic}"',))


def _between(reader: OptionReader, name: str, default: int, bounds: tuple[int, int]) -> int:
    value = reader.take(name, int, default)
    if not bounds[0] <= value <= bounds[1]:
        raise reader.refused(
            name, f"must be between {bounds[0]} and {bounds[1]}", detail=str(value)
        )
    return value
