"""The options of a webhook sink as a JSON Schema (connectors/option_schema.py).

The secret signs messages; it may be a list while it is replaced.
"""

from __future__ import annotations

from connectors.option_schema import (
    advanced,
    choice,
    group,
    initial,
    number,
    pairs,
    text,
    texts,
)

SCHEMA = group(
    "Webhook",
    "Signed messages to a URL.",
    {
        "url": text("URL", "Without a login.", examples=["https://hooks.example.com/changes"]),
        "secret": {
            **texts(
                "Secret",
                "A reference to the receiver's secret; up to four, each of which signs.",
                is_secret=True,
            ),
            "minItems": 1,
            "maxItems": 4,
        },
        "headers": advanced(pairs("Headers", "Sent with each message; a secret is ${env:NAME}.")),
        "ca": advanced(text("Authority", "PEM file of certificates to trust.")),
        "timeout_ms": advanced(
            number("Timeout", "Of a request.", 10_000, unit="ms", minimum=1, maximum=60_000)
        ),
        "part_rows": advanced(
            number("Rows of a message", "At most.", 1000, unit="rows", minimum=1, maximum=100_000)
        ),
        "part_bytes": advanced(
            number("Bytes of a message", "About.", 256 << 10, unit="bytes", minimum=1)
        ),
        "on_refused": choice(
            "Refused messages",
            {"stop": "the sink fails", "skip": "the message is left out"},
            "stop",
            "Messages that the receiver refuses.",
        ),
        "initial": initial(),
    },
    ("url", "secret"),
) | {"x-promise": "At least once, in order, with ids by which repetitions are recognised."}
