"""Oracle: the table that PostgreSQL shows at the end, and the sum that no transaction changes."""

from __future__ import annotations

import pickle
import random
import threading
import time
from collections import Counter

import pytest

from connectors.postgres.snapshot import snapshot_parts
from connectors.postgres.snapshot.snapshot import PostgresSnapshot
from dataflow.delta import KIND_INT, Delta
from dataflow.errors import SourceError, TemporaryError
from tests.connectors.postgres.reading import (
    Replay,
    changes_of,
    opened,
    read_all,
    relation_of,
    snapshot_rows,
    streaming,
    table_rows,
)
from tests.harness.postgres import Database
from tests.harness.tiers import is_fast
from tests.harness.waiting import wait_until


def test_parts_are_disjoint_and_whole(every_database: Database, monkeypatch) -> None:
    monkeypatch.setattr(snapshot_parts, "CHUNK_ROWS", 700)
    every_database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text);"
        "INSERT INTO t SELECT g, repeat('x', g % 200) FROM generate_series(1, 20000) g;"
        "DELETE FROM t WHERE id % 3 = 0; CREATE TABLE empty (a int, b text)"
    )
    relation = relation_of(every_database, "t")
    empty = relation_of(every_database, "empty")
    snapshot = PostgresSnapshot(every_database.dsn, [relation, empty])
    try:
        for count in (1, 2, 7, 50):
            parts = snapshot.parts(relation, [0], count)
            assert count * 0.5 <= len(parts) <= count * 1.5 + 1
            chunks = [d for p in parts for d in pickle.loads(pickle.dumps(p)).read()]
            ids = Counter(i for d in chunks for i in d.columns[0].to_list())
            assert ids == Counter(i for i in range(1, 20001) if i % 3)
        assert max(len(d) for d in chunks) < 20 * 700
        assert snapshot_rows(snapshot, relation) == table_rows(every_database, relation)
        assert snapshot_rows(snapshot, empty) == Counter()
        [part] = snapshot.parts(relation, [], 1)
        assert sum(len(d) for d in part.read()) == sum(1 for i in range(1, 20001) if i % 3)
    finally:
        snapshot.close()


def test_partitioned_tables_are_read_through_their_leaves(every_database: Database) -> None:
    every_database.execute(
        "CREATE TABLE part (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);"
        "CREATE TABLE part1 (v text, extra int, id int NOT NULL); ALTER TABLE part1 DROP extra;"
        "ALTER TABLE part ATTACH PARTITION part1 FOR VALUES FROM (0) TO (1000);"
        "CREATE TABLE part2 PARTITION OF part FOR VALUES FROM (1000) TO (5000)"
        "  PARTITION BY RANGE (id);"
        "CREATE TABLE part21 PARTITION OF part2 FOR VALUES FROM (1000) TO (3000);"
        "CREATE TABLE part22 PARTITION OF part2 FOR VALUES FROM (3000) TO (5000);"
        "INSERT INTO part SELECT g, 'v' || g FROM generate_series(0, 4999) g"
    )
    relation = relation_of(every_database, "part")
    snapshot = PostgresSnapshot(every_database.dsn, [relation])
    try:
        assert snapshot_rows(snapshot, relation, 4) == table_rows(every_database, relation)
    finally:
        snapshot.close()


def test_snapshot_and_stream_are_the_table_under_concurrent_writers(
    every_database: Database,
) -> None:
    """Writers move amounts between rows: in each prefix the sum is what it was."""
    every_database.execute(
        "CREATE TABLE account (id int PRIMARY KEY, amount bigint);"
        "INSERT INTO account SELECT g, 100 FROM generate_series(1, 3000) g;"
        "CREATE TABLE log (a int, b int); ALTER TABLE log REPLICA IDENTITY FULL"
    )
    is_done = threading.Event()

    def write(seed: int) -> None:
        draw = random.Random(seed)
        connection = every_database.connect(autocommit=False)
        cursor = connection.cursor()
        while not is_done.is_set():
            a, b = sorted(draw.sample(range(1, 3001), 2))
            cursor.execute("UPDATE account SET amount = amount - 5 WHERE id = %s", (a,))
            cursor.execute("UPDATE account SET amount = amount + 5 WHERE id = %s", (b,))
            cursor.execute("INSERT INTO log VALUES (%s, %s)", (a, b))
            if draw.random() < 0.1:
                cursor.execute("DELETE FROM log WHERE a < %s", (a,))
            connection.rollback() if draw.random() < 0.1 else connection.commit()
        connection.close()

    writers = [threading.Thread(target=write, args=(i,)) for i in range(2 if is_fast() else 3)]
    with opened(every_database, "account", "log") as (source, relations):
        start = source.current_position()
        for writer in writers:
            writer.start()
        try:
            with streaming(source, start, relations) as stream:
                time.sleep(0.5)
                snapshot = source.open_snapshot(relations)
                time.sleep(0.5)
                loaded = [snapshot_rows(snapshot, r, 5) for r in relations]
                snapshot.close()
                time.sleep(0.3)
                is_done.set()
                for writer in writers:
                    writer.join()
                batches = read_all(source, stream, max_rows=1)
        finally:
            is_done.set()
        replays = [Replay(r, rows) for r, rows in zip(relations, loaded, strict=True)]
        assert sum(int(row[1] or 0) for row in loaded[0]) == 300_000
        later = [b for b in batches if b.position > snapshot.position]
        assert 10 < len(later) < len(batches)
        for batch in later:
            for changes in batch.changes:
                for replay in replays:
                    replay.apply(changes)
        for replay in replays:
            assert replay.rows == table_rows(every_database, replay.relation)


def test_the_stream_from_the_snapshot_position(database: Database) -> None:
    """A transaction that is open while the snapshot is asked for is in exactly one of the two."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with opened(database, "t") as (source, [relation]):
        writer = database.connect(autocommit=False)
        cursor = writer.cursor()
        cursor.execute("INSERT INTO t VALUES (1)")
        result: list[PostgresSnapshot] = []
        opener = threading.Thread(target=lambda: result.append(source.open_snapshot([relation])))
        opener.start()
        time.sleep(0.3)
        assert opener.is_alive(), "a snapshot waits for running transactions"
        writer.commit()
        opener.join()
        [snapshot] = result
        cursor.execute("INSERT INTO t VALUES (2)")
        writer.commit()
        writer.close()
        assert snapshot_rows(snapshot, relation) == Counter([("1",)])
        snapshot.close()
        with streaming(source, snapshot.position, [relation]) as stream:
            replay = Replay(relation)
            for changes in changes_of(read_all(source, stream)):
                replay.apply(changes)
        assert replay.rows == Counter([("2",)])


def test_ddl_and_truncate_wait_for_the_snapshot(database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    relation = relation_of(database, "t")
    snapshot = PostgresSnapshot(database.dsn, [relation])
    try:
        for statement in ("TRUNCATE t", "ALTER TABLE t ADD x int", "DROP TABLE t"):
            with pytest.raises(Exception, match="lock timeout"):
                database.execute(f"SET lock_timeout = '50ms'; {statement}")
        assert snapshot_rows(snapshot, relation) == Counter([("1",)])
    finally:
        snapshot.close()
    database.execute("SET lock_timeout = '5s'; TRUNCATE t")


def test_a_reader_does_not_wait_for_ever(database: Database, monkeypatch) -> None:
    """A TRUNCATE waits for the snapshot, a reader waits behind it: the reader gives up."""
    monkeypatch.setitem(snapshot_parts._SETTINGS, "lock_timeout", "300ms")
    database.execute("CREATE TABLE t (id int); INSERT INTO t VALUES (1)")
    relation = relation_of(database, "t")
    snapshot = PostgresSnapshot(database.dsn, [relation])
    truncate = threading.Thread(target=database.execute, args=("TRUNCATE t",), daemon=True)
    try:
        [part] = snapshot.parts(relation, [0], 1)
        truncate.start()
        waiting = "SELECT 1 FROM pg_locks WHERE relation = 't'::regclass AND NOT granted"
        while not database.rows(waiting):
            time.sleep(0.01)
        with pytest.raises(TemporaryError):
            list(part.read())
    finally:
        snapshot.close()
    truncate.join(10)
    assert not truncate.is_alive()


def test_a_closed_snapshot_cannot_be_read(database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    relation = relation_of(database, "t")
    snapshot = PostgresSnapshot(database.dsn, [relation])
    [part] = snapshot.parts(relation, [0], 1)
    snapshot.close()
    open_sessions = "SELECT FROM pg_stat_activity WHERE application_name ~ 'snapshot'"
    wait_until(lambda: not database.rows(open_sessions))
    with pytest.raises(TemporaryError) as caught:
        list(part.read())
    assert caught.value.code == "source.snapshot_gone"
    assert "password" not in repr(part) and database.dsn not in repr(part)


def test_a_snapshot_leaves_no_slot_and_no_session(database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    relation = relation_of(database, "t")
    snapshot = PostgresSnapshot(database.dsn, [relation])
    reading = iter(snapshot.parts(relation, [0], 1)[0].read())
    next(reading)
    reading.close()  # type: ignore[attr-defined]
    snapshot.close()
    left = (
        "SELECT application_name FROM pg_stat_activity WHERE datname = current_database()"
        " AND application_name LIKE 'tidemark%'"
        " UNION ALL SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
    )
    wait_until(lambda: not database.rows(left), why=lambda: database.rows(left))


def test_a_missing_table_is_named(database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    relation = relation_of(database, "t")
    database.execute("DROP TABLE t")
    with pytest.raises(SourceError) as caught:
        PostgresSnapshot(database.dsn, [relation])
    assert caught.value.code == "source.table_missing"
    assert database.rows("SELECT count(*) FROM pg_replication_slots") == [(0,)]


def test_a_table_is_read_by_the_names_that_it_has_now(database: Database) -> None:
    """It was planned a moment before: another table may have its name by now."""
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text, gone int, wide int);"
        "INSERT INTO t SELECT g, 'v' || g, g, g FROM generate_series(1, 9) g"
    )
    relation = relation_of(database, "t")
    database.execute(
        "ALTER TABLE t RENAME TO u; ALTER TABLE u RENAME v TO id2; ALTER TABLE u DROP gone;"
        "ALTER TABLE u ALTER wide TYPE bigint; ALTER TABLE u RENAME id TO v;"
        "CREATE TABLE t (id int PRIMARY KEY, v text)"
    )
    snapshot = PostgresSnapshot(database.dsn, [relation])
    try:
        keys = Delta.of([KIND_INT], [(3,), (10,)])
        [part] = snapshot.parts(relation, [0, 1], 1)
        of_keys = snapshot.part_of_keys(relation, [0, 1], keys)
        for found, ids in ((part, range(1, 10)), (of_keys, [3])):
            rows = list(found.read())
            assert [i for d in rows for i in d.columns[0].to_list()] == list(ids)
            assert [v for d in rows for v in d.columns[1].texts()] == [f"v{i}" for i in ids]
        for column in (2, 3):
            with pytest.raises(TemporaryError) as caught:
                snapshot.parts(relation, [0, column], 1)
            assert caught.value.code == "source.table_changing"
            assert relation.fields[column].name in caught.value.detail
    finally:
        snapshot.close()
