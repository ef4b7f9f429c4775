"""The options of a MySQL or MariaDB source as a JSON Schema (connectors/option_schema.py)."""

from __future__ import annotations

from connectors.mysql.login_schema import LOGIN
from connectors.option_schema import (
    advanced,
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
)

_ZERO_DATES = choice(
    "Zero dates",
    {"reject": "rows with them are malformed", "null": "they are NULL"},
    "reject",
    "Such as 0000-00-00.",
)
TABLE = group(
    "Table",
    "A table as a relation.",
    {
        "table": text("Table", "Its name, as database.table.", examples=["shop.orders"]),
        "columns": columns(has_paths=False),
        "key": key(
            "A primary key, or a unique one without NULLs; without it, rows are a multiset."
        ),
        "on_error": inherited(on_error("rows")),
        "zero_dates": inherited(_ZERO_DATES),
    },
    ("table", "columns"),
)
SCHEMA = group(
    "MySQL and MariaDB",
    "Tables of a server, followed by its binary log.",
    {
        **LOGIN,
        "tables": by_name("Tables", "Each is what queries name source.relation.", TABLE),
        "on_error": on_error("rows"),
        "zero_dates": advanced(_ZERO_DATES),
        "server_id": advanced(
            number("Server id", "Of the reader; 0: random.", 0, minimum=0, maximum=2**32 - 1)
        ),
        "buffer_bytes": buffer_bytes(),
    },
    ("host", "user", "tables"),
)
