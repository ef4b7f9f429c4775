"""One value through a format, as PostgreSQL prints it."""

from __future__ import annotations

from typing import Any

from connectors.formats.declared import declare_columns
from connectors.formats.open_format import open_format
from dataflow.values import to_text


def read_text(options: dict[str, Any], record: bytes, path: str, type: str) -> str | None:
    """The value at $.path of a record, or the code of why it is refused."""
    columns = declare_columns([{"name": "x", "type": type, "path": f"$.{path}"}])
    decoded = open_format(options, columns).decode([record])
    if decoded.bad:
        (bad,) = decoded.bad
        return bad.code
    (text,) = to_text(columns[0].field.type, decoded.columns[0]).texts()
    return text
