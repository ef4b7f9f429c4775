"""The options of streams as a JSON Schema (connectors/option_schema.py).

Options that a relation has of its source are in `_SHARED`.
"""

from __future__ import annotations

from connectors.option_schema import (
    DAY_MS,
    Schema,
    advanced,
    any_json,
    by_name,
    choice,
    columns,
    flag,
    group,
    inherited,
    key,
    number,
    on_error,
    pairs,
    secret,
    text,
    texts,
)

_SHARED: dict[str, Schema] = {
    "on_error": on_error("rows"),
    "on_gap": choice(
        "Gaps",
        {"continue": "they are counted", "fail": "the views of the relation fail"},
        "continue",
        "Connections that may have lost messages.",
    ),
    "timeout_ms": advanced(
        number("Timeout", "To connect.", 30_000, unit="ms", minimum=1, maximum=600_000)
    ),
    "ping_ms": advanced(
        number("Ping interval", "Of WebSockets.", 20_000, unit="ms", minimum=1, maximum=DAY_MS)
    ),
    "idle_ms": advanced(
        number(
            "Idle time",
            "Without any message for so long, the connection is closed; 0: never.",
            0,
            unit="ms",
            minimum=0,
            maximum=DAY_MS,
        )
    ),
    "max_message_bytes": advanced(
        number(
            "Longest message", "A larger one stops the source.", 1 << 20, unit="bytes", minimum=1
        )
    ),
    "buffer_bytes": advanced(
        number("Buffer", "Of waiting messages.", 16 << 20, unit="bytes", minimum=1 << 16)
    ),
}
RELATION = group(
    "Relation",
    "Messages of one connection.",
    {
        "path": text("Path", "Appended to the URL."),
        "subscribe": any_json("Subscribe", "WebSockets: JSON that is sent after connecting."),
        "where": any_json(
            "Messages",
            "Conditions on messages, by path; others are ignored.",
            examples=['{"$.type": "trade"}'],
        ),
        "rows": text("Rows", "Where the rows are in a message: a list, or one.", default="$"),
        "key": key("A message replaces the rows of its keys; without a key, it adds rows."),
        "columns": columns(),
        "delete_when": advanced(
            any_json("Removed when", "With a key: conditions on rows, by path, that remove a row.")
        ),
        "format": advanced(
            choice("Format", {"json": "", "text": "a message is one value"}, "json")
        ),
        "events": advanced(texts("Events", "Server-sent events: names that are read.")),
        "replays": advanced(
            flag("Replays", "Server-sent events: the server sends what came after Last-Event-ID.")
        ),
        "retain_rows": advanced(
            number(
                "Retained rows",
                "Stored for later views, without a key.",
                1_000_000,
                unit="rows",
                minimum=1,
            )
        ),
        "headers": advanced(pairs("Headers", "Beside those of the source.")),
        "query": advanced(pairs("Parameters", "Of the URL, beside those of the source.")),
        "subprotocols": advanced(texts("Subprotocols", "WebSockets: names to offer.")),
        "keepalive": advanced(
            any_json("Keepalive", "WebSockets: JSON that is sent each so often.")
        ),
        "keepalive_ms": advanced(
            number("Keepalive interval", "", 20_000, unit="ms", minimum=1, maximum=DAY_MS)
            | {"description": "How often the keepalive is sent."}
        ),
        **{name: inherited(one) for name, one in _SHARED.items()},
    },
    ("columns",),
)
SCHEMA = group(
    "Streams: WebSockets and server-sent events",
    "What a server sends over an open connection.",
    {
        "url": text(
            "URL",
            "ws:// and wss:// are WebSockets, http:// and https:// server-sent events.",
            examples=["wss://stream.example.com/v1"],
        ),
        "token": secret("Token", "A bearer token, as a reference."),
        "user": text("User", "For a basic login."),
        "password": secret("Password", "For a basic login, as a reference."),
        "headers": advanced(pairs("Headers", "Of each connection; a secret is ${env:NAME}.")),
        "query": advanced(pairs("Parameters", "Of every URL.")),
        "ca": advanced(text("Authority", "PEM file of certificates to trust.")),
        "relations": by_name("Relations", "Each is what queries name source.relation.", RELATION),
        **_SHARED,
    },
    ("url", "relations"),
)
