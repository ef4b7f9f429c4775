"""Propose columns and keys for tables, from the server's own catalog.

Invariant: nothing is declared automatically. A proposal is shown, and becomes an option once a user
approves it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from connectors.mysql.column_types import ServerColumn, ServerTable
from connectors.mysql.options import TableOptions, read_options
from connectors.mysql.preflight import find_table
from connectors.mysql.server import Server

# Types whose equal values may have different bytes cannot identify a row.
_NO_KEYS = ("real", "double precision", "jsonb")


def discover(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options with `columns` and `key` for each table that lacks columns. SourceError,
    TemporaryError.
    """
    read = read_options(options, needs_columns=False)
    listed = options["tables"]
    found: dict[str, Any] = {}
    with Server(read.login, "discover") as server:
        for table in read.tables:
            own = listed[table.relation] if isinstance(listed, Mapping) else {}
            own = {} if isinstance(own, str) else dict(own)
            if not table.columns:
                own |= _proposed(find_table(server, table), table)
            found[table.relation] = {"table": table.title, **own}
    return {**options, "tables": found}


def _proposed(table: ServerTable, options: TableOptions) -> dict[str, Any]:
    columns = [c for c in table.columns if _is_readable(c)]
    types = {c.name: c.proposed() for c in columns}
    keys = [key for key in table.keys if all(_identifies(types.get(name)) for name in key)]
    key = list(options.key) or list(next(iter(keys), ()))
    proposed: dict[str, Any] = {
        "columns": [{"name": name, "type": type_name} for name, type_name in types.items()]
    }
    return {**proposed, "key": key} if key else proposed


def _is_readable(column: ServerColumn) -> bool:
    return bool(column.family) and not column.is_virtual


def _identifies(type_name: str | None) -> bool:
    return type_name is not None and type_name not in _NO_KEYS
