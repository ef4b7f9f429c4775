"""What the soak writes to its source, and the queries whose answers it changes.

Tables stay as large as they are, so that whatever grows is not theirs. While `held` nobody
writes, so PostgreSQL's answer is the answer at the position that was asked for then. Two names at
the source change under the views: queries are templates of them.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from psycopg2 import Error

from tests.harness.postgres import Database

ORDERS, EVENTS = 3_000, 1_500
TABLES = f"""
CREATE TABLE customers (id int PRIMARY KEY, region text NOT NULL, tier int NOT NULL);
CREATE TABLE orders (id int PRIMARY KEY, customer int NOT NULL, amount numeric(10,2) NOT NULL,
    note text);
CREATE TABLE events (id int PRIMARY KEY, kind text NOT NULL, body text);
INSERT INTO customers SELECT i, 'region ' || i % 7, i % 3 FROM generate_series(1, 200) i;
INSERT INTO orders SELECT i, i % 190 + 1, i % 1000 / 3.0, 'note ' || i % 40
    FROM generate_series(1, {ORDERS}) i;
INSERT INTO events SELECT i, 'kind ' || i % 9, NULL FROM generate_series(1, {EVENTS}) i;
"""
QUERIES = (
    "SELECT c.region, count(*) AS n, sum(o.amount) AS total FROM {orders} o"
    " JOIN customers c ON c.id = o.customer GROUP BY c.region",
    "SELECT id, customer, amount FROM {orders} WHERE amount > 200",
    "SELECT customer, max(amount) AS most, min(amount) AS least FROM {orders} GROUP BY customer",
    "SELECT {note} AS note, count(*) AS n FROM {orders} WHERE {note} IS NOT NULL GROUP BY {note}",
    "SELECT kind, count(*) AS n FROM events GROUP BY kind",
    "SELECT id, amount FROM {orders} ORDER BY amount DESC, id LIMIT 20",
    "SELECT c.id, o.id AS placed, {note} AS note FROM customers c"
    " LEFT JOIN {orders} o ON o.customer = c.id AND o.amount > 300",
    "SELECT id, row_number() OVER (PARTITION BY customer ORDER BY amount, id) AS nth FROM {orders}",
    "SELECT body, count(*) AS n FROM events WHERE body IS NOT NULL GROUP BY body",
    "SELECT id, region FROM customers WHERE id NOT IN (SELECT customer FROM {orders})",
    "SELECT tier, {note} AS note FROM customers JOIN {orders} o ON o.customer = customers.id",
)
NAMES = {"orders": ("orders", "purchases"), "note": ("note", "remark")}


@dataclass
class Names:
    """What the source's table and column are called now."""

    now: dict[str, str] = field(
        default_factory=lambda: {name: names[0] for name, names in NAMES.items()}
    )

    def query(self, number: int) -> str:
        """A query, by the names of now."""
        return f"{QUERIES[number].format(**self.now)} /* {number} */"


def number_of(query: str) -> int:
    """Which query a text is, by whatever names."""
    found = re.fullmatch(r".* /\* (\d+) \*/", query)
    assert found is not None, f"not a query of the soak: {query}"
    return int(found[1])


class Load:
    """Two writers, who bear it when the server goes away."""

    def __init__(self, database: Database, seed: int) -> None:
        self.names = Names()
        self.commits = 0
        self._database = database
        self._gate = threading.Lock()
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._run, args=(random.Random(seed + n),), daemon=True)
            for n in range(2)
        ]

    def start(self) -> None:
        """Write until `stop`."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End; raises what a writer did not expect."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        if self._failure is not None:
            raise self._failure

    @contextmanager
    def held(self) -> Iterator[None]:
        """Nobody writes meanwhile."""
        with self._gate:
            yield

    def change_table(self, pick: random.Random) -> None:
        """A statement of DDL, or a TRUNCATE."""
        name = pick.choice(("orders", "note", "column", "truncate"))
        with self.held():
            now = dict(self.names.now)
            if name in NAMES:
                now[name] = next(n for n in NAMES[name] if n != now[name])
            self._database.execute(self._ddl(name, now, pick))
            if name in NAMES:
                self.names.now = now

    def _ddl(self, name: str, now: dict[str, str], pick: random.Random) -> str:
        orders = self.names.now["orders"]
        if name == "orders":
            return f"ALTER TABLE {orders} RENAME TO {now['orders']}"
        if name == "note":
            return f"ALTER TABLE {orders} RENAME COLUMN {self.names.now['note']} TO {now['note']}"
        if name == "column":
            table = pick.choice((orders, "events", "customers"))
            return (
                f"ALTER TABLE {table} DROP COLUMN IF EXISTS spare;"
                f"ALTER TABLE {table} ADD COLUMN spare int DEFAULT {pick.randint(1, 9)}"
            )
        return "TRUNCATE events"

    def _run(self, pick: random.Random) -> None:
        connection = None
        try:
            while not self._stopping.is_set():
                try:
                    with self.held():
                        connection = connection or self._database.connect()
                        with connection.cursor() as cursor:
                            cursor.execute(_transaction(pick, self.names.now))
                    self.commits += 1
                except Error:
                    connection = None
                    time.sleep(0.2)
                time.sleep(pick.choice((0.001, 0.01, 0.05)))
        except BaseException as error:
            self._failure = error


def _transaction(pick: random.Random, names: dict[str, str]) -> str:
    """Statements of one transaction."""
    orders, note = names["orders"], names["note"]
    first, many = pick.randint(1, ORDERS), pick.choice((1, 1, 3, 20, 400))
    few = f"id >= {first} AND id < {first + many}"
    some = pick.randint(0, 99_999)
    put = (
        f"INSERT INTO {orders} (id, customer, amount, {note})"
        f" SELECT i, (i + {some}) % 200 + 1, (i + {some}) % 1000 / 3.0, 'note ' || i % 40"
        f" FROM generate_series({first}, least({first + many - 1}, {ORDERS})) i"
        f" ON CONFLICT (id) DO UPDATE SET amount = excluded.amount, customer = excluded.customer"
    )
    wide = "".join(pick.choices("abcdefghij", k=pick.choice((5, 5, 4_000))))
    event = pick.randint(1, EVENTS)
    tell = (
        f"INSERT INTO events (id, kind, body) VALUES ({event}, 'kind {some % 9}', '{wide}')"
        " ON CONFLICT (id) DO UPDATE SET kind = excluded.kind, body = excluded.body"
    )
    move = (
        f"UPDATE customers SET tier = tier + 1, region = 'region {some % 7}'"
        f" WHERE id = {some % 200}"
    )
    drop = f"DELETE FROM {orders} WHERE {few}"
    return "; ".join(pick.sample((put, put, put, tell, tell, move, drop), pick.randint(1, 4)))
