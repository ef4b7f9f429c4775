"""Oracle: by hand, which conditions of a query another system could evaluate as PostgreSQL does."""

from __future__ import annotations

import pytest

from dataflow.plan.properties.pushdown_requirements import requirements_of
from tests.harness.postgres import Database
from tests.sql.planning import plan

FORM = "it is no comparison of one column with constants"
TWICE = "the view reads the relation a second time without it"
ORDERS = "SELECT id FROM orders o WHERE "
CASES = [
    ("total > 5", ["total > 5"], []),
    ("5 < total AND note = 'x'", ["total > 5", "note = x"], []),
    ("note IS NOT NULL AND customer IN (1, 2)", ["note is not null ", "customer in 1,2"], []),
    ("NOT (customer = 3)", ["customer <> 3"], []),
    ("note > 'a'", [], ["the order and equality of this text depend on its collation"]),
    ("total + 1 > 5", [], [FORM]),
    ("customer = id", [], [FORM]),
    ("lower(note) = 'x' AND total > 5", ["total > 5"], [FORM]),
    ("customer = 3 AND EXISTS (SELECT FROM orders p WHERE p.placed <> o.placed)", [], [TWICE]),
    ("total > 5 OR customer = 3", [], [FORM]),
]


@pytest.mark.parametrize(("where", "simple", "reasons"), CASES, ids=[case[0] for case in CASES])
def test_what_a_source_could_evaluate(
    shop: Database, where: str, simple: list[str], reasons: list[str]
) -> None:
    found = requirements_of(plan(shop, ORDERS + where).root)
    [required] = [r for r in found if r.relation.name == "orders"]
    texts = [f"{c.column} {c.operator} {','.join(c.values)}" for c in required.conditions]
    assert sorted(texts) == sorted(simple)
    why_not = [f.why_not for f in required.filters if f.why_not]
    assert len(why_not) == len(reasons)
    assert all(map(str.startswith, sorted(why_not), sorted(reasons)))
    assert set(required.unread).isdisjoint(required.columns)
    assert len(required.unread) + len(required.columns) == 6


def test_values_with_an_order_of_their_own_are_not_passed(shop: Database) -> None:
    [required] = requirements_of(plan(shop, "SELECT id FROM products WHERE kind = 'a'").root)
    [found] = required.filters
    assert found.condition is None and "character(10)" in found.why_not
