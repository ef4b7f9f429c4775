"""Read back what the sink contains: progress, rows of views, their error rows.

Invariant: rows have the physical form of the dataflow, so that they can be retracted. The hash
stored with a multiset's row is the row's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from connectors.postgres.schema.sink_target import ERRORS, NOTED, Target, target_of
from connectors.postgres.session import copy_text
from connectors.postgres.session.quoting import quote_name, quote_text
from connectors.postgres.sink.restricted_sink import reading
from connectors.sink import Progress, SinkTable
from dataflow.delta import Column, Delta, row_hashes
from dataflow.errors import SinkError
from dataflow.notes import WINDOW_EDGE
from dataflow.types import TEXT, SqlType
from dataflow.window_close import is_closed


def progress_of(cursor: Any, key: str) -> Progress | None:
    """Return epoch and positions of a service."""
    cursor.execute("SELECT epoch, positions FROM tidemark.progress WHERE sink_key = %s", (key,))
    row = cursor.fetchone()
    return None if row is None else Progress(row[0], row[1])


def rows_of(
    cursor: Any, dsn: str, table: SinkTable, *, is_checked: bool = False
) -> Iterator[Delta]:
    """Yield a view's rows in chunks; a multiset's have their counts as weights.

    dsn: of the cursor's session. is_checked: SinkError sink.row_changed when a row of a multiset
    does not match its hash.
    """
    target = target_of(table)
    if not target.is_multiset:
        yield from _keyed_rows(cursor, dsn, table)
        return
    for hashes, delta in hashed_rows_of(cursor, dsn, table):
        if is_checked and _digits(hashes) != _digits(hashes_of(delta)):
            raise SinkError(
                "sink.row_changed",
                f'table "{target.schema}.{target.name}" has rows that were changed',
                detail="someone else wrote to it, or the text of a value has changed",
                hint="pause the view, and resume it: it is then rebuilt from its sources",
            )
        yield delta


def hashed_rows_of(cursor: Any, dsn: str, table: SinkTable) -> Iterator[tuple[Column, Delta]]:
    """Yield a multiset's rows in chunks as (their stored hashes, without dashes; the rows)."""
    hash_column, *columns = target_of(table).columns
    types = [TEXT, *(c.type for c in columns)]
    names = ", ".join(quote_name(c.name) for c in columns)
    selected = f"replace({quote_name(hash_column.name)}::text, '-', ''), {names}"
    for hashes, counts, *own in _chunks(cursor, dsn, (table, selected), types):
        yield hashes, Delta(own, counts.values)


def hashes_of(rows: Delta) -> Column:
    """Return the hashes under which a multiset's rows are stored, without dashes."""
    return copy_text.uuid_texts(*row_hashes(rows.columns, len(rows)))


def _digits(texts: Column) -> bytes:
    assert texts.data is not None
    return texts.data[texts.values[0] : texts.values[-1]].tobytes()


def _keyed_rows(cursor: Any, dsn: str, table: SinkTable) -> Iterator[Delta]:
    columns = target_of(table).columns
    names = ", ".join(quote_name(c.name) for c in columns)
    for found in _chunks(cursor, dsn, (table, names), [c.type for c in columns]):
        yield Delta(found, np.ones(len(found[0]), np.int64))


def errors_of(cursor: Any, table: SinkTable) -> Delta:
    """Return the error rows and notes of a view, with their counts as weights."""
    names = ", ".join(quote_name(c.name) for c in (*ERRORS.columns[1:2], *ERRORS.fields))
    types = [c.type for c in ERRORS.columns[1:]]
    query = " UNION ALL ".join(
        f"SELECT {names} FROM {target.sql} WHERE view = {quote_text(table.title)}"
        for target in (ERRORS, NOTED)
    )
    parts = [Delta(own, n.values) for n, *own in copy_text.copy_out(cursor, query, types)]
    return (
        Delta.concat(parts)
        if parts
        else Delta.empty("".join(f.type.physical for f in ERRORS.fields))
    )


def window_edge(cursor: Any, table: SinkTable) -> int | None:
    """Return up to where a view's windows are closed, in microseconds since 2000 UTC, as of the
    cursor's snapshot; None while none is."""
    query = f"SELECT source_row FROM {NOTED.sql} WHERE view = %s AND sqlstate = %s"
    cursor.execute(query, (table.title, WINDOW_EDGE))
    found = cursor.fetchone()
    return None if found is None else int(found[0].strip("()"))


def closed_of(table: SinkTable, rows: Delta, edge_us: int | None) -> Delta:
    """Return the rows of closed windows, of a table with final rows."""
    assert table.final is not None
    column, width_us = table.final
    kept = is_closed(rows.columns[column], table.fields[column].type, width_us, edge_us)
    return rows.filter(kept)


def _chunks(
    cursor: Any, dsn: str, request: tuple[SinkTable, str], types: Sequence[SqlType]
) -> Iterator[list[Column]]:
    """request: a view's table, and the columns to select."""
    table, selected = request

    def query(target: Target) -> str:
        return f"SELECT {selected} FROM ONLY {target.sql}"

    source = reading(cursor, dsn, table, query, len(types))
    return copy_text.copy_out(cursor, source, types)
