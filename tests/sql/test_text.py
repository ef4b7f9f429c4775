"""Oracle: PostgreSQL's lexer as scan.l has it; what it would cut in two must be refused whole."""

from __future__ import annotations

import pytest

from dataflow.errors import Position, SqlError
from dataflow.lexer import find_words, one_query, position_of, tokens

ONE_QUERY = [
    "SELECT 1",
    "  SELECT 1 ; ;",
    "SELECT 1 -- ; DROP TABLE x",
    "SELECT 1 /* ; /* ; */ ; */",
    "SELECT ';'",
    "SELECT 'it''s; fine'",
    r"SELECT E'it\'s; fine'",
    "SELECT E'a'\n  'b\\'; DROP TABLE x; --'",
    "SELECT $$;$$",
    "SELECT $body$ $$;$$ ' $body$",
    'SELECT 1 AS "a;b""c"',
    "SELECT U&'\\0041;', B'1', X'F', N'n;'",
    "SELECT 1$$;$$",
    "SELECT 2 */* ; */ 3",
    "WITH a AS (SELECT 1) SELECT * FROM a",
    "VALUES (1, 'x;')",
    "TABLE customers",
    "(SELECT 1) UNION (SELECT 2)",
]

REFUSED = [
    ("", "sql.syntax_error", (1, 1)),
    (" -- nothing\n", "sql.syntax_error", (1, 1)),
    ("SELECT 1; DROP TABLE x", "sql.many_statements", (1, 9)),
    ("SELECT 1;\nCOMMIT;", "sql.many_statements", (1, 9)),
    ("SELECT 'a\\'; DROP TABLE x; --'", "sql.many_statements", (1, 12)),
    ("SELECT $a$ $b$ $a$; DROP TABLE x; SELECT $a$ $a$", "sql.many_statements", (1, 19)),
    ("SELECT a$b$;$b$ c $b$", "sql.many_statements", (1, 12)),
    ("SELECT 1 /* ; */ ; SELECT 2", "sql.many_statements", (1, 18)),
    ("COPY customers TO PROGRAM 'true'", "sql.not_a_select", (1, 1)),
    ("\n  DO $$ BEGIN END $$", "sql.not_a_select", (2, 3)),
    ("DELETE FROM customers", "sql.not_a_select", (1, 1)),
    ("EXPLAIN ANALYZE SELECT 1", "sql.not_a_select", (1, 1)),
    ("SELECT 1) ; DROP TABLE x; (SELECT 1", "sql.many_statements", (1, 11)),
    ("SELECT 1) UNION (SELECT 1", "sql.syntax_error", (1, 9)),
    ("SELECT (1", "sql.syntax_error", (1, 8)),
    ("SELECT 'x", "sql.syntax_error", (1, 8)),
    ('SELECT "x', "sql.syntax_error", (1, 8)),
    ("SELECT $x$ $y$", "sql.syntax_error", (1, 8)),
    ("SELECT 1 /* /* */", "sql.syntax_error", (1, 10)),
    ("SELECT \x00 1", "sql.syntax_error", (1, 8)),
    ("SELECT 1 AS a WITH LOCAL CHECK OPTION", "sql.syntax_error", (1, 26)),
]


@pytest.mark.parametrize("sql", ONE_QUERY)
def test_one_query_is_let_through(sql: str) -> None:
    assert sql.startswith(one_query(sql))


@pytest.mark.parametrize(("sql", "code", "position"), REFUSED)
def test_anything_else_is_refused_with_its_position(
    sql: str, code: str, position: tuple[int, int]
) -> None:
    with pytest.raises(SqlError) as caught:
        one_query(sql)
    assert caught.value.code == code
    assert caught.value.position == Position(*position)


def test_words_are_found_as_tokens_only() -> None:
    sql = "SELECT 'limit' AS \"limit it\", limits -- limit\nFROM a\n  LIMIT 3"
    assert find_words(sql, ["limit"]) == Position(3, 3)
    assert find_words("SELECT DISTINCT\n ON (a) b", ["distinct", "on"]) == Position(1, 8)
    assert find_words("SELECT 1", ["over"]) is None


def test_quoted_names_are_found_by_their_value() -> None:
    assert find_words('SELECT "Odd""Name"()', ['Odd"Name']) == Position(1, 8)


def test_positions_count_characters() -> None:
    assert position_of("é\nüx", 3) == Position(2, 2)


def test_a_long_text_is_read_in_linear_time() -> None:
    assert len(tokens("SELECT " + "'a''b' || " * 20_000 + "'c'")) == 60_002
