"""Oracle: PostgreSQL's own answers at the moment of the view, and what a row came with.

Stable functions without columns are computed once; with columns they are kept beside the row.
"""

from __future__ import annotations

import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from dataflow.errors import SqlError
from dataflow.plan.nodes import Plan, Remember, inputs_of
from storage.memory import MemoryStore
from tests.equality.history import History, run_history
from tests.harness import draw
from tests.harness.postgres import Database, new_database
from tests.harness.schemas.base import TableSpec, TestSchema
from tests.sql.planning import plan, planning_database, refusal

pytestmark = pytest.mark.versions

ONCE, KEPT = "is computed once", "is computed for each row"


@pytest.fixture(scope="module")
def shop(postgres: EmbeddedPostgres):
    with planning_database(postgres) as database:
        yield database


@pytest.mark.parametrize(
    ("query", "word", "how"),
    [
        ("SELECT id, now() AS n FROM customers", '"now"', ONCE),
        ("SELECT id FROM orders WHERE placed > current_date - 30", "CURRENT_DATE", ONCE),
        ("SELECT localtimestamp AS l", "LOCALTIMESTAMP", ONCE),
        ("SELECT current_user AS u", "CURRENT_USER", ONCE),
        ("SELECT current_setting('TimeZone') AS u", '"current_setting"', ONCE),
        ("SELECT id FROM orders WHERE placed = 'today'", "'today'", ONCE),
        ("SELECT id FROM moments", '"now"', ONCE),
        ("SELECT settled(3) AS s FROM customers", '"public.settled"', ONCE),
        ("SELECT settled(id) AS s FROM customers", '"public.settled"', KEPT),
        ("SELECT id FROM customers WHERE settled(id) > 1", '"public.settled"', KEPT),
    ],
)
def test_stable_functions_are_pinned_with_a_warning(
    shop: Database, query: str, word: str, how: str
) -> None:
    found = plan(shop, query)
    assert any(word in w and how in w for w in found.warnings), found.warnings
    assert remembers(found.root) == (how == KEPT)


def remembers(root: Plan) -> bool:
    return isinstance(root, Remember) or any(map(remembers, inputs_of(root)))


def test_a_stable_condition_of_an_outer_join_is_refused(shop: Database) -> None:
    error = refusal(
        shop,
        "SELECT c.id FROM customers c LEFT JOIN orders o ON settled(o.customer + c.id) = 3",
    )
    assert isinstance(error, SqlError) and error.code == "sql.not_maintained" and error.hint


DDL = """
CREATE FUNCTION settled(x integer) RETURNS integer LANGUAGE plpgsql STABLE AS
  'BEGIN RETURN 12 / (x - 2); END';
CREATE TABLE t (id integer PRIMARY KEY, k integer, n integer)"""
QUERIES = {
    "selected": "SELECT id, settled(n + 5) AS s FROM t",
    "filtered": "SELECT id FROM t WHERE settled(n + 5) > 2",
    "grouped": "SELECT settled(n + 5) AS s, count(*) AS c, sum(settled(k + 9)) AS t FROM t"
    " GROUP BY 1",
    "joined": "SELECT a.id, b.id AS o FROM t a JOIN t b ON settled(a.n + 5) = b.k",
    "crossed": "SELECT a.id, b.id AS o FROM t a JOIN t b ON settled(a.n + b.n + 9) > 1"
    " AND a.k = b.k",
    "semi": "SELECT id FROM t WHERE settled(n + 5) IN (SELECT k FROM t)",
    "nested": "SELECT id, coalesce(settled(k + 5), 0) + n AS s FROM t WHERE k > 0",
}


def test_stored_results_equal_the_function_while_it_stays(every_postgres: EmbeddedPostgres) -> None:
    columns = {"id": draw.integers(1, 30), "k": draw.nullable(draw.integers(-1, 6))}
    columns["n"] = draw.nullable(draw.integers(-2, 9))
    schema = TestSchema("t", DDL, (TableSpec("t", columns, ("id",), 14),))
    with new_database(every_postgres) as database:
        outcome = run_history(database, MemoryStore(), History(schema, 3, 25, 2), QUERIES)
    assert not outcome.refused, outcome.refused
    assert not outcome.faults, outcome.text(QUERIES, "pytest tests/sql/test_stable.py")
