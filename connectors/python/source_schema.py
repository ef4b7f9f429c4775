"""The options of Python functions as a JSON Schema (connectors/option_schema.py)."""

from __future__ import annotations

from connectors.option_schema import DAY_MS, any_json, by_name, group, text
from connectors.polled.row_schema import ROWS, SHARED, max_rows, timeout_ms

RELATION = group(
    "Relation",
    "What a function returns.",
    {
        "function": text(
            "Function", "Or the name of an entry point.", examples=["weather_feed.stations:current"]
        ),
        "arguments": any_json("Arguments", "JSON object of arguments by name."),
        **ROWS,
    },
    ("function", "key", "columns"),
)
SCHEMA = group(
    "Python functions",
    "Rows of functions that the service calls by interval, in modules that the operator allows.",
    {
        "relations": by_name("Relations", "Each is what queries name source.relation.", RELATION),
        **SHARED,
        "timeout_ms": timeout_ms("a call", 60_000, DAY_MS),
        "max_rows": max_rows(),
    },
    ("relations",),
)
