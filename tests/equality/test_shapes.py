"""Oracle: PostgreSQL, which accepts a form of expression or of FROM and gives its answer to it."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg2
import pytest

from tests.harness.compare import columns_of_query, pin_session, rows_of_query
from tests.harness.maintained import play
from tests.harness.postgres import Database

SHAPES = Path(__file__).parents[1] / "sql" / "fixtures" / "shapes.sql"
DDL = """
CREATE TYPE addr AS (street text, city text);
CREATE TYPE nest AS (a addr, n int);
CREATE TABLE t (
    id int PRIMARY KEY, tags text[], nums int[], j jsonb, jj json, addr addr, nest nest,
    name text, d date, ts timestamptz, x xml, grid int[][]);
ALTER TABLE t REPLICA IDENTITY FULL;
CREATE TABLE u (id int PRIMARY KEY, t_id int, v numeric);
CREATE FUNCTION pairs(n int) RETURNS TABLE (a int, b text) LANGUAGE sql IMMUTABLE
    AS 'SELECT i, i::text FROM generate_series(1, n) i';
CREATE FUNCTION onerow(n int, OUT p int, OUT q text) LANGUAGE sql IMMUTABLE
    AS 'SELECT n, n::text';
CREATE FUNCTION recs(n int) RETURNS SETOF record LANGUAGE sql IMMUTABLE
    AS 'SELECT i, i::text FROM generate_series(1, n) i';
CREATE FUNCTION addrs(n int) RETURNS SETOF addr LANGUAGE sql IMMUTABLE
    AS $$SELECT 's' || i, 'c' FROM generate_series(1, n) i$$;
"""
ROWS = """
INSERT INTO t VALUES
 (1, '{a,b,a}', '{1,2,NULL}', '[{"a":1,"b":"x","c":[1,2]},{"a":2}]',
  '[{"street":"s","city":"c"}]', ROW('main','Oslo'), ROW(ROW('x','Rome'),3), 'abxab',
  '2024-01-01', '2024-01-01 10:00+00', '<r><i a="1"><b>q</b></i><i a="2"/></r>', '{{1,2},{3,4}}'),
 (2, '{}', '{}', '[]', '[]', NULL, NULL, '', '2024-01-02', NULL, '<r/>', '{}'),
 (3, NULL, NULL, NULL, NULL, ROW(NULL,NULL), ROW(NULL,NULL), NULL, NULL, NULL, NULL, NULL),
 (4, '{NULL,"x y","q\\"z",""}', '{5}', '[{"a":7}]', '[{"street":null}]', ROW('','a,b'),
  ROW(ROW('','(q)'),-1), 'cabd', '2020-02-29', '2000-01-01 00:00+02', '<r><i a="5"/></r>',
  '{{1,2}}');
INSERT INTO u VALUES (1, 1, 1.50), (2, 1, NULL), (3, 4, 2), (4, NULL, 3.0);
"""
CHANGES = [
    "UPDATE t SET tags = '{z,b}' WHERE id = 1",
    "INSERT INTO t VALUES (5, '{b,b}', '{9,9}', '[{\"a\":1,\"c\":[5]}]', '[{\"city\":\"zz\"}]', "
    "ROW('q','w'), NULL, 'ab', '2024-05-05', NULL, '<r><i a=\"8\"/></r>', NULL)",
    "DELETE FROM t WHERE id = 4",
    "UPDATE t SET nums = '{7}', addr = ROW('n','m'), name = 'aabb' WHERE id = 3",
    "UPDATE u SET t_id = 5, v = 9",
    "DELETE FROM t",
    "INSERT INTO t (id, tags) VALUES (1, '{a}'), (2, NULL)",
]


@pytest.mark.whole
def test_every_shape_is_maintained(every_database: Database) -> None:
    connection = every_database.connect()
    cursor = connection.cursor()
    cursor.execute(DDL)
    try:
        cursor.execute(ROWS)
        changes = CHANGES
    except psycopg2.errors.FeatureNotSupported:  # a server without libxml
        cursor.execute(_without_xml(ROWS))
        changes = [_without_xml(change) for change in CHANGES]
    pin_session(connection)
    queries = _accepted(connection)
    assert len(queries) > 150
    play(every_database, connection, queries, changes)


def _accepted(connection) -> dict[str, str]:
    """The shapes that this version of PostgreSQL knows."""
    found = {}
    lines = [line for line in SHAPES.read_text().splitlines() if not line.startswith("--")]
    for number, query in enumerate("\n".join(lines).split(";\n")):
        text = query.strip().rstrip(";")
        try:
            columns_of_query(connection, text)
            rows_of_query(connection, text)
        except psycopg2.Error:
            connection.rollback()
            continue
        found[f"shape {number}"] = text
    return found


def _without_xml(sql: str) -> str:
    return re.sub(r"'<r.*?>'", "NULL", sql)
