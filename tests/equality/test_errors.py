"""Oracle: the same query in PostgreSQL, guarded against the rows for which it fails.

A row that fails is left out and stands among the error rows exactly as long as PostgreSQL fails
for it; everything else of the view is as if that row were not there (RELIABILITY P9).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.equality.history import History, opened_store, run_history
from tests.harness.postgres import Database
from tests.harness.schemas import SCHEMAS

# name -> (query, the condition under which a row does not fail)
FAILING = {
    "division": (
        "SELECT order_id, line_no, 100 / (quantity - 5) AS x FROM order_lines",
        "quantity <> 5",
    ),
    "numeric_division": (
        "SELECT order_id, price / (line_no - 2) AS x FROM order_lines",
        "line_no <> 2 OR price IS NULL",
    ),
    "in_filter": (
        "SELECT order_id, line_no FROM order_lines WHERE 10 / (quantity - 5) > 1",
        "quantity <> 5",
    ),
    "cast": (
        "SELECT order_id, (line_no || CASE WHEN quantity = 3 THEN 'x' ELSE '' END)::int AS x "
        "FROM order_lines",
        "quantity <> 3",
    ),
    "overflow": (
        "SELECT order_id, line_no, (quantity * 6000)::smallint AS x FROM order_lines",
        "quantity <= 5",
    ),
    "in_postgres": (
        "SELECT order_id, decode(CASE WHEN quantity = 4 THEN 'zz' ELSE '00' END, 'hex') AS x, "
        "sqrt((quantity - 2)::float8) AS y FROM order_lines",
        "quantity NOT IN (1, 4)",
    ),
    "in_aggregate": (
        "SELECT product_id, sum(100 / (quantity - 5)) AS x, count(*) AS n FROM order_lines "
        "GROUP BY product_id",
        "quantity <> 5",
    ),
    "in_group_key": (
        "SELECT 100 / (quantity - 5) AS x, count(*) AS n FROM order_lines "
        "GROUP BY 100 / (quantity - 5)",
        "quantity <> 5",
    ),
    "in_join_key": (
        "SELECT order_id, line_no, p.title FROM order_lines "
        "JOIN products p ON p.product_id = 60 / (quantity - 5)",
        "quantity <> 5",
    ),
}


def guarded(query: str, condition: str) -> str:
    """The query without its failing rows; PostgreSQL may not look into the subquery."""
    rows = f"(SELECT * FROM order_lines WHERE {condition} OFFSET 0) order_lines"
    return query.replace("FROM order_lines", f"FROM {rows}")


@pytest.mark.parametrize("store", ["memory", "rocks"])
def test_failing_rows_are_left_out(database: Database, store: str, tmp_path: Path) -> None:
    queries = {name: query for name, (query, _) in FAILING.items()}
    without = {name: guarded(*parts) for name, parts in FAILING.items()}
    history = History(SCHEMAS["shop"], 3, singles=60, batches=3, guarded=without)
    with opened_store(store, tmp_path) as opened:
        outcome = run_history(database, opened, history, queries)
    assert not outcome.refused
    assert not outcome.faults, outcome.text(queries, f"pytest {__file__}")
    assert outcome.refusals > history.singles
