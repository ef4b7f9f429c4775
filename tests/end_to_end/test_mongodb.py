"""Oracle: PostgreSQL's answer over a table that has the documents of the server."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from tests.connectors.mongodb.replica_set import ReplicaSet
from tests.harness.postgres import Database
from tests.harness.service import RunningService

SPENT = """SELECT c.region, count(*) AS n, sum(p.price) AS spent
FROM {} p JOIN customers c ON c.id = p.customer GROUP BY c.region"""
COLUMNS = [
    {"name": "_id", "type": "bigint"},
    {"name": "customer", "type": "integer"},
    {"name": "price", "type": "numeric(10,2)"},
]


@pytest.mark.whole
def test_a_change_stream_that_the_server_ends(database: Database, tmp_path: Path) -> None:
    """The server has forgotten what comes next, while the service was down; then a drop."""
    pick, documents = random.Random(7), dict[int, tuple[int, int]]()
    database.execute("CREATE TABLE customers (id integer PRIMARY KEY, region text NOT NULL)")
    database.execute("INSERT INTO customers SELECT n, 'r' || n % 3 FROM generate_series(1, 9) n")
    database.execute("CREATE TABLE theirs (id bigint, customer integer, price numeric(10,2))")
    with ReplicaSet().running() as server, RunningService(database.dsn, tmp_path) as service:

        def change() -> None:
            number = pick.randrange(40)
            if number in documents and pick.random() < 0.3:
                del documents[number]
                server.remove("orders", number)
                return
            customer, price = documents[number] = (pick.randrange(1, 12), pick.randrange(50))
            server.put("orders", {"_id": number, "customer": customer, "price": price})

        def require_equal() -> None:
            database.execute("TRUNCATE theirs")
            for number, (customer, price) in documents.items():
                row = [number, customer, price]
                database.execute("INSERT INTO theirs VALUES (%s, %s, %s)", row)
            query = f"{SPENT.format('theirs')} ORDER BY 1"
            deadline = time.monotonic() + 60
            while database.rows("SELECT * FROM spent ORDER BY 1") != database.rows(query):
                assert time.monotonic() < deadline, service.log_tail()
                time.sleep(0.05)

        for _ in range(30):
            change()
        options = {
            "servers": [f"127.0.0.1:{server.port}"],
            "database": "shop",
            "changes": "stream",
            "relations": {"orders": {"columns": COLUMNS}},
        }
        made = {"name": "crm", "type": "mongodb", "options": options}
        answer = service.call("POST", "/sources", made)
        assert answer.status_code == 201, answer.text
        service.create("spent", SPENT.format("crm.orders"))
        require_equal()
        service.kill()
        for _ in range(20):
            change()
        server.forget_history()
        service.start()
        require_equal()
        documents.clear()
        server.drop("orders")
        change()
        require_equal()
