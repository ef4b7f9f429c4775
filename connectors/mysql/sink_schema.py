"""The options of a sink in MySQL or MariaDB as a JSON Schema (connectors/option_schema.py)."""

from __future__ import annotations

from connectors.mysql.login_schema import LOGIN
from connectors.option_schema import choice, group, initial, text

SCHEMA = group(
    "MySQL and MariaDB",
    "A table, or a changelog.",
    {
        **LOGIN,
        "database": text("Database", "Of the table."),
        "table": text("Table", "A new one; by default the view's name."),
        "mode": choice(
            "Mode", {"rows": "the table shows the view", "changes": "a changelog"}, "rows"
        ),
        "initial": initial(),
    },
    ("host", "user", "database"),
) | {"x-promise": "Exactly once."}
