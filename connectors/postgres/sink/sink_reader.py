"""Read back what the sink contains: progress, rows of views, their error rows.

Invariant: rows have the physical form of the dataflow, so that they can be retracted. The hash
stored with a multiset's row is the row's own.
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
    hash_column, *columns = target.columns
    types = [TEXT, *(c.type for c in columns)]
    names = ", ".join(quote_name(c.name) for c in columns)
    selected = f"replace({quote_name(hash_column.name)}::text, '-', ''), {names}"
    for hashes, counts, *own in _chunks(cursor, dsn, (table, selected), types):
        delta = Delta(own, counts.values)
        if is_checked and _digits(hashes) != _digits(_hashes_of(delta)):
            raise SinkError(
                "sink.row_changed",
                f'table "{target.schema}.{target.name}" has rows that were changed',
                hint="someone else wrote to it; drop the view and create it again",
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
    """Return the error rows of a view, with their counts as weights."""
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
    cursor: Any, dsn: str, request: tuple[SinkTable, str], types: Sequence[SqlType]
) -> Iterator[list[Column]]:
    """request: a view's table, and the columns to select."""
    table, selected = request

    def query(target: Target) -> str:
        return f"SELECT {selected} FROM ONLY {target.sql}"

    source = reading(cursor, dsn, table, query, len(types))
    return copy_text.copy_out(cursor, source, types)
