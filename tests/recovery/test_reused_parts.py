"""Oracle: the table as PostgreSQL shows it at the moment of the newest snapshot, row for row, and
PostgreSQL's own count of the rows that scans have read."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random

import pytest

from connectors.partition_cache import CachedPartition, is_cached
from connectors.postgres.replication.stream import ReplicationStream
from connectors.postgres.source import PostgresSource
from connectors.shuffle_storage import FolderExchange
from connectors.source import SnapshotPart
from dataflow.errors import TemporaryError
from dataflow.schema import Relation
from service.backfill import backfill_manifest as kept_module
from service.backfill.backfill_manifest import BackfillManifest, forget_others, is_left
from service.backfill.spool import Spool
from tests.connectors.postgres.reading import following, read_all, relation_of, table_rows
from tests.connectors.postgres.reading import text_rows as texts
from tests.connectors.spark.views import LOG, DrawnPart
from tests.harness.postgres import Database

ROWS = 6000
PLAIN = "CREATE TABLE t (id int PRIMARY KEY, grp int, v text)"
COMPOSITE = """
CREATE TABLE t (id int, name text COLLATE "C", at timestamptz, v text, PRIMARY KEY (name, id, at))
"""
PARTITIONED = """
CREATE TABLE t (id int PRIMARY KEY, grp int, v text) PARTITION BY RANGE (id);
CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (3000);
CREATE TABLE t2 PARTITION OF t FOR VALUES FROM (3000) TO (100000);
"""
FILLS = {
    PLAIN: "INSERT INTO t SELECT g, g % 7, repeat('x', g % 300) FROM generate_series(1, {n}) g",
    COMPOSITE: "INSERT INTO t SELECT g, E'n''\\\\, \" ' || g % 9, '2026-01-01'::timestamptz + g *"
    " interval '1 us', repeat('x', g % 300) FROM generate_series(1, {n}) g",
    PARTITIONED: "INSERT INTO t SELECT g, g % 7, repeat('x', g % 300) FROM generate_series(1, {n})"
    " g",
}


def change(database: Database, rng: Random) -> None:
    """Rows that go, come, move between pages and change their keys."""
    a, b, c = (rng.randrange(ROWS) for _ in range(3))
    statements = [
        f"DELETE FROM t WHERE id BETWEEN {a} AND {a + 30}",
        f"UPDATE t SET v = repeat('y', 900) WHERE id BETWEEN {b} AND {b + 40}",
        f"UPDATE t SET id = id + 20000 WHERE id BETWEEN {c} AND {c + 25}",
        f"UPDATE t SET id = id - 20000 WHERE id > 20000 AND id % 3 = {rng.randrange(3)}",
        "VACUUM t",
    ]
    for statement in rng.sample(statements, 3):
        database.execute(statement)


class Interrupted:
    """A table, its spool, and what is kept of its parts, over several snapshots."""

    def __init__(self, database: Database, folder: Path, relation: Relation) -> None:
        self.database = database
        self.folder = folder
        self.relation = relation
        self.columns = tuple(range(len(relation.fields)))
        self.spool = Spool(folder / "spool", [relation.name])

    def feed(self, source: PostgresSource, stream: ReplicationStream) -> None:
        for batch in read_all(source, stream):
            self.spool.append(batch)

    @contextmanager
    def snapshot(
        self, source: PostgresSource, stream: ReplicationStream
    ) -> Iterator[tuple[list[SnapshotPart], Counter, BackfillManifest]]:
        """The parts to read as a process that starts again has them, and the table at this time."""
        kept = BackfillManifest(self.folder, FolderExchange(self.folder), "v1")
        kept.recall()
        columns = kept.columns([self.relation], {self.relation.name: self.columns})
        snapshot = source.open_snapshot([self.relation])
        try:
            now = table_rows(self.database, self.relation)
            kept.begin(snapshot.position)
            parts = kept.cut(
                partial(snapshot.parts, self.relation),
                self.relation,
                columns[self.relation.name],
                8,
            )
            finished = kept.finished(self.relation)
            self.feed(source, stream)
            of_keys = partial(snapshot.part_of_keys, self.relation, self.columns)
            whole = kept.whole(self.relation, parts, finished, self.spool, of_keys)
            kept.save()
            yield whole, now, kept
        finally:
            snapshot.close()


def read(part: SnapshotPart, relation: Relation) -> Counter:
    return Counter(row for rows in part.read() for row in texts(relation, rows.columns))


@pytest.mark.parametrize("table", FILLS, ids=["plain", "composite key", "partitioned"])
@pytest.mark.parametrize("seed", range(3))
def test_parts_of_several_snapshots_make_the_newest(
    table: str, seed: int, database: Database, tmp_path: Path
) -> None:
    rng = Random(seed)
    database.execute(table)
    database.execute(FILLS[table].format(n=ROWS))
    with following(database, "t") as (source, stream):
        build = Interrupted(database, tmp_path, relation_of(database, "t"))
        for _ in range(2):
            with build.snapshot(source, stream) as (parts, _, _):
                fresh = [p for p in parts if isinstance(p, CachedPartition) and not is_cached(p)]
                change(database, rng)
                for part in rng.sample(fresh, 3):
                    read(part, build.relation)
            change(database, rng)
        with build.snapshot(source, stream) as (parts, now, kept):
            change(database, rng)
            found = sum((read(part, build.relation) for part in parts), Counter())
            assert found == now
            assert sum(map(is_cached, parts)) == 6
            assert kept.notes == []


def test_what_is_stored_is_not_read_again(database: Database, tmp_path: Path) -> None:
    database.execute(PLAIN)
    database.execute(FILLS[PLAIN].format(n=ROWS))
    with following(database, "t") as (source, stream):
        build = Interrupted(database, tmp_path, relation_of(database, "t"))
        with build.snapshot(source, stream) as (parts, _, _):
            sizes = [sum(read(part, build.relation).values()) for part in parts[:5]]
        database.execute("UPDATE t SET grp = -1 WHERE id % 100 = 0")
        before = scanned(database)
        with build.snapshot(source, stream) as (parts, now, _):
            beside = scanned(database) - before  # what the test itself has looked at
            found = sum((read(part, build.relation) for part in parts), Counter())
            assert found == now
        assert scanned(database) - before - beside <= ROWS + 60 - sum(sizes)


def scanned(database: Database) -> int:
    """Rows that sequential and tid range scans of the table have given, in sessions that ended."""
    database.rows("SELECT pg_stat_clear_snapshot()")
    [(found,)] = database.rows("SELECT seq_tup_read FROM pg_stat_user_tables WHERE relname = 't'")
    return found


def notes_after(database: Database, folder: Path, table: str, *statements: str) -> list[str]:
    """Why parts that were read are read again after some statements; all rows are right."""
    database.execute(table)
    database.execute(FILLS[PLAIN].format(n=ROWS))
    with following(database, "t") as (source, stream):
        build = Interrupted(database, folder, relation_of(database, "t"))
        with build.snapshot(source, stream) as (parts, _, _):
            for part in parts:
                read(part, build.relation)
        for statement in statements:
            database.execute(statement)
        with build.snapshot(source, stream) as (parts, now, kept):
            assert sum((read(part, build.relation) for part in parts), Counter()) == now
            assert sum(map(is_cached, parts)) == 0
            return kept.notes


def test_a_table_that_was_rewritten_is_read_again(database: Database, tmp_path: Path) -> None:
    assert (
        notes_after(
            database, tmp_path, PLAIN, "DELETE FROM t WHERE id < 3", "CLUSTER t USING t_pkey"
        )
        == []
    )


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE t DROP COLUMN v",
        "ALTER TABLE t DROP COLUMN v, ADD COLUMN v text DEFAULT 'another'",
    ],
)
def test_columns_that_are_others_are_read_again(
    statement: str, database: Database, tmp_path: Path
) -> None:
    """Also where one has the name, the type and the place of another that was dropped."""
    database.execute(PLAIN)
    database.execute(FILLS[PLAIN].format(n=ROWS))
    with following(database, "t") as (source, stream):
        build = Interrupted(database, tmp_path, relation_of(database, "t"))
        with build.snapshot(source, stream) as (parts, _, _):
            for part in parts[:5]:
                read(part, build.relation)
        database.execute(statement)
        build = Interrupted(database, tmp_path, relation_of(database, "t"))
        with build.snapshot(source, stream) as (parts, now, kept):
            assert sum((read(part, build.relation) for part in parts), Counter()) == now
            assert kept.notes == ["public.t: its columns in use are others"]


def test_a_truncated_table_is_read_again(database: Database, tmp_path: Path) -> None:
    insert = "INSERT INTO t SELECT g, 1, 'new' FROM generate_series(5, 90) g"
    assert notes_after(database, tmp_path, PLAIN, "TRUNCATE t", insert) == []


def test_a_table_without_a_key_is_read_again(database: Database, tmp_path: Path) -> None:
    table = "CREATE TABLE t (id int, grp int, v text); ALTER TABLE t REPLICA IDENTITY FULL"
    [note] = notes_after(database, tmp_path, table, "DELETE FROM t WHERE id = 7")
    assert "no key" in note


def test_too_many_changes_are_not_looked_up(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_module, "MAX_KEYS", 100)
    [note] = notes_after(database, tmp_path, PLAIN, "UPDATE t SET grp = 0 WHERE id < 200")
    assert "too much" in note


def test_a_spool_has_what_was_committed(database: Database, tmp_path: Path) -> None:
    database.execute(PLAIN)
    with following(database, "t") as (source, stream):
        relation = relation_of(database, "t")
        spool = Spool(tmp_path / "spool", [relation.name])
        for number in range(4):
            database.execute("INSERT INTO t VALUES (%s, 1, 'a')", (number,))
            for batch in read_all(source, stream):
                spool.append(batch)
        count = spool.count
        spool.sync()
        spool.close()
    whole = (tmp_path / "spool").read_bytes()

    def again(content: bytes, batches: int) -> tuple[bool, Spool]:
        (tmp_path / "spool").write_bytes(content)
        found = Spool(tmp_path / "spool", [relation.name])
        return found.restore(batches), found

    is_whole, found = again(whole + b"torn", count)
    assert is_whole
    keys = found.changed_keys(relation, 100)
    assert keys is not None
    assert sorted(row for row, _ in keys.rows()) == [(0,), (1,), (2,), (3,)]
    assert sum(found.pop() is not None for _ in range(count + 1)) == count
    is_whole, found = again(whole, 1)
    assert (is_whole, found.count) == (True, 1)
    is_whole, found = again(whole[:-1], count)
    assert (is_whole, found.count, found.pop()) == (False, 0, None)


def test_what_nobody_continues_with_is_removed(tmp_path: Path) -> None:
    for scope in ("va", "vb"):
        (tmp_path / scope).mkdir()
        kept = BackfillManifest(tmp_path / scope, FolderExchange(tmp_path / scope), scope[1:])
        kept.begin(7)
        kept.save()
    assert is_left(tmp_path, "a")
    assert is_left(tmp_path, "b")
    forget_others(tmp_path, {"va"})
    assert is_left(tmp_path, "a")
    assert not is_left(tmp_path, "b")
    assert not BackfillManifest(tmp_path / "va", FolderExchange(tmp_path / "va"), "c").recall()


def test_what_holds_no_more_holds_for_no_later_try_either(tmp_path: Path) -> None:
    """One that found its changes lost and then failed, before it had read anything."""
    columns = tuple(range(len(LOG.fields)))
    before = BackfillManifest(tmp_path, FolderExchange(tmp_path), "v1")
    before.begin(0)
    before.cut(lambda *_: [DrawnPart(LOG, columns, range(9))], LOG, columns, 1)
    before.save()
    interrupted = BackfillManifest(tmp_path, FolderExchange(tmp_path), "v1")
    assert interrupted.recall()
    interrupted.forget("what changed since then is lost or damaged")
    later = BackfillManifest(tmp_path, FolderExchange(tmp_path), "v1")
    assert later.recall()
    later.forget_relation(LOG.name, "it is not to be there")
    assert later.notes == []


def test_a_source_with_positions_is_read_on_where_the_build_began(tmp_path: Path) -> None:
    """Its parts are the same at the same place, and the spool has what came after it."""
    columns = tuple(range(len(LOG.fields)))

    def parts_of(columns: tuple[int, ...], count: int, known: object) -> list[DrawnPart]:
        return [DrawnPart(LOG, columns, range(n, n + 9)) for n in range(0, 9 * count, 9)]

    def opened(place: int) -> tuple[BackfillManifest, object, list[CachedPartition]]:
        kept = BackfillManifest(tmp_path, FolderExchange(tmp_path), "v1")
        kept.recall()
        kept.begin(0)
        start = kept.start_of("shop", {"log": {"0": place}}, {"note": bytes([place])})
        cut = kept.cut(parts_of, LOG, columns, 3)
        kept.save()
        return kept, start, kept.wrapped(LOG, cut, kept.finished(LOG))

    _, first, parts = opened(5)
    rows = [[d.rows() for d in part.read()] for part in parts[:2]]
    _, second, again = opened(8)
    assert first == second == ({"log": {"0": 5}}, {"note": b"\x05"})
    assert [is_cached(part) for part in again] == [True, True, False]
    assert [[d.rows() for d in part.read()] for part in again[:2]] == rows


def test_parts_that_lie_elsewhere_are_read_with_the_key_of_their_build(tmp_path: Path) -> None:
    """Which the manifest has, in the state; whoever can write elsewhere cannot give it rows."""
    columns, elsewhere = tuple(range(len(LOG.fields))), FolderExchange(tmp_path / "elsewhere")

    def opened(folder: str) -> list[CachedPartition]:
        (tmp_path / folder).mkdir(exist_ok=True)
        kept = BackfillManifest(tmp_path / folder, elsewhere.below(folder), "v1")
        kept.recall()
        kept.begin(0)
        cut = kept.cut(
            lambda *_: [DrawnPart(LOG, columns, range(n, n + 9)) for n in (0, 9, 18)],
            LOG,
            columns,
            3,
        )
        kept.save()
        return kept.wrapped(LOG, cut, kept.finished(LOG))

    rows = [[d.rows() for d in part.read()] for part in opened("ours")]
    manifest = tmp_path / "ours" / "manifest.json"
    assert manifest.stat().st_mode & 0o777 == 0o600
    key = json.loads(manifest.read_text())["key"]
    theirs = opened("theirs")
    for part in theirs:
        list(part.read())
    again = opened("ours")
    assert all(map(is_cached, again))
    assert [[d.rows() for d in part.read()] for part in again] == rows
    ours = [elsewhere.path / "ours" / part.file_name for part in again]  # type: ignore[attr-defined]
    assert all(bytes.fromhex(key) not in path.read_bytes() for path in ours)
    ours[0].write_bytes((elsewhere.path / "theirs" / theirs[0].file_name).read_bytes())
    with pytest.raises(TemporaryError, match=r"\[backfill\.unauthentic\]"):
        list(again[0].read())
    assert [[d.rows() for d in part.read()] for part in again] == rows
