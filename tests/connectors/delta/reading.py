"""Delta sinks of the tests: the table's log is replayed and its files are read without its client.

So this reader shares no code with the writer, and it may be used before a fork.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq

from connectors.delta.delta_sink import KEY_COLUMN, DeltaSink
from connectors.delta.sink import make
from connectors.sink import SinkTable
from tests.harness.lake_files import LakeFiles
from tests.harness.lake_texts import Row, apart, counted


@dataclass
class Log:
    """What a table's log says: files, and the newest number of each application."""

    files: set[str] = field(default_factory=set)
    numbers: dict[str, int] = field(default_factory=dict)

    def add(self, action: dict[str, Any]) -> None:
        if "add" in action:
            self.files.add(unquote(action["add"]["path"]))
        if "remove" in action:
            self.files.remove(unquote(action["remove"]["path"]))
        if "txn" in action:
            self.numbers[action["txn"]["appId"]] = action["txn"]["version"]


@dataclass
class DeltaTarget(LakeFiles):
    """See sink_contract.Target."""

    identity: str = ""
    failpoints = ("delta.commit.before", "delta.commit.after")

    def sink(self, table: SinkTable, identity: str) -> DeltaSink:
        self.identity = identity
        return make(self.chosen(table), table, identity, "t")

    def log(self, table: SinkTable) -> Log:
        found = Log()
        for name in self.names(table, "_delta_log"):
            if name.endswith(".json"):
                for line in self.content(table, name).splitlines():
                    found.add(json.loads(line))
        return found

    def read(self, table: SinkTable) -> tuple[Counter[Row], int | None]:
        if self.is_apart:
            return apart(lambda: self._read(table))
        return self._read(table)

    def _read(self, table: SinkTable) -> tuple[Counter[Row], int | None]:
        log = self.log(table)
        epochs = [n for app, n in log.numbers.items() if not app.endswith("-writer")]
        epoch = epochs[0] if epochs else None
        weights: list[tuple[tuple[Any, ...], int]] = []
        for path in sorted(log.files):
            with self.files().open_input_file(f"{self.root(table)}/{path}") as file:
                rows = pq.read_table(file)
            if self.options.get("mode") == "rows":
                assert len(set(rows[KEY_COLUMN].to_pylist())) == len(rows)
            one = [1] * len(rows)
            by = rows["_weight"].to_pylist() if "_weight" in rows.column_names else one
            values = [rows[f.name].to_pylist() for f in table.fields]
            weights += zip(zip(*values, strict=True), by, strict=True)
        return counted(table.fields, weights), epoch
