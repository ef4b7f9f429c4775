"""The one shape of every Spark DataFrame here: rows of (slot, tag, page).

slot is the task that takes the page, tag the input of that task, page an encoded Delta. Invariant:
Spark never looks into a page, so it cannot hash, compare or cast its content.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

FRAME = "slot int, tag int, page binary"
ARROW = pa.schema([("slot", pa.int32()), ("tag", pa.int32()), ("page", pa.binary())])
BATCH_BYTES = 16 << 20
BATCH_ROWS = 256

Row = tuple[int, int, bytes]


def to_batches(rows: Iterable[Row]) -> Iterator[pa.RecordBatch]:
    """Yield Arrow batches of bounded size, in order."""
    pending: list[Row] = []
    size = 0
    for row in rows:
        pending.append(row)
        size += len(row[2])
        if size >= BATCH_BYTES or len(pending) >= BATCH_ROWS:
            yield _batch(pending)
            pending, size = [], 0
    if pending:
        yield _batch(pending)


def from_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    """Yield the rows of Arrow batches."""
    for batch in batches:
        slots, tags, pages = (column.to_pylist() for column in batch.columns)
        yield from zip(slots, tags, pages, strict=True)


def to_table(rows: Sequence[Row]) -> pa.Table:
    """Return all rows at once, for a few rows."""
    return pa.Table.from_batches([_batch(rows)], ARROW)


def _batch(rows: Sequence[Row]) -> pa.RecordBatch:
    columns = [[row[i] for row in rows] for i in range(len(ARROW))]
    arrays = [pa.array(c, type) for c, type in zip(columns, ARROW.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=ARROW)
