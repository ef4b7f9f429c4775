"""Oracle: PostgreSQL's answer over tables with the same rows as the server's."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from tests.harness.mariadb import MariaDb
from tests.harness.postgres import Database
from tests.harness.service import RunningService
from tests.harness.tiers import is_fast

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


GOODS = """CREATE TABLE goods (id int PRIMARY KEY, size enum('s', 'm') NOT NULL,
    tags set('new', 'sale'), name varchar(10), price int)"""
# Each with rows that only the changed table can have.
ALTERED = (
    (
        "ALTER TABLE goods MODIFY size enum('s', 'm', 'l') NOT NULL",
        "INSERT INTO goods VALUES (100, 'l', 'new', 'a', 1)",
    ),
    (
        "ALTER TABLE goods MODIFY size enum('xl', 'l', 'm', 's') NOT NULL",
        "INSERT INTO goods VALUES (101, 'xl', 'sale', 'b', 1)",
    ),
    (
        "ALTER TABLE goods CHANGE tags tags set('gone', 'new', 'sale')",
        "INSERT INTO goods VALUES (102, 's', 'gone,sale', 'c', 1)",
    ),
    (
        "ALTER TABLE goods MODIFY name varchar(40), MODIFY price int NOT NULL DEFAULT 7",
        "INSERT INTO goods (id, size, name) VALUES (103, 's', repeat('x', 30))",
    ),
    (
        "ALTER TABLE goods CONVERT TO CHARACTER SET utf8mb4",
        "INSERT INTO goods VALUES (104, 's', '', 'é', 1)",
    ),
    (
        "ALTER TABLE goods DROP PRIMARY KEY, ADD PRIMARY KEY (id), DROP COLUMN tags, "
        "ADD COLUMN tags set('new', 'old') DEFAULT 'old' FIRST",
        "INSERT INTO goods (id, size, name, tags) VALUES (105, 's', 'd', 'old')",
    ),
)


def swap(mariadb: MariaDb, change: str, *, suffix: str) -> None:
    """Change a table as gh-ost and pt-online-schema-change do: a copy takes its name."""
    mariadb.execute(f"CREATE TABLE _goods_{suffix} LIKE goods")
    mariadb.execute(f"ALTER TABLE _goods_{suffix} {change}")
    columns = "id, size, tags, name, price"
    mariadb.execute(f"INSERT INTO _goods_{suffix} ({columns}) SELECT {columns} FROM goods")
    mariadb.execute(f"UPDATE _goods_{suffix} SET price = price + 1000 WHERE id = 1")
    mariadb.execute(f"RENAME TABLE goods TO _goods_del, _goods_{suffix} TO goods")
    mariadb.execute("DROP TABLE _goods_del")


def test_altered_and_swapped_tables_are_followed_by_themselves(
    service: RunningService, mariadb: MariaDb, database: Database
) -> None:
    """Their views are built again, with their rows readable; also what happened while it was
    down, and twice before the first rebuild is over."""
    mariadb.execute(GOODS)
    mariadb.execute("CREATE TABLE other (id int PRIMARY KEY)")
    mariadb.execute(
        "INSERT INTO goods SELECT seq, elt(seq % 2 + 1, 's', 'm'), 'new', seq, seq FROM seq_1_to_50"
    )
    declare(service, mariadb, "goods", "other")
    service.create("offers", "SELECT id, size, tags, name, price FROM shop.goods")
    service.create("sizes", "SELECT size, count(*) AS n, sum(price) AS p FROM offers GROUP BY size")
    service.create("others", "SELECT id FROM shop.other")
    columns, sizes = "id, size, tags, name, price", "count(*) AS n, sum(price) AS p"

    def is_equal() -> bool:
        wanted = mariadb.rows(f"SELECT {columns} FROM goods ORDER BY id")
        grouped = f"SELECT cast(size AS char), {sizes} FROM goods GROUP BY 1 ORDER BY 1"
        totals = [(size, int(n), int(p)) for size, n, p in mariadb.rows(grouped)]
        found = database.rows(f"SELECT {columns} FROM offers ORDER BY id")
        shown = database.rows('SELECT size, n, p FROM sizes ORDER BY size COLLATE "C"')
        return (found, shown) == (list(map(tuple, wanted)), totals)

    def followed(id: int) -> None:
        service.await_so(is_equal)
        for view in ("offers", "sizes", "others"):
            service.await_status(view, "live")
        assert service.call("GET", "/sources/shop").json()["status"] == "running"
        mariadb.execute(f"INSERT INTO other VALUES ({id})")
        service.await_so(lambda: database.rows("SELECT 1 FROM others WHERE id = %s", (id,)))

    with _never_empty(database):
        for number, (altered, inserted) in enumerate(ALTERED[: 1 if is_fast() else None]):
            mariadb.execute(altered)
            mariadb.execute(inserted)
            followed(number)
        swap(mariadb, "MODIFY price bigint, ADD COLUMN more int", suffix="gho")
        followed(10)
        swap(mariadb, "DROP COLUMN more", suffix="new")
        mariadb.execute("INSERT INTO goods (id, size, name) VALUES (200, 's', 'between')")
        swap(mariadb, "ADD COLUMN more text", suffix="gho")
        followed(11)
        service.kill()
        mariadb.execute("UPDATE goods SET price = 3 WHERE id = 2")
        swap(mariadb, "MODIFY size enum('s', 'm', 'l', 'xl', 'xxl') NOT NULL", suffix="gho")
        mariadb.execute("UPDATE goods SET size = 'xxl' WHERE id = 3")
        service.start()
        followed(12)
        mariadb.execute("CREATE TABLE some SELECT * FROM goods WHERE id < 40")
        mariadb.execute("CREATE OR REPLACE TABLE goods (PRIMARY KEY (id)) SELECT * FROM some")
        followed(13)
    # What the declaration no longer fits fails by name, with its rows; the others go on.
    mariadb.execute("ALTER TABLE goods MODIFY price varchar(20)")
    failed = service.await_status("offers", "failed")
    assert failed["error"]["code"] == "source.column_changed", failed
    assert service.await_status("sizes", "failed")
    assert database.rows("SELECT count(*) > 0 FROM offers") == [(True,)]
    mariadb.execute("INSERT INTO other VALUES (99)")
    service.await_so(lambda: database.rows("SELECT 1 FROM others WHERE id = 99"))


@contextlib.contextmanager
def _never_empty(database: Database) -> Iterator[None]:
    """Count the rows of a view all the time."""
    stopped, seen = Event(), list[int]()

    def watch() -> None:
        with contextlib.closing(database.connect()) as own:
            cursor = own.cursor()
            while not stopped.wait(0.02):
                cursor.execute("SELECT count(*) FROM offers")
                seen.extend(count for (count,) in cursor.fetchall())

    watching = Thread(target=watch)
    watching.start()
    try:
        yield
    finally:
        stopped.set()
        watching.join()
    assert seen and min(seen) > 0, "the view was empty for a moment"
