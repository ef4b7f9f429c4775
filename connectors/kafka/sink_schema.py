"""The options of a sink in Kafka as a JSON Schema (connectors/option_schema.py).

It shares how a cluster is reached with Kafka sources.
"""

from __future__ import annotations

from connectors.kafka.connection_schema import CONNECTION, registry
from connectors.option_schema import advanced, choice, group, initial, number, text

SCHEMA = group(
    "Kafka topic",
    "Changes as records of a topic, and markers of whole epochs in another one.",
    {
        **CONNECTION,
        "topic": text("Topic", "Of the rows; by default the view's name."),
        "markers": advanced(text("Marker topic", "Of the epochs; by default topic.markers.")),
        "marks": advanced(
            {**text("Marks", "Earlier name of the marker topic."), "deprecated": True}
        ),
        "mode": choice(
            "Mode",
            {
                "changes": "a record for each changed row, with its weight",
                "upsert": "a record for each key, with the newest row",
            },
            "changes",
        ),
        "values": choice(
            "Values",
            {"after": "the current row", "before_after": "the rows before and after"},
            "after",
            "Of mode upsert.",
        ),
        "format": choice("Format", {"json": "", "avro": "with a registry"}, "json", "Of records."),
        "registry": advanced(registry("Schema registry", "Of format avro.")),
        "initial": initial(),
        "partitions": advanced(
            number("Partitions", "Of a new topic; 0: one.", 0, minimum=0, maximum=10_000)
        ),
        "replication": advanced(
            number(
                "Replicas", "Of a new topic; -1: the broker's default.", -1, minimum=-1, maximum=100
            )
        ),
        "retention_ms": advanced(
            number(
                "Retention",
                "Mode changes: how long records are retained; -1: forever.",
                -1,
                unit="ms",
                minimum=-1,
            )
        ),
        "transaction_timeout_ms": advanced(
            number(
                "Transaction timeout",
                "After which the broker aborts a transaction.",
                60_000,
                unit="ms",
                minimum=1000,
                maximum=900_000,
            )
        ),
    },
    ("bootstrap_servers",),
) | {"x-promise": "Exactly once, for readers with read_committed."}
