"""Oracle: PostgreSQL's own answers where equal values have different bytes, and where they do not.

Nondeterministic collations need ICU, citext its extension; enums are everywhere.
"""

from __future__ import annotations

import psycopg2
import pytest

from connectors.postgres.analysis.analyzer import PostgresAnalyzer
from connectors.postgres.embedded.server import EmbeddedPostgres
from dataflow.errors import SqlError
from dataflow.types import TypeKind
from storage.memory import MemoryStore
from tests.equality.history import History, run_history
from tests.harness import draw
from tests.harness.postgres import Database, new_database
from tests.harness.schemas.base import TableSpec, TestSchema
from tests.sql.planning import SOURCE, plan, refusal

pytestmark = pytest.mark.versions

COLLATION = """
CREATE COLLATION ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
CREATE DOMAIN ci_text AS text COLLATE ci;
CREATE TABLE words (
    id integer PRIMARY KEY, a text COLLATE ci, b text COLLATE ci, plain text, d ci_text,
    v varchar(9) COLLATE ci, f char(4) COLLATE ci, list text[] COLLATE ci)"""
CITEXT = """
CREATE EXTENSION citext;
CREATE TABLE words (id integer PRIMARY KEY, c citext, e citext, plain text)"""
ENUM = """
CREATE TYPE mood AS ENUM ('sad', 'fine', 'glad');
CREATE DOMAIN moody AS mood;
CREATE TABLE words (id integer PRIMARY KEY, m mood, n mood, d moody)"""

COLLATED = {
    "constant": "SELECT id, a FROM words WHERE a = 'X' OR 'Yy' = b",
    "in": "SELECT id FROM words WHERE a IN ('X', 'Yy')",
    "columns": "SELECT id, a = b AS same, a <> b AS other, a IS DISTINCT FROM b AS d FROM words",
    "explicit": "SELECT id FROM words WHERE plain = 'x' COLLATE ci",
    "bytes": "SELECT id, a COLLATE \"C\" = 'X' AS same FROM words",
    "case": "SELECT id, CASE a WHEN 'x' THEN 1 WHEN 'YY' THEN 2 END AS k FROM words",
    "nullif": "SELECT id, nullif(a, 'X') AS n, coalesce(a, 'z') AS c FROM words",
    "derived": "SELECT id, (a || 'q') = 'XQ' AS e, a::varchar(1) = 'X' AS v FROM words",
    "types": "SELECT id, d = 'X' AS d, v = 'X' AS v, f = 'X' AS f, list = '{X}' AS l FROM words",
    "text": "SELECT id, length(a) AS l, upper(a) AS u, a < 'Y' AS o FROM words",
    "grouped": 'SELECT a COLLATE "C" AS a, count(*) AS n FROM words GROUP BY 1',
    "residual": "SELECT w.id FROM words w JOIN words x ON w.id = x.id AND w.a = x.b",
    "group": "SELECT count(*) AS n, min(id) AS least FROM words GROUP BY a",
    "group of texts": "SELECT count(*) AS n FROM words GROUP BY upper(a), d",
    "group of arrays": "SELECT count(*) AS n, max(id) AS most FROM words GROUP BY list",
    "distinct": "SELECT count(*) AS n FROM (SELECT DISTINCT a, b FROM words) AS s",
    "counted": "SELECT count(DISTINCT a) AS a, count(DISTINCT f) AS f FROM words",
    "union": "SELECT count(*) AS n FROM (SELECT a FROM words UNION SELECT b FROM words) AS s",
    "joined": "SELECT w.id, x.id AS other FROM words w JOIN words x ON w.a = x.b",
    "left": "SELECT w.id, x.id AS other FROM words w LEFT JOIN words x ON w.v = x.v",
    "crossed": "SELECT w.id FROM words w, words x WHERE w.a = x.b AND w.id < x.id",
    "using": "SELECT w.id, x.id AS other FROM words w JOIN words x USING (a)",
    "in query": "SELECT id FROM words WHERE a IN (SELECT b FROM words)",
    "not in": "SELECT id FROM words WHERE a NOT IN (SELECT b FROM words WHERE b IS NOT NULL)",
    "exists": "SELECT id FROM words w WHERE EXISTS (SELECT 1 FROM words x WHERE x.b = w.a)",
}
CITEXTS = {
    "constant": "SELECT id, c FROM words WHERE c = 'X' OR 'yy' = e",
    "in": "SELECT id FROM words WHERE c IN ('X', 'yy')",
    "columns": "SELECT id, c = e AS same, c <> e AS other, c IS DISTINCT FROM e AS d FROM words",
    "text": "SELECT id, c = plain AS same, c::text = 'X' AS bytes FROM words",
    "case": "SELECT id, CASE c WHEN 'x' THEN 1 WHEN 'YY' THEN 2 END AS k FROM words",
    "nullif": "SELECT id, nullif(c, 'X') AS n, coalesce(c, 'z') AS c FROM words",
    "like": "SELECT id, c LIKE 'x%' AS l, c || 'q' AS k, lower(c) AS lower FROM words",
    "residual": "SELECT w.id FROM words w JOIN words x ON w.id = x.id AND w.c = x.e",
    "constants": "SELECT id, nullif('x'::citext, 'X'::citext) AS n FROM words",
    "group": "SELECT count(*) AS n, min(id) AS least FROM words GROUP BY c",
    "distinct": "SELECT count(*) AS n FROM (SELECT DISTINCT c FROM words) AS s",
    "joined": "SELECT w.id, x.id AS other FROM words w JOIN words x ON w.c = x.e",
    "using": "SELECT w.id, x.id AS other FROM words w JOIN words x USING (c)",
    "exists": "SELECT id FROM words w WHERE NOT EXISTS (SELECT 1 FROM words x WHERE x.e = w.c)",
}
ENUMS = {
    "constant": "SELECT id FROM words WHERE m = 'sad' OR n <> 'fine'",
    "columns": "SELECT id, m = n AS same, m IS DISTINCT FROM n AS d, m = d::mood AS k FROM words",
    "parts": "SELECT coalesce(m, 'glad') AS m, nullif(n, 'sad') AS n, count(*) AS k FROM words"
    " GROUP BY 1, 2",
    "order": "SELECT min(m) AS least, max(n) AS most FROM words WHERE m < 'glad'",
    "joined": "SELECT w.id, x.id AS other FROM words w JOIN words x ON w.m = x.n",
    "distinct": "SELECT DISTINCT m, d FROM words",
}
LETTERS = draw.nullable(draw.choice("x", "X", "yy", "Yy", "YY", "z "))
MOODS = draw.nullable(draw.choice("sad", "fine", "glad"))


def check(server: EmbeddedPostgres, ddl: str, columns: dict, queries: dict[str, str]) -> None:
    columns = {"id": draw.integers(1, 20), **columns}
    schema = TestSchema("words", ddl, (TableSpec("words", columns, ("id",), 12),))
    with new_database(server) as database:
        outcome = run_history(database, MemoryStore(), History(schema, 7, 15, 2), queries)
    assert not outcome.refused, outcome.refused
    assert not outcome.faults, outcome.text(queries, "pytest tests/sql/test_collations.py")


def collated(database: Database) -> Database:
    if not database.rows("SELECT 1 FROM pg_collation WHERE collname = 'de-x-icu'"):
        pytest.skip("no ICU")
    database.execute(COLLATION)
    return database


def with_citext(database: Database) -> Database:
    if not database.rows("SELECT 1 FROM pg_available_extensions WHERE name = 'citext'"):
        pytest.skip("no citext")
    database.execute(CITEXT)
    return database


def test_nondeterministic_collations(every_database: Database) -> None:
    collated(every_database)
    columns: dict[str, draw.Draw] = dict.fromkeys(("a", "b", "plain", "d", "v", "f"), LETTERS)
    columns["list"] = draw.nullable(draw.choice("{x}", "{X}", "{x,y}"))
    check(every_database.server, COLLATION, columns, COLLATED)


def test_citext(every_database: Database) -> None:
    with_citext(every_database)
    check(every_database.server, CITEXT, dict.fromkeys(("c", "e", "plain"), LETTERS), CITEXTS)


def test_enums(every_postgres: EmbeddedPostgres) -> None:
    check(every_postgres, ENUM, dict.fromkeys(("m", "n", "d"), MOODS), ENUMS)


CASES = """
CREATE SCHEMA languages;
CREATE COLLATION languages.turkish (provider = icu, locale = 'tr-TR');
CREATE TABLE words (
    id integer PRIMARY KEY, c text COLLATE "C", e text COLLATE "en-x-icu",
    t text COLLATE "tr-x-icu", own text COLLATE languages.turkish, plain text
)"""
TEXTS = {
    **{name: name for name in ("c", "e", "t", "own", "plain")},
    "named": '(plain COLLATE "tr-x-icu")',
}
CALLS = {
    "initcap": "initcap({})",
    "initcap of a call": "initcap(left({}, 9))",
    "lower": "lower({})",
    "upper of a call": "upper(replace({} || 'i', '.', ''))",
    "ilike": "({} ILIKE '%I%')",
    "ilike of a text": "(id::text || 'i' ILIKE '%' || left({}, 1) || '%')",
}
OF_CASES = {
    name: "SELECT id, "
    + ", ".join(f"{call.format(text)} AS of_{column}" for column, text in TEXTS.items())
    + " FROM words"
    for name, call in CALLS.items()
}


def test_words_and_cases_are_the_collations(every_database: Database) -> None:
    """ICU begins words elsewhere than libc, and in Turkic the letter i has other cases."""
    if not every_database.rows("SELECT 1 FROM pg_collation WHERE collname = 'tr-x-icu'"):
        pytest.skip("no ICU")
    texts = draw.nullable(draw.choice("o'x", "III iii", "a.b c-d", "1st oF", "ISIK isik"))
    columns = dict.fromkeys(("c", "e", "t", "own", "plain"), texts)
    check(every_database.server, CASES, columns, OF_CASES)


MIXED = """
CREATE TABLE words (id integer PRIMARY KEY, n bigint, c text COLLATE "C", x text COLLATE "POSIX")"""
UNCOLLATED = {
    "order": "SELECT id FROM words WHERE x <= c",
    "equality": "SELECT id FROM words WHERE upper(x) = c",
    "beside a number": "SELECT id FROM words WHERE concat(x, n) < c || n::text",
    "branch": "SELECT id, CASE WHEN n > 3 THEN x < c ELSE true END AS f FROM words",
    "behind another condition": "SELECT w.id FROM words w CROSS JOIN (SELECT v.id FROM words v"
    " WHERE v.x <= v.c) s WHERE NOT EXISTS (SELECT FROM words)",
}
COLLATED_ENOUGH = (
    'SELECT id FROM words WHERE x <= c COLLATE "C"',
    "SELECT id, length(x || c) AS n FROM words",
    "SELECT id, x < 'm' AS x, c < 'm' AS c, x IS NULL OR c IS NULL AS e FROM words",
)


@pytest.mark.parametrize("query", UNCOLLATED.values(), ids=UNCOLLATED)
def test_two_collations_and_none_named_are_refused(every_database: Database, query: str) -> None:
    """PostgreSQL creates such a view, and fails when rows reach the comparison."""
    every_database.execute(MIXED)
    every_database.execute("INSERT INTO words VALUES (1, 5, 'b', 'a')")
    if "EXISTS" not in query:
        with pytest.raises(psycopg2.errors.IndeterminateCollation):
            every_database.rows(query)
    error = refusal(every_database, query)
    assert error.code == "sql.indeterminate_collation"
    assert isinstance(error, SqlError) and error.hint


def test_a_comparison_with_a_query_that_has_no_collation_is_refused(
    every_database: Database,
) -> None:
    if not every_database.rows("SELECT 1 FROM pg_collation WHERE collname = 'de-x-icu'"):
        pytest.skip("no ICU")
    every_database.execute(MIXED.replace("POSIX", "de-x-icu"))
    found = refusal(every_database, "SELECT id FROM words WHERE x < ANY (SELECT v.c FROM words v)")
    assert found.code == "sql.indeterminate_collation"


@pytest.mark.parametrize("query", COLLATED_ENOUGH)
def test_two_collations_that_do_not_meet_are_planned(every_database: Database, query: str) -> None:
    every_database.execute(MIXED)
    every_database.execute("INSERT INTO words VALUES (1, 5, 'b', 'a')")
    assert every_database.rows(query)
    assert plan(every_database, query).root.fields[0].name == "id"


def test_what_the_analyzer_says_of_types(every_database: Database) -> None:
    """The same of a column and of a part of a query."""
    every_database.execute(ENUM)
    asked = ["coalesce(c1, 'sad')", "c2", "ARRAY[c1]", "c1::text"]
    with PostgresAnalyzer(every_database.dsn, SOURCE) as analyzer:
        fields = analyzer.relation("public", "words").relation.fields  # type: ignore[union-attr]
        types = [f.type for f in fields]
        parts = analyzer.types([types[1], types[3]], asked)
    assert [t.is_enum for t in types] == [False, True, True, True]
    assert [t.is_enum for t in parts] == [True, True, False, False]
    assert plan(every_database, "SELECT id FROM words WHERE m = 'sad'").evaluates == ()


def test_a_nondeterministic_type_is_opaque_by_both_engines(every_database: Database) -> None:
    collated(every_database)
    with PostgresAnalyzer(every_database.dsn, SOURCE) as analyzer:
        fields = analyzer.relation("public", "words").relation.fields  # type: ignore[union-attr]
        types = {f.name: f.type for f in fields}
        parts = analyzer.types([types["a"], types["plain"]], ["c1 || 'x'", "c2 COLLATE public.ci"])
    assert types["plain"].is_deterministic
    for type in (*(types[n] for n in ("a", "d", "v", "f", "list")), *parts):
        assert not type.is_deterministic and type.kind is TypeKind.OPAQUE
