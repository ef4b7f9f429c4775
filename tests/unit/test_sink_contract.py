"""Oracle: a table's own fields: what comes back from bytes is equal, and is shared by epochs."""

from __future__ import annotations

import pickle

from connectors.sink import SinkTable
from dataflow.schema import Field
from dataflow.types import INT8, TEXT


def test_a_table_is_taken_apart_once() -> None:
    table = SinkTable("public", "by_region", (Field("region", TEXT), Field("n", INT8, False)), (0,))
    first, second = (pickle.loads(pickle.dumps(table)) for _ in range(2))
    assert first == table
    assert hash(first) == hash(table)
    assert first is second
    other = SinkTable("public", "by_region", table.fields, ())
    assert pickle.loads(pickle.dumps([other, table])) == [other, table]
