"""Reading back what the sink holds: progress, rows of views, their error rows.

Invariant: what is read has the physical form that the dataflow gives rows, so that it can be taken
away again: of a bag the hash that stands with each row is the row's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from connectors.postgres.schema.sink_target import ERRORS, Target, target_of
from connectors.postgres.session import copy_text
from connectors.postgres.session.quoting import quote_name, quote_text
from connectors.postgres.sink.restricted_sink import reading
from connectors.sink import Progress, SinkTable
from dataflow.delta import Column, Delta, row_hashes
from dataflow.errors import SinkError
from dataflow.types import TEXT, SqlType


def progress_of(cursor: Any, key: str) -> Progress | None:
    """Epoch and positions of a service."""
    cursor.execute("SELECT epoch, positions FROM tidemark.progress WHERE sink_key = %s", (key,))
    row = cursor.fetchone()
    return None if row is None else Progress(row[0], row[1])


def rows_of(
    cursor: Any, dsn: str, table: SinkTable, *, is_checked: bool = False
) -> Iterator[Delta]:
    """A view's rows in chunks; a bag's with their counts as weights. dsn: of the cursor's session.

    is_checked: SinkError sink.row_changed when a row of a bag does not belong to its hash.
    """
    target = target_of(table)
    if not target.is_bag:
        yield from _keyed_rows(cursor, dsn, table)
        return
    hash_column, *columns = target.columns
    types = [TEXT, *(c.type for c in columns)]
    names = ", ".join(quote_name(c.name) for c in columns)
    wanted = f"replace({quote_name(hash_column.name)}::text, '-', ''), {names}"
    for hashes, counts, *own in _chunks(cursor, dsn, (table, wanted), types):
        delta = Delta(own, counts.values)
        if is_checked and _digits(hashes) != _digits(_hashes_of(delta)):
            raise SinkError(
                "sink.row_changed",
                f'table "{target.schema}.{target.name}" has rows that are not as they were written',
                hint="someone else wrote to it: drop the view and create it again",
            )
        yield delta


def _hashes_of(rows: Delta) -> Column:
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
    """The error rows of a view, with their counts as weights."""
    names = ", ".join(quote_name(c.name) for c in (*ERRORS.columns[1:2], *ERRORS.fields))
    types = [c.type for c in ERRORS.columns[1:]]
    query = f"SELECT {names} FROM {ERRORS.sql} WHERE view = {quote_text(table.title)}"
    parts = [Delta(own, n.values) for n, *own in copy_text.copy_out(cursor, query, types)]
    return (
        Delta.concat(parts)
        if parts
        else Delta.empty("".join(f.type.physical for f in ERRORS.fields))
    )


def _chunks(
    cursor: Any, dsn: str, asked: tuple[SinkTable, str], types: Sequence[SqlType]
) -> Iterator[list[Column]]:
    """asked: a view's table, and what is selected of it."""
    table, wanted = asked

    def query(target: Target) -> str:
        return f"SELECT {wanted} FROM ONLY {target.sql}"

    source = reading(cursor, dsn, table, query, len(types))
    return copy_text.copy_out(cursor, source, types)
