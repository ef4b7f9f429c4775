"""Oracle: the fixture files, one a rule: SQL and the plan that was read and found right.

That rewritten plans keep their rows is shown by the equality tests; here stands their shape.
"""

from __future__ import annotations

import json

import pytest

from dataflow.errors import InvariantError
from dataflow.expressions.ir import ColumnRef
from dataflow.plan.check import check_plan
from dataflow.plan.explain import explain_text, explain_tree
from dataflow.plan.nodes import Filter, Project, Values
from dataflow.types import BOOL, INT4
from tests.harness.postgres import Database
from tests.sql.planning import FIXTURES, plan, read_cases

CASES = [
    pytest.param(sql, expected, id=f"{path.stem}: {name}")
    for path in sorted(FIXTURES.glob("*.sql"))
    if path.stem != "canonical"
    for name, (sql, expected) in read_cases(path).items()
]


@pytest.mark.parametrize(("sql", "expected"), CASES)
def test_plans_have_their_shape(shop: Database, sql: str, expected: str) -> None:
    assert explain_text(plan(shop, sql)) == expected


def test_a_plan_is_reported_as_json(shop: Database) -> None:
    found = plan(shop, "SELECT id, twice(id) AS t FROM customers ORDER BY t")
    tree = json.loads(json.dumps(explain_tree(found)))
    assert tree["key"] == ["id"]
    assert tree["in_postgres"] == ["public.twice($1)"]
    assert "ORDER BY" in tree["warnings"][0]
    assert tree["plan"]["node"] == "Project"
    (kept,) = tree["plan"]["inputs"]
    assert kept["detail"] == "remember postgres[public.twice($1)](id) by its arguments"
    assert kept["inputs"][0]["detail"] == "scan shop:public.customers (id)"
    assert tree["plan"]["fields"][0] == {"name": "id", "type": "integer", "null": False}


def test_a_plan_that_is_not_sound_is_not_run(shop: Database) -> None:
    found = plan(shop, "SELECT id FROM customers").root
    for broken in (
        Filter(found, ColumnRef(0, BOOL)),
        Filter(found, ColumnRef(0, INT4)),
        Project(found, (ColumnRef(7, INT4),), found.fields),
        Project(found, (), found.fields),
        Values(((),), found.fields),
    ):
        with pytest.raises(InvariantError):
            check_plan(broken)


def test_the_same_query_gives_the_same_plan(shop: Database) -> None:
    query = (
        "SELECT c.city, count(*) AS n FROM customers c, orders o WHERE c.id = o.customer GROUP BY 1"
    )
    assert plan(shop, query) == plan(shop, query)
