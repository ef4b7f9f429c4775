"""ClickHouse sinks of the tests, read through the engine's own SQL as Arrow."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from connectors.clickhouse.clickhouse_sink import ClickHouseSink
from connectors.clickhouse.sink import make
from connectors.sink import SinkTable
from tests.harness.clickhouse_engine import ClickHouse
from tests.harness.lake_texts import Row, counted


@dataclass
class ClickHouseTarget:
    """See sink_contract.Target."""

    server: ClickHouse
    options: dict[str, Any] = field(default_factory=dict)
    failpoints = ("clickhouse.rows.written", "clickhouse.progress.written")

    def chosen(self, table: SinkTable) -> dict[str, Any]:
        return {"url": self.server.url, **self.options}

    def sink(self, table: SinkTable, identity: str) -> ClickHouseSink:
        return make(self.chosen(table), table, identity, "t")

    def tables(self, table: SinkTable) -> list[str]:
        found = self.server.query(f"SELECT name FROM system.tables WHERE name LIKE '{table.name}%'")
        return found.decode().split()

    def read(self, table: SinkTable) -> tuple[Counter[Row], int | None]:
        if len(self.tables(table)) < 3:
            return Counter(), None
        progress = f"SELECT max(epoch) FROM {table.name}_progress WHERE has_begun"
        epoch = int(self.server.query(progress)) or None
        answer = self.server.query(f"SELECT * FROM {table.name}_now FORMAT ArrowStream")
        rows = pa.ipc.open_stream(answer).read_all() if answer else pa.table({})
        is_rows = "_weight" not in rows.column_names
        weights = [1] * len(rows) if is_rows else rows["_weight"].to_pylist()
        values = [self._values(rows, f.name, f.type.name) for f in table.fields]
        pairs = zip(zip(*values, strict=True), weights, strict=True)
        return counted(table.fields, pairs), epoch

    def _values(self, rows: pa.Table, name: str, kind: str) -> list[Any]:
        if name not in rows.column_names:
            return []
        column = rows[name]
        if pa.types.is_binary(column.type) and kind != "bytea":
            column = column.cast(pa.string())
        elif pa.types.is_string(column.type) and kind == "bytea":
            column = column.cast(pa.binary())
        elif kind == "boolean":
            column = column.cast(pa.bool_())
        return column.to_pylist()
