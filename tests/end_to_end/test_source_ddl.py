"""Oracle: PostgreSQL's own answer to each query that still has one, whatever happens to tables.

A view whose table is no longer what it was made for fails alone, with its last rows.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.end_to_end.test_views import assert_equal, flush_position
from tests.harness.postgres import Database
from tests.harness.service import RunningService

SHOP = """
CREATE TABLE customers (id int PRIMARY KEY, spare text, name text NOT NULL, region text NOT NULL);
CREATE TABLE orders (
    spare int, id int PRIMARY KEY, customer int NOT NULL, amount numeric(12,2), note text);
INSERT INTO customers SELECT i, 's', 'c' || i, 'r' || i % 5 FROM generate_series(1, 100) i;
INSERT INTO orders SELECT i, i, 1 + i % 110, i / 7.0, 'n' || i % 9 FROM generate_series(1, 500) i;
"""
OF_ORDERS = {
    "by_region": "SELECT c.region, count(*) AS n, sum(o.amount) AS total FROM orders o"
    " JOIN customers c ON c.id = o.customer GROUP BY c.region",
    "notes": "SELECT note, count(*) AS n FROM orders GROUP BY note",
}
ABOVE = {"big": "SELECT region, total FROM by_region WHERE n > 3"}
OTHERS = {
    "names": "SELECT name, region FROM customers",
    "regions": "SELECT region, count(*) AS n, max(id) AS last FROM customers GROUP BY region",
}
ALL = {**OF_ORDERS, **ABOVE, **OTHERS}
CHANGE_ORDERS = (
    "UPDATE orders SET amount = amount + 1 WHERE id % 7 = 2;"
    " DELETE FROM orders WHERE id % 50 = 9; INSERT INTO orders (id, customer, amount)"
    " SELECT 1 + coalesce(max(id), 0), 5, 3 FROM orders"
)
CHANGE_CUSTOMERS = (
    "UPDATE customers SET region = 'r' || (id + 1) % 5 WHERE id % 3 = 0;"
    " INSERT INTO customers (id, name, region) SELECT 1 + max(id), 'new', 'r9' FROM customers"
)


@pytest.fixture
def service(database: Database, tmp_path: Path) -> Iterator[RunningService]:
    database.execute(SHOP)
    with RunningService(database.dsn, tmp_path) as running:
        yield running


def create_all(service: RunningService, queries: dict[str, str]) -> None:
    for name, query in queries.items():
        service.create(name, query, backfill="local")


def check(service: RunningService, database: Database, queries: dict[str, str]) -> None:
    """The views are live, and equal at the position of the last commit."""
    position = flush_position(database)
    for name, query in queries.items():
        service.wait(name, position)
        assert service.await_status(name, "live", 1)["error"] is None
        assert_equal(database, name, query)


@contextmanager
def busy(database: Database, statement: str) -> Iterator[None]:
    """Somebody writes meanwhile."""
    is_over = threading.Event()

    def write() -> None:
        connection = database.connect()
        with connection.cursor() as cursor:
            while not is_over.wait(0.01):
                cursor.execute(statement)
        connection.close()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def rows_of(database: Database, names: Sequence[str]) -> dict[str, list]:
    return {name: sorted(map(repr, database.rows(f"TABLE {name}"))) for name in names}


def assert_only_these_fail(
    service: RunningService, database: Database, ddl: str, code: str, failing: Sequence[str]
) -> None:
    """After `ddl` some views on orders fail with their last rows, the others go on under load."""
    create_all(service, ALL)
    database.execute(CHANGE_ORDERS)
    check(service, database, ALL)
    others = {name: query for name, query in ALL.items() if name not in failing}
    after = CHANGE_ORDERS if others.keys() & OF_ORDERS.keys() else ""
    last = rows_of(database, failing)
    with busy(database, "UPDATE customers SET name = name || 'x' WHERE id = 7"):
        database.execute(ddl)
        if after:
            database.execute(after)
        for name in failing:
            error = service.await_status(name, "failed", 40)["error"]
            assert error["code"] == code
            assert "orders" in error["title"] and error["hint"]
        database.execute(CHANGE_CUSTOMERS)
    check(service, database, others)
    assert rows_of(database, failing) == last
    published = database.rows("SELECT tablename FROM pg_publication_tables ORDER BY 1")
    assert published == [("customers",), *([("orders",)] if after else [])]
    # And it stays so after a restart.
    assert service.kill_child("pipeline")
    database.execute(CHANGE_CUSTOMERS + "; " + after)
    check(service, database, others)
    for name in failing:
        assert service.await_status(name, "failed", 5)["error"]["code"] == code
    assert rows_of(database, failing) == last


def assert_comes_back(service: RunningService, database: Database, queries: dict[str, str]) -> None:
    """Failed views are dropped and created again."""
    for name in ("big", "notes", "by_region"):
        if name in queries:
            service.drop(name)
            assert database.rows("SELECT to_regclass(%s)", (name,)) == [(None,)]
    create_all(service, queries)
    for change in (CHANGE_ORDERS, CHANGE_CUSTOMERS):
        database.execute(change)
        check(service, database, {**queries, **OTHERS})


@pytest.mark.whole
def test_a_used_column_is_dropped(service: RunningService, database: Database) -> None:
    ddl = "ALTER TABLE orders DROP COLUMN note"
    assert_only_these_fail(service, database, ddl, "source.column_dropped", ["notes"])
    database.execute("ALTER TABLE orders ADD COLUMN note text DEFAULT 'n'")
    assert_comes_back(service, database, {"notes": OF_ORDERS["notes"]})


@pytest.mark.whole
def test_a_table_is_dropped(service: RunningService, database: Database) -> None:
    assert_only_these_fail(
        service, database, "DROP TABLE orders", "source.table_missing", [*OF_ORDERS, *ABOVE]
    )
    database.execute(SHOP[SHOP.index("CREATE TABLE orders") : SHOP.index("INSERT")])
    assert_comes_back(service, database, {**OF_ORDERS, **ABOVE})


@pytest.mark.whole
def test_a_table_is_made_again(service: RunningService, database: Database) -> None:
    """The old ones fail, also where a new one on the new table is the first to be noticed."""
    create_all(service, {**OTHERS, "notes": OF_ORDERS["notes"]})
    made = SHOP[SHOP.index("CREATE TABLE orders") : SHOP.index("INSERT")]
    database.execute(f"DROP TABLE orders; {made}")
    service.create("by_region", OF_ORDERS["by_region"], backfill="local")
    assert service.await_status("notes", "failed", 5)["error"]["code"] == "source.table_missing"
    database.execute("INSERT INTO orders (id, customer, amount) VALUES (1, 5, 3)")
    database.execute(CHANGE_ORDERS)
    check(service, database, {**OTHERS, "by_region": OF_ORDERS["by_region"]})


@pytest.mark.whole
def test_a_table_is_unpublished(service: RunningService, database: Database) -> None:
    create_all(service, ALL)
    ((publication,),) = database.rows("SELECT pubname FROM pg_publication")
    database.execute(f"ALTER PUBLICATION {publication} DROP TABLE orders")
    for name in (*OF_ORDERS, *ABOVE):
        assert service.await_status(name, "failed", 40)["error"]["code"] == "source.not_published"
    database.execute(CHANGE_CUSTOMERS)
    check(service, database, OTHERS)
    assert_comes_back(service, database, {**OF_ORDERS, **ABOVE})


@pytest.mark.whole
def test_unused_columns_come_and_go(service: RunningService, database: Database) -> None:
    create_all(service, ALL)
    for ddl in (
        "ALTER TABLE orders DROP COLUMN spare",
        "ALTER TABLE customers ADD COLUMN born date DEFAULT '2000-01-01', DROP COLUMN spare",
        "ALTER TABLE orders ADD COLUMN kind text DEFAULT 'k', ADD COLUMN weight real",
        "ALTER TABLE orders ALTER COLUMN weight TYPE numeric",
    ):
        database.execute(ddl)
        database.execute(CHANGE_ORDERS)
        database.execute(CHANGE_CUSTOMERS)
        check(service, database, ALL)
    # Views that were planned before and after see the same changes.
    later = {
        "kinds": "SELECT kind, born, count(*) AS n FROM orders o"
        " JOIN customers c ON c.id = o.customer GROUP BY kind, born"
    }
    with busy(database, CHANGE_ORDERS):
        database.execute("ALTER TABLE orders ADD COLUMN extra int")
        create_all(service, later)
        later["extra"] = "SELECT id, extra, note FROM orders WHERE id % 2 = 0"
        create_all(service, {"extra": later["extra"]})
    for change in (CHANGE_ORDERS, CHANGE_CUSTOMERS, "UPDATE orders SET extra = id, kind = 'z'"):
        database.execute(change)
        check(service, database, {**ALL, **later})
    assert service.kill_child("pipeline")
    database.execute("ALTER TABLE orders ADD COLUMN one_more int")
    database.execute(CHANGE_ORDERS)
    check(service, database, {**ALL, **later})


@pytest.mark.whole
def test_the_last_view_fails(service: RunningService, database: Database) -> None:
    """The slot is still being confirmed, and goes with the view."""
    service.create("notes", OF_ORDERS["notes"], backfill="local")
    database.execute("ALTER TABLE orders DROP COLUMN note; " + CHANGE_ORDERS)
    assert service.await_status("notes", "failed")["error"]["code"] == "source.column_dropped"
    flushed = flush_position(database)
    behind = "SELECT count(*) FROM pg_replication_slots WHERE confirmed_flush_lsn < %s::pg_lsn"
    behind += " AND database = current_database()"
    for _ in range(100):
        if database.rows(behind, (flushed,)) == [(0,)]:
            break
        threading.Event().wait(0.1)
    assert database.rows(behind, (flushed,)) == [(0,)]
    service.drop("notes")
    slots = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
    # The catalog forgets the view first.
    for _ in range(100):
        if database.rows(slots) == [(0,)]:
            break
        threading.Event().wait(0.1)
    assert database.rows(slots) == [(0,)]
    create_all(service, OTHERS)
    database.execute(CHANGE_CUSTOMERS)
    check(service, database, OTHERS)
