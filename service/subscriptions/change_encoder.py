"""A view's rows and deltas as JSON for subscribers: lines of bounded size, encoded once.

Values are those of the JSON topics (docs/KAFKA_SINK.md): integers, floats and booleans are JSON's
own, json and jsonb columns are nested JSON, everything else is PostgreSQL's text. Invariant: no
line contains a line break, so lines can be split without parsing JSON.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from connectors.formats import encode_rows as form
from connectors.sink import SinkTable
from dataflow.delta import Delta
from dataflow.schema import Field

# The limits of one line, so that no process buffers much of a large epoch.
PAGE_ROWS = 1_000
PAGE_BYTES = 48 << 10
# Rows encoded at a time.
BATCH_ROWS = 8_192
# JSON documents may contain breaks between values; nothing else may.
_NO_BREAKS = bytes.maketrans(b"\r\n", b"  ")


def change_lines(fields: Sequence[Field], delta: Delta, epoch: int) -> Iterator[bytes]:
    """Yield {"epoch", "rows", "weights"} lines of a consolidated delta, retractions first."""
    order = np.argsort(delta.weights > 0, kind="stable")
    for start in range(0, len(delta), BATCH_ROWS):
        batch = delta.take(order[start : start + BATCH_ROWS])
        weights = batch.weights.tolist()
        for rows, begin, end in _pages(fields, batch):
            shown = ",".join(map(str, weights[begin:end]))
            yield b'{"epoch":%d,"rows":[%b],"weights":[%b]}' % (epoch, rows, shown.encode())


def stream_lines(
    fields: Sequence[Field], delta: Delta, head: Mapping[str, Any], *, has_retractions: bool
) -> Iterator[bytes]:
    """Yield lines {**head, "rows", "undo"} of a consolidated delta, retractions first.

    Each row is repeated by its weight. has_retractions: False leaves them out.
    """
    shown = json.dumps(head, ensure_ascii=False, separators=(",", ":")).encode()[:-1]
    signs = (True, False) if has_retractions else (False,)
    for undo in signs:
        chosen = np.flatnonzero((delta.weights < 0) == undo)
        numbers = np.repeat(chosen, np.abs(delta.weights[chosen]))
        for start in range(0, len(numbers), BATCH_ROWS):
            batch = delta.take(numbers[start : start + BATCH_ROWS])
            for rows, begin, end in _pages(fields, batch):
                flags = ",".join(["true" if undo else "false"] * (end - begin))
                yield b'%b,"rows":[%b],"undo":[%b]}' % (shown, rows, flags.encode())


def row_lines(fields: Sequence[Field], rows: Delta, epoch: int) -> Iterator[bytes]:
    """Yield {"epoch", "rows"} lines of a view's rows, each repeated by its weight."""
    ends = np.cumsum(rows.weights)
    count = int(ends[-1]) if len(ends) else 0
    for start in range(0, count, BATCH_ROWS):
        numbers = np.arange(start, min(start + BATCH_ROWS, count))
        batch = rows.take(np.searchsorted(ends, numbers, side="right"))
        for page, _, _ in _pages(fields, batch):
            yield b'{"epoch":%d,"rows":[%b]}' % (epoch, page)


def plain_rows(fields: Sequence[Field], rows: Delta) -> list[bytes]:
    """Return each row as a JSON object, not repeated."""
    found: list[bytes] = []
    for start in range(0, len(rows), BATCH_ROWS):
        batch = rows.take(np.arange(start, min(start + BATCH_ROWS, len(rows))))
        text, ends = _encoded(fields, batch)
        found += [text[a : b - 1] for a, b in itertools.pairwise(ends)]
    return found


def no_rows(epoch: int) -> bytes:
    """Return the line of a view without rows."""
    return b'{"epoch":%d,"rows":[]}' % epoch


def begin_line(view: str, table: SinkTable) -> bytes:
    """Return the line that describes the columns of a stream's rows."""
    fields = table.fields
    facts = {
        "view": view,
        "fields": [
            {"name": f.name, "type": f.type.name, "nullable": f.is_nullable} for f in fields
        ],
        "key": [fields[i].name for i in table.key],
    }
    return json.dumps(facts, ensure_ascii=False, separators=(",", ":")).encode()


def marker_line(log: str, epoch: int, positions: Mapping[str, Any]) -> bytes:
    """Return the progress marker that closes an epoch. positions: in the form that users read."""
    marker = {"epoch": epoch, "positions": positions, "resume": f"{log}.{epoch}"}
    return json.dumps(marker, ensure_ascii=False, separators=(",", ":")).encode()


def _pages(fields: Sequence[Field], batch: Delta) -> Iterator[tuple[bytes, int, int]]:
    """Yield (rows separated by commas, index of the first row, index after the last row)."""
    text, ends = _encoded(fields, batch)
    begin = 0
    while begin < len(batch):
        fits = int(np.searchsorted(ends, ends[begin] + PAGE_BYTES, side="right")) - 1
        end = max(begin + 1, min(fits, begin + PAGE_ROWS))
        yield text[ends[begin] : ends[end] - 1], begin, end
        begin = end


def _encoded(fields: Sequence[Field], batch: Delta) -> tuple[bytes, list[int]]:
    """Return all rows, each followed by a comma, with the offset of each and the end."""
    column = form.joined([*form.json_row(fields, batch.columns), b","], len(batch))
    assert column.data is not None
    return column.data.tobytes().translate(_NO_BREAKS), column.values.tolist()
