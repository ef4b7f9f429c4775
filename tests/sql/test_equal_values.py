"""Oracle: PostgreSQL's own answers for keys of types whose text does not tell what is equal.

Ranges over numbers, arrays of numbers, composites, rows of text search, and what contrib brings.
"""

from __future__ import annotations

import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from storage.memory import MemoryStore
from tests.equality.history import History, run_history
from tests.harness import draw
from tests.harness.postgres import Database, new_database
from tests.harness.schemas.base import TableSpec, TestSchema

DDL = """
CREATE TYPE spot AS (x numeric, label text);
CREATE DOMAIN span AS numrange CHECK (NOT isempty(VALUE));
CREATE TABLE things (
    id integer PRIMARY KEY, r numrange, m nummultirange, nums numeric[], grid float8[],
    s spot, spots spot[], d span, days daterange, vec tsvector, q tsquery, ip inet, bits varbit,
    path jsonpath, cash money)"""
VALUES = {
    "r": ("[1,2)", "[1.0,2.00)", "empty", "(,5]", "[0.5,0.5]"),
    "m": ("{[1,2)}", "{[1.0,2.0)}", "{}", "{[1,2),[3,4)}"),
    "nums": ("{1,2}", "{1.0,2.00}", "{}", "{NULL,1}", "{{1,2},{3,4}}", "[2:3]={1,2}"),
    "grid": ("{0}", "{-0}", "{NaN}", "{1e300,1}"),
    "s": ("(1,a)", "(1.0,a)", "(,)", "(1,)", '(2,"")'),
    "spots": ('{"(1,a)"}', '{"(1.00,a)"}', "{}", "{NULL}"),
    "d": ("[1,2)", "[1.0,2.0)"),
    "days": ("[2024-01-01,2024-01-03)", "[2024-01-01,2024-01-02]", "empty"),
    "vec": ("a:1 b:2", "b:2 a:1", "a b", ""),
    "q": ("a & b", "b & a", "a&b"),
    "ip": ("10.0.0.1", "10.0.0.1/32", "::1"),
    "bits": ("101", "1010", ""),
    "path": ("$.a", "$.b"),
    "cash": ("1.00", "1", "-2.50"),
}
KEYS = ("r", "m", "nums", "grid", "s", "spots", "d", "days", "vec", "ip", "bits", "cash")
QUERIES = {
    **{f"group {c}": f"SELECT count(*) AS n, min(id) AS i FROM things GROUP BY {c}" for c in KEYS},
    **{f"counted {c}": f"SELECT count(DISTINCT {c}) AS n FROM things" for c in KEYS},
    **{
        f"joined {c}": f"SELECT a.id, b.id AS other FROM things a JOIN things b ON a.{c} = b.{c}"
        for c in KEYS
    },
    **{
        f"in {c}": f"SELECT id FROM things WHERE {c} IN (SELECT {c} FROM things WHERE id > 5)"
        for c in KEYS
    },
    "ordered": "SELECT min(cash) AS b, max(ip) AS i, max(cash) AS c FROM things",
    "spot": "SELECT id, (s).x + 1 AS x, (s).label AS l, s = ROW(1, 'a')::spot AS same FROM things",
    "inside": "SELECT id, r @> 1.5 AS has, r && '[0,1]' AS o, lower(r) AS l FROM things",
    "search": "SELECT id, vec @@ q AS found, ts_rank(vec, q) AS rank, q && 'c' AS both FROM things",
    "path": "SELECT id, jsonb_path_query_first('{\"a\": 1}', path) AS v FROM things",
    "parts": "SELECT id, grid[1] AS g, nums[1] AS l, array_length(nums, 1) AS n FROM things",
    "regex": "SELECT id, q::text ~ 'b.*a' AS m, regexp_replace(q::text, '[ab]', 'x', 'g') AS x"
    " FROM things",
    "union": "SELECT count(*) AS n FROM (SELECT r FROM things UNION SELECT d::numrange FROM things"
    " WHERE id < 4) AS s",
}


def check(server: EmbeddedPostgres, schema: TestSchema, queries: dict[str, str]) -> None:
    with new_database(server) as database:
        outcome = run_history(database, MemoryStore(), History(schema, 5, 15, 2), queries)
    assert not outcome.refused, outcome.refused
    assert not outcome.faults, outcome.text(queries, "pytest tests/sql/test_equal_values.py")


def test_values_that_only_postgres_compares(every_postgres: EmbeddedPostgres) -> None:
    columns = {"id": draw.integers(1, 20)}
    columns |= {name: draw.nullable(draw.choice(*some)) for name, some in VALUES.items()}
    spec = TableSpec("things", columns, ("id",), 14)
    check(every_postgres, TestSchema("things", DDL, (spec,)), QUERIES)


CONTRIB = """
CREATE EXTENSION hstore; CREATE EXTENSION citext; CREATE EXTENSION pg_trgm;
CREATE EXTENSION ltree; CREATE EXTENSION cube; CREATE EXTENSION isn;
CREATE FUNCTION doubled(n integer) RETURNS integer LANGUAGE plpgsql IMMUTABLE AS
  $$ BEGIN RETURN n * 2; END $$;
CREATE FUNCTION public.later(a integer, b integer) RETURNS boolean LANGUAGE sql IMMUTABLE AS
  $$ SELECT a > b $$;
CREATE OPERATOR public.>>> (leftarg = integer, rightarg = integer, function = public.later);
CREATE TABLE bags (
    id integer PRIMARY KEY, h hstore, c citext, p ltree, k cube, word text, isbn isbn13)"""
BAGS = {
    "h": ("a=>1", "a=>1, b=>NULL", "b=>NULL,a=>1", ""),
    "c": ("x", "X", "yy", "Yy"),
    "p": ("top", "top.a", "top.a.b", "other"),
    "k": ("(1,2)", "(1.0,2)", "(0,0),(1,1)"),
    "word": ("hello", "Hallo", "help", ""),
    "isbn": ("978-0-393-04002-9", "9780393040029"),
}
BAG_QUERIES = {
    "hstore": "SELECT id, h -> 'a' AS a, h ? 'b' AS b, h || 'z=>9' AS more FROM bags",
    "by hstore": "SELECT h, count(*) AS n FROM bags GROUP BY h",
    "by citext": "SELECT count(*) AS n, count(DISTINCT c) AS d FROM bags GROUP BY c",
    "citext": "SELECT id, c = 'X' AS x, c LIKE 'y%' AS y, lower(c) AS l, length(c) AS n FROM bags",
    "trigrams": "SELECT a.id, b.id AS other, similarity(a.word, b.word) AS s FROM bags a"
    " JOIN bags b ON a.word % b.word AND a.id < b.id",
    "ltree": "SELECT p, nlevel(p) AS n, p <@ 'top' AS under FROM bags",
    "under": "SELECT a.id, b.id AS below FROM bags a JOIN bags b ON b.p <@ a.p",
    "by ltree": "SELECT subpath(p, 0, 1)::text AS head, count(*) AS n FROM bags GROUP BY 1",
    "cube": "SELECT id, cube_dim(k) AS d, k <-> '(0,0)' AS far FROM bags",
    "isbn": "SELECT id, isbn, isbn = '9780393040029' AS same FROM bags",
    "function": "SELECT id, doubled(id) AS d FROM bags WHERE doubled(id) > 6",
    "grouped": "SELECT doubled(id % 3) AS d, sum(doubled(id)) AS s FROM bags GROUP BY 1",
    "operator": "SELECT a.id, b.id AS o FROM bags a JOIN bags b ON a.id OPERATOR(public.>>>) b.id",
    "joined": "SELECT a.id, b.id AS o FROM bags a JOIN bags b ON doubled(a.id) = b.id",
}


def test_extensions_and_functions_of_the_user(every_database: Database) -> None:
    known = {n for (n,) in every_database.rows("SELECT name FROM pg_available_extensions")}
    missing = {"hstore", "citext", "pg_trgm", "ltree", "cube", "isn"} - known
    if missing:
        pytest.skip(f"no extensions {sorted(missing)}")
    columns = {"id": draw.integers(1, 20)}
    columns |= {name: draw.nullable(draw.choice(*some)) for name, some in BAGS.items()}
    spec = TableSpec("bags", columns, ("id",), 14)
    check(every_database.server, TestSchema("bags", CONTRIB, (spec,)), BAG_QUERIES)
