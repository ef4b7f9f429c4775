"""Oracle: PostgreSQL's RESTRICT and its catalogs: what is not of the service is refused by name,
and stays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import psycopg2
import pytest
from psycopg2.extensions import connection as Connection

from connectors.postgres.removal.sink_removal import SinkRemoval, open_sink
from connectors.postgres.removal.source_removal import unreached
from connectors.postgres.schema import schema_setup
from connectors.postgres.sink import sink_tables
from connectors.sink import SinkTable
from dataflow.errors import SinkError, SourceError, TemporaryError
from dataflow.schema import Field
from dataflow.types import INT4, TEXT
from tests.harness.postgres import Database
from tests.harness.sink_contract import delta_of

SERVICE = "leaver"


@pytest.fixture
def session(database: Database) -> Iterator[Connection]:
    with closing(psycopg2.connect(database.dsn)) as made:
        schema_setup.ensure(made, SERVICE)
        cursor = made.cursor()
        fields = (Field("id", INT4, False), Field("x", TEXT))
        for name, key in (("keyed", (0,)), ("multi", ())):
            table = SinkTable("public", name, fields, key)
            cursor.execute(
                "INSERT INTO tidemark.views (schema, name, query, identity, service)"
                " VALUES ('public', %s, 'SELECT 1', %s, %s)",
                (name, name, SERVICE),
            )
            sink_tables.stage(cursor, table, [delta_of(table, {("1", "a"): 1})])
            sink_tables.swap(cursor, table)
        made.commit()
    opened = open_sink(database.dsn)
    yield opened
    opened.close()


DEPENDENTS = (
    ("CREATE VIEW own AS SELECT count(*) FROM keyed", "view public.own"),
    ("CREATE TABLE own (id int REFERENCES keyed)", "constraint own_id_fkey on table public.own"),
    ("CREATE VIEW own AS SELECT x FROM multi", "view public.own"),
    (
        "CREATE FUNCTION own() RETURNS SETOF keyed BEGIN ATOMIC SELECT * FROM keyed; END",
        "function public.own()",
    ),
    ("CREATE VIEW own AS SELECT name FROM tidemark.status", "view public.own"),
)


@pytest.mark.parametrize(("statement", "named"), DEPENDENTS)
def test_what_depends_on_it_is_named(
    database: Database, session: Connection, statement: str, named: str
) -> None:
    database.execute(statement)
    removal = SinkRemoval(session, SERVICE)
    found = removal.find()
    assert found is not None
    with pytest.raises(SinkError) as raised:
        removal.require_no_dependents(found, keeps_tables=False)
    assert raised.value.code == "uninstall.dependents"
    assert named in raised.value.detail
    if "tidemark.status" in statement:
        with pytest.raises(SinkError) as raised:
            removal.require_no_dependents(found, keeps_tables=True)
        assert "--keep-tables" not in raised.value.hint
    else:
        removal.require_no_dependents(found, keeps_tables=True)


def test_what_belongs_to_a_table_is_no_dependent(database: Database, session: Connection) -> None:
    database.execute(
        "CREATE INDEX ON keyed (x); CREATE PUBLICATION own FOR TABLE keyed;"
        " CREATE FUNCTION own() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';"
        " CREATE TRIGGER own AFTER INSERT ON keyed EXECUTE FUNCTION own()"
    )
    removal = SinkRemoval(session, SERVICE)
    found = removal.find()
    assert found is not None
    removal.require_no_dependents(found, keeps_tables=False)
    for one in [*removal.views(found, keeps_tables=False), *removal.rest(found)]:
        assert one.act is not None
        one.act()
    left = "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace"
    assert database.rows(left) == []
    assert database.rows("SELECT to_regnamespace('tidemark'), to_regproc('own') IS NULL") == [
        (None, False)
    ]


def test_a_service_that_registers_meanwhile_keeps_the_schema(
    database: Database, session: Connection
) -> None:
    removal = SinkRemoval(session, SERVICE)
    found = removal.find()
    assert found is not None
    (schema,) = removal.rest(found)
    database.execute("SELECT tidemark.register_service('newcomer')")
    assert schema.act is not None
    with pytest.raises(SinkError) as raised:
        schema.act()
    assert raised.value.code == "uninstall.changed"
    assert database.rows("SELECT count(*) FROM tidemark.services") == [(2,)]


def test_another_version_of_the_schema_is_refused(database: Database, session: Connection) -> None:
    database.execute("INSERT INTO tidemark.version VALUES (9999)")
    with pytest.raises(SinkError) as raised:
        SinkRemoval(session, SERVICE).find()
    assert raised.value.code == "sink.version"


def test_a_role_that_does_not_own_the_schema_is_refused(
    database: Database, session: Connection
) -> None:
    name = f"poor_{database.name}"
    database.execute(f"CREATE ROLE {name} LOGIN")
    try:
        poor = open_sink(f"{database.dsn} user={name}")
        with pytest.raises(SinkError) as raised:
            SinkRemoval(poor, SERVICE).find()
        poor.close()
        assert raised.value.code == "sink.privilege"
    finally:
        database.execute(f"DROP ROLE {name}")


def test_a_source_that_is_gone_is_left_as_commands() -> None:
    gone = TemporaryError("source.unreachable", "gone")
    named = unreached("host=x dbname=Shop-1", "leaver", [("leaver_source", "recorded")], gone)
    assert [one.command for one in named] == [
        "SELECT pg_drop_replication_slot('recorded');",
        'DROP PUBLICATION "leaver_source";',
    ]
    derived = unreached("host=x dbname=shop", "leaver", [], SourceError("source.database", "gone"))
    assert [one.command for one in derived] == [
        "SELECT pg_drop_replication_slot('leaver_shop_source');",
        'DROP PUBLICATION "leaver_source";',
    ]
    assert {one.outcome for one in named} == {"by hand"}
