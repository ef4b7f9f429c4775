"""Oracle: PostgreSQL's answer over a table that has what the servers have sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.connectors.stream.servers import WebSocketServer
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
    database.execute("CREATE TABLE sent (id bigint, customer integer, price numeric(10,2))")
    return database


def declare(service: RunningService, url: str, **relation: Any) -> None:
    options = {"url": url, "relations": {"orders": {"columns": COLUMNS, **relation}}}
    made = {"name": "live", "type": "stream", "options": options}
    answer = service.call("POST", "/sources", made)
    assert answer.status_code == 201, answer.text


def row(shop: Database, number: int, customer: int) -> dict[str, Any]:
    """A row of the server's, and of the table."""
    shop.execute("INSERT INTO sent VALUES (%s, %s, %s)", [number, customer, number % 50])
    return {"id": number, "customer": customer, "price": number % 50}


def require_equal(shop: Database, service: RunningService, view: str, table: str) -> None:
    query = f"{SPENT.format(table)} ORDER BY 1"
    service.await_so(lambda: shop.rows(f"SELECT * FROM {view} ORDER BY 1") == shop.rows(query))


@pytest.mark.whole
def test_what_a_websocket_has_sent_outlives_a_kill(shop: Database, tmp_path: Path) -> None:
    """What it sends while nobody listens is gone, and that shows."""
    with WebSocketServer().running() as server, RunningService(shop.dsn, tmp_path) as service:
        declare(service, server.url, key=["id"])
        service.create("spent", SPENT.format("live.orders"))
        server.await_connected()
        for number in range(1, 30):
            server.send(row(shop, number, number % 9 + 1))
        require_equal(shop, service, "spent", "sent")
        service.kill()
        service.start()
        server.await_connected()
        server.send(row(shop, 30, 4))
        server.send({"id": 1, "customer": 5, "price": 7})
        shop.execute("UPDATE sent SET customer = 5, price = 7 WHERE id = 1")
        require_equal(shop, service, "spent", "sent")
        found = service.call("GET", "/sources/live").json()["positions"]["orders"]
        assert (found["gaps"], found["connection"]) == (1, 2), found
        service.await_so(lambda: any(e.get("event") == "source.gap" for e in service.events()))
