"""The demo's shop: schema, views, and the traffic that changes it.

The traffic is one writer with transactions of inserts, updates and deletes; `hold` pauses it
between two transactions for a verification.
"""

from __future__ import annotations

import random
import threading
import time
from contextlib import contextmanager

from connectors.postgres.session.session import connect

SCHEMA = """
CREATE TABLE customers (
    id bigint PRIMARY KEY, name text NOT NULL, region text NOT NULL, segment text NOT NULL);
CREATE TABLE orders (
    id bigint PRIMARY KEY, customer_id bigint NOT NULL, status text NOT NULL,
    amount numeric(12,2) NOT NULL, placed_at timestamptz NOT NULL);
"""

# hashint8 spreads the numbers evenly and the same way on every run.
FILL_CUSTOMERS = """
INSERT INTO customers
SELECT i, 'Customer ' || i,
       (ARRAY['north','south','east','west','emea','apac','latam','anz'])
           [1 + abs(hashint8(i + 7)::bigint) %% 8],
       (ARRAY['consumer','corporate','smb','public','startup'])
           [1 + abs(hashint8(i * 31)::bigint) %% 5]
FROM generate_series(1, %s) AS i
"""

FILL_ORDERS = """
INSERT INTO orders
SELECT i, 1 + abs(hashint8(i)::bigint) %% %s,
       (ARRAY['new','paid','shipped','returned','cancelled'])
           [1 + abs(hashint8(i * 17)::bigint) %% 5],
       (1 + abs(hashint8(i * 13)::bigint) %% 100000) / 100.0,
       timestamptz '2026-01-01' + make_interval(mins => (i %% 400000)::int)
FROM generate_series(1, %s) AS i
"""

VIEWS = {
    "revenue_by_region": """
SELECT c.region, c.segment, count(*) AS orders, sum(o.amount) AS revenue, avg(o.amount) AS average
FROM orders o JOIN customers c ON c.id = o.customer_id
WHERE o.status <> 'cancelled'
GROUP BY c.region, c.segment""",
    "customer_totals": """
SELECT customer_id, count(*) AS orders, sum(amount) AS spent, max(placed_at) AS last_order
FROM orders
GROUP BY customer_id""",
    "large_open_orders": """
SELECT c.region, c.segment, o.status, round(o.amount, 0) AS about
FROM orders o JOIN customers c ON c.id = o.customer_id
WHERE o.amount > 950 AND o.status IN ('new', 'paid')""",
}

# The one that Spark builds.
ON_SPARK = "customer_totals"
STATUSES = ("new", "paid", "shipped", "returned", "cancelled")


class Shop:
    """The source database of the demo."""

    def __init__(self, dsn: str, customers: int, orders: int, seed: int = 42) -> None:
        self._dsn = dsn
        self._customers = customers
        self._next_order = orders + 1
        self._random = random.Random(seed)
        self._turn = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self.failure: Exception | None = None
        self.changes = 0
        self.transactions = 0

    def fill(self) -> None:
        """Create the tables and their first rows."""
        connection = connect(self._dsn, is_long=True, is_users=True)
        with connection, connection.cursor() as cursor:
            cursor.execute(SCHEMA)
            cursor.execute(FILL_CUSTOMERS, (self._customers,))
            cursor.execute(FILL_ORDERS, (self._customers, self._next_order - 1))
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute("VACUUM ANALYZE")
        connection.close()

    def start_traffic(self, transactions_per_s: float) -> None:
        """Run about this many transactions per second until `stop`."""
        self._thread = threading.Thread(
            target=self._write, args=(transactions_per_s,), name="shop-traffic", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """End the traffic."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    @contextmanager
    def hold(self):
        """Pause the traffic during this block; no transaction is open."""
        with self._turn:
            yield

    def _write(self, rate: float) -> None:
        connection = connect(self._dsn, is_users=True)
        try:
            due = time.monotonic()
            while not self._stopping.is_set():
                with self._turn, connection, connection.cursor() as cursor:
                    for _ in range(self._random.randint(1, 6)):
                        statement, values = self._change()
                        cursor.execute(statement, values)
                        self.changes += cursor.rowcount
                self.transactions += 1
                due = max(due + 1 / rate, time.monotonic() - 0.1)
                time.sleep(max(0.0, due - time.monotonic()))
        except Exception as error:
            self.failure = error
        finally:
            connection.close()

    def _change(self) -> tuple[str, tuple]:
        pick, chance = self._random, self._random.random()
        order = pick.randrange(1, self._next_order)
        if chance < 0.45:
            order, self._next_order = self._next_order, self._next_order + 1
            customer, cents = pick.randint(1, self._customers), pick.randint(100, 99_999)
            statement = "INSERT INTO orders VALUES (%s, %s, %s, %s / 100.0, now())"
            return statement, (order, customer, pick.choice(STATUSES), cents)
        if chance < 0.75:
            return "UPDATE orders SET status = %s WHERE id = %s", (pick.choice(STATUSES), order)
        if chance < 0.85:
            return "UPDATE orders SET amount = amount + 1 WHERE id = %s", (order,)
        if chance < 0.97:
            return "DELETE FROM orders WHERE id = %s", (order,)
        segment = pick.choice(("consumer", "corporate", "smb", "public", "startup"))
        statement = "UPDATE customers SET segment = %s WHERE id = %s"
        return statement, (segment, pick.randint(1, self._customers))
