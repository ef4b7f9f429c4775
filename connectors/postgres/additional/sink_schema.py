"""The options of a sink in another PostgreSQL as a JSON Schema (connectors/option_schema.py)."""

from __future__ import annotations

from connectors.option_schema import choice, group, initial, number, secret, text, tls

SCHEMA = group(
    "PostgreSQL: another database",
    "A table of another database, or a changelog.",
    {
        "host": text("Host", "Of the server."),
        "port": number("Port", "Of the server.", 5432, minimum=1, maximum=65_535),
        "database": text("Database", "Its name."),
        "user": text("User", "Who logs in and owns the table."),
        "password": secret("Password"),
        "tls": tls() | {"description": "Verify the server; without it, TLS is used if offered."},
        "table": text("Table", "schema.name; by default as the view."),
        "mode": choice(
            "Mode", {"rows": "the table shows the view", "changes": "a changelog"}, "rows"
        ),
        "initial": initial(),
    },
    ("host", "database", "user"),
) | {"x-promise": "Exactly once."}
