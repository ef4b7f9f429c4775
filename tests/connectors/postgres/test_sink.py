"""Oracle: a dictionary of rows as PostgreSQL prints them, changed beside the sink."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psycopg2
import pytest

from connectors.postgres.catalog.catalog import Control, ViewRow
from connectors.postgres.sink import apply_deltas
from connectors.postgres.sink.postgres_sink import PostgresSink
from connectors.sink import Progress, SinkEpoch, SinkRepair, SinkRows, SinkTable, Swap, ViewDdl
from dataflow import types
from dataflow.delta import Delta
from dataflow.errors import InvariantError, SinkError, TemporaryError, TidemarkError
from dataflow.schema import Field
from dataflow.types import SESSION_SETTINGS, TypeKind
from service.metrics.metrics import PipelineMetrics
from service.pipeline.sink_writer import SinkWriter
from tests.harness.postgres import Database
from tests.harness.sink_rows import SETUP, Oracle, bag_table, delta_of, keyed_table

SMALL = SinkTable("public", "small", (Field("id", types.INT4, False), Field("v", types.TEXT)), (0,))
SMALL_BAG = SinkTable("public", "small_bag", (Field("v", types.TEXT),), ())


def _held(database: Database, table: SinkTable) -> Counter:
    """The view's rows by their output text (COPY), as a user's query gets them."""
    connection = database.connect()
    names = ", ".join('"' + f.name.replace('"', '""') + '"' for f in table.fields)
    texts = [
        f"{name}::text" if f.type.kind is not TypeKind.BPCHAR else f"rpad({name}, 5)"
        for name, f in zip(names.split(", "), table.fields, strict=True)
    ]
    with connection.cursor() as cursor:
        for name, value in SESSION_SETTINGS.items():
            cursor.execute(f"SET {name} TO '{value}'")
        cursor.execute(f'SELECT {", ".join(texts)} FROM "{table.schema}"."{table.name}"')
        rows = cursor.fetchall()
    connection.close()
    bools = [i for i, f in enumerate(table.fields) if f.type.kind is TypeKind.BOOL]
    return Counter(
        tuple(v[0] if i in bools and v is not None else v for i, v in enumerate(row))
        for row in rows
    )


def _epoch(
    number: int,
    *deltas: tuple[SinkTable, Delta],
    errors: Delta | None = None,
    swaps: tuple[SinkTable, ...] = (),
    repair: SinkRepair | None = None,
) -> SinkEpoch:
    rows, ddl = SinkRows(list(deltas), errors), ViewDdl(swaps=tuple(map(Swap, swaps)))
    return SinkEpoch(Progress(number, {"source": number * 10}), rows, ddl, repair)


def _small(rows: list[tuple], weights: list[int]) -> tuple[SinkTable, Delta]:
    return SMALL, Delta.of("is", rows, weights)


@pytest.fixture
def sink(every_database: Database) -> Iterator[PostgresSink]:
    every_database.execute(SETUP)
    sink = PostgresSink(every_database.dsn)
    yield sink
    sink.close()


def _load(sink: PostgresSink, *tables: SinkTable) -> None:
    for table in tables:
        sink.load(table, [], None)


@pytest.mark.parametrize("copy_rows", [5_000, 40])
def test_random_deltas_of_every_size(
    every_database: Database,
    sink: PostgresSink,
    copy_rows: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(apply_deltas, "COPY_ROWS", copy_rows)
    monkeypatch.setattr(apply_deltas, "COPIED_ROWS", copy_rows)
    oracles = [Oracle(keyed_table(), 1), Oracle(bag_table(), 2)]
    for oracle in oracles:
        first = oracle.change(60)
        sink.load(oracle.table, [first.slice(0, 20), first.slice(20, len(first))], None)
    sizes = [1, 1, 2, 5, 16, 17, 100, 1, 300, 3, 30]
    for number, size in enumerate(sizes, 1):
        deltas = [(o.table, o.change(size)) for o in oracles]
        sink.write(_epoch(number, *deltas))
        for oracle in oracles:
            assert _held(every_database, oracle.table) == oracle.rows, (number, size)
    for oracle in oracles:
        kept = list(sink.read_rows(oracle.table))
        assert (
            Delta.concat([*kept, delta_of(oracle.table, oracle.rows).negate()]).consolidate().rows()
            == []
        )
        assert sink.row_count(oracle.table) == sum(oracle.rows.values())
    assert sink.read_progress() == Progress(len(sizes), {"source": 10 * len(sizes)})


@pytest.mark.parametrize("share", [0.05, 0.0])
def test_large_deltas_by_copy(
    every_database: Database, sink: PostgresSink, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apply_deltas, "INDEX_SHARE", share)
    n = 9_000
    _load(sink, SMALL, SMALL_BAG)
    new = Delta.of("is", [(i, f"v{i}") for i in range(n)])
    bag = Delta.of("s", [(f"v{i}",) for i in range(n)], 2)
    sink.write(_epoch(1, (SMALL, new), (SMALL_BAG, bag)))
    half = np.arange(0, n, 2)
    moved = Delta.of("is", [(i, "moved") for i in range(0, n, 4)])
    changed = Delta.concat([new.take(half).negate(), moved])
    counts = Delta(
        bag.columns, np.where(np.arange(n) % 3 == 0, -2, np.where(half.sum() > 0, -1, 0))
    )
    sink.write(_epoch(2, (SMALL, changed), (SMALL_BAG, counts)))
    expected = {i: f"v{i}" for i in range(1, n, 2)} | dict.fromkeys(range(0, n, 4), "moved")
    assert dict(every_database.rows("SELECT id, v FROM small")) == expected
    kept = [(f"v{i}",) for i in range(n) if i % 3]
    assert sorted(every_database.rows("SELECT v FROM small_bag")) == sorted(kept)


def test_column_names_and_types_are_the_views(every_database: Database, sink: PostgresSink) -> None:
    for table in (keyed_table(), bag_table()):
        _load(sink, table)
        found = every_database.rows(
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
            "WHERE attrelid = to_regclass(%s) AND attnum > 0 ORDER BY attnum",
            (table.title,),
        )
        assert found == [(f.name, f.type.name.removeprefix("public.")) for f in table.fields]
    [(key,)] = every_database.rows(
        "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = 'keyed_pkey'"
    )
    assert key == 'PRIMARY KEY ("region id", n)'
    [(options,)] = every_database.rows("SELECT reloptions FROM pg_class WHERE relname = 'keyed'")
    assert options == ["fillfactor=85"]


def _repairing(follows: int, *live: str, group: str = "default") -> SinkRepair:
    return SinkRepair(follows, frozenset(live), group, group == "default")


def test_the_fence_lets_one_writer_on(every_database: Database, sink: PostgresSink) -> None:
    _load(sink, SMALL)
    rival = PostgresSink(every_database.dsn)
    sink.write(_epoch(1, _small([(1, "a")], [1])))
    sink.write(_epoch(2, _small([(2, "b")], [1])))
    for number, code in ((1, "sink.fenced"), (2, "sink.fenced"), (4, "sink.rewound")):
        with pytest.raises(TidemarkError) as raised:
            rival.write(_epoch(number, _small([(9, "zombie")], [1])))
        assert raised.value.code == code
    with pytest.raises(SinkError, match="fenced"):
        rival.write(_epoch(9, _small([(9, "zombie")], [1]), repair=_repairing(1)))
    assert rival.read_progress() == Progress(2, {"source": 20})
    sink.write(_epoch(3, _small([(1, "a"), (1, "c")], [-1, 1])))
    assert every_database.rows("SELECT * FROM small ORDER BY id") == [(1, "c"), (2, "b")]
    other = PostgresSink(every_database.dsn, key="other")
    other.write(_epoch(7))
    assert other.read_progress() == Progress(7, {"source": 70})
    other.forget_progress()
    assert other.read_progress() is None
    assert sink.read_progress() == Progress(3, {"source": 30})
    sink.write(_epoch(9, _small([(2, "b")], [-1]), repair=_repairing(3)))
    assert sink.read_progress() == Progress(9, {"source": 90})
    rival.close()
    other.close()


@pytest.mark.parametrize("copy_rows", [5_000, 0])
@pytest.mark.parametrize(
    ("rows", "weights", "code"),
    [
        ([(1, "other")], [1], "sink.key_violation"),
        ([(5, "x"), (5, "y")], [1, 1], "sink.key_violation"),
        ([(5, "x")], [2], "sink.key_violation"),
        ([(1, "a"), (1, "b")], [-1, -1], "sink.key_violation"),
        ([(7, "gone")], [-1], "sink.row_missing"),
        ([(7, "gone"), (7, "new")], [-1, 1], "sink.row_missing"),
    ],
)
def test_a_wrong_delta_stops_and_writes_nothing(
    database: Database,
    rows: list[tuple],
    weights: list[int],
    code: str,
    copy_rows: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(apply_deltas, "COPY_ROWS", copy_rows)
    monkeypatch.setattr(apply_deltas, "COPIED_ROWS", copy_rows)
    sink = PostgresSink(database.dsn)
    _load(sink, SMALL, SMALL_BAG)
    sink.write(_epoch(1, _small([(1, "a")], [1])))
    good = (SMALL_BAG, Delta.of("s", [("x",)]))
    with pytest.raises(InvariantError) as raised:
        sink.write(_epoch(2, good, _small(rows, weights)))
    assert raised.value.code == code
    assert raised.value.detail
    assert database.rows("SELECT * FROM small") == [(1, "a")]
    assert database.rows("SELECT * FROM small_bag") == []
    sink.write(_epoch(2, good))
    with pytest.raises(InvariantError) as raised:
        sink.write(_epoch(3, (SMALL_BAG, Delta.of("s", [("x",)], -2))))
    assert raised.value.code == "sink.row_missing"
    assert sink.read_progress() == Progress(2, {"source": 20})
    sink.close()


def test_a_users_index_stays_and_a_users_constraint_is_named(database: Database) -> None:
    sink = PostgresSink(database.dsn)
    _load(sink, SMALL)
    database.execute("CREATE INDEX by_v ON small (v); GRANT SELECT ON small TO PUBLIC")
    sink.write(_epoch(1, _small([(1, "a"), (2, "b")], [1, 1])))
    assert database.rows("SELECT 1 FROM pg_indexes WHERE indexname = 'by_v'") == [(1,)]
    database.execute("ALTER TABLE small ADD UNIQUE (v)")
    with pytest.raises(SinkError) as raised:
        sink.write(_epoch(2, _small([(3, "a")], [1])))
    assert raised.value.code == "sink.constraint"
    database.execute("DROP TABLE small")
    with pytest.raises(SinkError) as raised:
        sink.write(_epoch(2, _small([(3, "a")], [1])))
    assert raised.value.code == "sink.table_missing"
    sink.close()


def test_a_lost_session_is_temporary_and_writing_continues(database: Database) -> None:
    sink = PostgresSink(database.dsn)
    _load(sink, SMALL)
    sink.write(_epoch(1, _small([(1, "a")], [1])))
    database.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE application_name = 'tidemark sink' AND datname = current_database()"
    )
    with pytest.raises(TemporaryError):
        sink.write(_epoch(2, _small([(2, "b")], [1])))
    assert sink.read_progress() == Progress(1, {"source": 10})
    sink.write(_epoch(2, _small([(2, "b")], [1])))
    assert database.rows("SELECT count(*) FROM small") == [(2,)]
    sink.close()


def test_error_rows_come_and_go(every_database: Database, sink: PostgresSink) -> None:
    _load(sink, SMALL)
    first = ("public.small", "project#1", "22012", "division by zero", '{"id": 1}')
    second = ("public.other", "filter#2", "22P02", "it's \\ bad", '{"id": 2}')
    sink.write(_epoch(1, errors=Delta.of("sssss", [first, second], [2, 1])))
    columns = "view, operator, sqlstate, message, source_row, count"
    query = f"SELECT {columns} FROM tidemark.errors ORDER BY count DESC"
    assert every_database.rows(query) == [(*first, 2), (*second, 1)]
    sink.write(_epoch(2, errors=Delta.of("sssss", [first, second], [-1, -1])))
    assert every_database.rows(query) == [(*first, 1)]
    sink.drop([SMALL])
    assert every_database.rows(query) == []


def test_what_readers_see_is_one_epoch(database: Database) -> None:
    sink = PostgresSink(database.dsn)
    _load(sink, SMALL, SMALL_BAG)
    sink.write(_epoch(1, _small([(0, "1")], [1]), (SMALL_BAG, Delta.of("s", [("1",)]))))
    reader = database.connect()
    for number in range(2, 60):
        old, new = str(number - 1), str(number)
        sink.write(
            _epoch(
                number,
                _small([(0, old), (0, new)], [-1, 1]),
                (SMALL_BAG, Delta.of("s", [(old,), (new,)], [-1, 1])),
            )
        )
        with reader.cursor() as cursor:
            cursor.execute(
                "SELECT small.v, small_bag.v, epoch::text FROM small, small_bag, tidemark.progress"
            )
            assert cursor.fetchall() == [(new, new, new)]
    reader.close()
    sink.close()


def test_unreachable_and_standby_are_named(database: Database) -> None:
    with pytest.raises(TemporaryError) as raised:
        PostgresSink("host=127.0.0.1 port=1 dbname=x user=y").prepare()
    assert raised.value.code == "sink.unreachable"
    database.execute(
        f"DROP ROLE IF EXISTS poor_{database.name}; CREATE ROLE poor_{database.name} LOGIN"
    )
    try:
        poor = database.dsn.replace("user=postgres", f"user=poor_{database.name}")
        with pytest.raises(SinkError) as refused:
            PostgresSink(poor).prepare()
        assert refused.value.code == "sink.privilege"
        PostgresSink(database.dsn).prepare()
        database.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    finally:
        database.execute(f"DROP ROLE poor_{database.name}")


def test_nothing_of_a_failed_stage_is_left(database: Database) -> None:
    sink = PostgresSink(database.dsn)
    twice = [Delta.of("is", [(1, "a")]), Delta.of("is", [(1, "b")])]
    with pytest.raises(InvariantError) as raised:
        sink.stage(SMALL, twice)
    assert raised.value.code == "sink.key_violation"
    assert database.rows("SELECT relname FROM pg_class WHERE relname LIKE '\\_tidemark%'") == []
    with pytest.raises(psycopg2.errors.UndefinedTable):
        database.rows("SELECT * FROM small")
    parts = [Delta.of("s", [("a",), ("b",)], [1, 2]), Delta.of("s", [("a",)], [3])]
    assert sink.load(SMALL_BAG, parts, None) == 6
    assert database.rows("SELECT v, count(*) FROM small_bag GROUP BY 1 ORDER BY 1") == [
        ("a", 4),
        ("b", 2),
    ]
    sink.close()


def test_a_name_taken_late_refuses_one_view_alone(
    sink: PostgresSink, every_database: Database
) -> None:
    """Staged, then the name is somebody else's: the epoch is written without that view."""
    control = Control(every_database.dsn)
    control.ensure()
    control.insert_view(ViewRow("public", "small", "SELECT 1", "x1"))
    _load(sink, SMALL_BAG)
    sink.stage(SMALL, [Delta.of("is", [(1, b"a")], [1])])
    every_database.execute("CREATE TABLE small (theirs int)")
    rows = (SMALL_BAG, Delta.of("s", [(b"x",)], [2]))
    epoch = _epoch(1, _small([(2, b"b")], [1]), rows, swaps=(SMALL,))
    with pytest.raises(SinkError) as caught:
        sink.write(epoch)
    assert (caught.value.code, caught.value.relation) == ("sink.name_taken", SMALL.relation)
    assert sink.read_progress() is None and not _held(every_database, SMALL_BAG)
    sink.write(epoch.refused(caught.value))
    assert sink.read_progress() == Progress(1, {"source": 10})
    assert _held(every_database, SMALL_BAG) == Counter({("x",): 2})
    assert every_database.rows("SELECT * FROM small") == []
    (row,) = control.list_views()
    assert (row.status, row.code) == ("failed", "sink.name_taken")
    control.close()


def test_the_writer_leaves_a_refused_view_out(
    sink: PostgresSink, every_database: Database, tmp_path: Path
) -> None:
    _load(sink, SMALL_BAG)
    sink.stage(SMALL, [])
    every_database.execute("CREATE TABLE small (id int, v text)")
    writer = SinkWriter(sink, 0, PipelineMetrics(tmp_path))
    for number in (1, 2, 3):
        rows = (SMALL_BAG, Delta.of("s", [(b"x",)], [1]))
        swaps = (SMALL,) if number == 1 else ()
        writer.submit(_epoch(number, _small([(number, b"a")], [1]), rows, swaps=swaps))
    writer.drain()
    assert [e.relation for e in writer.refusals()] == [SMALL.relation]
    assert writer.refusals() == []
    assert _held(every_database, SMALL_BAG) == Counter({("x",): 3})
    assert every_database.rows("SELECT * FROM small") == []
    every_database.execute("DROP TABLE small")
    sink.stage(SMALL, [])
    writer.forgive()
    writer.submit(_epoch(4, _small([(4, b"a")], [1]), swaps=(SMALL,)))
    writer.drain()
    writer.close()
    assert _held(every_database, SMALL) == Counter({("4", "a"): 1})
