"""Sinks in MySQL and MariaDB, made from the user's options.

Invariant: `check` reaches the server and finds every reason known in advance for which the table
would be refused. It leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

from connectors.mysql.sink_options import TableOptions
from connectors.mysql.sink_session import SinkSession
from connectors.mysql.table_sink import TableSink, has_table, table_unfit
from connectors.sink import SinkTable
from dataflow.errors import SinkError

# Of the server: a row of the table may have so many columns, with the sink's own.
_MAX_COLUMNS = 1_000
_MAX_NAME = 64


def make(options: Mapping[str, Any], table: SinkTable, identity: str, title: str) -> TableSink:
    """Return the sink of a view. SinkError sink.bad_option."""
    return TableSink(TableOptions.of(options, table), table, identity, title)


def check(options: Mapping[str, Any], table: SinkTable, title: str) -> dict[str, Any]:
    """Check the options of a new sink against the server; return them with its table named.

    SinkError sink.bad_option, sink.column, sink.login, sink.database, sink.privilege, sink.tls,
    sink.read_only, sink.table_unfit; TemporaryError sink.unreachable.
    """
    chosen = TableOptions.of(options, table)
    _require_names(table)
    with closing(SinkSession(chosen, title)) as session:
        ((is_read_only,),) = session.rows("SELECT @@GLOBAL.read_only")
        if str(is_read_only).upper() not in ("0", "OFF"):
            raise SinkError(
                "sink.read_only",
                f'mysql sink "{title}" cannot be written',
                detail="read_only is on",
                hint="name the primary",
            )
        if has_table(session, chosen.table):
            raise table_unfit(chosen.title)
    return {**options, "table": chosen.table}


def _require_names(table: SinkTable) -> None:
    """Require names of columns that the server takes: it compares them without case."""
    names = [f.name.lower() for f in table.fields]
    bad = [n for n in names if len(n) > _MAX_NAME or names.count(n) > 1 or n.endswith(" ")]
    bad += [n for n in names if n.startswith("tidemark_")]
    if bad or len(names) > _MAX_COLUMNS:
        raise SinkError(
            "sink.column",
            f'view "{table.title}" has columns that a table of MySQL cannot have',
            detail=", ".join(bad) or f"{len(names)} columns",
            hint="rename the columns in the view, or leave some out",
        )
