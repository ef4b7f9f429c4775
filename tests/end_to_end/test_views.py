"""Oracle: PostgreSQL's own answer to each view's query, asked when the view has reached the
position of the last commit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from tests.harness.postgres import Database, new_database
from tests.harness.service import RunningService
from tests.harness.verdicts import WrongStateError, judged, require_same_rows

SHOP = """
CREATE TABLE customers (id int PRIMARY KEY, name text NOT NULL, region text NOT NULL);
CREATE TABLE orders (
    id int PRIMARY KEY, customer_id int NOT NULL, amount numeric(12,2), note text);
INSERT INTO customers SELECT i, 'c' || i, 'r' || i % 5 FROM generate_series(1, 200) i;
INSERT INTO orders SELECT i, 1 + i % 220, i / 7.0, nullif('n' || i % 9, 'n3')
FROM generate_series(1, 3000) i;
"""

QUERIES = {
    "by_region": """SELECT c.region, count(*) AS n, sum(o.amount) AS total, avg(o.amount) AS mean
        FROM orders o JOIN customers c ON c.id = o.customer_id GROUP BY c.region""",
    "names_and_notes": """SELECT c.name, o.note FROM customers c
        LEFT JOIN orders o ON o.customer_id = c.id AND o.amount > 300""",
    "no_orders": """SELECT id, name FROM customers c
        WHERE NOT EXISTS (SELECT 1 FROM orders o WHERE o.customer_id = c.id)""",
    "patterned": "SELECT id, regexp_replace(note, 'n(.)', '<\\1>') AS marked FROM orders",
}

CHANGES = [
    "INSERT INTO orders VALUES (9001, 1, 12.34, 'x'), (9002, 500, 1, NULL)",
    "UPDATE orders SET amount = amount * 2 WHERE id % 10 = 3",
    "UPDATE customers SET region = 'moved' WHERE id < 20",
    "DELETE FROM orders WHERE customer_id = 7",
    "UPDATE orders SET id = id + 100000 WHERE id % 50 = 1",
    "INSERT INTO customers VALUES (500, 'late', 'r1'); DELETE FROM customers WHERE id = 3",
    "BEGIN; DELETE FROM orders; ROLLBACK",
    "TRUNCATE orders",
    "INSERT INTO orders SELECT i, i % 9, i, 'again' FROM generate_series(1, 500) i",
]


@pytest.fixture(scope="module")
def place(postgres: EmbeddedPostgres) -> Iterator[Database]:
    with new_database(postgres) as made:
        yield made


@pytest.fixture(scope="module")
def running(place: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with RunningService(place.dsn, tmp_path_factory.mktemp("views")) as started:
        yield started


@pytest.fixture
def shop(place: Database) -> Database:
    """The module's database, with the tables of before."""
    place.execute("DROP TABLE IF EXISTS customers, orders, unrelated")
    place.execute(SHOP)
    return place


@pytest.fixture
def service(shop: Database, running: RunningService) -> Iterator[RunningService]:
    """The module's service, with no view."""
    yield running
    running.clear()


def flush_position(database: Database) -> str:
    return database.rows("SELECT pg_current_wal_flush_lsn()::text")[0][0]


def assert_equal(database: Database, name: str, query: str, sink: Database | None = None) -> None:
    """The view has the query's rows, and the same column names and types."""
    if sink is None:
        require_same_rows(database, name, query)
    else:
        wanted = sorted(map(repr, database.rows(query)))
        with judged(WrongStateError):
            assert sorted(map(repr, sink.rows(f"TABLE {name}"))) == wanted, name


def test_views_follow_their_source(service: RunningService, shop: Database) -> None:
    for name, query in QUERIES.items():
        view = service.create(name, query, backfill="local")
        assert view["error"] is None if "error" in view else True
        assert_equal(shop, name, query)
    for change in CHANGES:
        shop.execute(change)
        position = flush_position(shop)
        for name, query in QUERIES.items():
            service.wait(name, position)
            assert_equal(shop, name, query)
    listed = service.call("GET", "/views").json()["views"]
    assert [v["name"] for v in listed] == sorted(QUERIES)
    kinds = {v["name"]: v["kind"] for v in listed}
    assert kinds["by_region"] == "keyed"
    assert kinds["names_and_notes"] == "multiset"


def test_drop_leaves_nothing(service: RunningService, shop: Database) -> None:
    service.create("by_region", QUERIES["by_region"], backfill="local")
    service.create("names_and_notes", QUERIES["names_and_notes"], backfill="local")
    assert shop.rows(
        "SELECT count(*) FROM pg_replication_slots WHERE NOT temporary"
        " AND database = current_database()"
    ) == [(1,)]
    service.drop("by_region")
    assert shop.rows("SELECT to_regclass('public.by_region')") == [(None,)]
    service.drop("names_and_notes")
    left = "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace ORDER BY 1"
    wanted = [("customers",), ("customers_pkey",), ("orders",), ("orders_pkey",)]
    assert shop.rows(left) == wanted
    assert shop.rows("SELECT count(*) FROM tidemark.views") == [(0,)]
    assert shop.rows("SELECT count(*) FROM tidemark.errors") == [(0,)]
    assert shop.rows("SELECT count(*) FROM pg_publication") == [(0,)]
    slots = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
    assert shop.rows(slots) == [(0,)]
    # And the same again on what is left.
    service.create("by_region", QUERIES["by_region"], backfill="local")
    assert_equal(shop, "by_region", QUERIES["by_region"])


@pytest.mark.whole
def test_views_on_views(service: RunningService, shop: Database) -> None:
    service.create("by_region", QUERIES["by_region"], backfill="local")
    service.create("bag", QUERIES["names_and_notes"], backfill="local")
    above = {
        "big_regions": "SELECT region, n FROM by_region WHERE n > 500",
        "notes": "SELECT note, count(*) AS n FROM bag GROUP BY note",
        "mixed": "SELECT c.id, r.total FROM customers c JOIN by_region r ON r.region = c.region",
    }
    for name, query in above.items():
        service.create(name, query, backfill="local")
        assert_equal(shop, name, query)
    for change in CHANGES:
        shop.execute(change)
        position = flush_position(shop)
        for name, query in above.items():
            service.wait(name, position)
            assert_equal(shop, name, query)
    answer = service.call("DELETE", "/views/by_region")
    assert answer.status_code == 409
    assert answer.json()["code"] == "view.has_children"
    for name in above:
        service.drop(name)
    service.drop("by_region")


def test_failing_rows_are_reported_and_come_back(service: RunningService, shop: Database) -> None:
    query = "SELECT id, 100 / (amount - 3) AS ratio FROM orders WHERE id < 20"
    service.create("ratio", query, backfill="local")
    shop.execute("UPDATE orders SET amount = 3 WHERE id IN (5, 6)")
    service.wait("ratio", flush_position(shop))
    errors = "SELECT view, sqlstate, message, count(*) FROM tidemark.errors GROUP BY 1, 2, 3"
    assert shop.rows(errors) == [("public.ratio", "22012", "division by zero", 2)]
    assert service.call("GET", "/views/ratio").json()["errors"] == 2
    healthy = f"{query} AND amount <> 3"
    assert_equal(shop, "ratio", healthy)
    shop.execute("UPDATE orders SET amount = 4 WHERE id = 5; DELETE FROM orders WHERE id = 6")
    service.wait("ratio", flush_position(shop))
    assert shop.rows("SELECT count(*) FROM tidemark.errors") == [(0,)]
    assert_equal(shop, "ratio", query)


@pytest.mark.whole
def test_two_databases(database: Database, every_database: Database, tmp_path: Path) -> None:
    database.execute(SHOP)
    with RunningService(database.dsn, tmp_path, sink=every_database.dsn) as service:
        for name, query in QUERIES.items():
            service.create(name, query, backfill="local")
        service.create("above", "SELECT region FROM by_region WHERE n > 10", backfill="local")
        for change in CHANGES:
            database.execute(change)
            position = flush_position(database)
            for name, query in QUERIES.items():
                service.wait(name, position)
                assert_equal(database, name, query, every_database)
        regions = every_database.rows("SELECT region FROM above ORDER BY 1")
        wanted = "SELECT region FROM by_region WHERE n > 10 ORDER BY 1"
        assert regions == every_database.rows(wanted)


def test_position_moves_on_an_idle_source(service: RunningService, shop: Database) -> None:
    service.create("by_region", QUERIES["by_region"], backfill="local")
    shop.execute("CREATE TABLE unrelated (a int); INSERT INTO unrelated VALUES (1)")
    service.wait("by_region", flush_position(shop), timeout_s=10)
    answer = service.call("GET", "/views/by_region/wait?position=FFFF/0&timeout_s=0.2")
    assert answer.status_code == 504
    assert answer.json()["code"] == "view.wait_timeout"
    answer = service.call("GET", "/views/by_region/wait?position=nonsense")
    assert answer.status_code == 400


@pytest.mark.whole
def test_restart_continues(service: RunningService, shop: Database) -> None:
    for name, query in QUERIES.items():
        service.create(name, query, backfill="local")
    assert service.stop() == 0
    shop.execute(CHANGES[1])
    shop.execute(CHANGES[3])
    service.start()
    position = flush_position(shop)
    for name, query in QUERIES.items():
        service.wait(name, position)
        assert_equal(shop, name, query)
