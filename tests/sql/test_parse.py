"""Oracle: PostgreSQL's canonical text of a view made from what we print of what we read of it."""

from __future__ import annotations

import pytest

from dataflow.errors import SqlError
from dataflow.sql.parse.canonical_form import Canonical, parse
from dataflow.sql.parse.flatten import flattened, relations_named
from tests.harness.postgres import Database
from tests.sql.planning import FIXTURES, read_cases

VIEWS = {name: sql for name, (sql, _) in read_cases(FIXTURES / "canonical.sql").items()}


def canonical(database: Database, queries: list[str]) -> list[str]:
    """pg_get_viewdef of the first query, and of each next one."""
    connection = database.connect(autocommit=False)
    try:
        with connection.cursor() as cursor:
            texts = []
            for query in queries:
                cursor.execute(f"CREATE TEMP VIEW v AS {query}")
                cursor.execute("SET LOCAL search_path = ''")
                cursor.execute("SELECT pg_get_viewdef('pg_temp.v'::regclass)")
                texts.append(cursor.fetchone()[0].strip().removesuffix(";"))
                connection.rollback()
            return texts
    finally:
        connection.close()


def _spaced(text: str) -> str:
    return " ".join(text.replace("(", " ( ").split())


@pytest.mark.parametrize("name", VIEWS)
def test_what_is_read_prints_to_the_same_view(shop: Database, name: str) -> None:
    (text,) = canonical(shop, [VIEWS[name]])
    printed = parse(text).sql(dialect=Canonical, normalize_functions=False)
    (again,) = canonical(shop, [printed])
    assert _spaced(again) == _spaced(text)


def test_a_form_that_cannot_be_read_is_refused(shop: Database) -> None:
    (text,) = canonical(shop, ["SELECT count(*) AS n FROM customers"])
    with pytest.raises(SqlError) as caught:
        parse(text.replace("count(*)", "count(* BEYOND ALL)"))
    assert caught.value.code == "sql.not_maintained"
    assert "\x1b" not in caught.value.detail


def test_a_flattened_query_locks_nothing() -> None:
    text = (
        "SELECT a.i FROM public.a WHERE a.i IN ( SELECT b.i FROM public.b FOR SHARE)"
        " FOR NO KEY UPDATE OF a SKIP LOCKED FOR SHARE OF b NOWAIT"
    )
    found = flattened(text, lambda schema, name: f"SELECT * FROM x.{name}")
    expected = (
        'SELECT a.i FROM (SELECT * FROM x.a) "a"'
        ' WHERE a.i IN ( SELECT b.i FROM (SELECT * FROM x.b) "b" ) '
    )
    assert found == expected
    assert relations_named(text) == [("public", "a"), ("public", "b")]
