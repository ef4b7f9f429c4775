"""The tables of TPC-H at a scale, with rows from a seed, and the transactions that change them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

from tests.harness.changes import Statement, Transaction
from tests.harness.schemas.tpch import DDL
from tests.harness.tpch import Tpch

CHUNK_ROWS = 2_000
ORDERS_A_REFRESH = 1_500
# What refreshes are, in turn: RF1 and RF2 of the specification, and some updates.
KINDS = ("new orders", "deleted orders", "updates")
# For PostgreSQL's own runs: what its users would have.
INDEXES = """
CREATE INDEX ON lineitem (l_partkey, l_suppkey); CREATE INDEX ON lineitem (l_suppkey);
CREATE INDEX ON orders (o_custkey); CREATE INDEX ON partsupp (ps_suppkey); ANALYZE
"""


class Tables:
    """The tables of a database. rows: how many there were in the beginning."""

    def __init__(self, connection: Any, scale: float, seed: int = 1) -> None:
        self._scale, self._rng = scale, Random(seed)
        suppliers, customers, parts = (int(n * scale) for n in (10_000, 150_000, 200_000))
        self._source = Tpch(seed, suppliers, customers, parts)
        self._keys = list(range(int(1_500_000 * scale)))
        self.rows = self._load(connection)
        self._refreshes = 0

    def _load(self, connection: Any) -> int:
        count = 0
        with connection.cursor() as cursor:
            cursor.execute(DDL)
            tables = self._source.fixed_rows()
            for table, rows in tables.items():
                for part in _chunks(rows):
                    cursor.execute(f"INSERT INTO {table} VALUES {', '.join(part)}")
                count += len(rows)
            for start in range(0, len(self._keys), CHUNK_ROWS):
                orders, lines = self._orders(self._keys[start : start + CHUNK_ROWS])
                cursor.execute(f"INSERT INTO orders VALUES {', '.join(orders)}")
                cursor.execute(f"INSERT INTO lineitem VALUES {', '.join(lines)}")
                count += len(orders) + len(lines)
            cursor.execute(INDEXES)
        return count

    def _orders(self, keys: Sequence[int]) -> tuple[list[str], list[str]]:
        """Return rows of orders, and of their lines."""
        orders, lines = [], []
        for key in keys:
            order, of_order = self._source.order(self._rng, key)
            orders.append(order)
            lines += of_order
        return orders, lines

    def an_order(self) -> int:
        """Return the key of an order that is there."""
        return self._rng.choice(self._keys)

    def refresh(self) -> Transaction:
        """Return the next refresh: one of `KINDS`, in turn."""
        in_turn = (self._new_orders, self._deleted_orders, self._updates)  # as in KINDS
        make = in_turn[self._refreshes % len(KINDS)]
        self._refreshes += 1
        many = max(1, int(ORDERS_A_REFRESH * self._scale))
        return Transaction(tuple(map(Statement, make(many))))

    def _new_orders(self, many: int) -> list[str]:
        newest = self._keys[-1]
        self._keys += range(newest + 1, newest + 1 + many)
        orders, lines = self._orders(self._keys[-many:])
        return [
            f"INSERT INTO orders VALUES {', '.join(orders)}",
            f"INSERT INTO lineitem VALUES {', '.join(lines)}",
        ]

    def _deleted_orders(self, many: int) -> list[str]:
        gone = [self._keys.pop(self._rng.randrange(len(self._keys) - 1)) for _ in range(many)]
        listed = ", ".join(map(str, gone))
        return [
            f"DELETE FROM lineitem WHERE l_orderkey IN ({listed})",
            f"DELETE FROM orders WHERE o_orderkey IN ({listed})",
        ]

    def _updates(self, many: int) -> list[str]:
        some = ", ".join(str(self.an_order()) for _ in range(many))
        number = self._refreshes
        return [
            f"UPDATE lineitem SET l_quantity = l_quantity + 1 WHERE l_orderkey IN ({some})",
            f"UPDATE part SET p_size = p_size % 15 + 1 WHERE p_partkey % 97 = {number % 97}",
            f"UPDATE supplier SET s_nationkey = (s_nationkey + 1) % 10 WHERE s_suppkey = {number}",
            f"UPDATE customer SET c_acctbal = c_acctbal + 5 WHERE c_custkey % 89 = {number % 89}",
        ]


def _chunks(rows: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(rows), CHUNK_ROWS):
        yield rows[start : start + CHUNK_ROWS]
