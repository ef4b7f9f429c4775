"""A writer that never rests, and readers that know after which of its transactions a view is.

Every transaction changes the answer, so the rows of a view name the prefix that they show.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

from tests.harness.postgres import Database
from tests.harness.verdicts import WrongStateError

SCHEMA = """
CREATE TABLE customers (id integer PRIMARY KEY, region text NOT NULL);
CREATE TABLE orders (id integer PRIMARY KEY, customer integer NOT NULL, amount bigint NOT NULL);
INSERT INTO customers SELECT n, 'r' || n % 5 FROM generate_series(0, 29) n;
INSERT INTO orders SELECT -n, n % 30, n FROM generate_series(1, 2000) n;
"""
FULL = """
ALTER TABLE customers REPLICA IDENTITY FULL;
ALTER TABLE orders REPLICA IDENTITY FULL;
"""
REGIONS = """SELECT c.region, count(*) AS n, sum(o.amount) AS total
FROM orders o JOIN customers c ON c.id = o.customer GROUP BY c.region"""
LARGEST = "SELECT id, amount FROM orders ORDER BY amount DESC, id LIMIT 5"

State = frozenset[tuple]


class PrefixWriter:
    """Transactions over orders and customers, and the answers of REGIONS and LARGEST after each."""

    def __init__(self, database: Database, seed: int) -> None:
        self._random = random.Random(seed)
        self._database = database
        self._customers = {n: f"r{n % 5}" for n in range(30)}
        self._orders = {-n: (n % 30, n) for n in range(1, 2001)}
        self._stopping = threading.Event()
        self.number = 0
        self.failure: BaseException | None = None
        self._states: dict[str, dict[State, int]] = {REGIONS: {}, LARGEST: {}}
        self._note(0)
        self._thread = threading.Thread(target=self._run, name="prefix-writer", daemon=True)

    def __enter__(self) -> PrefixWriter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        if self.failure is not None:
            raise self.failure

    def prefix_of(self, query: str, rows: list[tuple]) -> int | None:
        """Return the number of the transaction after which a query has these rows."""
        return self._states[query].get(frozenset(rows))

    def _run(self) -> None:
        connection = self._database.connect(autocommit=False)
        try:
            while not self._stopping.is_set():
                statements = list(self._statements(self.number + 1))
                # Known before it can be seen.
                self._note(self.number + 1)
                with connection.cursor() as cursor:
                    for sql, values in statements:
                        cursor.execute(sql, values)
                connection.commit()
                self.number += 1
                time.sleep(self._random.choice((0.002, 0.01, 0.03)))
        except BaseException as error:
            self.failure = error
        finally:
            connection.close()

    def _statements(self, number: int) -> Iterator[tuple[str, tuple]]:
        pick, orders = self._random, self._orders
        # The largest amount so far: it changes both answers.
        orders[number] = pick.randrange(30), 10_000 + number
        yield "INSERT INTO orders VALUES (%s, %s, %s)", (number, *orders[number])
        if pick.random() < 0.5:
            found = pick.choice(list(orders))
            customer, amount = pick.randrange(30), orders[found][1]
            orders[found] = customer, amount
            yield "UPDATE orders SET customer = %s WHERE id = %s", (customer, found)
        if pick.random() < 0.3:
            found = pick.choice([i for i in orders if i != number])
            del orders[found]
            yield "DELETE FROM orders WHERE id = %s", (found,)
        if pick.random() < 0.1:
            customer = pick.randrange(30)
            self._customers[customer] = f"r{pick.randrange(6)}"
            sql = "UPDATE customers SET region = %s WHERE id = %s"
            yield sql, (self._customers[customer], customer)

    def _note(self, number: int) -> None:
        counts, totals = Counter[str](), Counter[str]()
        for customer, amount in self._orders.values():
            counts[self._customers[customer]] += 1
            totals[self._customers[customer]] += amount
        self._states[REGIONS][frozenset((r, n, totals[r]) for r, n in counts.items())] = number
        largest = sorted(self._orders.items(), key=lambda o: (-o[1][1], o[0]))[:5]
        self._states[LARGEST][frozenset((i, amount) for i, (_, amount) in largest)] = number


class PrefixReader:
    """Reads one view again and again in a thread: it can always be read, and never goes back."""

    def __init__(self, database: Database, writer: PrefixWriter, view: str, query: str) -> None:
        self._database, self._writer = database, writer
        self._view, self._query = view, query
        self._stopping = threading.Event()
        self._last = -1
        self.failure: BaseException | None = None
        self.states = 0
        self.longest_s = 0.0
        self._thread = threading.Thread(target=self._run, name="prefix-reader", daemon=True)

    def __enter__(self) -> PrefixReader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        if self.failure is not None:
            raise self.failure

    def await_prefix(self, number: int, within_s: float, log: Callable[[], str]) -> None:
        """Wait until the view shows so many transactions."""
        deadline = time.monotonic() + within_s
        while self._last < number:
            if self.failure is not None:
                raise self.failure
            assert time.monotonic() < deadline, f"{self._last} of {number}\n{log()}"
            time.sleep(0.02)

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                started = time.monotonic()
                rows = self._database.rows(f"SELECT * FROM {self._view}")
                self.longest_s = max(self.longest_s, time.monotonic() - started)
                found = self._writer.prefix_of(self._query, [_plain(row) for row in rows])
                if found is None or found < self._last:
                    what = f"{self._view} shows {found} after {self._last}: {rows}"
                    raise WrongStateError(what)
                self.states += found != self._last
                self._last = found
                time.sleep(0.01)
        except BaseException as error:
            self.failure = error


def _plain(row: tuple) -> tuple:
    """Return a row with whole numbers as int: a sum of bigint is numeric."""
    return tuple(value if isinstance(value, str) else int(value) for value in row)
