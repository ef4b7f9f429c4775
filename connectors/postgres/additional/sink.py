"""Sinks in another PostgreSQL, made from the user's options.

Invariant: `check` reaches the server and finds every reason for which the first rows would be
refused. It leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

from connectors.postgres.additional.options import TableOptions
from connectors.postgres.additional.table_check import TableCheck
from connectors.postgres.additional.table_sink import APPLICATION, TableSink
from connectors.postgres.additional.written_table import Changelog, RowsTable
from connectors.postgres.session.session import connect, translated
from connectors.sink import SinkTable


def make(options: Mapping[str, Any], table: SinkTable, identity: str, title: str) -> TableSink:
    """Return the sink of a view. SinkError sink.bad_option."""
    return TableSink(TableOptions.of(options, table), table, identity, title)


def check(options: Mapping[str, Any], table: SinkTable, title: str) -> dict[str, Any]:
    """Check the options of a new sink against the server; return them with its table named.

    SinkError sink.bad_option, sink.login, sink.database, sink.read_only, sink.schema_missing,
    sink.privilege, sink.type_missing, sink.table_unfit; TemporaryError sink.unreachable.
    """
    chosen = TableOptions.of(options, table)
    written = (RowsTable if chosen.mode == "rows" else Changelog)(chosen, table)
    doing = f'checking the sink "{title}" failed'
    with translated("sink", doing):
        session = connect(chosen.dsn(), side="sink", application_name=APPLICATION)
        with closing(session), session.cursor() as cursor:
            TableCheck(chosen, written).check(cursor)
    return {**options, "table": chosen.title}
