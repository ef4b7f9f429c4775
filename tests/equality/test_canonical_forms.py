"""Oracle: PostgreSQL's answer to queries whose canonical text has forms of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from dataflow.errors import SqlError
from tests.harness.compare import pin_session
from tests.harness.maintained import play
from tests.harness.postgres import Database
from tests.harness.tiers import some
from tests.sql.planning import plan

FORMS = Path(__file__).parents[1] / "sql" / "fixtures" / "forms.sql"
DDL = """
CREATE SCHEMA s2;
CREATE TYPE addr AS (street text, city text);
CREATE TYPE "Mood Type" AS ENUM ('sad', 'fine');
CREATE DOMAIN s2.pos AS integer CHECK (VALUE > -100);
CREATE TABLE l (
    id int PRIMARY KEY, a int, b text, n numeric, iv interval, bt bit(5), vb varbit, d date,
    tm time, ts timestamp, tz timestamptz, ch char(4), vc varchar(5), ia int[], ad addr,
    m "Mood Type", q "char");
ALTER TABLE l REPLICA IDENTITY FULL;
CREATE TABLE r (id bigint PRIMARY KEY, a bigint, b text, k int);
CREATE TABLE t3 (id int PRIMARY KEY, a int, z text);
CREATE TABLE t4 (k int PRIMARY KEY, z text);
CREATE TABLE p (i int PRIMARY KEY, "Odd Name" text);
INSERT INTO l VALUES
 (1, 1, 'x', 12345.678, '1 day 02:03:04.5678', B'10101', B'101', '2024-01-01', '10:11:12.345',
  '2024-01-01 10:11:12.345678', '2024-01-01 10:11:12.345678+00', 'ab', 'abc', '{1,2}',
  ROW('s', 'c'), 'sad', 'x'),
 (2, 2, 'y', -0.5, '-3 years 2 mons', B'00000', B'', '2024-02-29', '23:59:59.999999',
  '2024-02-29 23:59:59.999999', '2024-02-29 23:59:59.999999+00', '', '', '{}',
  ROW(NULL, NULL), 'fine', 'y'),
 (3, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
  NULL),
 (4, 1, 'x', 99.995, '100:00:00', B'11111', B'0011', '1999-12-31', '00:00', '1999-12-31',
  '1999-12-31 00:00+00', 'zz', 'q', '{NULL,3}', ROW('a', NULL), 'fine', '');
INSERT INTO r VALUES (1, 1, 'x', 10), (2, 1, 'z', 20), (3, 3, NULL, 30), (4, NULL, 'y', NULL),
 (7, 2, 'y', 10);
INSERT INTO t3 VALUES (1, 1, 'aa'), (3, 5, 'bb'), (7, 2, NULL), (9, NULL, 'cc');
INSERT INTO t4 VALUES (10, 'aa'), (20, 'bb'), (30, 'dd');
INSERT INTO p VALUES (1, 'o'), (2, NULL);
"""
CHANGES = [
    "UPDATE l SET a = 2, b = 'z', n = 555.555, iv = '2 mons 3 days 04:05:06.789' WHERE id = 1",
    "INSERT INTO r VALUES (9, 5, 'q', 20)",
    "INSERT INTO l VALUES (5, 5, 'q', 5, '1 sec', B'00001', B'1', '2020-01-01', '01:00', "
    "'2020-01-01', '2020-01-01', 'e', 'f', '{9}', ROW('', ''), NULL, 'z')",
    "DELETE FROM t3 WHERE id = 1",
    "UPDATE r SET a = 2, k = 30 WHERE id = 3",
    "DELETE FROM l WHERE id = 4",
    "INSERT INTO t3 VALUES (4, 1, 'zz')",
    "DELETE FROM l",
    "INSERT INTO l (id, a) VALUES (1, 1), (2, NULL)",
]
# Names that the canonical text has lost, and rows that versions of PostgreSQL pad differently.
NAMED_ROWS = {
    "of a join": "SELECT row_to_json(j) AS w, l.b FROM l FULL JOIN r USING (id) AS j",
    "added up": "SELECT jsonb_agg(j ORDER BY j.id) AS x FROM t3 FULL JOIN r USING (id) AS j",
}
UNNAMED_ROWS = [
    "SELECT t4.k, row_to_json(j) AS w FROM t4 LEFT JOIN (t3 JOIN r USING (id)) AS j(a, b, c, d) "
    "ON t4.k = j.k",
]


def test_every_form_is_maintained(every_database: Database) -> None:
    _play(every_database, some(_forms(), 50))


def test_every_long_form_is_maintained(database: Database) -> None:
    _play(database, {f"long {i}": query for i, query in enumerate(_long_forms())})


def _play(database: Database, queries: dict[str, str]) -> None:
    connection = database.connect()
    connection.cursor().execute(DDL)
    pin_session(connection)
    play(database, connection, queries, CHANGES)


def _forms() -> dict[str, str]:
    text = FORMS.read_text().partition("\n")[2]
    found = [query.strip() for query in text.split(";\n")]
    return {f"form {i}": query for i, query in enumerate(found) if query}


def _long_forms(n: int = 40) -> list[str]:
    """What begins with so many parentheses, or has so many levels of CASE."""
    plus = " + ".join(("a", "id", "1")[i % 3] for i in range(n))
    mixed = "n" + "".join(f" {'+-*'[i % 3]} {('a', 'n', '0.5', '1')[i % 4]}" for i in range(n))
    texts = " || ',' || ".join(("b", "ch", "vc", "coalesce(b, 'q')")[i % 4] for i in range(n))
    cases = "".join(f"CASE WHEN a = {i} THEN 'x{i}' ELSE " for i in range(n - 1, -1, -1))
    of_a, plain = "CASE a WHEN {0} THEN {0} ELSE ", "CASE WHEN a = {0} THEN {0} ELSE "
    operand = "".join((of_a if i == 7 else plain).format(i) for i in range(n))
    others = " OR ".join(f"(a = {i} AND id > {i % 5})" for i in range(n))
    return [
        f"SELECT id, {plus} AS x, - ({plus}) AS y, ({plus})::text || 'q' AS z FROM l",
        f"SELECT id, {mixed} AS x, ({plus} + n) * 2 = 7 AS y FROM l",
        f"SELECT id, {texts} AS x, upper({texts}) || id AS y FROM l",
        f"SELECT id, {' || '.join(['a'] + ['b', chr(39) + '-' + chr(39)] * n)} AS x FROM l",
        f"SELECT id, d{' + 1' * n} AS x, iv{' + iv' * n} AS y, tz{' + iv' * n} AS z FROM l",
        f"SELECT id, {cases}'z'{' END' * n} AS x FROM l",
        f"SELECT id, {operand}a{' END' * n} AS x FROM l",
        f"SELECT id FROM l WHERE {others}",
        f"SELECT id FROM l WHERE NOT ({others}) AND ({plus}) IS NOT NULL",
        f"SELECT {plus.replace('id', 'a')} AS x, max({plus}) AS y, count(*) AS n FROM l GROUP BY a",
        f"SELECT {plus} AS x, count(*) AS n FROM l GROUP BY {plus}",
        f"SELECT a + id + 1 AS k, (a + id + 1){' + 2' * n} AS x FROM l GROUP BY a + id + 1",
        f"SELECT id, ia{' || 1' * n} AS x, to_jsonb(a){' || to_jsonb(id)' * n} AS y FROM l",
        f"SELECT id, (((a, id) = (1, 1)){' OR a = 3' * n}) = (b = 'x') AS x FROM l",
        f"SELECT l.id, r.k FROM l JOIN r ON l.a{' + 1' * n} = r.a{' + 1' * n}",
        f"SELECT id, sum({plus}) OVER (ORDER BY id) AS s FROM l WHERE ({plus}) > 3",
    ]


def test_rows_of_joins_have_the_names_of_their_columns(database: Database) -> None:
    _play(database, NAMED_ROWS)


def test_rows_whose_names_are_not_known_are_refused(database: Database) -> None:
    database.execute(DDL)
    for query in UNNAMED_ROWS:
        with pytest.raises(SqlError) as caught:
            plan(database, query)
        assert caught.value.code == "sql.not_maintained", query
        assert "row" in caught.value.what
        assert "SELECT x FROM" in caught.value.hint
