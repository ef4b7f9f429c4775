"""The options of a ClickHouse source as a JSON Schema (connectors/option_schema.py)."""

from __future__ import annotations

from connectors.option_schema import (
    advanced,
    by_name,
    flag,
    group,
    key,
    number,
    pairs,
    secret,
    text,
)
from connectors.polled.row_schema import ROWS, SHARED, max_bytes, max_rows, timeout_ms

RELATION = group(
    "Relation",
    "A table, or the rows of a query.",
    {
        "table": text("Table", "name or database.name; by default the relation's name."),
        "query": text("Query", "A SELECT, instead of a table.", **{"x-lines": 4}),
        **ROWS,
        "key": key("Columns by which rows are compared; not with a cursor."),
        "cursor": text("Cursor", "A growing column: rows are only added, above its newest value."),
        "overlap": advanced(
            number(
                "Overlap",
                "How far below the newest value rows may come: seconds, days or a number.",
                0,
                minimum=0,
            )
        ),
        "final": advanced(flag("FINAL", "Read the table with FINAL.")),
    },
    ("columns",),
)
SCHEMA = group(
    "ClickHouse",
    "Tables and queries, read by interval.",
    {
        "url": text("URL", "Of the HTTP interface.", examples=["https://host:8443"]),
        "database": text("Database", "Of tables without one."),
        "user": text("User", "Default: the server's."),
        "password": secret("Password"),
        "relations": by_name("Relations", "Each is what queries name source.relation.", RELATION),
        **SHARED,
        "ca": advanced(text("Authority", "PEM file of certificates to trust.")),
        "settings": advanced(pairs("Settings", "Of ClickHouse, for each query.")),
        "timeout_ms": timeout_ms("a request", 30_000, 600_000),
        "max_bytes": max_bytes(),
        "max_rows": max_rows(),
    },
    ("url", "relations"),
)
