"""A view's rows and deltas as the JSON that subscribers get: lines of bounded size, encoded once.

Values are those of the JSON topics (docs/KAFKA_SINK.md): integers, floats and booleans are JSON's
own, columns of json and jsonb are JSON in JSON, everything else is PostgreSQL's text. Invariant:
no line holds a line break, so that lines are found again without reading JSON.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from connectors.kafka import record_format as form
from connectors.sink import SinkTable
from dataflow.delta import Delta
from dataflow.schema import Field

# What stands in one line, so that neither side ever holds much of a large epoch.
PAGE_ROWS = 1_000
PAGE_BYTES = 48 << 10
# Rows that are encoded at a time.
BATCH_ROWS = 8_192
# JSON documents may have breaks between their values, nothing else may.
_NO_BREAKS = bytes.maketrans(b"\r\n", b"  ")


def change_lines(fields: Sequence[Field], delta: Delta, epoch: int) -> Iterator[bytes]:
    """{"epoch", "rows", "weights"} of a consolidated delta, retractions first."""
    order = np.argsort(delta.weights > 0, kind="stable")
    for start in range(0, len(delta), BATCH_ROWS):
        batch = delta.take(order[start : start + BATCH_ROWS])
        weights = batch.weights.tolist()
        for rows, begin, end in _pages(fields, batch):
            shown = ",".join(map(str, weights[begin:end]))
            yield b'{"epoch":%d,"rows":[%b],"weights":[%b]}' % (epoch, rows, shown.encode())


def row_lines(fields: Sequence[Field], rows: Delta, epoch: int) -> Iterator[bytes]:
    """{"epoch", "rows"} of a view's rows, each as often as it is there."""
    ends = np.cumsum(rows.weights)
    count = int(ends[-1]) if len(ends) else 0
    for start in range(0, count, BATCH_ROWS):
        wanted = np.arange(start, min(start + BATCH_ROWS, count))
        batch = rows.take(np.searchsorted(ends, wanted, side="right"))
        for page, _, _ in _pages(fields, batch):
            yield b'{"epoch":%d,"rows":[%b]}' % (epoch, page)


def plain_rows(fields: Sequence[Field], rows: Delta) -> list[bytes]:
    """Each row as a JSON object, not repeated."""
    found: list[bytes] = []
    for start in range(0, len(rows), BATCH_ROWS):
        batch = rows.take(np.arange(start, min(start + BATCH_ROWS, len(rows))))
        text, ends = _encoded(fields, batch)
        found += [text[a : b - 1] for a, b in itertools.pairwise(ends)]
    return found


def no_rows(epoch: int) -> bytes:
    """The line of a view without rows."""
    return b'{"epoch":%d,"rows":[]}' % epoch


def begin_line(view: str, table: SinkTable) -> bytes:
    """The line that says what columns the rows of a stream have."""
    fields = table.fields
    told = {
        "view": view,
        "fields": [
            {"name": f.name, "type": f.type.name, "nullable": f.is_nullable} for f in fields
        ],
        "key": [fields[place].name for place in table.key],
    }
    return json.dumps(told, ensure_ascii=False, separators=(",", ":")).encode()


def mark_line(log: str, epoch: int, positions: Mapping[str, Any]) -> bytes:
    """The line that closes an epoch. positions: as people write them."""
    mark = {"epoch": epoch, "positions": positions, "resume": f"{log}.{epoch}"}
    return json.dumps(mark, ensure_ascii=False, separators=(",", ":")).encode()


def _pages(fields: Sequence[Field], batch: Delta) -> Iterator[tuple[bytes, int, int]]:
    """(rows with commas between, the first one's place, the place behind the last one)."""
    text, ends = _encoded(fields, batch)
    begin = 0
    while begin < len(batch):
        fits = int(np.searchsorted(ends, ends[begin] + PAGE_BYTES, side="right")) - 1
        end = max(begin + 1, min(fits, begin + PAGE_ROWS))
        yield text[ends[begin] : ends[end] - 1], begin, end
        begin = end


def _encoded(fields: Sequence[Field], batch: Delta) -> tuple[bytes, list[int]]:
    """All rows, each with a comma behind, and where each begins, and the end."""
    column = form.joined([*form.json_row(fields, batch.columns), b","], len(batch))
    assert column.data is not None
    return column.data.tobytes().translate(_NO_BREAKS), column.values.tolist()
