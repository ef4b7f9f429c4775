"""Oracle: PostgreSQL's answers over numerics of more digits than Python's integers print."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.equality.history import History, opened_store, run_history
from tests.harness.changes import Statement, Transaction
from tests.harness.postgres import Database
from tests.harness.schemas import TestSchema

DDL = """
CREATE TABLE t (id int PRIMARY KEY, g int, n numeric, j jsonb);
INSERT INTO t VALUES (1, 1, 1e5000, '{"a": 1e5000}'), (2, 1, 7e4400 + 0.125, '{"a": 2}'),
    (3, 1, -3.5, NULL), (4, 2, 1e20000 + 1e-700, '{"a": -1e4999}'), (5, 2, NULL, '{}'),
    (6, 2, 3 + 1e-16000, '[]'), (7, 3, 1e5000 - 1, '{"a": 1}');
"""
CHANGES = (
    "UPDATE t SET n = n + 1 WHERE id IN (1, 3)",
    "DELETE FROM t WHERE id = 2",
    "INSERT INTO t SELECT i, i % 3, 1e4999 + i, to_jsonb(1e4400 + i) "
    "FROM generate_series(10, 14) i",
    "UPDATE t SET n = 2 WHERE id IN (1, 4)",
    "UPDATE t SET g = 1, n = -1e131000 WHERE id = 5",
    "DELETE FROM t WHERE g = 1",
)
QUERIES = {
    "sums": "SELECT g, sum(n) AS a, avg(n) AS b, min(n) AS c, max(n) AS d FROM t GROUP BY g",
    "whole": "SELECT sum(n) AS a, avg(n) AS b, count(DISTINCT n) AS c FROM t",
    "moments": "SELECT g, stddev(n) AS a, var_pop(n) AS b, stddev_pop(n) AS c FROM t "
    "WHERE id <> 4 AND n > -1e130000 GROUP BY g",
    "arithmetic": "SELECT id, n + 1 AS a, n * 3 AS b, n - 1e4400 AS c, n / 7 AS d,"
    " 7 / (n + 5) AS e, n % 1e4999 AS f, -n AS g, abs(n) AS h, round(n, 2) AS i,"
    " trunc(n) AS j, sign(n) AS k, ceil(n) AS l, floor(n) AS m FROM t",
    "casts": "SELECT id, n::text AS a, to_jsonb(n) AS b, md5(n::text) AS c, "
    "(n::text)::numeric AS d, n::text::bytea AS e, (j->>'a')::numeric AS f FROM t",
    "narrow": "SELECT id, n::numeric(12,2) AS a FROM t",
    "integers": "SELECT id, n::bigint AS a FROM t",
    "floats": "SELECT id, n::float8 AS a FROM t",
    "running": "SELECT id, sum(n) OVER w AS a, avg(n) OVER w AS b FROM t WINDOW w AS "
    "(PARTITION BY g ORDER BY id)",
    "sliding": "SELECT id, sum(n) OVER w AS a, avg(n) OVER w AS b FROM t WINDOW w AS "
    "(PARTITION BY g ORDER BY id ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING)",
    "ordered": "SELECT id, rank() OVER (ORDER BY n) AS a, lag(n) OVER (ORDER BY n, id) AS b FROM t",
    "groups": "SELECT n, count(*) AS a FROM t GROUP BY n",
    "distinct": "SELECT DISTINCT n, j FROM t",
    "joined": "SELECT a.id, b.id AS other FROM t a JOIN t b ON a.n = b.n AND a.n > 1e4400",
    "top": "SELECT id, n FROM t ORDER BY n DESC NULLS LAST, id LIMIT 3",
    "median": "SELECT g, percentile_disc(0.5) WITHIN GROUP (ORDER BY n) AS a FROM t GROUP BY g",
    "literals": f"SELECT id, n + {'9' * 4500} AS a, n > {'8' * 5000}.5 AS b FROM t",
    "json": "SELECT g, json_agg(n ORDER BY id) AS a, "
    "sum((j->>'a')::numeric) AS b FROM t GROUP BY g",
}
# From which number on they fail.
FAILS = {"narrow": "9e9", "integers": "9e18", "floats": "1e300"}


@pytest.fixture
def shortest_limit() -> Iterator[None]:
    """Python's limit as low as it goes: what rests on it shows."""
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(640)
    yield
    sys.set_int_max_str_digits(before)


@pytest.mark.whole
@pytest.mark.usefixtures("shortest_limit")
def test_numbers_of_many_digits(database: Database, tmp_path: Path) -> None:
    chosen = tuple(Transaction((Statement(change, True),)) for change in CHANGES)
    schema = TestSchema("long", DDL, ())
    guarded = {
        name: f"{QUERIES[name]} WHERE abs(n) < {most} OR n IS NULL" for name, most in FAILS.items()
    }
    history = History(schema, 0, singles=len(chosen), batches=0, chosen=chosen, guarded=guarded)
    with opened_store("rocks", tmp_path) as store:
        outcome = run_history(database, store, history, QUERIES)
    assert not outcome.refused
    assert not outcome.faults, outcome.text(QUERIES, f"pytest {__file__}")
