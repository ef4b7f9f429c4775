"""Oracle: PostgreSQL, which keeps any name between double quotes. Each comes back as it was given,
and a table that nobody named stays what it was."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from connectors.postgres.analysis.analyzer import PostgresAnalyzer
from connectors.postgres.analysis.stub_relations import quoted
from connectors.postgres.embedded.server import EmbeddedPostgres
from connectors.postgres.sink.postgres_sink import PostgresSink
from connectors.sink import SinkTable
from dataflow.delta import KIND_BYTES, KIND_INT, Delta
from dataflow.errors import SinkError
from dataflow.schema import Field
from dataflow.sql.planner import plan_view
from dataflow.types import INT4, TEXT
from service.runtime.view_names import parse_name
from tests.harness.postgres import Database, new_database
from tests.security.names import hostile_names

NAMES = hostile_names()
OWN = {"oid", "ctid", "xmin", "tableoid", "victim"}


@pytest.fixture(scope="module")
def place(postgres: EmbeddedPostgres) -> Iterator[Database]:
    with new_database(postgres) as made:
        made.execute("CREATE TABLE victim (id integer PRIMARY KEY); INSERT INTO victim VALUES (7)")
        yield made


def _rows() -> Delta:
    return Delta.of((KIND_INT, KIND_BYTES), [(1, b"x"), (2, None)])


def test_names_survive_the_way_through_a_path() -> None:
    for name in NAMES:
        assert parse_name(f"public.{quoted(name)}") == ("public", name)
        assert parse_name(quoted(name)) == ("public", name)


@pytest.mark.whole
def test_names_of_views_and_columns_in_the_sink(place: Database) -> None:
    sink = PostgresSink(place.dsn)
    sink.prepare()
    count = 0
    for number, name in enumerate(NAMES):
        other = NAMES[(number + 1) % len(NAMES)]
        fields = (Field(name, INT4, False), Field(other, TEXT))
        table = SinkTable("public", name, fields, (0,) if number % 2 else ())
        try:
            sink.check(table)
            assert sink.load(table, [_rows()], None) == 2, name
        except SinkError as error:
            # What PostgreSQL keeps for itself, of columns and of tables, is refused by name.
            assert {name, other} & OWN, (name, error)
            continue
        found = place.rows(f"SELECT * FROM public.{quoted(name)} ORDER BY 1")
        assert found == [(1, "x"), (2, None)], name
        assert sink.row_count(table) == 2
        sink.drop([table])
        count += 1
    assert count > 180
    left = "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace"
    assert {name for (name,) in place.rows(left)} == {"victim", "victim_pkey"}
    assert place.rows("SELECT id FROM victim") == [(7,)]


def test_names_of_tables_and_columns_at_the_source(place: Database) -> None:
    """A table a schema of eight names, its columns the next ones; the plan names them again."""
    for number in range(0, len(NAMES) - 8, 8):
        schema, *names = NAMES[number : number + 8]
        if schema.startswith("pg_") or schema in ("public", "information_schema", "tidemark"):
            continue
        columns = [n for n in names if n not in ("oid", "ctid", "xmin", "tableoid")]
        declared = ", ".join(f"{quoted(c)} integer" for c in columns)
        table = f"{quoted(schema)}.{quoted(names[0])}"
        place.execute(
            f"CREATE SCHEMA {quoted(schema)}; CREATE TABLE {table}"
            f" (id integer PRIMARY KEY, {declared})"
        )
        sums = ", ".join(f"sum({quoted(c)} + 1) AS {quoted(c)}" for c in columns)
        query = f"SELECT id, {sums} FROM {table} AS {quoted(names[-1])} GROUP BY id"
        with PostgresAnalyzer(place.dsn, "source") as analyzer:
            plan = plan_view(query, analyzer)
        assert [f.name for f in plan.root.fields] == ["id", *columns], names
        place.execute(f"DROP SCHEMA {quoted(schema)} CASCADE")
    assert place.rows("SELECT id FROM victim") == [(7,)]
