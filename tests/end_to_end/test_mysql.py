"""Oracle: PostgreSQL's answer over tables with the same rows as the server's."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.mariadb import MariaDb
from tests.harness.postgres import Database
from tests.harness.service import RunningService

SPENT = (
    "SELECT c.region, count(*) AS n, sum(o.amount) AS spent FROM shop.orders o "
    "JOIN customers c ON c.id = o.customer GROUP BY c.region"
)
PAGES = "SELECT page, count(*) AS n, sum(cost) AS cost FROM shop.visits GROUP BY page"


@pytest.fixture
def service(database: Database, tmp_path: Path) -> Iterator[RunningService]:
    with RunningService(database.dsn, tmp_path / "service") as running:
        yield running


@pytest.fixture
def shop(mariadb: MariaDb, database: Database) -> MariaDb:
    database.execute("CREATE TABLE customers (id int PRIMARY KEY, region text NOT NULL)")
    database.execute("INSERT INTO customers SELECT n, 'r' || n % 3 FROM generate_series(1, 9) n")
    mariadb.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, customer int, amount decimal(8,2), at datetime)"
    )
    mariadb.execute("CREATE TABLE visits (page varchar(20), cost decimal(6,3))")
    mariadb.execute("INSERT INTO orders SELECT seq, seq % 11, seq / 4, now() FROM seq_1_to_200")
    mariadb.execute("INSERT INTO visits SELECT concat('p', seq % 5), 0.125 FROM seq_1_to_50")
    return mariadb


def declare(service: RunningService, mariadb: MariaDb, *tables: str, **more: Any) -> dict[str, Any]:
    """Discover the tables as users do, and declare the source; the options."""
    body = {"type": "mysql", "options": mariadb.options(*tables, **more)}
    found = service.call("POST", "/sources/discover", body)
    assert found.status_code == 200, found.text
    options = found.json()["options"]
    answer = service.call("POST", "/sources", {"name": "shop", "type": "mysql", "options": options})
    assert answer.status_code == 201, answer.text
    return options


def expected(database: Database, mariadb: MariaDb) -> tuple[Any, Any]:
    """The views' rows, over copies of the tables."""
    database.execute("DROP TABLE IF EXISTS copied_orders, copied_visits")
    database.execute("CREATE TABLE copied_orders (customer int, amount numeric(8,2))")
    database.execute("CREATE TABLE copied_visits (page text, cost numeric(6,3))")
    for row in mariadb.rows("SELECT customer, amount FROM orders"):
        database.execute("INSERT INTO copied_orders VALUES (%s, %s)", row)
    for row in mariadb.rows("SELECT page, cost FROM visits"):
        database.execute("INSERT INTO copied_visits VALUES (%s, %s)", row)
    spent = SPENT.replace("shop.orders", "copied_orders")
    pages = PAGES.replace("shop.visits", "copied_visits")
    return (
        database.rows(f"SELECT * FROM ({spent}) q ORDER BY 1"),
        database.rows(f"SELECT * FROM ({pages}) q ORDER BY 1"),
    )


def await_equal(service: RunningService, database: Database, mariadb: MariaDb) -> None:
    """Wait until both views are their queries."""
    desired = expected(database, mariadb)
    deadline = time.monotonic() + 60
    while True:
        spent = database.rows("SELECT region, n, spent FROM spent ORDER BY 1")
        pages = database.rows("SELECT page, n, cost FROM pages ORDER BY 1")
        if (spent, pages) == desired:
            return
        assert time.monotonic() < deadline, f"{spent}\n{pages}\n{desired}\n{service.log_tail()}"
        time.sleep(0.05)


@pytest.mark.whole
def test_a_join_with_postgresql_follows_both(
    service: RunningService, shop: MariaDb, database: Database
) -> None:
    options = declare(service, shop, "orders", "visits")
    service.create("spent", SPENT)
    service.create("pages", PAGES)
    await_equal(service, database, shop)
    pick = random.Random(3)
    for number in range(30):
        id = pick.randint(1, 220)
        with shop.transaction():
            values = f"{id}, {id % 9 + 1}, {number}.25, now()"
            shop.execute(f"REPLACE INTO orders (id, customer, amount, at) VALUES ({values})")
            shop.execute(f"DELETE FROM orders WHERE id = {pick.randint(1, 220)}")
            shop.execute(f"UPDATE visits SET cost = cost + 1 WHERE page = 'p{number % 5}' LIMIT 3")
        if number % 10 == 0:
            shop.execute(f"ALTER TABLE orders ADD COLUMN more{number} int FIRST")
            database.execute(f"UPDATE customers SET region = 'r{number}' WHERE id = {number % 9}")
    await_equal(service, database, shop)
    shop.execute("TRUNCATE TABLE visits")
    shop.execute("INSERT INTO visits VALUES ('last', 1)")
    await_equal(service, database, shop)
    source = service.call("GET", "/sources/shop").json()
    assert source["status"] == "running" and source["rows_read"] > 0
    assert set(source["positions"]["orders"]) == {"file", "offset", "gtids", "server"}
    # Its table is gone: the one view fails by name, the other one continues.
    shop.execute("DROP TABLE visits")
    failed = service.await_status("pages", "failed")
    assert failed["error"]["code"] == "source.table_missing"
    shop.execute("DELETE FROM orders WHERE id % 2 = 0")
    shop.execute("CREATE TABLE visits (page varchar(20), cost decimal(6,3))")
    desired = expected(database, shop)[0]
    service.await_so(
        lambda: database.rows("SELECT region, n, spent FROM spent ORDER BY 1") == desired
    )
    changed = service.call("PUT", "/sources/shop", {"options": {**options, "user": "nobody"}})
    assert changed.status_code >= 400 and changed.json()["code"] == "source.login"


@pytest.mark.whole
def test_a_source_that_cannot_be_followed_is_stopped_by_name(
    service: RunningService, shop: MariaDb, database: Database
) -> None:
    declare(service, shop, "orders")
    service.create("spent", SPENT)
    shop.execute("SET SESSION binlog_format = 'STATEMENT'")
    shop.execute("UPDATE orders SET amount = 0 WHERE id = 1")
    failed = service.await_status("spent", "failed")
    assert failed["error"]["code"] == "mysql.statement_format"
    assert database.rows("SELECT count(*) FROM spent") == [(3,)]
