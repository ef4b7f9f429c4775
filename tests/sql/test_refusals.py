"""Oracle: the list of what is not maintained; each is named, placed, and met with a hint."""

from __future__ import annotations

import pytest

from dataflow.errors import Position, SqlError
from tests.harness.postgres import Database
from tests.sql.planning import plan, refusal

_WALK = (
    "WITH RECURSIVE r(a) AS (SELECT 1 UNION ALL SELECT {} FROM r)"
    " CYCLE a SET c USING p SELECT a{} FROM r"
)
NOT_MAINTAINED = [
    (_WALK.format("r.a + 1", ", p[1]::text AS t"), "SEARCH and CYCLE", (1, 67)),
    (_WALK.format("DISTINCT r.a + 1", ""), "SEARCH or CYCLE over a step", (1, 76)),
    (
        _WALK.replace("SELECT 1", "SELECT 1.5").format("1.5", ""),
        "by values of type numeric",
        (1, 65),
    ),
    ("SELECT id FROM customers LIMIT (SELECT 3)", "LIMIT", (1, 26)),
    ("SELECT id FROM customers\nOFFSET -2", "negative", (2, 1)),
    ("SELECT id FROM customers ORDER BY id FETCH FIRST -1 ROWS ONLY", "negative", (1, 38)),
    (
        "SELECT to_json(j.*) AS a, ROW(o.id)::text AS b FROM customers "
        "JOIN orders o USING (id) AS j",
        "beside another row",
        (1, 77),
    ),
    (
        "SELECT id, count(*) OVER (ORDER BY id ROWS BETWEEN -1 PRECEDING AND CURRENT ROW) AS n "
        "FROM customers",
        "the distance of a window frame is negative",
        (1, 55),
    ),
    (
        "SELECT id, count(*) OVER (ORDER BY id ROWS NULL::bigint PRECEDING) AS n FROM customers",
        "the distance of a window frame is not a constant",
        (1, 57),
    ),
    ("SELECT DISTINCT ON (attributes) id FROM products", None, (1, 8)),
    ("SELECT g FROM orders o, generate_series(1, settled(o.customer)) g", "stable", (1, 44)),
    ("SELECT id FROM customers TABLESAMPLE bernoulli (10)", "TABLESAMPLE", (1, 26)),
    (
        "SELECT c.id FROM customers c FULL JOIN orders o ON c.id = o.customer "
        "AND EXISTS (SELECT FROM lines l WHERE l.line = c.id AND l.order_id = o.id)",
        "FULL JOIN",
        (1, 30),
    ),
    ("SELECT attributes FROM products GROUP BY attributes::text, attributes", None, None),
    ("SELECT place FROM products GROUP BY place", None, None),
    ("SELECT ctid FROM customers", "ctid", None),
    ("SELECT age(at) AS a FROM orders", '"age"', (1, 8)),
]


@pytest.mark.parametrize(("query", "named", "position"), NOT_MAINTAINED)
def test_what_is_not_maintained_is_refused_by_name_and_position(
    shop: Database, query: str, named: str | None, position: tuple[int, int] | None
) -> None:
    error = refusal(shop, query)
    if named is None:
        assert error.code in ("sql.undefined_function", "sql.not_maintained")
        return
    assert isinstance(error, SqlError)
    assert error.code == "sql.not_maintained"
    assert named in error.what
    assert error.hint
    assert error.position == (Position(*position) if position else None)


@pytest.mark.parametrize("call", ["random()", "restless(1)", "clock_timestamp()", "nextval('s')"])
def test_volatile_functions_have_a_code_of_their_own(shop: Database, call: str) -> None:
    if "nextval" in call:
        call = "nextval('pg_catalog.pg_class'::regclass)"
    error = refusal(shop, f"SELECT id,\n {call} AS x FROM customers")
    assert error.code == "sql.volatile_function"
    assert call.split("(")[0] in error.what
    assert error.position == Position(2, 2)


@pytest.mark.parametrize(
    ("query", "where", "position"),
    [
        ("SELECT DISTINCT ARRAY[id::money] AS m FROM customers", "DISTINCT", (1, 8)),
        ("SELECT count(*) AS n FROM customers GROUP BY ARRAY[id::money]", "GROUP BY", (1, 37)),
        ("SELECT '{1}'::money[] AS m UNION SELECT '{2}'::money[]", "UNION", (1, 28)),
    ],
)
def test_types_without_a_key_form_are_refused_by_name(
    shop: Database, query: str, where: str, position: tuple[int, int]
) -> None:
    error = refusal(shop, query)
    assert error.code == "sql.not_maintained"
    assert "money[]" in error.what
    assert where in error.what
    assert error.position == Position(*position)


def test_order_by_alone_is_dropped_with_a_warning(shop: Database) -> None:
    assert any("ORDER BY" in w for w in plan(shop, "SELECT id FROM customers ORDER BY 1").warnings)


def test_functions_under_pinned_settings_are_let_through_with_a_warning(shop: Database) -> None:
    found = plan(shop, "SELECT at::date AS day, to_char(at, 'YYYY') AS year FROM orders")
    assert any('"to_char"' in w and "UTC" in w for w in found.warnings)


@pytest.mark.parametrize(
    ("table", "code"),
    [
        ("loose", "source.no_identity"),
        ("unlogged", "source.not_logged"),
        ("kept", "source.relation_kind"),
        ("pg_class", "source.system_catalog"),
        ("information_schema.tables", "source.system_catalog"),
    ],
)
def test_relations_that_cannot_be_followed(shop: Database, table: str, code: str) -> None:
    error = refusal(shop, f"SELECT * FROM {table}")
    if table.startswith("information_schema"):
        assert error.code.startswith(("source.", "sql."))
        return
    assert error.code == code
    assert table in error.what
    assert error.hint
    assert error.position == Position(1, 15)


def test_no_identity_names_the_two_ways_out(shop: Database) -> None:
    hint = refusal(shop, "SELECT a FROM loose").hint
    assert "primary key" in hint
    assert "REPLICA IDENTITY FULL" in hint


FULL = "SELECT a.id FROM customers a FULL JOIN customers b ON {}"


@pytest.mark.parametrize(
    "condition", ["a.id + b.id = 4", "a.id < b.id", "a.id = 4", "a.id = b.id OR a.vip = b.vip"]
)
def test_a_full_join_that_postgresql_cannot_run_is_refused(shop: Database, condition: str) -> None:
    query = FULL.format(condition)
    for text in (query, f"WITH q AS ({query}) SELECT count(*) AS n FROM q"):
        error = refusal(shop, text)
        assert error.code == "sql.feature_not_supported" and error.hint
        assert error.position == Position(1, text.index("FULL") + 1)
    shop.execute(f"CREATE VIEW crossed AS {query}")
    try:
        assert refusal(shop, "SELECT id FROM crossed").code == "sql.feature_not_supported"
    finally:
        shop.execute("DROP VIEW crossed")


@pytest.mark.parametrize(
    "condition", ["a.id = 4 - b.id", "a.id = b.id AND a.vip < b.vip", "true", "1 / 0 = 1"]
)
def test_a_full_join_that_postgresql_can_plan_is_maintained(shop: Database, condition: str) -> None:
    assert plan(shop, FULL.format(condition)).root
