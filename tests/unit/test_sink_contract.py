"""Oracle: a table's own fields: what comes back from bytes is equal, and is shared by epochs."""

from __future__ import annotations

import pickle

from connectors.sink import Progress, SinkEpoch, SinkRows, SinkTable
from dataflow.delta import Delta
from dataflow.schema import Field
from dataflow.types import INT8, TEXT
from service.engine.encoding.frames import decode_epoch, encode_epoch


def stored(*tables: SinkTable) -> list[SinkTable]:
    """The tables of an epoch that was kept."""
    rows = Delta.of("si", [("north", 1)])
    epoch = SinkEpoch(Progress(1, {"source": 7}), SinkRows([(table, rows) for table in tables]))
    return [table for table, _ in decode_epoch(encode_epoch(epoch))[0].rows.deltas]


def test_a_table_is_taken_apart_once() -> None:
    table = SinkTable("public", "by_region", (Field("region", TEXT), Field("n", INT8, False)), (0,))
    (first,), (second,) = stored(table), stored(table)
    assert first == table
    assert hash(first) == hash(table)
    assert first is second
    other = SinkTable("public", "by_region", table.fields, ())
    assert stored(other, table) == [other, table]
    assert pickle.loads(pickle.dumps([other, table])) == [other, table]
