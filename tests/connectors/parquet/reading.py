"""Parquet sinks of the tests, read by DuckDB through the newest manifest."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq

from connectors.parquet.parquet_sink import ParquetSink
from connectors.parquet.sink import make
from connectors.sink import SinkTable
from tests.harness.lake_files import LakeFiles
from tests.harness.lake_texts import Row, apart, counted


@dataclass
class ParquetTarget(LakeFiles):
    """See sink_contract.Target."""

    failpoints = ("lake.files.sent", "lake.manifest.before", "lake.manifest.after")

    def sink(self, table: SinkTable, identity: str) -> ParquetSink:
        return make(self.chosen(table), table, identity, "t")

    def manifest(self, table: SinkTable) -> dict[str, Any] | None:
        names = [n for n in self.names(table, "_tidemark") if "manifest-" in n]
        return json.loads(self.content(table, max(names))) if names else None

    def listed(self, table: SinkTable) -> list[dict[str, Any]]:
        """The entries of all files of the newest manifest."""
        manifest = self.manifest(table)
        assert manifest is not None
        older = [json.loads(self.content(table, name)) for name in manifest["checkpoints"]]
        return [f for one in [*older, manifest] for f in one["files"]]

    def read(self, table: SinkTable) -> tuple[Counter[Row], int | None]:
        if self.is_apart:
            return apart(lambda: self._read(table))
        return self._read(table)

    def at(self, table: SinkTable, epoch: int) -> Counter[Row]:
        """The view's rows at an earlier epoch."""
        return self._read(table, epoch)[0]

    def _read(self, table: SinkTable, epoch: int | None = None) -> tuple[Counter[Row], int | None]:
        manifest = self.manifest(table)
        if manifest is None or manifest["epoch"] is None:
            return Counter(), None
        upto = manifest["epoch"] if epoch is None else epoch
        files = [f for f in self.listed(table) if f["first_epoch"] <= upto]
        if not files:
            return Counter(), upto
        paths = [f"{self.root(table)}/{f['path']}" for f in files]
        changes = pq.ParquetDataset(paths, filesystem=self.files(), partitioning=None).read()
        assert changes.num_rows == sum(f["rows"] for f in files)
        names = ", ".join(f'"{f.name}"' for f in table.fields)
        rows = duckdb.sql(
            f"SELECT {names}, sum(_weight)::bigint FROM changes WHERE _epoch <= {upto}"
            " GROUP BY ALL HAVING sum(_weight) <> 0"
        ).fetchall()
        return counted(table.fields, [(row[:-1], row[-1]) for row in rows]), upto


def folder_target(folder: Path, **options: Any) -> ParquetTarget:
    return ParquetTarget(str(folder), options)
