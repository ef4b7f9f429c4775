"""Oracle: window definitions as PostgreSQL documents them; what is planned is shown as text."""

from __future__ import annotations

import pytest

from dataflow.plan.explain import explain_text
from tests.harness.postgres import Database
from tests.sql.planning import plan

SHOWN = [
    ("row_number() OVER ()", "window by () order (): row_number()"),
    (
        "row_number() OVER (PARTITION BY vip, name ORDER BY city DESC, id)",
        "window by (vip, name) order (city desc nulls first, id): row_number()",
    ),
    (
        "rank() OVER (ORDER BY city NULLS FIRST, name DESC NULLS LAST ROWS 1 PRECEDING)",
        "window by () order (city nulls first, name desc): rank()",
    ),
    ("count(*) FILTER (WHERE vip) OVER ()", "window by () order (): count(*) filter vip"),
    (
        "lag(id, 2, 0) OVER (PARTITION BY 1 ORDER BY id)",
        "window by () order (id): lag(id, '2', '0')",
    ),
    (
        "sum(id) OVER (ORDER BY id ROWS UNBOUNDED PRECEDING)",
        "window by () order (id): sum(id) rows unbounded preceding to current row",
    ),
    (
        "sum(id) OVER (ORDER BY id RANGE BETWEEN 1 + 1 PRECEDING AND 3 FOLLOWING EXCLUDE TIES)",
        "window by () order (id): sum(id) range 2 preceding to 3 following without ties",
    ),
    (
        "last_value(id) OVER (w GROUPS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING "
        "EXCLUDE NO OTHERS)",
        "window by (vip) order (name): last_value(id) groups current row to unbounded following",
    ),
    ("sum(id) OVER (PARTITION BY vip ORDER BY name)", "window by (vip) order (name): sum(id)"),
    ("max(id) OVER (w)", "window by (vip) order (name): max(id)"),
    (
        "min(id) OVER v",
        "window by (vip) order (name): min(id) rows 1 preceding to current row",
    ),
]


@pytest.mark.parametrize(("call", "shown"), SHOWN)
def test_windows_are_read_as_postgresql_writes_them(shop: Database, call: str, shown: str) -> None:
    windows = "WINDOW w AS (PARTITION BY vip ORDER BY name), v AS (w ROWS 1 PRECEDING)"
    found = explain_text(plan(shop, f"SELECT id, {call} AS x FROM customers {windows}"))
    assert found.splitlines()[1].strip() == shown


def test_one_node_for_each_partition_and_order(shop: Database) -> None:
    query = (
        "SELECT id, rank() OVER w, sum(id) OVER (PARTITION BY vip ORDER BY name), "
        "count(*) OVER (PARTITION BY vip), lag(id) OVER (ORDER BY id) "
        "FROM customers WINDOW w AS (PARTITION BY vip ORDER BY name)"
    )
    lines = [x.strip() for x in explain_text(plan(shop, query)).splitlines() if "window" in x]
    assert lines == [
        "window by () order (id): lag(id)",
        "window by (vip) order (): count(*)",
        "window by (vip) order (name): rank(), sum(id)",
    ]


OPEN = [
    ("row_number() OVER (ORDER BY name)", True),
    ("row_number() OVER (ORDER BY id)", False),
    ("row_number() OVER (PARTITION BY id)", False),
    ("rank() OVER (ORDER BY name)", False),
    ("sum(id) OVER (PARTITION BY vip ORDER BY name)", False),
    ("sum(id) OVER (ORDER BY name ROWS 1 PRECEDING)", True),
    ("sum(id) OVER (ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)", False),
    ("first_value(id) OVER (ORDER BY name)", True),
    ("string_agg(name, ',') OVER (PARTITION BY vip)", True),
]


@pytest.mark.parametrize(("call", "is_open"), OPEN)
def test_an_open_order_that_a_function_sees_is_reported(
    shop: Database, call: str, is_open: bool
) -> None:
    warnings = plan(shop, f"SELECT id, {call} AS x FROM customers").warnings
    assert any("ORDER BY leaves open" in w for w in warnings) == is_open, warnings


KEYS = [
    ("SELECT id, rank() OVER (ORDER BY name) AS r FROM customers", ("id",)),
    ("SELECT name, row_number() OVER (ORDER BY id) AS n FROM customers", ("n",)),
    (
        "SELECT vip, row_number() OVER (PARTITION BY vip ORDER BY id) AS n FROM customers",
        ("vip", "n"),
    ),
    ("SELECT vip, rank() OVER (PARTITION BY vip ORDER BY id) AS n FROM customers", ()),
    ("SELECT row_number() OVER (PARTITION BY vip ORDER BY id) AS n FROM customers", ()),
]


@pytest.mark.parametrize(("query", "key"), KEYS)
def test_numbers_of_rows_are_keys(shop: Database, query: str, key: tuple[str, ...]) -> None:
    found = plan(shop, query)
    assert tuple(found.root.fields[i].name for i in found.key) == key
