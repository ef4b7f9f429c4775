"""How a MySQL or MariaDB server is reached, as JSON Schemas (connectors/option_schema.py)."""

from __future__ import annotations

from connectors.option_schema import Schema, number, secret, text, tls

LOGIN: dict[str, Schema] = {
    "host": text("Host", "Of the server."),
    "port": number("Port", "Of the server.", 3306, minimum=1, maximum=65_535),
    "user": text("User", "Who logs in."),
    "password": secret("Password"),
    "tls": tls(),
}
