"""Iceberg sinks of the tests, read by pyiceberg's scan in a process of its own."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from sqlalchemy.exc import OperationalError

from connectors.iceberg.iceberg_sink import EPOCH, IcebergSink
from connectors.iceberg.sink import make
from connectors.sink import SinkTable
from tests.harness.lake_files import LakeFiles
from tests.harness.lake_texts import Row, apart, counted


@dataclass
class IcebergTarget(LakeFiles):
    """See sink_contract.Target. catalog: the file of the SQL catalog."""

    catalog: str = ""
    failpoints = ("iceberg.commit.before", "iceberg.commit.after")

    def chosen(self, table: SinkTable) -> dict[str, Any]:
        where = {"path": f"{self.path}/wh", "catalog": f"sqlite:///{self.catalog}"}
        return {**where, "table": f"shop.{table.name}", **self.options}

    def sink(self, table: SinkTable, identity: str) -> IcebergSink:
        return make(self.chosen(table), table, identity, "t")

    def lake(self) -> SqlCatalog:
        place: dict[str, str] = {"warehouse": f"file://{self.path}/wh"}
        if self.endpoint:
            keys = {"s3.access-key-id": "test", "s3.secret-access-key": "test"}
            place = {"warehouse": f"{self.path}/wh", "s3.endpoint": self.endpoint, **keys}
        # The sink makes the catalog's own tables.
        place["init_catalog_tables"] = "false"
        return SqlCatalog("default", uri=f"sqlite:///{self.catalog}", **place)

    def read(self, table: SinkTable) -> tuple[Counter[Row], int | None]:
        return apart(lambda: self._read(table))

    def _read(self, table: SinkTable) -> tuple[Counter[Row], int | None]:
        try:
            found = self.lake().load_table(f"shop.{table.name}")
        except (NoSuchTableError, NoSuchNamespaceError, OperationalError):
            return Counter(), None
        snapshot = found.current_snapshot()
        if snapshot is None or snapshot.summary is None:
            return Counter(), None
        epoch = snapshot.summary.additional_properties.get(EPOCH)
        rows = found.scan().to_arrow()
        values = [rows[f.name].to_pylist() for f in table.fields]
        pairs = zip(zip(*values, strict=True), rows["_weight"].to_pylist(), strict=True)
        return counted(table.fields, pairs), None if epoch is None else int(epoch)
