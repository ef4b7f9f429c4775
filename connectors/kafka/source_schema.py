"""The options of a Kafka source as a JSON Schema (connectors/option_schema.py).

Options of the record formats are one group, since each format refuses those of the others.
"""

from __future__ import annotations

from connectors.kafka.connection_schema import CONNECTION, registry
from connectors.option_schema import (
    Schema,
    advanced,
    any_json,
    buffer_bytes,
    by_name,
    choice,
    columns,
    group,
    inherited,
    key,
    number,
    on_error,
    text,
    texts,
)

_FORMATS = {
    "json": "an object a record",
    "text": "one value",
    "csv": "one CSV record",
    "avro": "",
    "protobuf": "",
    "debezium-json": "change events",
    "debezium-avro": "change events",
}
_OF_FORMAT: dict[str, Schema] = {
    "format": choice("Format", _FORMATS, None, "Of the records."),
    "registry": advanced(registry("Schema registry", "Of Avro and Protobuf.")),
    "schema": advanced(text("Schema", "Avro's schema, or the text of a .proto file.")),
    "subject": advanced(text("Subject", "Avro: a schema of the registry.")),
    "version": advanced(text("Version", "Avro: of the subject; default: latest.")),
    "descriptors": advanced(text("Descriptors", "Protobuf: a descriptor set in base64.")),
    "message": advanced(text("Message", "Protobuf: full name; default: the file's first.")),
    "delimiter": advanced(text("Delimiter", "CSV: one ASCII character; default: a comma.")),
    "quote": advanced(text("Quote", "CSV: one ASCII character; default: a double quote.")),
    "escape": advanced(text("Escape", "CSV: one ASCII character; default: a doubled quote.")),
    "null": advanced(text("NULL", "CSV: the unquoted cell that is NULL; default: an empty one.")),
    "header": advanced(texts("Header", "CSV: names of the cells in order.")),
    "placeholder": advanced(text("Placeholder", "Debezium: unavailable.value.placeholder.")),
    "decimals": advanced(text("Decimals", "Debezium: decimal.handling.mode; default: string.")),
    "binary": advanced(
        choice("Binary", {"base64": "", "hex": ""}, None, "Debezium: binary.handling.mode.")
    ),
}
_START = any_json(
    "Start",
    'Where the first snapshot begins: earliest, latest, {"timestamp": ...} or {"offsets": {...}}.',
    is_text=True,
    default="earliest",
    examples=[
        "earliest",
        "latest",
        '{"timestamp": "2026-01-01T00:00:00Z"}',
        '{"offsets": {"0": 12}}',
    ],
)
_MODES = {
    "append": "every record adds a row",
    "upsert": "a record replaces the row of its key; one without a value removes it",
}
_DEAD_LETTER_TOPIC = text("Dead-letter topic", "Also receives malformed records that are stored.")
TOPIC = group(
    "Topic",
    "A topic as a relation.",
    {
        "topic": text("Topic", "Its name; by default the relation's."),
        "format": group(
            "Record format", "How records are read.", _OF_FORMAT, ["format"], short="format"
        ),
        "columns": columns(),
        "mode": choice("Mode", _MODES, "append"),
        "key": key("Mode upsert: the columns that identify a row, in the record's key or value."),
        "key_format": advanced(
            group(
                "Format of keys",
                "If the record's key holds columns.",
                _OF_FORMAT,
                ["format"],
                short="format",
            )
        ),
        "start": _START,
        "on_error": inherited(on_error()),
        "dead_letter_topic": inherited(_DEAD_LETTER_TOPIC),
        "collection": advanced(text("Collection", "The table's name in Debezium's transactions.")),
    },
    ("format", "columns"),
)
SCHEMA = group(
    "Kafka",
    "Records of topics, each exactly once.",
    {
        **CONNECTION,
        "topics": by_name("Topics", "Each is what queries name source.relation.", TOPIC),
        "on_error": on_error(),
        "dead_letter_topic": advanced(_DEAD_LETTER_TOPIC),
        "check_ms": advanced(
            number(
                "Check interval",
                "How often topics are described while nothing arrives.",
                5000,
                unit="ms",
                minimum=10,
            )
        ),
        "buffer_bytes": buffer_bytes(),
        "transactions": advanced(text("Transaction topic", "Debezium's topic of transactions.")),
        "transaction_buffer_bytes": advanced(
            number(
                "Transaction buffer",
                "Memory for incomplete transactions of Debezium.",
                64 << 20,
                unit="bytes",
                minimum=1024,
            )
        ),
        "transaction_wait_s": advanced(
            number(
                "Transaction wait",
                "How long a transaction may stay incomplete until the source reports it.",
                60,
                unit="s",
                minimum=1,
            )
        ),
    },
    ("bootstrap_servers", "topics"),
)
