"""Oracle: PostgreSQL's own sums and averages of computed numerics, digits and scale included."""

from __future__ import annotations

from connectors.postgres.embedded.server import EmbeddedPostgres
from storage.memory import MemoryStore
from tests.equality.history import History, run_history
from tests.harness import draw
from tests.harness.postgres import new_database
from tests.harness.schemas.base import TableSpec, TestSchema

DDL = """
CREATE TABLE sales (
    id integer PRIMARY KEY, g integer, k integer, big bigint, price numeric(15,2),
    rate numeric(4,3), wide numeric(30,12), hundreds numeric(6,-2), free numeric)"""
QUERIES = {
    "product": "SELECT g, sum(price * (1 - rate)) AS s, avg(price * (1 - rate) * (1 + rate)) AS a,"
    " count(price * rate) AS n FROM sales GROUP BY g",
    "of all": "SELECT sum(price * rate) AS s, avg(- price * wide) AS a FROM sales",
    "branches": "SELECT g, sum(CASE WHEN k > 2 THEN price * rate ELSE 0 END) AS s,"
    " avg(CASE WHEN k > 2 THEN price * rate WHEN k = 2 THEN 0.5 END) AS a FROM sales GROUP BY g",
    "alternatives": "SELECT g, sum(coalesce(price * rate, 0)) AS s FROM sales GROUP BY g",
    "filtered": "SELECT g, sum(price * rate) FILTER (WHERE k > 2) AS s,"
    " avg(DISTINCT price * k) AS a FROM sales GROUP BY g",
    "whole": "SELECT g, sum(big * price) AS s, avg(big::numeric) AS a FROM sales GROUP BY g",
    "wide": "SELECT g, sum(wide * price) AS s, avg(wide * wide) AS a, sum(wide) AS w FROM sales"
    " GROUP BY g",
    "rounded": "SELECT g, sum(hundreds) AS h, avg(hundreds * rate) AS a,"
    " sum((price / 7)::numeric(20,4)) AS c FROM sales GROUP BY g",
    "not known": "SELECT g, sum(free * price) AS s, avg(price / 3) AS a FROM sales GROUP BY g",
    "of sums": "SELECT k, sum(s) AS s, avg(m) AS m FROM (SELECT g, k, sum(price * rate) AS s,"
    " min(wide) AS m FROM sales GROUP BY g, k) AS parts GROUP BY k",
    "joined": "SELECT a.g, sum(a.price * b.rate) AS s FROM sales a JOIN sales b ON a.k = b.g"
    " GROUP BY a.g",
    "union": "SELECT sum(x) AS s, avg(x) AS a FROM (SELECT price * rate AS x FROM sales"
    " UNION ALL SELECT price FROM sales) AS u",
    "distinct rows": "SELECT sum(x) AS s FROM (SELECT DISTINCT free * 1 AS x, wide FROM sales) d",
    "window": "SELECT id, sum(price * rate) OVER (PARTITION BY g ORDER BY id) AS s FROM sales",
}


def _with_nan(draws: draw.Draw) -> draw.Draw:
    return lambda rng: "'NaN'" if rng.random() < 0.04 else draws(rng)


def test_sums_of_computed_numerics(every_postgres: EmbeddedPostgres) -> None:
    columns = {
        "id": draw.integers(1, 40),
        "g": draw.integers(1, 5),
        "k": draw.integers(1, 4),
        "big": draw.nullable(draw.raw("9223372036854775807", "-9223372036854775808", "7", "0")),
        "price": draw.nullable(
            _with_nan(draw.raw("9999999999999.99", "-9999999999999.99", "0.00", "12.50", "7.1"))
        ),
        "rate": draw.nullable(_with_nan(draw.raw("0", "9.999", "-0.001", "0.125", "1"))),
        "wide": draw.nullable(
            draw.raw("999999999999999999.999999999999", "-0.000000000001", "3", "0.5")
        ),
        "hundreds": draw.raw("12345678", "-50", "149", "0"),
        "free": draw.nullable(_with_nan(draw.raw("1.50", "1.5", "1e30", "1e-20", "'-Infinity'"))),
    }
    schema = TestSchema("sales", DDL, (TableSpec("sales", columns, ("id",), 25),))
    with new_database(every_postgres) as database:
        history = History(schema, 5, 60, 3)
        outcome = run_history(database, MemoryStore(), history, QUERIES)
    assert not outcome.refused, outcome.refused
    assert not outcome.faults, outcome.text(QUERIES, "pytest tests/sql/test_exact_sums.py")
