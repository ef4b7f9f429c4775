"""Propose columns for topics from their newest records.

Invariant: nothing is declared automatically. A proposal is shown, and becomes an option once a user
approves it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from connectors.formats.discover import propose_columns
from connectors.kafka.client import Client
from connectors.kafka.options import TopicOptions, read_options
from connectors.kafka.reader import Reader, Span
from connectors.kafka.topics import Topics, missing
from dataflow.schema import RelationName

SAMPLES = 1000
TAKE_S = 1.0


def discover(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options with `columns` for each topic that lacks them. SourceError,
    TemporaryError.
    """
    read = read_options(options, needs_columns=False)
    client = Client(read.connection, "source", "discover")
    found = {name: dict(one) for name, one in options["topics"].items()}
    for topic in read.topics:
        if not topic.columns:
            samples = _samples(client, topic)
            found[topic.relation]["columns"] = propose_columns(topic.format, samples)
    return {**options, "topics": found}


def _samples(client: Client, topic: TopicOptions) -> list[bytes]:
    """Return the newest values of each partition."""
    topics, name = Topics(client), topic.topic
    described = topics.describe([name]).get(name)
    if described is None:
        raise missing(name)
    ends = topics.ends(name, range(described.partitions))
    first = topics.begins(name, ends)
    per_partition = max(1, SAMPLES // max(1, described.partitions))
    begins = {p: max(first[p], end - per_partition) for p, end in ends.items()}
    relation = RelationName("", "", topic.relation)
    reader = Reader(client, [Span(relation, name, described.id, begins, ends)], wait_ms=20)
    try:
        values: list[bytes] = []
        while not reader.is_done:
            for chunk in reader.take(TAKE_S):
                values += [value for value in chunk.records.values if value is not None]
        return values
    finally:
        reader.close()
