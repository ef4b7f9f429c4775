"""A view's changes as rows of a changelog: its columns, and what changed them.

Invariant: the sum of `_weight` of equal rows over all epochs up to one is how often the view has
that row at that epoch. Within an epoch, retractions come first.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from connectors.lake.lake_rows import arrow_column, lake_type
from connectors.sink import SinkTable
from connectors.view_sink import ViewEpoch
from dataflow.delta import Delta
from dataflow.errors import SinkError, ViewError
from dataflow.schema import Field

# Rows that become Arrow columns at a time.
BATCH_ROWS = 65_536
CHANGE_COLUMNS = (
    pa.field("_op", pa.string(), False),
    pa.field("_weight", pa.int64(), False),
    pa.field("_epoch", pa.int64(), False),
    pa.field("_position", pa.string(), False),
)
_NAMES = [column.name for column in CHANGE_COLUMNS]


def row_schema(fields: Sequence[Field]) -> pa.Schema:
    """Return the view's columns as a lake has them, all of them nullable."""
    return pa.schema([pa.field(f.name, lake_type(f)) for f in fields])


def changelog_schema(fields: Sequence[Field]) -> pa.Schema:
    """Return the columns of the view's changelog."""
    return pa.schema([*row_schema(fields), *CHANGE_COLUMNS])


def require_free_names(table: SinkTable, reserved: Sequence[str] = ()) -> None:
    """Refuse a view with a column of our names, or two that differ in case only.

    SinkError sink.column_name.
    """
    reserved = [*_NAMES, *reserved]
    seen: set[str] = set()
    for field in table.fields:
        name = field.name.lower()
        if name in reserved or name in seen:
            why = "the sink's own" if name in reserved else "another column's, but for its case"
            raise SinkError(
                "sink.column_name",
                f'column "{field.name}" of view "{table.title}" cannot be written',
                detail=f"its name is {why}",
                hint="rename the column in the query",
            )
        seen.add(name)


def changes(fields: Sequence[Field], epoch: ViewEpoch) -> Iterator[pa.RecordBatch]:
    """Yield an epoch as rows of the changelog, batch by batch. SinkError sink.value_unfit."""
    schema = changelog_schema(fields)
    position = pa.scalar(json.dumps(epoch.positions))
    for rows in batches(epoch.deltas):
        n = len(rows)
        is_new = rows.weights > 0
        operations = pa.array(["delete", "insert"]).take(pa.array(is_new.astype(np.int8)))
        numbers = pa.array(np.full(n, epoch.number))
        more = [operations, pa.array(rows.weights), numbers, pa.repeat(position, n)]
        yield pa.record_batch([*row_arrays(fields, rows), *more], schema=schema)


def batches(deltas: Iterable[Delta]) -> Iterator[Delta]:
    """Yield the rows of each delta, retractions first, at most BATCH_ROWS at a time."""
    for delta in deltas:
        order = np.argsort(delta.weights > 0, kind="stable")
        for start in range(0, len(delta), BATCH_ROWS):
            yield delta.take(order[start : start + BATCH_ROWS])


def row_arrays(fields: Sequence[Field], rows: Delta) -> list[pa.Array]:
    """Return the columns of rows as arrays of `row_schema`. SinkError sink.value_unfit."""
    try:
        return [arrow_column(f, c) for f, c in zip(fields, rows.columns, strict=True)]
    except ViewError as error:
        raise SinkError(
            "sink.value_unfit", error.what, detail=error.detail, hint=error.hint
        ) from None
