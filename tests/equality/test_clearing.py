"""Oracle: PostgreSQL's own answer to each query, after every transaction of the source.

The tables of a shop send old rows whole, and are often truncated, several at once. The queries join
them, so that their rows are not stored; one more query of the engine may need those.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.equality.history import History, opened_store, run_history
from tests.harness.postgres import Database
from tests.harness.schemas import SCHEMAS
from tests.harness.together import Together

SEED = int(os.environ.get("TIDEMARK_TEST_SEED", "1"))
TABLES = ("customers", "products", "orders", "order_lines")
# The queries that need rows come first, and are the first that are dropped.
WITH_ROWS = {
    "all_orders": "SELECT order_id, customer_id, total FROM orders",
    "shares": "SELECT l.order_id, o.total / l.quantity AS share FROM order_lines l "
    "JOIN orders o ON o.order_id = l.order_id AND o.total / (l.quantity - 1) > 1",
}
JOINS = {
    "amounts": "SELECT c.region, c.segment, count(*) AS n, sum(o.total) AS total FROM orders o "
    "JOIN customers c ON c.customer_id = o.customer_id WHERE o.status <> 'cancelled' "
    "GROUP BY c.region, c.segment",
    "lines": "SELECT o.order_id, l.line_no, p.title, l.quantity FROM orders o "
    "JOIN order_lines l ON l.order_id = o.order_id JOIN products p ON p.product_id = l.product_id",
    "customers_with_orders": "SELECT c.customer_id, c.name, o.order_id, o.status FROM customers c "
    "LEFT JOIN orders o ON o.customer_id = c.customer_id AND o.status <> c.segment",
    "orders_and_lines": "SELECT o.order_id, o.status, l.line_no, l.price FROM orders o "
    "FULL JOIN order_lines l ON l.order_id = o.order_id",
    "buyers": "SELECT customer_id, name FROM customers c WHERE EXISTS "
    "(SELECT FROM orders o WHERE o.customer_id = c.customer_id AND o.status = 'paid')",
    "unsold": "SELECT product_id, title FROM products p WHERE NOT EXISTS "
    "(SELECT FROM order_lines l WHERE l.product_id = p.product_id)",
    "dearer": "SELECT o.order_id, o.total FROM orders o WHERE NOT EXISTS "
    "(SELECT FROM orders x WHERE x.order_id <> o.order_id AND x.status = o.status "
    "AND x.total > o.total) AND o.order_id IN (SELECT order_id FROM order_lines)",
    "pairs": "SELECT a.order_id, b.order_id AS other FROM orders a "
    "JOIN orders b ON b.customer_id = a.customer_id AND b.order_id > a.order_id",
    "best": "SELECT DISTINCT p.category, max(l.quantity) AS most FROM order_lines l "
    "JOIN products p ON p.product_id = l.product_id GROUP BY p.category",
    "anything": "SELECT c.name, p.title FROM customers c CROSS JOIN products p "
    "WHERE c.vip AND p.price > 60",
}


class Joined(Together):
    """Counts the tables whose rows are and are not stored, at each transaction."""

    stored = unstored = 0

    def _step(self, batch: Any, number: int) -> None:
        for at in self._engine.dataflow.tables.locations:
            if at.relation.is_full:
                Joined.stored += at.is_stored
                Joined.unstored += not at.is_stored
        super()._step(batch, number)


@pytest.mark.parametrize(
    ("others", "store"), [("alone", "memory"), ("alone", "rocks"), ("beside others", "rocks")]
)
def test_joins_of_truncated_tables_equal_their_queries(
    database: Database, others: str, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.harness.changes.TRUNCATE_SHARE", 0.08)
    monkeypatch.setattr("service.engine.batch_sizer.FIRST_ROWS", 9)
    monkeypatch.setattr(Joined, "stored", 0)
    monkeypatch.setattr(Joined, "unstored", 0)
    shop = SCHEMAS["shop"]
    full = "".join(f"ALTER TABLE {table} REPLICA IDENTITY FULL;\n" for table in TABLES)
    truncates = (*shop.truncates, "customers, orders, order_lines", "order_lines")
    schema = replace(shop, ddl=shop.ddl + full, truncates=truncates)
    history = History(schema, SEED, singles=40, batches=4, batch=8, restarts=store == "rocks")
    queries = JOINS if others == "alone" else {**WITH_ROWS, **JOINS}
    with opened_store(store, tmp_path) as opened:
        outcome = run_history(database, opened, history, queries, maintained=Joined)
    command = f"TIDEMARK_TEST_SEED={SEED} pytest tests/equality/test_clearing.py"
    assert not outcome.refused, f"refused: {outcome.refused}"
    assert not outcome.faults, outcome.text(queries, command)
    assert sum(t.text().count("TRUNCATE") for t in outcome.transactions) > 3
    assert Joined.unstored > 20
    assert (Joined.stored > 0) == (others == "beside others")
