"""A small schema for planning, and a planner on a real database of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from connectors.postgres.analysis.analyzer import PostgresAnalyzer
from connectors.postgres.embedded.server import EmbeddedPostgres
from dataflow.errors import TidemarkError
from dataflow.plan.nodes import ViewPlan
from dataflow.schema import Field, Relation, RelationName
from dataflow.sql.planner import plan_view
from tests.harness.postgres import Database, new_database

FIXTURES = Path(__file__).parent / "fixtures"
SOURCE = "shop"
DDL = """
CREATE TYPE mood AS ENUM ('sad', 'fine');
CREATE DOMAIN positive AS integer CHECK (VALUE > 0);
CREATE TABLE customers (
    id integer PRIMARY KEY, name text NOT NULL, city text, vip boolean NOT NULL, mood mood);
CREATE TABLE orders (
    id bigint PRIMARY KEY, customer integer NOT NULL, placed date NOT NULL,
    total numeric(12,2) NOT NULL, note text, at timestamptz);
CREATE TABLE lines (
    order_id bigint, line integer, product integer NOT NULL, quantity integer NOT NULL,
    price numeric(10,2) NOT NULL, PRIMARY KEY (order_id, line));
CREATE TABLE products (
    id integer PRIMARY KEY, label varchar(40) NOT NULL, kind char(10), attributes json,
    tags text[], place point, stock positive);
CREATE TABLE priced (
    id integer PRIMARY KEY, net numeric(10,2) NOT NULL,
    gross numeric GENERATED ALWAYS AS (net * 1.2) STORED);
CREATE TABLE loose (a integer, b text);
CREATE TABLE whole (a integer, b text);
ALTER TABLE whole REPLICA IDENTITY FULL;
CREATE TABLE renamed_key (a integer NOT NULL UNIQUE, b text);
ALTER TABLE renamed_key REPLICA IDENTITY USING INDEX renamed_key_a_key;
CREATE UNLOGGED TABLE unlogged (a integer PRIMARY KEY);
CREATE MATERIALIZED VIEW kept AS SELECT 1 AS a;
CREATE VIEW vips AS SELECT c.id, upper(c.name) AS name FROM customers c WHERE c.vip;
CREATE VIEW moments AS SELECT o.id, now() AS moment FROM orders o;
CREATE FUNCTION twice(x integer) RETURNS integer LANGUAGE plpgsql IMMUTABLE
    AS 'BEGIN RETURN 2 * x; END';
CREATE FUNCTION restless(x integer) RETURNS integer LANGUAGE sql VOLATILE AS 'SELECT x';
CREATE FUNCTION settled(x integer) RETURNS integer LANGUAGE sql STABLE AS 'SELECT x';
"""


@contextmanager
def planning_database(server: EmbeddedPostgres) -> Iterator[Database]:
    """A database with the schema of this file."""
    with new_database(server) as database:
        database.execute(DDL)
        yield database


def plan(
    database: Database, query: str, views: Sequence[Relation] = (), *, has_stubs: bool = False
) -> ViewPlan:
    """The query planned on that database."""
    with PostgresAnalyzer(database.dsn, SOURCE, views, has_stubs=has_stubs) as analyzer:
        return plan_view(query, analyzer)


def refusal(database: Database, query: str) -> TidemarkError:
    """The error that planning ends in."""
    try:
        found = plan(database, query)
    except TidemarkError as error:
        return error
    raise AssertionError(f"planned: {found}")


def maintained(schema: str, name: str, fields: Sequence[Field], key: tuple[int, ...]) -> Relation:
    """A maintained view as the analyzer is told of it."""
    return Relation(RelationName("tidemark", schema, name), 0, tuple(fields), key)


def read_cases(path: Path) -> dict[str, tuple[str, str]]:
    """name -> (SQL, what is expected): `-- case: name`, the SQL, `----`, the rest."""
    cases: dict[str, tuple[str, str]] = {}
    for block in path.read_text().split("-- case: ")[1:]:
        name, _, text = block.partition("\n")
        sql, _, expected = text.partition("----\n")
        cases[name.strip()] = (sql.strip(), expected.rstrip())
    return cases
