"""The options of MongoDB as a JSON Schema (connectors/option_schema.py)."""

from __future__ import annotations

from connectors.option_schema import (
    advanced,
    any_json,
    by_name,
    choice,
    flag,
    group,
    key,
    secret,
    text,
    texts,
)
from connectors.polled.row_schema import ROWS, SHARED, max_rows, timeout_ms

RELATION = group(
    "Relation",
    "Documents of a collection.",
    {
        "collection": text("Collection", "Its name; by default the relation's."),
        "filter": any_json("Filter", "As of find, in MongoDB's extended JSON; default: all."),
        **ROWS,
        "key": key("Columns by which documents are compared; default: _id."),
        "database": advanced(text("Database", "Default: the source's.")),
    },
    ("columns",),
)
SCHEMA = group(
    "MongoDB",
    "Documents of collections.",
    {
        "servers": texts("Servers", "host:port, tried in turn.", examples=[["mongo:27017"]]),
        "database": text("Database", "Of collections."),
        "user": text("User", "Needs a password."),
        "password": secret("Password"),
        "tls": flag("TLS", "Encrypt the connection."),
        "changes": choice(
            "Changes",
            {"poll": "read again by interval", "stream": "change streams of a replica set"},
            "poll",
        ),
        "relations": by_name("Relations", "Each is what queries name source.relation.", RELATION),
        **SHARED,
        "auth_source": advanced(text("Login database", "Which knows the user.", default="admin")),
        "ca": advanced(text("Authority", "PEM file of certificates to trust.")),
        "timeout_ms": timeout_ms("a request", 30_000, 600_000),
        "max_rows": max_rows(),
    },
    ("servers", "relations"),
)
