"""Oracle: PostgreSQL's answer over tables that have what the five sources have."""

from __future__ import annotations

import csv
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

from examples import five_sources
from tests.connectors.http.server import Reply, Server
from tests.connectors.mongodb.server import ferretdb
from tests.harness.mariadb import MariaDb
from tests.harness.postgres import Database
from tests.harness.service import RunningService

ROOT = Path(__file__).parents[2]
TABLES = """
CREATE TABLE customers (id integer PRIMARY KEY, name text NOT NULL);
INSERT INTO customers SELECT n, 'c' || n FROM generate_series(1, 9) n;
CREATE TABLE orders (id integer, customer integer, product integer, quantity integer);
CREATE TABLE products (id integer, supplier integer, price numeric(10,2));
CREATE TABLE suppliers (id integer, name text);
CREATE TABLE reviews (customer integer, product integer, stars integer);
"""


class Shop:
    """The rows of the sources, written to each in its own way, and to tables of the database."""

    def __init__(self, database: Database, mariadb: MariaDb, mongodb: Any, folder: Path) -> None:
        self._database, self._mariadb, self._folder = database, mariadb, folder
        self._reviews = mongodb[mariadb.name].reviews
        self._pick = random.Random(5)
        self.orders = {n: (n % 9 + 1, n % 5, n % 3 + 1) for n in range(40)}
        self.products = {n: (n % 3, f"{n}.25") for n in range(5)}
        self.suppliers = {n: f"s{n}" for n in range(3)}
        self.reviews = {(n % 9 + 1, n % 5): n % 6 for n in range(12)}
        mariadb.execute(
            "CREATE TABLE orders (id int PRIMARY KEY, customer int, product int, quantity int)"
        )
        self._written: dict[int, Any] = {}
        self.write()

    def change(self) -> None:
        """Something happens in each source."""
        pick = self._pick
        self.orders[pick.randrange(60)] = (pick.randrange(1, 11), pick.randrange(6), 2)
        del self.orders[pick.choice(list(self.orders))]
        self.products[pick.randrange(6)] = (pick.randrange(4), f"{pick.randrange(99)}.50")
        self.suppliers[pick.randrange(4)] = f"t{pick.randrange(9)}"
        self.reviews[pick.randrange(1, 10), pick.randrange(5)] = pick.randrange(6)
        self._database.execute(
            f"UPDATE customers SET name = 'd{pick.randrange(9)}' WHERE id = {pick.randrange(1, 10)}"
        )
        self.write()

    def write(self) -> None:
        """Bring every source, and the tables, to these rows."""
        with self._mariadb.transaction():
            for number in self._written.keys() - self.orders.keys():
                self._mariadb.execute(f"DELETE FROM orders WHERE id = {number}")
            for number, order in self.orders.items():
                if self._written.get(number) != order:
                    values = ", ".join(map(str, (number, *order)))
                    self._mariadb.execute(f"REPLACE INTO orders VALUES ({values})")
        self._written = dict(self.orders)
        for (customer, product), stars in self.reviews.items():
            found = {"customer": customer, "product": product, "rating": {"stars": stars}}
            self._reviews.replace_one({"_id": f"{customer}-{product}"}, found, upsert=True)
        part = self._folder / "all.part"
        with part.open("w", newline="") as file:
            csv.writer(file).writerows([("id", "name"), *self.suppliers.items()])
        part.rename(self._folder / "all.csv")
        self._fill("orders", [(n, *row) for n, row in self.orders.items()])
        self._fill("products", [(n, *row) for n, row in self.products.items()])
        self._fill("suppliers", list(self.suppliers.items()))
        self._fill("reviews", [(*key, stars) for key, stars in self.reviews.items()])

    def _fill(self, table: str, rows: list[tuple[Any, ...]]) -> None:
        self._database.execute(f"TRUNCATE {table}")
        for row in rows:
            places = ", ".join(["%s"] * len(row))
            self._database.execute(f"INSERT INTO {table} VALUES ({places})", row)

    def answer(self) -> list[tuple[Any, ...]]:
        """What the view's query says of the rows."""
        query = five_sources.QUERY
        for source in ("orders_db", "prices", "files", "reviews_db"):
            query = query.replace(f"{source}.", "")
        return self._database.rows(f"SELECT * FROM ({query}) q ORDER BY 1, 2, 3")


@pytest.mark.whole
def test_five_sources_in_one_select(database: Database, mariadb: MariaDb, tmp_path: Path) -> None:
    """The example runs as it is, and its view follows every source, over a kill."""
    database.execute(TABLES)
    folder = tmp_path / "suppliers"
    folder.mkdir()
    with (
        Server().running() as rest,
        ferretdb(tmp_path / "ferretdb") as port,
        MongoClient("127.0.0.1", port) as mongodb,
        RunningService(database.dsn, tmp_path / "service", allow_folders=folder) as service,
    ):
        shop = Shop(database, mariadb, mongodb, folder)
        rest.answer = lambda _: Reply(
            {"items": [{"id": n, "supplier": s, "price": p} for n, (s, p) in shop.products.items()]}
        )
        arguments = {
            "mysql": f"127.0.0.1:{mariadb.server.port}",
            "user": "root",
            "database": mariadb.name,
            "mongodb": f"127.0.0.1:{port}",
            "rest": rest.url,
            "folder": str(folder),
            "url": service.url,
        }
        words = [word for name, value in arguments.items() for word in (f"--{name}", value)]
        program = [sys.executable, str(ROOT / "examples" / "five_sources.py"), *words]
        printed = subprocess.run(program, capture_output=True, text=True, check=False)
        assert printed.returncode == 0, printed.stderr
        assert len(printed.stdout.splitlines()) == len(shop.answer()) > 10
        for number in range(6):
            shop.change()
            if number == 3:
                service.kill()
                service.start()
            deadline = time.monotonic() + 60
            while (found := database.rows("SELECT * FROM spent ORDER BY 1, 2, 3")) != shop.answer():
                assert time.monotonic() < deadline, f"{found}\n{shop.answer()}"
                time.sleep(0.05)
