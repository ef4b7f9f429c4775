"""Oracle: the rule of names: a source's relation first, then a maintained view's."""

from __future__ import annotations

import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from connectors.postgres.sink.postgres_sink import PostgresSink
from connectors.sink import SinkTable
from dataflow.errors import Position, SinkError, SqlError
from dataflow.plan.nodes import Scan, scans_of
from dataflow.schema import VIEW_SOURCE, Field, RelationName
from dataflow.types import INT4, INT8, TEXT, fixed
from tests.harness.postgres import Database, new_database
from tests.sql.planning import SOURCE, maintained, plan

TOTALS = maintained(
    "public",
    "totals",
    [Field("city", TEXT, False), Field("total", fixed(12, 2)), Field("n", INT8, False)],
    (0,),
)
CUSTOMERS = maintained("public", "customers", [Field("other", INT4)], ())
REPORTS = maintained("reports", "daily", [Field("day", INT4, False)], (0,))
TWO_DATABASES = {"views": [TOTALS, CUSTOMERS, REPORTS], "has_stubs": True}


def scanned(database: Database, query: str, **given) -> list[RelationName]:
    return [s.relation.name for s in scans_of(plan(database, query, **given).root)]


def test_with_two_databases_a_view_is_seen_where_the_source_has_no_such_name(
    shop: Database,
) -> None:
    query = "SELECT c.id, t.total FROM customers c JOIN totals t ON t.city = c.city"
    assert scanned(shop, query, **TWO_DATABASES) == [
        RelationName(SOURCE, "public", "customers"),
        RelationName(VIEW_SOURCE, "public", "totals"),
    ]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT day FROM reports.daily",
        "SELECT daily.day FROM reports.daily",
        "SELECT reports.daily.day FROM reports.daily",
        "SELECT day FROM daily",
        'SELECT x.day FROM "reports"."daily" AS x',
    ],
)
def test_a_view_may_be_named_with_its_schema(shop: Database, query: str) -> None:
    assert scanned(shop, query, **TWO_DATABASES) == [RelationName(VIEW_SOURCE, "reports", "daily")]


def test_positions_are_right_after_a_qualified_view(shop: Database) -> None:
    with pytest.raises(SqlError) as caught:
        plan(
            shop, "SELECT d.day FROM reports.daily d, public.totals t\nWHERE t.foo", **TWO_DATABASES
        )
    assert caught.value.position == Position(2, 7)


def test_fields_and_key_of_a_view_are_those_it_was_made_with(shop: Database) -> None:
    found = plan(shop, "SELECT city, total, n FROM totals", **TWO_DATABASES)
    assert isinstance(found.root, Scan)
    assert found.root.fields == TOTALS.fields
    assert found.key == (0,)


def test_unknown_names_stay_unknown(shop: Database) -> None:
    with pytest.raises(SqlError) as caught:
        plan(shop, "SELECT 1 AS x FROM reports.weekly", **TWO_DATABASES)
    assert caught.value.code == "sql.undefined_table"


def test_with_one_database_a_view_is_its_table_or_its_multiset(
    every_postgres: EmbeddedPostgres,
) -> None:
    made = [
        maintained("public", "by_city", [Field("city", TEXT, False), Field("n", INT8)], (0,)),
        maintained("public", "bag", [Field("x", INT4)], ()),
    ]
    query = "SELECT b.city, x FROM by_city b, public.bag"
    with new_database(every_postgres) as database:
        sink = PostgresSink(database.dsn)
        for view in made:
            sink.load(SinkTable(view.name.schema, view.name.name, view.fields, view.key), [], None)
        assert scanned(database, query, views=made) == [
            RelationName(VIEW_SOURCE, "public", "by_city"),
            RelationName(VIEW_SOURCE, "public", "bag"),
        ]
        # Another table of that name is not the view's.
        database.execute("ALTER TABLE by_city RENAME TO other; CREATE TABLE by_city AS TABLE other")
        with pytest.raises(SinkError) as caught:
            scanned(database, query, views=made)
        assert caught.value.code == "sink.foreign_object"
        sink.close()


def test_names_follow_the_search_path(every_postgres: EmbeddedPostgres) -> None:
    with new_database(every_postgres) as database:
        database.execute(
            "CREATE SCHEMA a; CREATE TABLE a.t (x integer PRIMARY KEY);"
            "CREATE TABLE public.t (y integer PRIMARY KEY);"
            f"ALTER DATABASE {database.name} SET search_path = a, public"
        )
        assert scanned(database, "SELECT x FROM t") == [RelationName(SOURCE, "a", "t")]
        assert scanned(database, "SELECT y FROM public.t") == [RelationName(SOURCE, "public", "t")]


def test_an_ordinary_view_is_taken_apart(shop: Database) -> None:
    assert scanned(shop, "SELECT id, name FROM vips") == [
        RelationName(SOURCE, "public", "customers")
    ]


def test_a_relation_may_have_the_name_of_a_type(database: Database) -> None:
    named = maintained("letters", "text", [Field("n", INT4)], ())
    query = "SELECT n::text AS word, 'x' AS kind, text.n FROM letters.text WHERE text.n::text <> ''"
    found = plan(database, query, views=[named], has_stubs=True)
    assert [s.relation.name for s in scans_of(found.root)] == [named.name]
    assert [f.type.name for f in found.root.fields] == ["text", "text", "integer"]
