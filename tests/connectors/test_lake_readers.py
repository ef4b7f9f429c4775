"""Oracle: the model's rows at each epoch; DuckDB shows them in the tables of the service's sinks at
the epoch's version or snapshot, and Spark SQL in those of Iceberg."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.connectors.delta.reading import DeltaTarget
from tests.connectors.iceberg.reading import IcebergTarget
from tests.harness.lake_readers import ICEBERG_PACKAGE, Rows, read_with
from tests.harness.sink_contract import FINITE, Model, new_identity

EPOCHS = 5
# Columns whose values every reader prints alike.
POOLS = [pool for pool in FINITE if pool[0] in ("big", "amount", "name")]
SQLITE_PACKAGE = "org.xerial:sqlite-jdbc:3.50.3.0"
READERS = pytest.mark.parametrize(
    "reader",
    [
        "duckdb",
        pytest.param(
            "spark",
            marks=pytest.mark.skipif(
                shutil.which("java") is None, reason="no Java on this machine, Spark needs it"
            ),
        ),
    ],
)
pytestmark = [pytest.mark.whole, pytest.mark.timeout(1800)]


def written(target: Any, model: Model, version: Callable[[], int]) -> dict[int, Rows]:
    """The model's rows by version, after so many epochs."""
    found: dict[int, Rows] = {}
    sink = target.sink(model.table, new_identity())
    sink.open(None)
    for _ in range(EPOCHS):
        epoch = model.epoch()
        sink.write([epoch])
        found[version()] = model.after[epoch.number]
    sink.close()
    return found


def weighted(rows: Rows) -> Rows:
    """The sum of a changelog, whose last column is the weight."""
    found: Rows = Counter()
    for row, count in rows.items():
        found[row[:-1]] += count * int(row[-1] or 0)
    return Counter({row: count for row, count in found.items() if count})


@pytest.mark.parametrize("mode", ["changes", "rows"])
def test_tables_of_delta(tmp_path: Path, mode: str) -> None:
    target, model = DeltaTarget(str(tmp_path / "l a"), {"mode": mode}), Model(POOLS)
    (tmp_path / "l a").mkdir()
    location = target.chosen(model.table)["path"]
    expected = written(target, model, lambda: DeltaTable(location).version())
    columns = ", ".join(f.name for f in model.table.fields)
    found = read_with(
        "duckdb",
        format="delta",
        location=location,
        columns=columns if mode == "rows" else f"{columns}, _weight",
        snapshots=list(expected),
    )
    found = found if mode == "rows" else [weighted(rows) for rows in found]
    assert found == list(expected.values())


@READERS
def test_tables_of_iceberg(tmp_path: Path, reader: str) -> None:
    catalog = f"{tmp_path}/catalog.db"
    # Spark takes the name of its catalog for the one in the database.
    target = IcebergTarget(str(tmp_path), {"catalog_name": "lake"}, catalog=catalog)
    model = Model(POOLS)

    def table() -> Any:
        from pyiceberg.catalog.sql import SqlCatalog

        lake = SqlCatalog("lake", uri=f"sqlite:///{catalog}", init_catalog_tables="false")
        return lake.load_table(f"shop.{model.table.name}")

    expected = written(target, model, lambda: table().current_snapshot().snapshot_id)
    columns = ", ".join(f.name for f in model.table.fields)
    found = read_with(
        reader,
        metadata=table().metadata_location.removeprefix("file://"),
        catalog={"type": "jdbc", "uri": f"jdbc:sqlite:{catalog}", "warehouse": str(tmp_path)},
        package=f"{ICEBERG_PACKAGE},{SQLITE_PACKAGE}",
        table=f"shop.{model.table.name}",
        columns=f"{columns}, _weight",
        snapshots=list(expected),
    )
    assert [weighted(rows) for rows in found] == list(expected.values())
