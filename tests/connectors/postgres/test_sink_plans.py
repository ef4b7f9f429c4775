"""Oracle: PostgreSQL's own counts of rows read. What an epoch costs the sink follows its changes,
whatever the planner believes of the table."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from connectors.postgres.schema.sink_target import target_of
from connectors.postgres.sink import apply_deltas
from connectors.postgres.sink.postgres_sink import PostgresSink
from connectors.sink import Progress, SinkEpoch, SinkRows, SinkTable
from dataflow import types
from dataflow.delta import Delta
from dataflow.schema import Field
from tests.harness.postgres import Database

NAMED = (Field("id", types.INT4, False), Field("name", types.TEXT, False), Field("v", types.TEXT))
KEYED = SinkTable("public", "keyed", NAMED, (0,))
WIDER_KEY = SinkTable("public", "wider_key", NAMED, (1, 0))
BAG = SinkTable("public", "bag", NAMED, ())
TABLES = [KEYED, WIDER_KEY, BAG]
ROWS, CHANGED = 5_000, 50


@pytest.fixture
def sink(every_database: Database) -> Iterator[PostgresSink]:
    sink = PostgresSink(every_database.dsn)
    yield sink
    sink.close()


def _delta(rows: range, value: str, weight: int = 1) -> Delta:
    return Delta.of("iss", [(i, f"name {i % 7}", value) for i in rows], weight)


def _update(rows: range, number: int) -> Delta:
    """From the value of one number to that of the next."""
    before, after = _delta(rows, f"v{number}", -1), _delta(rows, f"v{number + 1}")
    return Delta.concat([before, after])


def _epoch(number: int, *deltas: tuple[SinkTable, Delta]) -> SinkEpoch:
    return SinkEpoch(Progress(number, {"source": number}), SinkRows(list(deltas)))


def _believed_empty(database: Database, tables: list[SinkTable]) -> None:
    """As ANALYZE leaves it where the rows were written, and not committed yet."""
    for table in tables:
        name = target_of(table).sql
        database.execute(f"ALTER TABLE {name} SET (autovacuum_enabled = off)")
        database.execute(f"ANALYZE {name}")
        where = f"WHERE oid = '{name}'::regclass AND relpages > 0 RETURNING 1"
        assert database.rows(f"UPDATE pg_class SET reltuples = 0 {where}") == [(1,)]


def _rows_read(database: Database, table: SinkTable) -> int:
    """By whatever way; what a session has read counts once it has ended."""
    ((oid, seq),) = database.rows(
        "SELECT relid, seq_tup_read FROM pg_stat_user_tables WHERE relid = %s::regclass",
        (target_of(table).sql,),
    )
    found = database.rows(
        "SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE relid = %s", (oid,)
    )
    return int(seq) + int(found[0][0])


def _close(database: Database, sink: PostgresSink) -> None:
    """Until its session has ended."""
    sink.close()
    others = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND backend_type"
    while database.rows(f"{others} = 'client backend' AND pid <> pg_backend_pid()"):
        time.sleep(0.02)


@pytest.mark.parametrize("is_copied", [False, True])
def test_rows_are_looked_up_in_a_table_that_is_believed_empty(
    every_database: Database,
    sink: PostgresSink,
    is_copied: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for table in TABLES:
        sink.load(table, [_delta(range(ROWS), "v0")], None)
    if is_copied:
        monkeypatch.setattr(apply_deltas, "COPY_ROWS", 1)
        for table in TABLES:
            every_database.execute(f"ANALYZE {target_of(table).sql}")
    else:
        _believed_empty(every_database, TABLES)
    _close(every_database, sink)
    before = [_rows_read(every_database, table) for table in TABLES]
    changed, gone = range(CHANGED), range(CHANGED, 2 * CHANGED)
    for table in TABLES:
        sink.write(_epoch(TABLES.index(table) + 1, (table, _update(changed, 0))))
    sink.write(_epoch(len(TABLES) + 1, *((table, _delta(gone, "v0", -1)) for table in TABLES)))
    _close(every_database, sink)
    read = [_rows_read(every_database, table) - n for table, n in zip(TABLES, before, strict=True)]
    # A multiset's are looked up twice, to be counted down and to be removed.
    assert all(CHANGED <= n <= 8 * CHANGED for n in read), read
    for table in TABLES:
        count = "count(*), count(*) FILTER (WHERE v = 'v1')"
        shown = every_database.rows(f"SELECT {count} FROM public.{table.name}")
        assert shown == [(ROWS - CHANGED, CHANGED)]


def test_what_is_large_leaves_no_plan_to_what_is_small(
    every_database: Database, sink: PostgresSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan of the small one is made in the same transaction, and kept."""
    monkeypatch.setattr(apply_deltas, "COPY_ROWS", 10 * CHANGED)
    sink.load(BAG, [_delta(range(ROWS), "v0")], None)
    sink.load(KEYED, [_delta(range(ROWS), "v0")], None)
    every_database.execute("ANALYZE")
    _close(every_database, sink)
    before = _rows_read(every_database, KEYED)
    few = range(CHANGED)
    sink.write(_epoch(1, (BAG, _update(range(ROWS), 0)), (KEYED, _update(few, 0))))
    sink.write(_epoch(2, (KEYED, _update(few, 1))))
    _close(every_database, sink)
    assert 2 * CHANGED <= _rows_read(every_database, KEYED) - before <= 4 * CHANGED
    assert every_database.rows("SELECT DISTINCT v FROM bag") == [("v1",)]
    assert every_database.rows("SELECT count(*) FROM keyed WHERE v = 'v2'") == [(CHANGED,)]
