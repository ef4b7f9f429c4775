"""Sinks in Kafka, made from the user's options, in the process of the client: see `sink.py`.

Invariant: `check` reaches the cluster and finds every reason for which `make` would be refused. It
leaves nothing behind except schemas in the registry.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from connectors.formats.registry import SchemaRegistry
from connectors.kafka.client import Client
from connectors.kafka.topic_options import TopicOptions
from connectors.kafka.topic_owner import TopicOwner
from connectors.kafka.topic_records import (
    AvroEnvelopeForm,
    AvroForm,
    JsonForm,
    TopicRecords,
    key_schema,
    value_schema,
)
from connectors.kafka.topic_setup import TopicSetup
from connectors.kafka.topic_sink import TopicSink
from connectors.sink import SinkTable


def make(
    options: Mapping[str, Any],
    table: SinkTable,
    identity: str,
    title: str,
    writer: tuple[str, bool] = ("", False),
) -> TopicSink:
    """Return the sink of a view. SinkError sink.bad_option, secret.missing.

    writer: `writer` and `has_claimed` of TopicOwner, if another process has opened the sink before.
    """
    chosen = TopicOptions.of(options, table)
    client = Client(chosen.connection, "sink", title)

    def records() -> TopicRecords:
        form = JsonForm(table) if chosen.format == "json" else _avro_form(chosen, table)
        return TopicRecords(table, form, chosen.mode, chosen.values)

    owner = TopicOwner(client, chosen, identity, writer[0], has_claimed=writer[1])
    return TopicSink(client, chosen, owner, records)


def _avro_form(options: TopicOptions, table: SinkTable) -> AvroForm:
    """Return Avro with its schemas registered under the topic's name. SourceError
    registry.refused.
    """
    registry = SchemaRegistry(options.registry)
    try:
        key, value = key_schema(table), value_schema(table, options.mode, options.values)
        ids = [
            registry.register(f"{options.topic}-{part}", json.dumps(schema))
            for part, schema in (("key", key), ("value", value))
        ]
    finally:
        registry.close()
    kind = AvroEnvelopeForm if options.values == "before_after" else AvroForm
    return kind(table, *ids)


def check(options: Mapping[str, Any], table: SinkTable, title: str) -> dict[str, Any]:
    """Check the options of a new sink against the cluster; return them with its topics named.

    SinkError sink.bad_option, sink.topic_settings, sink.topic_not_empty; TemporaryError if the
    cluster is unreachable.
    """
    chosen = TopicOptions.of(options, table)
    if chosen.format == "avro":
        _avro_form(chosen, table)
    setup = TopicSetup(Client(chosen.connection, "sink", title), chosen)
    if setup.check()[0]:
        setup.require_empty()
    given = {name: value for name, value in options.items() if name != "marks"}
    return {**given, "topic": chosen.topic, "markers": chosen.markers}
