"""Oracle: the catalog of PostgreSQL before and after, as seen from another session."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from connectors.postgres.catalog.catalog import Control, ViewRow
from connectors.postgres.schema.sink_target import target_of
from connectors.postgres.sink import carry_over
from connectors.postgres.sink.postgres_sink import PostgresSink
from connectors.sink import Progress, SinkEpoch, SinkRows, SinkTable, Swap, ViewDdl
from dataflow import types
from dataflow.delta import Delta
from dataflow.errors import SinkError
from dataflow.schema import Field
from dataflow.types import sql_type
from tests.harness.postgres import Database
from tests.harness.sink_rows import SETUP

_LONG = "x" * 60 + "yzw"
_NAMES = ['we "ird', "it's", "ünï çödé 表", "%s", "{0}", _LONG, "é" * 31 + "a", "a.b", "Upper"]
_FIELDS = (Field("id", types.INT4, False), Field("v", types.TEXT))
_ROWS = [(1, "a"), (2, None), (3, "c")]

_RELATIONS = """SELECT n.nspname, c.relname, c.relkind FROM pg_class c JOIN pg_namespace n
ON n.oid = c.relnamespace WHERE n.nspname NOT LIKE 'pg\\_%' AND n.nspname <> 'information_schema'
AND n.nspname <> 'tidemark' ORDER BY 1, 2"""


def _keyed(name: str = "v", schema: str = "public") -> SinkTable:
    return SinkTable(schema, name, _FIELDS, (0,))


def _bag(name: str = "v", schema: str = "public") -> SinkTable:
    return SinkTable(schema, name, _FIELDS, ())


def _rows(count: int = 3) -> list[Delta]:
    return [Delta.of("is", _ROWS[:count])]


@pytest.fixture
def sink(database: Database) -> Iterator[PostgresSink]:
    sink = PostgresSink(database.dsn)
    yield sink
    sink.close()


def _swapping(*tables: SinkTable) -> ViewDdl:
    return ViewDdl(swaps=tuple(map(Swap, tables)))


def _code(run, *arguments) -> str:
    with pytest.raises(SinkError) as raised:
        run(*arguments)
    return raised.value.code


@pytest.mark.parametrize("make", [_keyed, _bag])
def test_hostile_names_live_and_leave_nothing(
    every_database: Database,
    make,
) -> None:
    before = every_database.rows(_RELATIONS)
    sink = PostgresSink(every_database.dsn)
    every_database.execute('CREATE SCHEMA "odd ""schema"')
    tables = [make(name, schema) for name in _NAMES for schema in ("public", 'odd "schema')]
    for table in tables:
        assert sink.stage(table, _rows()) == 3
    sink.write(SinkEpoch(Progress(1, {}), ddl=_swapping(*tables)))
    change = Delta.of("is", [(1, "a"), (1, "it's \\ new"), (9, "z")], [-1, 1, 1])
    sink.write(SinkEpoch(Progress(2, {}), SinkRows([(t, change) for t in tables])))
    for table in tables:
        quoted = ".".join('"' + n.replace('"', '""') + '"' for n in (table.schema, table.name))
        expected = [(1, "it's \\ new"), (2, None), (3, "c"), (9, "z")]
        # psycopg2 reads % in a query only when there are parameters.
        assert every_database.rows(f"SELECT * FROM {quoted} ORDER BY id") == expected
        assert sink.row_count(table) == 4
        assert sorted(row[0] for d in sink.read_rows(table) for row, _ in d.rows()) == [1, 2, 3, 9]
    sink.drop(tables)
    sink.forget_progress()
    every_database.execute('DROP SCHEMA "odd ""schema"')
    assert every_database.rows(_RELATIONS) == before
    for name in ("progress", "errors", "tables"):
        assert every_database.rows(f"SELECT * FROM tidemark.{name}") == []
    sink.close()


def test_a_table_that_goes_while_it_is_counted_has_no_rows(
    database: Database, sink: PostgresSink
) -> None:
    table = _bag()
    sink.load(table, _rows(), None)
    found: list[int] = []
    counting = threading.Thread(target=lambda: found.append(sink.row_count(table)))
    dropping = database.connect(autocommit=False)
    dropping.cursor().execute("DROP VIEW v; DROP TABLE _v")
    counting.start()
    waits = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%sum(%'"
    while counting.is_alive() and not database.rows(waits):
        pass
    dropping.commit()
    dropping.close()
    counting.join()
    # Where it waits no longer than it may, it says what was known before.
    assert found and found[0] in (0, 3)
    sink.load(table, _rows(), None)
    database.execute(f'ALTER TABLE _v DROP COLUMN "{target_of(table).count}" CASCADE')
    assert sink.row_count(table) >= 0


def test_first_rows_appear_with_their_epoch(database: Database, sink: PostgresSink) -> None:
    keyed, bag = _keyed("k"), _bag("b")
    sink.stage(keyed, _rows(1))
    assert sink.stage(keyed, _rows()) == 3, "staged again, replaces"
    sink.stage(bag, [Delta.of("is", _ROWS, [1, 2, 3])])
    assert database.rows("SELECT to_regclass('k'), to_regclass('b')") == [(None, None)]
    since = Delta.of("is", [(1, "a"), (4, "d")], [-1, 1])
    sink.write(
        SinkEpoch(Progress(1, {}), SinkRows([(keyed, since), (bag, since)]), _swapping(keyed, bag))
    )
    assert database.rows("SELECT id FROM k ORDER BY 1") == [(2,), (3,), (4,)]
    assert database.rows("SELECT id FROM b ORDER BY 1") == [(2,)] * 2 + [(3,)] * 3 + [(4,)]
    assert database.rows("SELECT count(*) FROM tidemark.tables WHERE is_staged") == [(0,)]


def test_a_swap_is_seen_whole_or_not_at_all(database: Database, sink: PostgresSink) -> None:
    table = _keyed()
    sink.load(table, [Delta.of("is", [(i, "0") for i in range(100)])], None)
    seen: set[tuple] = set()
    stop = threading.Event()

    def watch() -> None:
        connection = database.connect()
        with connection.cursor() as cursor:
            while not stop.is_set():
                cursor.execute("SELECT count(*), min(v), max(v) FROM v")
                seen.add(cursor.fetchone())
        connection.close()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        for n in range(1, 15):
            sink.stage(table, [Delta.of("is", [(i, str(n)) for i in range(100)])])
            sink.write(SinkEpoch(Progress(n, {}), ddl=_swapping(table)))
    finally:
        stop.set()
        thread.join()
    assert all(count == 100 and low == high for count, low, high in seen)
    assert len(seen) > 1


def test_names_of_others_are_refused(database: Database, sink: PostgresSink) -> None:
    database.execute(
        "CREATE TABLE t (); CREATE VIEW w AS SELECT 1; CREATE TABLE _b (); CREATE SEQUENCE s;"
        "CREATE TYPE kind AS ENUM ('a'); CREATE TABLE i (x int); CREATE INDEX ix ON i (x)"
    )
    for table in (_keyed("t"), _bag("t"), _keyed("w"), _bag("b"), _keyed("s"), _keyed("ix")):
        assert _code(sink.check, table) == "sink.name_taken"
        assert _code(sink.stage, table, _rows()) == "sink.name_taken"
    sink.check(_keyed("b"))
    late = _keyed("late")
    sink.stage(late, _rows())
    database.execute("CREATE TABLE late (x int)")
    assert _code(sink.write, SinkEpoch(Progress(1, {}), ddl=_swapping(late))) == "sink.name_taken"
    enum = _keyed("kind")
    sink.stage(enum, _rows())
    assert _code(sink.write, SinkEpoch(Progress(1, {}), ddl=_swapping(enum))) == "sink.name_taken"
    database.execute("DROP TABLE late")
    sink.write(SinkEpoch(Progress(1, {}), ddl=_swapping(late)))
    assert _code(sink.write, SinkEpoch(Progress(2, {}), ddl=_swapping(enum))) == "sink.name_taken"
    sink.drop_staged(enum)
    missing = SinkEpoch(Progress(2, {}), ddl=_swapping(enum))
    assert _code(sink.write, missing) == "sink.not_staged"
    assert sink.read_progress() == Progress(1, {})


def test_refusals_of_schema_privilege_type_and_column(
    database: Database, sink: PostgresSink
) -> None:
    assert _code(sink.check, _keyed("v", "nowhere")) == "sink.schema_missing"
    unknown = SinkTable("public", "v", (Field("m", sql_type("no_mood", 99_999)),), ())
    assert _code(sink.stage, unknown, []) == "sink.type_missing"
    system = SinkTable("public", "v", (Field("ctid", types.TEXT),), ())
    assert _code(sink.stage, system, []) == "sink.column"
    role = f"poor_{database.name}"
    database.execute(f"CREATE ROLE {role} LOGIN; CREATE SCHEMA closed")
    database.execute(f"GRANT ALL ON SCHEMA tidemark TO {role}")
    try:
        poor = PostgresSink(database.dsn.replace("user=postgres", f"user={role}"))
        database.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA tidemark TO {role}")
        assert _code(poor.check, _keyed("v", "closed")) == "sink.privilege"
    finally:
        database.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_what_depends_on_a_view_stops_its_drop(database: Database, sink: PostgresSink) -> None:
    sink.load(_keyed("k"), _rows(), None)
    sink.load(_bag("b"), _rows(), Progress(4, {"source": 1}))
    assert sink.read_progress() == Progress(4, {"source": 1})
    database.execute("CREATE VIEW mine AS SELECT * FROM b")
    with pytest.raises(SinkError) as raised:
        sink.drop([_keyed("k"), _bag("b")])
    assert raised.value.code == "sink.dependents"
    assert "mine" in raised.value.detail
    assert database.rows("SELECT count(*) FROM k") == [(3,)]
    database.execute("DROP VIEW mine; ALTER TABLE k RENAME TO renamed")
    sink.drop([_keyed("k"), _bag("b"), _keyed("never there")])
    assert database.rows(_RELATIONS) == []


def test_what_belongs_to_a_view_s_table_is_dropped_with_it(
    database: Database, sink: PostgresSink
) -> None:
    """As PostgreSQL does it, though each of these names a column."""
    table = _keyed("k")
    sink.load(table, _rows(), None)
    database.execute(
        "CREATE POLICY own ON k USING (id > 1);"
        "ALTER TABLE k ADD CONSTRAINT checked CHECK (id < 1000000);"
        "CREATE STATISTICS measured ON id, v FROM k;"
        "CREATE RULE ruled AS ON UPDATE TO k WHERE NEW.id > 1 DO ALSO NOTHING;"
        "CREATE FUNCTION noted() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';"
        "CREATE TRIGGER noting BEFORE UPDATE OF v ON k FOR EACH ROW WHEN (NEW.id > 1)"
        " EXECUTE FUNCTION noted();"
        "CREATE TABLE t (id int);"
        "CREATE POLICY theirs ON t USING (EXISTS (SELECT FROM k WHERE k.id = t.id))"
    )
    with database.connect() as connection, connection.cursor() as cursor:
        assert carry_over.dependents(cursor, table) == ["policy theirs on table t"]
    with pytest.raises(SinkError) as raised:
        sink.drop([table])
    assert raised.value.code == "sink.dependents"
    database.execute("DROP TABLE t")
    with database.connect() as connection, connection.cursor() as cursor:
        assert carry_over.dependents(cursor, table) == []
    sink.drop([table])
    assert database.rows(_RELATIONS) == []


def test_comments_and_rights_of_a_multiset(database: Database, sink: PostgresSink) -> None:
    control = Control(database.dsn)
    control.ensure()
    control.insert_view(ViewRow("public", "b", "SELECT 'it''s' FROM t", "1"))
    control.close()
    sink.load(_bag("b"), _rows(), None)
    [(said,)] = database.rows("SELECT obj_description('b'::regclass)")
    assert said.startswith("Maintained by Tidemark")
    assert said.endswith("SELECT 'it''s' FROM t")
    [(said,)] = database.rows("SELECT obj_description('_b'::regclass)")
    assert "view b" in said


def test_every_type_is_staged_and_read_back(every_database: Database) -> None:
    from tests.harness.sink_rows import Oracle, bag_table

    every_database.execute(SETUP)
    sink = PostgresSink(every_database.dsn)
    oracle = Oracle(bag_table(), 11)
    first = oracle.change(400)
    assert sink.load(oracle.table, [first], None) == sum(oracle.rows.values())
    kept = Delta.concat(list(sink.read_rows(oracle.table)))
    assert Delta.concat([kept, first.negate()]).consolidate().rows() == []
    sink.drop([oracle.table])
    sink.close()
