"""Statements that change what queries rest on besides tables, and statements that do not.

Each with a query; what is right after it is what PostgreSQL's own view of the query shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tests.harness.postgres import Database


@dataclass(frozen=True)
class Kind:
    """A query, and a statement that changes what it rests on. {t} is a table of its own, with
    columns id and v; {n} is the kind's name, for names of objects."""

    made: str
    query: str
    ddl: str
    # Asked in place of PostgreSQL's own view, which the statement drops.
    instead: str = ""
    # Besides the changed rows.
    more: str = ""
    # The first version of PostgreSQL that has the statement.
    since: int = 0


CHANGES = "INSERT INTO {t} VALUES (9, 0), (10, 3); UPDATE {t} SET v = v + 1 WHERE id = 2;"
CHANGES += " DELETE FROM {t} WHERE id = 1"
FUNCTION = "CREATE FUNCTION {n}_f(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT $1 * 2'"
REPLACED = "CREATE OR REPLACE FUNCTION {n}_f(int) RETURNS int LANGUAGE sql IMMUTABLE"
REPLACED += " AS 'SELECT $1 * 3'"
OF_F = "SELECT id, {n}_f(v) AS w FROM {t}"
KINDS = {
    "view": Kind(
        "CREATE VIEW {n}_v AS SELECT id, v FROM {t} WHERE v > 1",
        "SELECT id, v FROM {n}_v",
        "CREATE OR REPLACE VIEW {n}_v AS SELECT id, v FROM {t} WHERE v < 3",
    ),
    "view_below": Kind(
        "CREATE VIEW {n}_w AS SELECT id, v FROM {t} WHERE v > 1;"
        " CREATE VIEW {n}_x AS SELECT v, id FROM {n}_w; CREATE VIEW {n}_v AS TABLE {n}_x",
        "SELECT id % 2 AS g, count(*) AS n, sum(v) AS v FROM {n}_v GROUP BY 1",
        "CREATE OR REPLACE VIEW {n}_w AS SELECT id, v % 2 AS v FROM {t}",
    ),
    "view_renamed_then_replaced": Kind(
        "CREATE VIEW {n}_v AS SELECT id, v FROM {t} WHERE v > 1",
        "SELECT id, v FROM {n}_v WHERE id > 0",
        "ALTER VIEW {n}_v RENAME TO {n}_w;"
        " CREATE OR REPLACE VIEW {n}_w AS SELECT id, v FROM {t} WHERE v < 3;"
        " CREATE VIEW {n}_v AS SELECT 1 AS id, 2 AS v",
    ),
    "view_again": Kind(
        "CREATE VIEW {n}_v AS SELECT id, v FROM {t} WHERE v > 1",
        "SELECT id, v FROM {n}_v",
        "DROP VIEW {n}_v CASCADE; CREATE VIEW {n}_v AS SELECT id, -v AS v FROM {t}",
        "SELECT id, v FROM {n}_v",
    ),
    "sql_function": Kind(FUNCTION, OF_F, REPLACED),
    "sql_function_in_groups": Kind(
        FUNCTION, "SELECT {n}_f(v) AS w, count(*) AS n FROM {t} GROUP BY 1", REPLACED
    ),
    "plpgsql": Kind(
        "CREATE FUNCTION {n}_f(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS"
        " 'BEGIN RETURN $1 + 1; END'",
        "SELECT id, v FROM {t} WHERE {n}_f(v) > 2",
        "CREATE OR REPLACE FUNCTION {n}_f(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS"
        " 'BEGIN RETURN $1 - 1; END'",
    ),
    "function_in_a_body": Kind(
        FUNCTION + "; CREATE FUNCTION {n}_g(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS"
        " 'BEGIN RETURN public.{n}_f($1) + 1; END'",
        "SELECT id, {n}_g(v) AS w FROM {t}",
        REPLACED,
    ),
    "function_in_an_atomic_body": Kind(
        FUNCTION + "; CREATE FUNCTION {n}_g(int) RETURNS int LANGUAGE sql IMMUTABLE"
        " BEGIN ATOMIC SELECT {n}_f($1) + 1; END",
        "SELECT id, {n}_g(v) AS w FROM {t}",
        REPLACED,
    ),
    "function_again": Kind(
        FUNCTION,
        OF_F,
        "DROP FUNCTION {n}_f(int) CASCADE; " + REPLACED.replace("CREATE OR REPLACE", "CREATE"),
        OF_F,
    ),
    "function_in_a_view": Kind(
        FUNCTION + "; CREATE VIEW {n}_v AS " + OF_F, "SELECT sum(w) AS w FROM {n}_v", REPLACED
    ),
    "function_of_a_constant": Kind(FUNCTION, "SELECT id, v FROM {t} WHERE v < {n}_f(1)", REPLACED),
    "default_of_an_argument": Kind(
        "CREATE FUNCTION {n}_f(int, int DEFAULT 1) RETURNS int LANGUAGE sql IMMUTABLE"
        " AS 'SELECT $1 + $2'",
        OF_F,
        "CREATE OR REPLACE FUNCTION {n}_f(int, int DEFAULT 5) RETURNS int LANGUAGE sql IMMUTABLE"
        " AS 'SELECT $1 + $2'",
    ),
    "setting_of_a_function": Kind(
        "CREATE FUNCTION {n}_f(int) RETURNS text LANGUAGE plpgsql IMMUTABLE AS"
        " 'BEGIN RETURN ''\\x0a''::bytea::text || $1; END'",
        "SELECT id, {n}_f(v) AS w FROM {t}",
        "ALTER FUNCTION {n}_f(int) SET bytea_output = 'escape'",
    ),
    "set_returning": Kind(
        "CREATE FUNCTION {n}_f(int) RETURNS SETOF int LANGUAGE sql IMMUTABLE"
        " AS 'SELECT generate_series(1, $1)'",
        "SELECT id, x FROM {t}, {n}_f(v) AS x",
        "CREATE OR REPLACE FUNCTION {n}_f(int) RETURNS SETOF int LANGUAGE sql IMMUTABLE"
        " AS 'SELECT generate_series(0, $1)'",
    ),
    "aggregate_step": Kind(
        "CREATE FUNCTION {n}_f(int, int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT $1 + $2';"
        " CREATE AGGREGATE {n}_a(int) (SFUNC = {n}_f, STYPE = int, INITCOND = '0')",
        "SELECT v % 2 AS g, {n}_a(v) AS a FROM {t} GROUP BY 1",
        "CREATE OR REPLACE FUNCTION {n}_f(int, int) RETURNS int LANGUAGE sql IMMUTABLE"
        " AS 'SELECT $1 + 2 * $2'",
    ),
    "aggregate": Kind(
        "CREATE AGGREGATE {n}_a(int) (SFUNC = int4pl, STYPE = int, INITCOND = '0')",
        "SELECT {n}_a(v) AS a FROM {t}",
        "CREATE OR REPLACE AGGREGATE {n}_a(int) (SFUNC = int4pl, STYPE = int, INITCOND = '50')",
    ),
    "operator": Kind(
        FUNCTION.replace("(int)", "(int, int)").replace("$1 * 2", "$1 * 2 + $2")
        + "; CREATE OPERATOR public.@@# (LEFTARG = int, RIGHTARG = int, FUNCTION = {n}_f)",
        "SELECT id, v @@# id AS w FROM {t}",
        REPLACED.replace("(int)", "(int, int)").replace("$1 * 3", "$1 * 3 + $2"),
    ),
    "operator_again": Kind(
        FUNCTION.replace("(int)", "(int, int)")
        + "; CREATE OPERATOR public.@#@ (LEFTARG = int, RIGHTARG = int, FUNCTION = {n}_f)",
        "SELECT id, v @#@ id AS w FROM {t}",
        "DROP OPERATOR @#@ (int, int) CASCADE;"
        " CREATE OPERATOR public.@#@ (LEFTARG = int, RIGHTARG = int, FUNCTION = int4mul)",
        "SELECT id, v @#@ id AS w FROM {t}",
    ),
    "function_of_a_cast": Kind(
        "CREATE TYPE {n}_t AS (x int);"
        " CREATE FUNCTION {n}_f(int) RETURNS {n}_t LANGUAGE sql IMMUTABLE"
        " AS 'SELECT ROW($1)::public.{n}_t'; CREATE CAST (int AS {n}_t) WITH FUNCTION {n}_f(int)",
        "SELECT id, (v::{n}_t)::text AS w FROM {t}",
        "CREATE OR REPLACE FUNCTION {n}_f(int) RETURNS {n}_t LANGUAGE sql IMMUTABLE"
        " AS 'SELECT ROW($1 + 7)::public.{n}_t'",
    ),
    "domain_check": Kind(
        "CREATE DOMAIN {n}_d AS int CONSTRAINT few CHECK (VALUE < 1000)",
        "SELECT id, (v + 1)::{n}_d AS w FROM {t} WHERE v < 50",
        "ALTER DOMAIN {n}_d DROP CONSTRAINT few",
    ),
    "domain_function": Kind(
        FUNCTION + "; CREATE DOMAIN {n}_d AS int CHECK ({n}_f(VALUE) < 1000)",
        "SELECT id, v::{n}_d AS w FROM {t}",
        REPLACED,
    ),
    "attribute_renamed": Kind(
        "CREATE TYPE {n}_c AS (x int, y int); ALTER TABLE {t} ADD COLUMN c {n}_c DEFAULT ROW(1, 2)",
        "SELECT id, to_jsonb(c) AS c FROM {t}",
        "ALTER TYPE {n}_c RENAME ATTRIBUTE x TO z",
    ),
    "attribute_renamed_below": Kind(
        "CREATE TYPE {n}_c AS (x int, y int); CREATE DOMAIN {n}_d AS {n}_c;"
        " CREATE TYPE {n}_e AS (a {n}_d[], b int);"
        " ALTER TABLE {t} ADD COLUMN c {n}_e DEFAULT ROW(ARRAY[ROW(1, 2)::{n}_c]::{n}_d[], 2)",
        "SELECT id, to_jsonb(c) AS c FROM {t}",
        "ALTER TYPE {n}_c RENAME ATTRIBUTE x TO z",
    ),
}
ENUM = "CREATE TYPE {n}_m AS ENUM ('lo', 'mid', 'hi'); "
RENAMED = "ALTER TYPE {n}_m RENAME VALUE 'lo' TO 'low'"
DOUBLED = "ALTER TABLE {t} ADD COLUMN g int GENERATED ALWAYS AS (v * 2) STORED"
KINDS |= {
    "enum_in_array": Kind(
        ENUM + "ALTER TABLE {t} ADD COLUMN a {n}_m[] DEFAULT '{{lo,hi}}'",
        "SELECT id, a::text AS a FROM {t}",
        RENAMED,
    ),
    "enum_in_domain": Kind(
        ENUM + "CREATE DOMAIN {n}_d AS {n}_m; ALTER TABLE {t} ADD COLUMN a {n}_d DEFAULT 'lo'",
        "SELECT a::text AS a, count(*) AS n FROM {t} GROUP BY 1",
        RENAMED,
    ),
    "enum_in_row": Kind(
        ENUM + "CREATE TYPE {n}_c AS (x {n}_m, y int);"
        " ALTER TABLE {t} ADD COLUMN c {n}_c DEFAULT '(lo,1)'",
        "SELECT id, c::text AS c FROM {t}",
        RENAMED,
    ),
    "enum_in_range": Kind(
        ENUM + "CREATE TYPE {n}_r AS RANGE (SUBTYPE = {n}_m);"
        " ALTER TABLE {t} ADD COLUMN r {n}_r DEFAULT '[lo,hi]'",
        "SELECT id, r::text AS r FROM {t} WHERE r @> 'lo'::{n}_m OR r && '[lo,mid]'::{n}_r",
        RENAMED,
    ),
    "enum_deep": Kind(
        ENUM + "CREATE TYPE {n}_c AS (x {n}_m[], y int); CREATE DOMAIN {n}_d AS {n}_c;"
        " ALTER TABLE {t} ADD COLUMN c {n}_d[]"
        " DEFAULT ARRAY[ROW('{{lo}}'::{n}_m[], 1)::{n}_c]::{n}_d[]",
        "SELECT id, to_jsonb(c) AS c FROM {t}",
        RENAMED,
    ),
    "enum_constant": Kind(
        ENUM + "ALTER TABLE {t} ADD COLUMN a {n}_m[] DEFAULT '{{lo,hi}}'",
        "SELECT id FROM {t} WHERE a @> '{{lo}}' AND a <> '{{\"mid\",lo}}'",
        RENAMED,
        more="INSERT INTO {t} VALUES (11, 1, '{{low}}'); UPDATE {t} SET a = '{{hi}}' WHERE id = 3",
    ),
    "enum_in_case": Kind(
        ENUM + "ALTER TABLE {t} ADD COLUMN m {n}_m DEFAULT 'lo'",
        "SELECT id, CASE m WHEN 'lo' THEN 'lo' WHEN 'hi' THEN 'high' END AS m,"
        " coalesce(nullif(m, 'mid'), 'lo')::text AS c FROM {t} WHERE m IN ('lo', 'hi')"
        " AND m::text <> 'hi'",
        RENAMED,
        more="INSERT INTO {t} VALUES (11, 1, 'low'); UPDATE {t} SET m = 'hi' WHERE id = 3",
    ),
    "enum_of_old_names": Kind(
        ENUM + "ALTER TABLE {t} ADD COLUMN m {n}_m DEFAULT 'lo'",
        "SELECT id, v FROM {t} WHERE m = 'lo'",
        "ALTER TYPE {n}_m RENAME VALUE 'lo' TO 'was'; ALTER TYPE {n}_m RENAME VALUE 'hi' TO 'lo';"
        " ALTER TYPE {n}_m RENAME VALUE 'was' TO 'hi'",
        more="UPDATE {t} SET m = 'lo' WHERE id = 3",
    ),
    "enum_values": Kind(
        ENUM,
        "SELECT id, enum_range(NULL::{n}_m)::text AS r, enum_first(NULL::{n}_m)::text AS f"
        " FROM {t}",
        RENAMED,
    ),
    "enum_text": Kind(
        ENUM + "ALTER TABLE {t} ADD COLUMN a {n}_m[] DEFAULT '{{lo,hi}}'",
        "SELECT id FROM {t} WHERE a[1]::text = 'lo'",
        RENAMED,
    ),
    "enum_order": Kind(
        ENUM + "ALTER TABLE {t} ADD COLUMN m {n}_m DEFAULT 'lo';",
        "SELECT id, m, row_number() OVER (ORDER BY m DESC, id) AS r FROM {t}",
        "ALTER TYPE {n}_m ADD VALUE 'less' BEFORE 'lo';"
        " ALTER TYPE {n}_m ADD VALUE 'm2' AFTER 'mid'",
        more="UPDATE {t} SET m = CASE id WHEN 2 THEN 'less' WHEN 3 THEN 'm2' ELSE m END",
    ),
    "drop_expression": Kind(
        DOUBLED,
        "SELECT id, g FROM {t}",
        "ALTER TABLE {t} ALTER COLUMN g DROP EXPRESSION",
        more="UPDATE {t} SET g = 77 WHERE id = 3",
    ),
    "generated_again": Kind(
        DOUBLED,
        "SELECT id, g FROM {t}",
        "ALTER TABLE {t} DROP COLUMN g CASCADE;"
        " ALTER TABLE {t} ADD COLUMN g int GENERATED ALWAYS AS (v * 5) STORED",
        "SELECT id, g FROM {t}",
    ),
    "no_longer_generated": Kind(
        DOUBLED,
        "SELECT g % 4 AS m, count(*) AS n FROM {t} GROUP BY 1",
        "ALTER TABLE {t} DROP COLUMN g CASCADE; ALTER TABLE {t} ADD COLUMN g int DEFAULT 3",
        "SELECT g % 4 AS m, count(*) AS n FROM {t} GROUP BY 1",
    ),
    "set_expression": Kind(
        DOUBLED,
        "SELECT id, g FROM {t}",
        "ALTER TABLE {t} ALTER COLUMN g SET EXPRESSION AS (v * 7)",
        since=17,
    ),
    "virtual_expression": Kind(
        DOUBLED.replace("STORED", "VIRTUAL"),
        "SELECT id, g FROM {t} WHERE g > 2",
        "ALTER TABLE {t} ALTER COLUMN g SET EXPRESSION AS (v * 7)",
        since=18,
    ),
    "generated_and_updated": Kind(
        FUNCTION + "; ALTER TABLE {t} ADD COLUMN g int GENERATED ALWAYS AS ({n}_f(v)) STORED",
        "SELECT id, g FROM {t}",
        REPLACED + "; UPDATE {t} SET v = v",
    ),
}
# Nothing that these statements do changes an answer.
HARMLESS = {
    "rights": Kind(
        FUNCTION + "; CREATE VIEW {n}_v AS " + OF_F,
        "SELECT id, w FROM {n}_v",
        "GRANT SELECT ON {n}_v TO PUBLIC; GRANT EXECUTE ON FUNCTION {n}_f(int) TO PUBLIC;"
        " COMMENT ON FUNCTION {n}_f(int) IS 'x'; ALTER FUNCTION {n}_f(int) COST 7; ANALYZE {t};"
        " COMMENT ON VIEW {n}_v IS 'x'; ALTER FUNCTION {n}_f(int) OWNER TO CURRENT_USER",
    ),
    "replaced_by_itself": Kind(
        FUNCTION + "; CREATE VIEW {n}_v AS SELECT id, v FROM {t} WHERE v > 1",
        "SELECT id, {n}_f(v) AS w FROM {n}_v",
        FUNCTION.replace("CREATE", "CREATE OR REPLACE")
        + "; CREATE OR REPLACE VIEW {n}_v AS   SELECT id,\n  v FROM {t}   WHERE v > 1",
    ),
    "called_otherwise": Kind(
        "CREATE VIEW {n}_v AS SELECT id, v FROM {t} WHERE v > 1",
        "SELECT id, v FROM {n}_v",
        "ALTER VIEW {n}_v RENAME TO {n}_w; ALTER VIEW {n}_w RENAME COLUMN v TO w;"
        " CREATE SCHEMA {n}_s; ALTER VIEW {n}_w SET SCHEMA {n}_s",
    ),
    "table_called_otherwise": Kind(
        "CREATE VIEW {n}_v AS SELECT id, v FROM {t} WHERE v > 1",
        "SELECT id, v FROM {n}_v",
        "ALTER TABLE {t} RENAME COLUMN v TO v2; ALTER TABLE {t} RENAME COLUMN v2 TO v;"
        " ALTER TABLE {t} ADD COLUMN more int",
    ),
    "others": Kind(
        FUNCTION,
        OF_F,
        "CREATE FUNCTION {n}_f(text) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 1';"
        " DROP FUNCTION {n}_f(text); CREATE VIEW {n}_v AS TABLE {t}; DROP VIEW {n}_v",
    ),
    "added_last": Kind(
        ENUM + "ALTER TABLE {t} ADD COLUMN a {n}_m[] DEFAULT '{{lo}}'",
        "SELECT id, a::text AS a FROM {t}",
        "ALTER TYPE {n}_m ADD VALUE 'most'",
        more="UPDATE {t} SET a = '{{most}}' WHERE id = 3",
    ),
}


def kinds_of(version: int, kinds: Mapping[str, Kind]) -> dict[str, Kind]:
    """Return the kinds that a version of PostgreSQL has."""
    return {name: kind for name, kind in kinds.items() if kind.since <= version}


def make(database: Database, name: str, kind: Kind) -> str:
    """Make the table with some rows, and what the query rests on; return the query."""
    words = {"t": f"{name}_t0", "n": name}
    database.execute(f"CREATE TABLE {name}_t0 (id int PRIMARY KEY, v int)")
    database.execute(kind.made.format(**words))
    database.execute(f"INSERT INTO {name}_t0 VALUES (1, 1), (2, 2), (3, 3), (4, 8)")
    return kind.query.format(**words)


def run(database: Database, name: str, statements: str) -> None:
    """Run statements of a kind."""
    database.execute(statements.format(t=f"{name}_t0", n=name))
