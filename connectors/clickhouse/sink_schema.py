"""The options of a sink in ClickHouse as a JSON Schema (connectors/option_schema.py)."""

from __future__ import annotations

from connectors.option_schema import (
    advanced,
    choice,
    group,
    initial,
    max_delay_s,
    secret,
    text,
)

SCHEMA = group(
    "ClickHouse",
    "Tables of ClickHouse.",
    {
        "url": text("URL", "Of the HTTP interface.", examples=["https://host:8443"]),
        "database": text("Database", "Of the tables.", default="default"),
        "user": text("User", "Of the server.", default="default"),
        "password": secret("Password"),
        "table": text("Table", "A new one; by default the view's name."),
        "mode": choice(
            "Mode",
            {"rows": "the newest version of each row", "changes": "all changes"},
            None,
            "By default rows, of a view without a key changes.",
        ),
        "initial": initial(),
        "ca_file": advanced(text("Authority", "PEM file of certificates to trust.")),
        "max_delay_s": max_delay_s(1),
    },
    ("url",),
) | {"x-promise": "Nothing lost or twice; whole epochs in mode changes."}
