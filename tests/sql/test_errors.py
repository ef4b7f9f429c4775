"""Oracle: PostgreSQL's own message, and the place of the fault in the text as written."""

from __future__ import annotations

import pytest

from connectors.postgres.analysis.analyzer import PostgresAnalyzer
from dataflow.errors import Position, SqlError, TemporaryError
from dataflow.sql.bind.analysis import Analysis
from tests.harness.postgres import Database
from tests.sql.planning import refusal

WRONG = [
    ("SELECT foo FROM customers", "sql.undefined_column", 'column "foo" does not exist', (1, 8)),
    ("SELECT id\nFROM nowhere", "sql.undefined_table", 'relation "nowhere"', (2, 6)),
    ("SELECT id FRM customers\n WHERE", "sql.syntax_error", 'at or near "customers"', (1, 15)),
    ("SELECT nofunc(id) FROM customers", "sql.undefined_function", "nofunc(integer)", (1, 8)),
    ("SELECT 'é', name + 1 FROM customers", "sql.undefined_function", "text + integer", (1, 18)),
    ("SELECT id, city FROM customers GROUP BY city", "sql.grouping_error", "customers.id", (1, 8)),
    ("SELECT 'x'::integer AS x", "sql.invalid_text_representation", "integer", (1, 8)),
    ("SELECT id, id FROM customers", "sql.duplicate_column", '"id"', None),
    ("SELECT 1 AS a UNION SELECT 'x'", "sql.invalid_text_representation", "integer", (1, 28)),
    ("SELECT id FROM customers c, orders c", "sql.duplicate_alias", '"c"', None),
    ("SELECT 1 INTO x", "sql.", "", None),
    ("WITH d AS (DELETE FROM customers RETURNING id) SELECT id FROM d", "sql.", "", None),
    ("SELECT $1", "sql.", "", None),
]


@pytest.mark.parametrize(("query", "code", "words", "position"), WRONG)
def test_errors_of_postgresql_reach_the_user_with_their_position(
    shop: Database, query: str, code: str, words: str, position: tuple[int, int] | None
) -> None:
    error = refusal(shop, query)
    assert isinstance(error, SqlError)
    assert error.code.startswith(code)
    assert words in error.what
    if position is not None:
        assert error.position == Position(*position)


def test_hints_of_postgresql_are_passed_on(shop: Database) -> None:
    assert "customers.name" in refusal(shop, "SELECT nam FROM customers").hint


@pytest.mark.parametrize(
    "query",
    [
        "SELECT 1; CREATE TABLE stolen (a integer)",
        "SELECT 1) ; CREATE TABLE stolen (a integer); SELECT (1",
        "SELECT 1; COMMIT; CREATE TABLE stolen (a integer)",
        "COPY customers TO STDOUT",
        "DO $$ BEGIN CREATE TABLE stolen (a integer); END $$",
        "CREATE TABLE stolen AS SELECT 1",
        "SELECT 'a\\'; CREATE TABLE stolen (a integer); --'",
        "SELECT 1 /* */; CREATE TABLE stolen (a integer) /* */",
        "VALUES (1); DROP TABLE customers",
    ],
)
def test_nothing_of_a_hostile_text_happens(shop: Database, query: str) -> None:
    error = refusal(shop, query)
    assert isinstance(error, SqlError)
    assert shop.rows("SELECT to_regclass('stolen'), to_regclass('customers') IS NULL") == [
        (None, False)
    ]


def test_constants_are_computed_read_only(shop: Database) -> None:
    shop.execute(
        "CREATE TABLE written (a integer); CREATE FUNCTION lying() RETURNS integer "
        "LANGUAGE plpgsql IMMUTABLE AS 'BEGIN INSERT INTO written VALUES (1); RETURN 1; END'"
    )
    with PostgresAnalyzer(shop.dsn, "shop") as analyzer:
        (type,) = analyzer.types([], ["public.lying()"])
        assert analyzer.constants(["public.lying()", "1 / 0", "2"], [type] * 3)[:2] == (None, None)
    assert shop.rows("SELECT count(*) FROM written") == [(0,)]


def test_nothing_is_left_and_the_analyzer_can_be_used_again(shop: Database) -> None:
    before = shop.rows("SELECT count(*) FROM pg_class")
    with PostgresAnalyzer(shop.dsn, "shop") as analyzer:
        with pytest.raises(SqlError):
            analyzer.analyze("SELECT foo")
        assert analyzer.analyze("SELECT id FROM customers").fields[0].name == "id"
    assert shop.rows("SELECT count(*) FROM pg_class") == before


def test_a_database_out_of_reach_is_worth_another_try() -> None:
    analyzer = PostgresAnalyzer("host=127.0.0.1 port=1 dbname=x", "shop")
    with pytest.raises(TemporaryError):
        analyzer.analyze("SELECT 1")


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_session_lost_at_the_end_of_a_question_is_worth_another_try(
    shop: Database, monkeypatch: pytest.MonkeyPatch, is_refused: bool
) -> None:
    with PostgresAnalyzer(shop.dsn, "shop") as analyzer:
        described = analyzer._described

        def lost(view: str | int) -> Analysis:
            found = described(view)
            assert analyzer._connection is not None
            pid = analyzer._connection.info.backend_pid
            shop.execute("SELECT pg_terminate_backend(%s)", (pid,))
            if is_refused:
                raise SqlError("sql.any", "refused")
            return found

        monkeypatch.setattr(analyzer, "_described", lost)
        with pytest.raises(TemporaryError):
            analyzer.analyze("SELECT id FROM customers")
        monkeypatch.undo()
        assert analyzer.analyze("SELECT id FROM customers").fields[0].name == "id"
