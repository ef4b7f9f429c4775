"""Oracle: PostgreSQL's own groups of char(n), whose `=` does not see blanks at the end."""

from __future__ import annotations

import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from dataflow.plan.aggregate_functions import LEAST
from dataflow.plan.nodes import Aggregate
from dataflow.sql.lower.lowering import lower
from storage.memory import MemoryStore
from tests.equality.history import History, run_history
from tests.harness import draw
from tests.harness.postgres import Database, new_database
from tests.harness.schemas.base import TableSpec, TestSchema
from tests.sql.planning import plan

DDL = """
CREATE DOMAIN code AS char(4);
CREATE FUNCTION loose() RETURNS SETOF record LANGUAGE sql IMMUTABLE AS
    $$ VALUES ('ab'::bpchar), ('ab  '::bpchar) $$;
CREATE TABLE codes (id integer PRIMARY KEY, a char(4), b char(6), d code, v varchar(6))"""
OF_TABLES = {
    "column": "SELECT a, count(*) AS n FROM codes GROUP BY a",
    "filtered": "SELECT a, b, sum(id) AS n FROM codes WHERE v <> 'x' GROUP BY a, b",
    "joined": "SELECT x.a, count(*) AS n FROM codes x LEFT JOIN codes y ON x.b = y.a GROUP BY x.a",
    "padded with null": "SELECT y.b, count(*) AS n FROM codes x LEFT JOIN codes y ON x.b = y.a"
    " GROUP BY y.b",
    "distinct": "SELECT DISTINCT a FROM codes",
    "counted": "SELECT b, count(DISTINCT a) AS n FROM codes GROUP BY b",
}
# Which of two equal texts stands for a group is PostgreSQL's choice: text has no such blanks.
COMPUTED = {
    "union": "SELECT c::text AS c, count(*) AS n FROM (SELECT a AS c FROM codes"
    " UNION ALL SELECT b FROM codes) AS u GROUP BY c",
    "branch": "SELECT c::text AS c, count(*) AS n FROM (SELECT CASE WHEN id > 5 THEN a ELSE b END"
    " AS c FROM codes) AS s GROUP BY c",
    "text": "SELECT v::char(4) AS c, count(*) AS n FROM codes GROUP BY 1",
    "domain": "SELECT d, count(*) AS n FROM codes GROUP BY d",
    "function": "SELECT f.c::text AS c, count(*) AS n FROM codes x, loose() AS f(c char(4))"
    " GROUP BY f.c",
    "set": "SELECT c::text AS c FROM (SELECT a AS c FROM codes INTERSECT SELECT b FROM codes) AS s",
}
QUERIES = {**OF_TABLES, **COMPUTED}


def test_groups_of_padded_text(every_postgres: EmbeddedPostgres) -> None:
    letters = draw.nullable(draw.choice("", "a", "ab", " a", "abc", "é"))
    columns = {"id": draw.integers(1, 30), **dict.fromkeys("abdv", letters)}
    schema = TestSchema("codes", DDL, (TableSpec("codes", columns, ("id",), 20),))
    with new_database(every_postgres) as database:
        outcome = run_history(database, MemoryStore(), History(schema, 3, 40, 2), QUERIES)
    assert not outcome.refused, outcome.refused
    assert not outcome.faults, outcome.text(QUERIES, "pytest tests/sql/test_padded_keys.py")


@pytest.mark.parametrize("name", [n for n in OF_TABLES if n not in ("distinct", "counted")])
def test_a_tables_column_stands_for_itself(name: str, every_database: Database) -> None:
    """No least text of each group is looked for, and no state is kept for it."""
    every_database.execute(DDL)
    nodes = [n.plan for n in lower(plan(every_database, QUERIES[name]).root)]
    calls = [c.function for n in nodes if isinstance(n, Aggregate) for c in n.calls]
    assert calls and LEAST not in calls


@pytest.mark.parametrize("name", ["union", "domain", "function"])
def test_what_may_be_shorter_is_not_trusted(name: str, every_database: Database) -> None:
    every_database.execute(DDL)
    nodes = [n.plan for n in lower(plan(every_database, QUERIES[name]).root)]
    calls = [c.function for n in nodes if isinstance(n, Aggregate) for c in n.calls]
    assert LEAST in calls
