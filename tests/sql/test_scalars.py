"""Oracle: the split between kernels and PostgreSQL, and PostgreSQL's own types and constants."""

from __future__ import annotations

import pytest

from dataflow.expressions.ir import Call, ColumnRef, Expression, InPostgres, Literal
from dataflow.plan.nodes import Filter, Project, Remember, Values
from dataflow.types import BOOL, DATE, INT4, INT8, TEXT, TypeKind
from tests.harness.postgres import Database
from tests.sql.planning import plan


def expression(database: Database, text: str, table: str = "customers") -> Expression:
    root = plan(database, f"SELECT {text} AS x FROM {table}").root
    assert isinstance(root, Project)
    if isinstance(root.input, Remember):
        return root.input.expressions[0]
    return root.expressions[0]


def test_what_has_a_kernel_is_a_call(shop: Database) -> None:
    found = expression(shop, "id + 1 > 3 AND NOT vip")
    assert isinstance(found, Call)
    assert found.function == "and"
    more, negated = found.arguments
    assert more == Call(
        ">",
        (Call("+", (ColumnRef(0, INT4, "id"), Literal("1", INT4)), INT4), Literal("3", INT4)),
        BOOL,
    )
    assert negated == Call("not", (ColumnRef(1, BOOL, "vip"),), BOOL)


@pytest.mark.parametrize(
    ("text", "function"),
    [
        ("id IN (1, 2, NULL)", "in"),
        ("id NOT IN (1, 2)", "not"),
        ("name IN ('a', 'b')", "in"),
        ("name NOT LIKE 'a%'", "not like"),
        ("id BETWEEN 1 AND 2", "and"),
        ("city IS NULL", "is null"),
        ("vip IS NOT TRUE", "is not true"),
        ("city IS NOT DISTINCT FROM name", "is not distinct from"),
        ("CASE WHEN vip THEN 1 END", "case"),
        ("CASE id WHEN 1 THEN 'a' ELSE 'b' END", "case"),
        ("coalesce(city, name)", "coalesce"),
        ("nullif(id, 0)", "nullif"),
        ("greatest(id, 3)", "greatest"),
        ("id::text", "cast"),
        ("-id", "-"),
        ("name || 'x'", "||"),
    ],
)
def test_names_of_kernels(shop: Database, text: str, function: str) -> None:
    found = expression(shop, text)
    assert isinstance(found, Call)
    assert found.function == function


def test_extract_has_its_field_first(shop: Database) -> None:
    found = expression(shop, "extract(YEAR FROM placed)", "orders")
    assert isinstance(found, Call)
    assert found.arguments[0] == Literal("year", TEXT)
    assert found.arguments[1].type == DATE
    assert found.type.kind == TypeKind.DECIMAL


def test_only_the_smallest_subtree_goes_to_postgresql(shop: Database) -> None:
    found = expression(shop, "twice(id + 1) + id")
    assert isinstance(found, Call)
    assert found.function == "+"
    assert found.arguments[0] == InPostgres(
        "public.twice(($1 + 1))", (ColumnRef(0, INT4, "id"),), INT4, may_change=True
    )
    assert found.arguments[1] == ColumnRef(0, INT4, "id")


def test_each_column_is_passed_once(shop: Database) -> None:
    found = expression(shop, "regexp_replace(name || city, name, 'x')")
    assert isinstance(found, InPostgres)
    assert [a.name for a in found.arguments if isinstance(a, ColumnRef)] == ["name", "city"]
    assert found.sql == "regexp_replace(($1 || $2), $1, 'x'::text)"


@pytest.mark.parametrize(
    "text",
    [
        "attributes -> 'a'",
        "place <-> point '(1,2)'",
        "tags[1]",
        "tags || 'x'::text",
        "@ id",
        "label ^@ 'x'",
        "(id, label) < (3, 'x')",
        "'x' = ANY (tags)",
        "to_tsvector('english', label) @@ to_tsquery('english', 'x')",
        "id::positive",
        "date_part('year', date '2020-01-02' + id)",
        "format('%s', label)",
        '"substring"(label, 1, 2)',
        "trim(kind)",
    ],
)
def test_every_expression_that_goes_to_postgresql_runs_there(shop: Database, text: str) -> None:
    found = plan(shop, f"SELECT {text} AS x FROM products")
    for sql in found.evaluates:
        shop.rows(_over_nulls(found, sql))


def _over_nulls(found, sql: str) -> str:
    """The SQL with typed NULLs in the place of its columns."""
    (scan,) = [s for s in _scans(found.root)]
    types = {f.name: f.type.name for f in scan.fields}
    for node in _in_postgres(found.root):
        if node.sql == sql:
            for i, argument in reversed(list(enumerate(node.arguments, 1))):
                assert isinstance(argument, ColumnRef)
                sql = sql.replace(f"${i}", f"(NULL::{types[argument.name]})")
    return f"SELECT {sql}"


def _scans(plan_node):
    from dataflow.plan.nodes import scans_of

    return scans_of(plan_node)


def _in_postgres(root):
    from dataflow.expressions.ir import children
    from dataflow.plan.explain import expressions_of

    waiting = list(expressions_of(root))
    while waiting:
        node = waiting.pop()
        if isinstance(node, InPostgres):
            yield node
        waiting.extend(children(node))


@pytest.mark.parametrize(
    ("text", "value", "type"),
    [
        ("1", "1", "integer"),
        ("1.50", "1.50", "numeric"),
        ("'it''s'", "it's", "text"),
        ("E'a\\\\b\\n'", "a\\b\n", "text"),
        ("true", "t", "boolean"),
        ("NULL::date", None, "date"),
        (
            "date '1994-01-01' + interval '1 year'",
            "1995-01-01 00:00:00",
            "timestamp without time zone",
        ),
        ("'x'::char(3)", "x  ", "character(3)"),
        ("1.239::numeric(10,1)", "1.2", "numeric(10,1)"),
        ("'abc'::varchar(2)", "ab", "character varying(2)"),
        ("'sad'::mood", "sad", "public.mood"),
        ("2 ^ 10", "1024", "double precision"),
        ("'NaN'::float8", "NaN", "double precision"),
        ("lower('ABC') || 1", "abc1", "text"),
        ("array[1, 2]", "{1,2}", "integer[]"),
        ("timestamptz '2020-01-01 00:00+02'", "2019-12-31 22:00:00+00", "timestamp with time zone"),
        ("interval '90' day", "90 days", "interval day"),
        ("'{\"b\": 1}'::jsonb", '{"b": 1}', "jsonb"),
        ("'\\x00ff'::bytea", "\\x00ff", "bytea"),
        ("twice(21)", "42", "integer"),
    ],
)
def test_constants_are_postgresqls_values(
    shop: Database, text: str, value: str | None, type: str
) -> None:
    found = expression(shop, text)
    assert isinstance(found, Literal)
    assert (found.text, found.type.name) == (value, type)


def test_a_constant_that_fails_is_left_to_the_rows(shop: Database) -> None:
    found = expression(shop, "1 / 0")
    assert found == Call("/", (Literal("1", INT4), Literal("0", INT4)), INT4)


def test_collations_decide_what_is_ordered_by_bytes(shop: Database) -> None:
    shop.execute(
        'CREATE TABLE IF NOT EXISTS words (id integer PRIMARY KEY, plain text COLLATE "C",'
        ' german text COLLATE "de-x-icu")'
    ) if _has_icu(shop) else pytest.skip("no ICU")
    root = plan(shop, "SELECT plain, german FROM words").root
    assert [f.type.is_bytewise for f in root.fields] == [True, False]
    assert root.fields[1].type.collation == '"de-x-icu"'
    filtered = plan(shop, "SELECT id FROM words WHERE german < 'x' AND plain < 'x'")
    assert filtered.evaluates == ("$1 < 'x'::text",)


def _has_icu(database: Database) -> bool:
    return bool(database.rows("SELECT 1 FROM pg_collation WHERE collname = 'de-x-icu'"))


def test_values_are_literals_of_common_types(shop: Database) -> None:
    root = plan(shop, "VALUES (1, 'a', NULL), (2.5, NULL, date '2020-01-01')").root
    assert isinstance(root, Values)
    assert [f.type.name for f in root.fields] == ["numeric", "text", "date"]
    assert [[c.text for c in row if isinstance(c, Literal)] for row in root.rows] == [
        ["1", "a", None],
        ["2.5", None, "2020-01-01"],
    ]


def test_a_domain_is_computed_as_its_base_but_cast_by_postgresql(shop: Database) -> None:
    root = plan(shop, "SELECT stock, stock + 1 AS more FROM products").root
    assert root.fields[0].type.name == "public.positive"
    assert root.fields[0].type.kind == TypeKind.INT4
    assert isinstance(expression(shop, "id::positive", "products"), InPostgres)


def test_types_of_sums_are_postgresqls(shop: Database) -> None:
    root = plan(
        shop, "SELECT sum(quantity) AS q, sum(price) AS p, avg(line) AS a, count(*) AS n FROM lines"
    ).root
    assert [f.type.name for f in root.fields] == ["bigint", "numeric", "numeric", "bigint"]
    assert root.fields[3].type == INT8
    assert [f.is_nullable for f in root.fields] == [True, True, True, False]


def test_generated_columns_are_computed(shop: Database) -> None:
    found = plan(shop, "SELECT id, gross FROM priced WHERE gross > 3")
    assert [f.name for f in found.root.fields] == ["id", "gross"]
    assert isinstance(found.root, Project | Filter)
    assert [f.name for s in _scans(found.root) for f in s.fields] == ["id", "net"]
