"""Oracle: PostgreSQL's answer to each view's query, which `verify` and a plain read compare with.

The tables have REPLICA IDENTITY FULL and are joined, so the service stores no rows of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from tests.harness.postgres import Database, new_database
from tests.harness.service import RunningService

TABLES = """
CREATE TABLE customers (id int PRIMARY KEY, region text NOT NULL);
CREATE TABLE orders (id int PRIMARY KEY, customer int, amount int NOT NULL, note text);
ALTER TABLE customers REPLICA IDENTITY FULL;
ALTER TABLE orders REPLICA IDENTITY FULL;
INSERT INTO customers SELECT i, 'r' || i % 5 FROM generate_series(1, 40) i;
INSERT INTO orders SELECT i, nullif(i % 50, 0), i, 'n' || i FROM generate_series(1, 20000) i;
"""
JOINS = {
    "amounts": "SELECT c.region, count(*) AS n, sum(o.amount) AS total FROM orders o"
    " JOIN customers c ON c.id = o.customer WHERE o.note <> 'none' GROUP BY c.region",
    "shown": "SELECT c.id, c.region, o.id AS order_id, o.amount FROM customers c"
    " LEFT JOIN orders o ON o.customer = c.id AND o.amount > 19000",
    "unknown": "SELECT c.id FROM customers c WHERE NOT EXISTS"
    " (SELECT FROM orders o WHERE o.customer = c.id)",
}
WITH_ROWS = {"copies": "SELECT id, customer FROM orders"}
ORDERS = "INSERT INTO orders SELECT i, i % 50, i, 'm' FROM generate_series({}, {}) i"
CUSTOMERS = "INSERT INTO customers SELECT i, 's' || i % 3 FROM generate_series(30, 60) i"
# Each is one transaction.
CHANGES = (
    "TRUNCATE orders",
    ORDERS.format(1, 300),
    f"{ORDERS.format(400, 500)}; TRUNCATE orders; {ORDERS.format(600, 900)}",
    "UPDATE orders SET id = id + 10000, customer = customer + 1 WHERE id % 3 = 0",
    "UPDATE orders SET amount = amount WHERE id % 2 = 0",
    f"TRUNCATE orders, customers; {CUSTOMERS}; {ORDERS.format(20, 80)};"
    " UPDATE customers SET id = -id",
    "UPDATE customers SET id = -id, region = region || 'x' WHERE id < -40",
    f"TRUNCATE customers; {CUSTOMERS}; TRUNCATE customers, orders; {ORDERS.format(1, 50)}",
    f"TRUNCATE customers; {CUSTOMERS}",
    "DELETE FROM orders WHERE customer = 40",
)


@pytest.fixture
def database(postgres: EmbeddedPostgres) -> Iterator[Database]:
    with new_database(postgres) as made:
        made.execute(TABLES)
        yield made


def _check(service: RunningService, database: Database, queries: dict[str, str]) -> None:
    position = database.rows("SELECT pg_current_wal_flush_lsn()::text")[0][0]
    for name, query in queries.items():
        service.await_status(name)
        service.wait(name, position)
        assert Counter(database.rows(f"SELECT * FROM {name}")) == Counter(database.rows(query))
        found = service.call("POST", f"/views/{name}/verify").json()
        assert found.get("result") == "equal", found


def _stores_rows(service: RunningService, name: str) -> bool:
    """Whether rows of a table that a view reads are stored as such."""
    nodes = service.call("GET", f"/views/{name}/dataflow").json()["nodes"]
    return any(n["what"] == "table" and n["detail"].startswith("rows of") for n in nodes)


def _await_rows(service: RunningService, *names: str, are_stored: bool) -> None:
    """The figures are a second old."""
    service.await_so(lambda: all(_stores_rows(service, n) == are_stored for n in names))


def test_truncated_tables_whose_rows_are_not_stored(database: Database, tmp_path) -> None:
    with RunningService(database.dsn, tmp_path) as service:
        for name, query in JOINS.items():
            service.create(name, query)
        _await_rows(service, *JOINS, are_stored=False)
        for number, change in enumerate(CHANGES):
            database.execute(change)
            if number == 4:
                service.kill()
                service.start()
            if number % 2:
                _check(service, database, JOINS)
        # A view that needs the rows comes and goes.
        service.create("copies", WITH_ROWS["copies"])
        for change in CHANGES[:5]:
            database.execute(change)
        _check(service, database, JOINS | WITH_ROWS)
        _await_rows(service, "copies", are_stored=True)
        service.drop("copies")
        # Killed between a truncation and what it makes.
        database.execute(ORDERS.format(20_000, 40_000))
        database.execute("TRUNCATE orders")
        service.kill()
        database.execute(f"{ORDERS.format(1000, 1100)}; TRUNCATE customers; {CUSTOMERS}")
        service.start()
        _check(service, database, JOINS)


@pytest.mark.whole
def test_the_replica_identity_of_a_truncated_table_changes(database: Database, tmp_path) -> None:
    with RunningService(database.dsn, tmp_path) as service:
        for name, query in JOINS.items():
            service.create(name, query)
        database.execute(CHANGES[0])
        # Rows now come by key: the views are built again, and find them by their own.
        database.execute("ALTER TABLE orders REPLICA IDENTITY DEFAULT")
        for change in CHANGES[1:5]:
            database.execute(change)
        _check(service, database, JOINS)
        _await_rows(service, "amounts", are_stored=True)
        database.execute("ALTER TABLE orders REPLICA IDENTITY FULL")
        for change in CHANGES[5:]:
            database.execute(change)
        _check(service, database, JOINS)
        _await_rows(service, "amounts", are_stored=True)
        for name in JOINS:
            service.call("POST", f"/views/{name}/rebuild")
            service.await_so(lambda name=name: _is_free(service, name))
        _await_rows(service, *JOINS, are_stored=False)
        for change in CHANGES:
            database.execute(change)
        _check(service, database, JOINS)


def _is_free(service: RunningService, name: str) -> bool:
    found = service.call("GET", f"/views/{name}").json()
    replacing = found.get("replacing") or {}
    return found["status"] == "live" and replacing.get("status") != "in progress"
