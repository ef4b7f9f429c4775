"""Oracle: PostgreSQL's answer over a table that has what the HTTP server has."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from tests.connectors.http.server import Reply, Server
from tests.harness.postgres import Database
from tests.harness.service import RunningService

SPENT = """SELECT c.region, count(*) AS n, sum(p.price) AS spent
FROM {} p JOIN customers c ON c.id = p.customer GROUP BY c.region"""
COLUMNS = [
    {"name": "id", "type": "bigint"},
    {"name": "customer", "type": "integer"},
    {"name": "price", "type": "numeric(10,2)"},
]


@pytest.fixture
def shop(database: Database) -> Database:
    database.execute("CREATE TABLE customers (id integer PRIMARY KEY, region text NOT NULL)")
    database.execute("INSERT INTO customers SELECT n, 'r' || n % 3 FROM generate_series(1, 9) n")
    database.execute("CREATE TABLE theirs (id bigint, customer integer, price numeric(10,2))")
    return database


@pytest.mark.whole
def test_a_service_of_orders_joined_with_a_table(shop: Database, tmp_path: Any) -> None:
    """Rows come, change and go, at the server and in the table."""
    pick, rows = random.Random(3), {n: (n % 9 + 1, n) for n in range(100)}

    def listed() -> list[dict[str, Any]]:
        return [{"id": n, "customer": c, "price": p} for n, (c, p) in dict(rows).items()]

    with Server().running() as server:
        server.answer = lambda _: Reply({"orders": listed()})
        relation = {"rows": "$.orders", "key": ["id"], "columns": COLUMNS}
        options = {
            "url": server.url,
            "poll_interval_ms": 50,
            "relations": {"orders": {"path": "/v1/orders", **relation}},
        }
        with RunningService(shop.dsn, tmp_path) as service:
            made = {"name": "api", "type": "http", "options": options}
            answer = service.call("POST", "/sources", made)
            assert answer.status_code == 201, answer.text
            service.create("spent", SPENT.format("api.orders"))
            for number in range(1, 3):
                require_equal(shop, rows, service)
                for _ in range(10):
                    rows[pick.randrange(150)] = (pick.randrange(1, 12), pick.randrange(50))
                    rows.pop(pick.choice(list(rows)))
                    time.sleep(pick.random() / 20)
                shop.execute(f"UPDATE customers SET region = 'n{number}' WHERE id = {number}")
            require_equal(shop, rows, service)
            # A server that is away changes nothing, and says so.
            server.answer = lambda _: Reply({}, 503)
            service.await_so(
                lambda: service.call("GET", "/sources/api").json()["status"] == "retrying"
            )
            found = service.call("GET", "/sources/api").json()["error"]
            assert found["code"] == "http.unavailable"
            require_equal(shop, rows, service)


def require_equal(shop: Database, rows: dict[int, Any], service: RunningService) -> None:
    """The view becomes what the query says of the server's rows."""
    shop.execute("TRUNCATE theirs")
    for number, (customer, price) in rows.items():
        shop.execute("INSERT INTO theirs VALUES (%s, %s, %s)", [number, customer, price])
    query = f"{SPENT.format('theirs')} ORDER BY 1"
    deadline = time.monotonic() + 60
    while (found := shop.rows("SELECT * FROM spent ORDER BY 1")) != (wanted := shop.rows(query)):
        assert time.monotonic() < deadline, f"{found}\n{wanted}\n{service.log_tail()}"
        time.sleep(0.05)
