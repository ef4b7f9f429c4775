"""Oracle: the statements that were run, and the table that PostgreSQL shows after them."""

from __future__ import annotations

import random

import pytest

from connectors.postgres.replication.stream import StreamLimits
from dataflow.changes import Changes
from dataflow.errors import SourceError
from tests.connectors.postgres.reading import (
    Replay,
    changes_of,
    events,
    following,
    opened,
    read_all,
    relation_of,
    streaming,
    table_rows,
)
from tests.harness.postgres import Database

pytestmark = pytest.mark.versions

BIG = "(SELECT string_agg(md5(g::text), '') FROM generate_series(1, 300) g)"


def seen(database: Database, statements: list[str], *names: str) -> list[Changes]:
    """What the stream says of statements, each a transaction of its own."""
    with following(database, *names) as (source, stream):
        for statement in statements:
            database.execute(statement)
        return changes_of(read_all(source, stream))


def test_insert_update_delete_and_key_change(every_database: Database) -> None:
    every_database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    found = seen(
        every_database,
        [
            "INSERT INTO t VALUES (1, 'a'), (2, NULL)",
            "UPDATE t SET v = 'b' WHERE id = 1",
            "UPDATE t SET id = 3 WHERE id = 1",
            "DELETE FROM t WHERE id = 2",
        ],
        "t",
    )
    assert events(found) == [
        ("t", "I", ("1", "a")),
        ("t", "I", ("2", None)),
        ("t", "N", ("1", "b")),
        ("t", "K", ("1", None)),
        ("t", "N", ("3", "b")),
        ("t", "E", ("2", None)),
    ]


def test_full_identity_sends_whole_old_rows(every_database: Database) -> None:
    every_database.execute(
        "CREATE TABLE bag (a int, b text); ALTER TABLE bag REPLICA IDENTITY FULL"
    )
    found = seen(
        every_database,
        [
            "INSERT INTO bag VALUES (1, 'a'), (1, 'a')",
            "UPDATE bag SET b = 'z' WHERE ctid = (SELECT min(ctid) FROM bag)",
            "DELETE FROM bag WHERE b = 'a'",
        ],
        "bag",
    )
    assert events(found)[2:] == [
        ("bag", "O", ("1", "a")),
        ("bag", "N", ("1", "z")),
        ("bag", "D", ("1", "a")),
    ]


def test_unchanged_toast(every_database: Database) -> None:
    """With default identity the value is marked as unchanged, with FULL it is the old row's."""
    for name, extra in (("plain", ""), ("whole", "ALTER TABLE whole REPLICA IDENTITY FULL;")):
        every_database.execute(
            f"CREATE TABLE {name} (id int PRIMARY KEY, big text, n int);"
            f"ALTER TABLE {name} ALTER big SET STORAGE EXTERNAL; {extra}"
            f"INSERT INTO {name} VALUES (1, {BIG}, 1), (2, 'small', 1)"
        )
    [(big,)] = every_database.rows("SELECT big FROM plain WHERE id = 1")
    statements = [
        "UPDATE plain SET n = 2",
        "UPDATE whole SET n = 2",
        "UPDATE plain SET id = id + 5",
    ]
    found = seen(every_database, statements, "plain", "whole")
    # Without the value under default identity: the kept row has it.
    assert events(found)[:2] == [
        ("plain", "N", ("1", None, "2")),
        ("plain", "N", ("2", "small", "2")),
    ]
    assert found[0].unchanged[1].tolist() == [True, False]
    assert ("whole", "N", ("1", big, "2")) in events(found)
    [whole] = [c for c in found if c.relation.name.name == "whole"]
    assert not whole.unchanged
    assert ("plain", "K", ("1", None, None)) in events(found)


def test_truncate_of_several_relations(every_database: Database) -> None:
    every_database.execute(
        "CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY);"
        "CREATE TABLE other (id int PRIMARY KEY)"
    )
    found = seen(
        every_database,
        [
            "INSERT INTO a VALUES (1); INSERT INTO b VALUES (1); TRUNCATE a, b, other;"
            "INSERT INTO a VALUES (2)",
            "TRUNCATE other",
        ],
        "a",
        "b",
    )
    assert [e for e in events(found) if e[0] == "a"] == [
        ("a", "I", ("1",)), ("a", "T", (None,)), ("a", "I", ("2",))
    ]  # fmt: skip
    assert [e for e in events(found) if e[0] == "b"] == [("b", "I", ("1",)), ("b", "T", (None,))]


def test_partitions_come_as_their_root(every_database: Database) -> None:
    every_database.execute(
        "CREATE TABLE part (id int, v text, PRIMARY KEY (id)) PARTITION BY RANGE (id);"
        "CREATE TABLE part1 (v text, id int NOT NULL);"
        "ALTER TABLE part ATTACH PARTITION part1 FOR VALUES FROM (0) TO (10);"
        "CREATE TABLE part2 PARTITION OF part FOR VALUES FROM (10) TO (20)"
    )
    found = seen(
        every_database,
        [
            "INSERT INTO part VALUES (1, 'a'), (11, 'b')",
            "UPDATE part SET id = 15 WHERE id = 1",
            "UPDATE part SET v = 'c' WHERE id = 15",
            "TRUNCATE part",
        ],
        "part",
    )
    replay = Replay(relation_of(every_database, "part"))
    for changes in found[:-1]:
        replay.apply(changes)
    assert dict(replay.rows) == {("11", "b"): 1, ("15", "c"): 1}
    assert events(found)[-1] == ("part", "T", (None, None))


def test_columns_added_and_dropped_that_no_view_uses(every_database: Database) -> None:
    every_database.execute("CREATE TABLE t (id int PRIMARY KEY, extra int, v text)")
    with opened(every_database, "t") as (source, [relation]):
        used = {relation.name: [0, 2]}
        start = source.current_position()
        with streaming(source, start, [relation], columns=used) as stream:
            every_database.execute(
                "INSERT INTO t VALUES (1, 7, 'a'); ALTER TABLE t ADD added numeric DEFAULT 5;"
                "INSERT INTO t VALUES (2, 7, 'b', 1); ALTER TABLE t DROP extra;"
                "UPDATE t SET v = 'c' WHERE id = 1; ALTER TABLE t RENAME TO renamed;"
                "INSERT INTO renamed VALUES (3, 'd', 2)"
            )
            found = changes_of(read_all(source, stream))
    assert events(found) == [
        ("t", "I", ("1", None, "a")),
        ("t", "I", ("2", None, "b")),
        ("t", "N", ("1", None, "c")),
        ("t", "I", ("3", None, "d")),
    ]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ("ALTER TABLE t DROP v", '"v"'),
        ("ALTER TABLE t RENAME v TO w", '"v"'),
        ("ALTER TABLE t ALTER v TYPE numeric(12,3)", '"v"'),
        ("ALTER TABLE t ALTER v TYPE text", '"v"'),
        ("ALTER TABLE t DROP CONSTRAINT t_pkey; ALTER TABLE t ADD PRIMARY KEY (other)", '"id"'),
    ],
)
def test_a_change_of_a_used_column_stops_the_stream(
    database: Database, change: str, word: str
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v numeric(12,2), other int NOT NULL)")
    with following(database, "t") as (source, stream):
        database.execute("INSERT INTO t VALUES (1, 1, 1)")
        assert len(read_all(source, stream)) >= 1
        database.execute(f"{change}; INSERT INTO t(id, other) VALUES (2, 2)")
        with pytest.raises(SourceError) as caught:
            read_all(source, stream)
        assert caught.value.code == "source.schema_changed"
        assert '"public.t"' in caught.value.what and word in caught.value.what
        before = stream.position
        # It stays refused: nothing after the change is handed out.
        database.execute("INSERT INTO t(id, other) VALUES (3, 3)")
        with pytest.raises(SourceError):
            stream.poll(10, 1.0)
        assert stream.position == before


def test_savepoints_and_rollbacks(every_database: Database) -> None:
    every_database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    found = seen(
        every_database,
        [
            "BEGIN; INSERT INTO t VALUES (1); SAVEPOINT s; INSERT INTO t VALUES (2);"
            "ROLLBACK TO s; INSERT INTO t VALUES (3); COMMIT",
            "BEGIN; INSERT INTO t VALUES (4); ROLLBACK",
        ],
        "t",
    )
    assert [row for _, _, row in events(found)] == [("1",), ("3",)]


def test_random_changes_replayed_are_the_table(every_database: Database) -> None:
    """Three kinds of tables, many small transactions, read in batches of every size."""
    every_database.execute(
        "CREATE TABLE keyed (a int, b text, n numeric(12,2), PRIMARY KEY (a, b));"
        "CREATE TABLE bag (a int, b text, x float8); ALTER TABLE bag REPLICA IDENTITY FULL;"
        "CREATE TABLE wide (id int PRIMARY KEY, big text, n int);"
        "ALTER TABLE wide ALTER big SET STORAGE EXTERNAL"
    )
    draw = random.Random(7)
    connection = every_database.connect(autocommit=False)
    cursor = connection.cursor()

    def change() -> None:
        k, m = draw.randrange(40), draw.randrange(40)
        cursor.execute(
            draw.choice(
                [
                    f"INSERT INTO keyed VALUES ({k}, 'x{m}', {m}.25) ON CONFLICT DO NOTHING",
                    f"UPDATE keyed SET n = n + 1 WHERE a % 7 = {k % 7}",
                    f"UPDATE keyed SET a = a + 100 WHERE a = {k}",
                    f"DELETE FROM keyed WHERE a = {k}",
                    f"INSERT INTO bag SELECT {k}, NULL, g % 2 FROM generate_series(1, 3) g",
                    f"UPDATE bag SET b = 'y', x = NULL WHERE a = {k}",
                    f"DELETE FROM bag WHERE ctid IN (SELECT ctid FROM bag WHERE a = {k} LIMIT 1)",
                    f"INSERT INTO wide VALUES ({k}, {BIG}, {m}) ON CONFLICT DO NOTHING",
                    f"UPDATE wide SET n = {m} WHERE id = {k}",
                    f"UPDATE wide SET id = id + 1000 WHERE id = {k}",
                    f"UPDATE wide SET big = NULL WHERE id = {k}",
                    "TRUNCATE wide, bag" if draw.random() < 0.1 else "SELECT 1",
                ]
            )
        )

    with opened(every_database, "keyed", "bag", "wide") as (source, relations):
        replays = [Replay(r) for r in relations]
        start = source.current_position()
        # A tiny share of memory for each transaction: most of them take the road by file.
        limits = StreamLimits(spill_bytes=400)
        with streaming(source, start, relations, limits=limits) as stream:
            for _ in range(60):
                for _ in range(draw.randrange(1, 8)):
                    change()
                connection.commit() if draw.random() < 0.9 else connection.rollback()
                if draw.random() < 0.3:
                    for batch in read_all(source, stream, draw.choice([1, 5, 1000])):
                        for replay in replays:
                            for changes in batch.changes:
                                replay.apply(changes)
            for changes in changes_of(read_all(source, stream)):
                for replay in replays:
                    replay.apply(changes)
        for replay in replays:
            assert replay.rows == table_rows(every_database, replay.relation)
            assert replay.rows
    connection.close()
