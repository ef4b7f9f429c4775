"""Oracle: PostgreSQL's answer over a table that has what ClickHouse has."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from tests.harness.clickhouse import ClickHouse
from tests.harness.postgres import Database
from tests.harness.service import RunningService
from tests.harness.tiers import count

SPENT = """SELECT c.region, count(*) AS n, sum(p.price) AS spent
FROM {} p JOIN customers c ON c.id = p.customer GROUP BY c.region"""
COLUMNS = [
    {"name": "n", "type": "bigint"},
    {"name": "customer", "type": "integer"},
    {"name": "price", "type": "numeric(10,2)"},
]
KILLS = count("TIDEMARK_TEST_KILLS", 2, 20)


@pytest.mark.whole
def test_rows_above_a_cursor_over_kills(database: Database, tmp_path: Path) -> None:
    """Ties that come later, too; a second view, made later, has the same rows."""
    pick, newest = random.Random(6), 0
    database.execute("CREATE TABLE customers (id integer PRIMARY KEY, region text NOT NULL)")
    database.execute("INSERT INTO customers SELECT n, 'r' || n % 3 FROM generate_series(1, 9) n")
    database.execute("CREATE TABLE theirs (n bigint, customer integer, price numeric(10,2))")
    with ClickHouse() as server, RunningService(database.dsn, tmp_path) as service:
        create = "CREATE TABLE orders (n UInt64, customer Int32, price Decimal(10,2))"
        server.execute(f"{create} ENGINE = MergeTree ORDER BY customer")

        def insert() -> None:
            nonlocal newest
            newest += pick.randrange(2)
            rows = [(newest, pick.randrange(1, 12), pick.randrange(50)) for _ in range(5)]
            values = ", ".join(map(str, rows))
            server.execute(f"INSERT INTO orders VALUES {values}")
            database.execute(f"INSERT INTO theirs VALUES {values}")

        def require_equal(view: str) -> None:
            query = f"{SPENT.format('theirs')} ORDER BY 1"
            deadline = time.monotonic() + 60
            while database.rows(f"SELECT * FROM {view} ORDER BY 1") != database.rows(query):
                assert time.monotonic() < deadline, service.log_tail()
                time.sleep(0.05)

        for _ in range(10):
            insert()
        relation = {"cursor": "n", "columns": COLUMNS}
        options = {"url": server.url, "poll_interval_ms": 50, "relations": {"orders": relation}}
        made = {"name": "lake", "type": "clickhouse", "options": options}
        answer = service.call("POST", "/sources", made)
        assert answer.status_code == 201, answer.text
        service.create("spent", SPENT.format("lake.orders"))
        for step in range(KILLS + 1):
            for _ in range(10):
                insert()
                time.sleep(pick.random() / 30)
            if step < KILLS:
                service.kill()
                insert()
                service.start()
            require_equal("spent")
        service.create("later", SPENT.format("lake.orders"))
        insert()
        require_equal("later")
        require_equal("spent")
