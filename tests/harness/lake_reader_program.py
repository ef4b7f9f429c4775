"""What readers of a lake make of a table at some of its snapshots: run by a Python of their own.

Imports nothing of ours. Reads the question as JSON from its argument, and prints the answer."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any


def read_by_duckdb(asked: dict[str, Any]) -> list[list[list[str | None]]]:
    """The rows at each snapshot, by DuckDB and its extension."""
    import duckdb

    connection = duckdb.connect()
    names = ["avro", "iceberg"] if asked["format"] == "iceberg" else ["delta"]
    for name in names:
        found = importlib.util.find_spec(f"duckdb_extension_{name}")
        assert found is not None and found.origin is not None
        (file,) = Path(found.origin).parent.rglob(f"{name}.duckdb_extension")
        connection.execute(f"LOAD '{file}'")
    answers = []
    for at in asked["snapshots"]:
        if asked["format"] == "delta":
            table = f"delta_scan('{asked['location']}', version = {at})"
        else:
            table = f"iceberg_scan('{asked['metadata']}', snapshot_from_id = {at})"
        rows = connection.execute(f"SELECT {asked['columns']} FROM {table}").fetchall()
        answers.append([[_text(value) for value in row] for row in rows])
    return answers


def read_by_spark(asked: dict[str, Any]) -> list[list[list[str | None]]]:
    """The rows at each snapshot, by Spark SQL and the runtime of that version."""
    from pyspark.sql import SparkSession

    settings = {
        "spark.jars.packages": asked["package"],
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "700m",
        "spark.sql.session.timeZone": "UTC",
    }
    settings["spark.sql.catalog.lake"] = "org.apache.iceberg.spark.SparkCatalog"
    for name, value in asked["catalog"].items():
        settings[f"spark.sql.catalog.lake.{name}"] = value
    builder = SparkSession.builder.master("local[1]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    answers = []
    for at in asked["snapshots"]:
        rows = spark.sql(
            f"SELECT {asked['columns']} FROM lake.{asked['table']} VERSION AS OF {at}"
        ).collect()
        answers.append([[_text(value) for value in row] for row in rows])
    spark.stop()
    return answers


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


READERS = {"duckdb": read_by_duckdb, "spark": read_by_spark}

if __name__ == "__main__":
    question = json.loads(sys.argv[1])
    print(json.dumps(READERS[question["reader"]](question)))
