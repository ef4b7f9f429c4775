"""The options of another PostgreSQL as a JSON Schema (connectors/option_schema.py)."""

from __future__ import annotations

from connectors.option_schema import (
    advanced,
    buffer_bytes,
    by_name,
    columns,
    group,
    key,
    number,
    secret,
    text,
    tls,
)

TABLE = group(
    "Table",
    "A table as a relation.",
    {
        "table": text("Table", "Its name, as schema.table.", examples=["sales.orders"]),
        "columns": columns(has_paths=False),
        "key": key("The primary key or replica identity; without it, rows are a multiset."),
    },
    ("table", "columns"),
)
SCHEMA = group(
    "PostgreSQL: another database",
    "Tables of another database or server, followed by logical replication.",
    {
        "host": text("Host", "Of the primary server."),
        "port": number("Port", "Of the server.", 5432, minimum=1, maximum=65_535),
        "database": text("Database", "Its name."),
        "user": text("User", "A role that may replicate."),
        "password": secret("Password"),
        "tls": tls(),
        "tables": by_name("Tables", "Each is what queries name source.relation.", TABLE),
        "slot": advanced(text("Slot", "Replication slot; by default named by service and source.")),
        "publication": advanced(text("Publication", "By default named as the slot.")),
        "buffer_bytes": buffer_bytes(),
    },
    ("host", "database", "user", "tables"),
)
