"""Runs of the program, and what is in its tables: read by Iceberg's own reader and by pyiceberg."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import StaticTable
from pyspark.sql import SparkSession

from connectors.spark.batch.iceberg_sink import PACKAGE, SETTINGS
from connectors.spark.batch.program import run
from connectors.spark.batch.settings import read_settings
from connectors.spark.batch.table_files import KEY_COLUMN
from connectors.spark.batch.view_run import Summary
from connectors.spark.maintained.runtime import new_session
from connectors.spark.session import LazySession
from dataflow.errors import TidemarkError
from storage.failpoints import VARIABLE

ROOT = Path(__file__).resolve().parents[4]
RUN_S = 600.0


@contextmanager
def lake_session() -> Iterator[LazySession]:
    """A session with Iceberg; the test is skipped where its jar cannot be had."""
    lazy = new_session("local[2]", {**SETTINGS, "spark.jars.packages": PACKAGE})
    try:
        lazy.get()
    except TidemarkError as error:
        if "unresolved dependency" not in error.detail:
            raise
        pytest.skip(f"{PACKAGE} cannot be had from Maven")
    try:
        yield lazy
    finally:
        lazy.stop()


def run_here(path: Path, session: LazySession) -> dict[str, Summary]:
    """A run in this process; raises its first error."""

    @contextmanager
    def opened(_: Any) -> Iterator[LazySession]:
        yield session

    found: list[Summary] = []
    errors: list[TidemarkError] = []
    run(read_settings(path), found.append, errors, opened)
    for error in errors:
        raise error
    return {summary.view: summary for summary in found}


def run_apart(path: Path, failpoints: str = "") -> subprocess.CompletedProcess[str]:
    """A run in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "connectors.spark.run", str(path), "--once"],
        cwd=ROOT,
        env={**os.environ, VARIABLE: failpoints},
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )


class Lake:
    """The tables of a warehouse."""

    def __init__(self, spark: SparkSession, warehouse: Path) -> None:
        jvm: Any = spark._jvm
        context: Any = spark.sparkContext._jsc
        self._iceberg = jvm.org.apache.iceberg
        properties = jvm.java.util.HashMap()
        properties.put("type", "hadoop")
        properties.put("warehouse", str(warehouse))
        self._catalog = self._iceberg.CatalogUtil.buildIcebergCatalog(
            "test", properties, context.hadoopConfiguration()
        )

    def table(self, name: str) -> Any:
        """A table as it is now."""
        return self._catalog.loadTable(self._iceberg.catalog.TableIdentifier.parse(name))

    def rows(self, name: str) -> Counter[tuple[str | None, ...]]:
        """The rows as texts, without the hidden column."""
        table = self.table(name)
        names = [field.name() for field in table.schema().columns()]
        found: Counter[tuple[str | None, ...]] = Counter()
        opened = self._iceberg.data.IcebergGenerics.read(table).build()
        records = opened.iterator()
        while records.hasNext():
            record = records.next()
            shown = [_text(record.getField(n)) for n in names if n != KEY_COLUMN]
            found[tuple(shown)] += 1
        opened.close()
        return found


def newest_metadata(warehouse: Path, name: str) -> Path:
    """The newest metadata of a table of a Hadoop catalog."""
    folder = warehouse / name.replace(".", "/") / "metadata"
    return folder / f"v{(folder / 'version-hint.text').read_text().strip()}.metadata.json"


def pyiceberg_rows(warehouse: Path, name: str, snapshot: int | None = None) -> Counter[Any]:
    """The rows as texts, without the hidden column, by pyiceberg."""
    table = StaticTable.from_metadata(str(newest_metadata(warehouse, name)))
    rows = table.scan(snapshot_id=snapshot).to_arrow().drop_columns([KEY_COLUMN])
    found = zip(*(column.to_pylist() for column in rows.columns), strict=True)
    return Counter(tuple(None if v is None else str(v) for v in row) for row in found)


def _text(value: Any) -> str | None:
    if value is None:
        return None
    return value.toString() if hasattr(value, "toString") else str(value)
