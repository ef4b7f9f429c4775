"""Oracle: PostgreSQL's own answer to the view's query; independent readers of the lake and of
ClickHouse have the same rows at the epoch of the view's table."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog

from tests.harness.clickhouse_engine import clickhouse
from tests.harness.lake_texts import apart
from tests.harness.postgres import Database
from tests.harness.service import RunningService
from tests.harness.sinks import add_sink, drop_sink, sink_of

QUERY = (
    "SELECT region, count(*) AS n, sum(amount)::numeric(20,2) AS total FROM orders GROUP BY region"
)
PAGE = Path(__file__).parents[2] / "docs" / "LAKE_SINKS.md"
NAMES = ("region", "n", "total")


def change(database: Database, step: int) -> None:
    database.execute("UPDATE orders SET amount = amount + 1 WHERE id %% 10 = %s", (step % 10,))
    database.execute("DELETE FROM orders WHERE id = %s", (step * 7,))
    database.execute("UPDATE orders SET region = %s WHERE id = %s", (f"n{step % 3}", step * 11))


def reached(service: RunningService, database: Database, name: str) -> None:
    """Wait until a sink has all that was committed."""
    position = database.rows("SELECT pg_current_wal_flush_lsn()::text")[0][0]
    service.wait("totals", position)
    epoch = database.rows("SELECT epoch FROM tidemark.progress")[0][0]
    service.await_so(lambda: (sink_of(service, "totals", name)["epoch"] or 0) >= epoch)


def of_dicts(rows: list[dict[str, Any]]) -> Counter[tuple]:
    return Counter(tuple(row[name] for name in NAMES) for row in rows)


def of_changes(rows: list[dict[str, Any]]) -> Counter[tuple]:
    found: Counter[tuple] = Counter()
    for row in rows:
        found[tuple(row[name] for name in NAMES)] += row["_weight"]
    return +found


@pytest.fixture
def shop(database: Database) -> Database:
    database.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, region text NOT NULL, amount numeric(12,2));"
        "INSERT INTO orders SELECT i, 'r' || i % 7, i / 4.0 FROM generate_series(1, 300) i"
    )
    return database


def test_a_view_in_a_lake(shop: Database, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    names: dict[str, Any] = {}
    exec(PAGE.read_text().split("```python\n")[1].split("```")[0], names)
    with RunningService(shop.dsn, tmp_path / "state", sink_folders=str(lake)) as service:
        service.create("totals", QUERY, backfill="local")
        body = {"name": "x", "type": "parquet", "options": {"path": str(tmp_path / "other")}}
        problem = service.call("POST", "/views/totals/sinks", body).json()
        assert problem["code"] == "path.forbidden", problem
        at = {"max_delay_s": 0.2}
        files = {"path": f"{lake}/files", "partition_by": ["region"], **at}
        add_sink(service, "totals", "files", type_name="parquet", **files)
        table = {"path": f"{lake}/table", "mode": "rows", **at}
        add_sink(service, "totals", "table", type_name="delta", **table)
        catalog = {"catalog": f"sqlite:///{lake}/catalog.db", "path": f"{lake}/wh", **at}
        add_sink(service, "totals", "ice", type_name="iceberg", **catalog)
        for step in range(1, 12):
            change(shop, step)
            if step == 6:
                service.kill()
                service.start()
        expected = Counter((r, n, Decimal(t)) for r, n, t in shop.rows(QUERY))
        for name in ("files", "table", "ice"):
            reached(service, shop, name)
        rows = names["rows_at"](f"{lake}/files").fetchall()
        assert Counter({row[:-1]: row[-1] for row in rows}) == expected
        found = apart(lambda: DeltaTable(f"{lake}/table").to_pyarrow_table().to_pylist())
        assert of_dicts(found) == expected
        found = apart(lambda: _iceberg_rows(lake))
        assert of_changes(found) == expected
        for name in ("files", "table", "ice"):
            drop_sink(service, "totals", name, "?drop_data=true")
        left = [p for p in lake.rglob("*") if p.is_file() and p.name != "catalog.db"]
        assert not left, left


def _iceberg_rows(lake: Path) -> list[dict[str, Any]]:
    catalog = SqlCatalog(
        "default", uri=f"sqlite:///{lake}/catalog.db", warehouse=f"file://{lake}/wh"
    )
    return catalog.load_table("tidemark.totals").scan().to_arrow().to_pylist()


@pytest.mark.whole
def test_a_view_in_clickhouse(shop: Database, tmp_path: Path) -> None:
    with (
        clickhouse(tmp_path / "data") as server,
        RunningService(shop.dsn, tmp_path / "state") as service,
    ):
        service.create("totals", QUERY, backfill="local")
        add_sink(service, "totals", "olap", type_name="clickhouse", url=server.url, max_delay_s=0.2)
        for step in range(1, 12):
            change(shop, step)
            if step == 6:
                service.kill()
                service.start()
        reached(service, shop, "olap")
        answer = server.query("SELECT region, n, total FROM totals_now").decode()
        lines = [line.split("\t") for line in answer.splitlines()]
        found = Counter((r, int(n), Decimal(t)) for r, n, t in lines)
        assert found == Counter((r, n, Decimal(t)) for r, n, t in shop.rows(QUERY))
        drop_sink(service, "totals", "olap", "?drop_data=true")
        assert server.query("SELECT name FROM system.tables WHERE name LIKE 'totals%'") == b""
