"""Oracle: PostgreSQL's own WAL positions, its slot's view, and the order of the commits."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence

import pytest

from connectors.postgres import source as postgres_source
from connectors.postgres.embedded.server import EmbeddedPostgres
from connectors.postgres.replication import slot, wal_connection
from connectors.postgres.replication.decode import Decoder
from connectors.postgres.replication.stream import StreamLimits
from connectors.postgres.schema.lease import Claim
from connectors.postgres.session.backend_probe import TIME_LIMITS
from connectors.postgres.session.lsn import format_lsn, parse_lsn
from dataflow.changes import Changes
from dataflow.errors import InvariantError, SourceError, TemporaryError
from tests.connectors.postgres.reading import (
    Replay,
    changes_of,
    events,
    following,
    opened,
    read_all,
    streaming,
    table_rows,
)
from tests.harness.postgres import Database, new_database
from tests.harness.waiting import wait_until


@pytest.fixture
def table(database: Database) -> Database:
    database.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE other (id int PRIMARY KEY)")
    return database


def confirmed(database: Database, slot: str) -> int:
    [(position,)] = database.rows(
        "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s", (slot,)
    )
    return parse_lsn(position)


def ids(batches) -> list[int]:
    return [int(row[0] or 0) for _, _, row in events(changes_of(batches))]


def test_lsn_text() -> None:
    assert parse_lsn("16/B374D848") == 0x16B374D848
    assert format_lsn(parse_lsn("FFFFFFFF/0")) == "FFFFFFFF/0"
    for bad in ("", "0", "x/1", "1/x", "/", "1/123456789"):
        with pytest.raises(ValueError, match="WAL position"):
            parse_lsn(bad)


def test_each_commit_has_its_position_and_time(table: Database) -> None:
    with following(table, "t") as (source, stream):
        positions = []
        before = time.time() * 1e6
        for i in range(5):
            table.execute(f"INSERT INTO t VALUES ({i})")
            positions.append(source.current_position())
            batch = stream.poll(1, 5.0)
            assert batch is not None
            assert (batch.transactions, batch.rows) == (1, 1)
            assert batch.position <= positions[-1]
            assert i == 0 or batch.position > positions[i - 1]
            assert before <= batch.commit_time_us <= time.time() * 1e6


def test_batches_are_whole_transactions(table: Database) -> None:
    with following(table, "t") as (source, stream):
        for i in range(10):
            table.execute(f"INSERT INTO t SELECT {i} * 10 + g FROM generate_series(0, 6) g")
        batches = [b for b in read_all(source, stream, max_rows=15) if b.rows]
    assert ids(batches) == [i * 10 + g for i in range(10) for g in range(7)]
    assert all(b.rows in (7, 14) for b in batches)
    assert [b.position for b in batches] == sorted({b.position for b in batches})


def test_one_transaction_a_batch_and_where_it_ends(table: Database) -> None:
    """What a snapshot between two transactions is told by: position alone may lie beyond it."""
    with following(table, "t") as (source, stream):
        between = []
        for i in range(8):
            table.execute(f"INSERT INTO t VALUES ({i})")
            between.append(source.current_position())
            table.execute("INSERT INTO other VALUES (1); DELETE FROM other")
        batches = read_all(source, stream, max_rows=1)
    full = [b for b in batches if b.rows]
    assert ids(full) == list(range(8))
    for batch, before, after in zip(full, [0, *between], between, strict=False):
        assert before < batch.last_commit <= min(after, batch.position)
    assert all(b.last_commit == 0 for b in batches if not b.transactions)


def test_poll_never_crosses_until(table: Database) -> None:
    with opened(table, "t") as (source, [relation]):
        start = source.current_position()
        with streaming(source, start, [relation]) as stream:
            for i in range(6):
                table.execute(f"INSERT INTO t VALUES ({i})")
            ends = [b.position for b in read_all(source, stream, max_rows=1) if b.rows]
        assert len(ends) == 6
        with streaming(source, start, [relation]) as again:
            got = []
            while again.position < ends[2]:
                got.append(again.poll(1000, 5.0, until=ends[2]))
            assert ids([b for b in got if b]) == [0, 1, 2]
            assert again.position == ends[2]
            assert again.poll(1000, 0.05, until=ends[2]) is None
            between = ends[3] + 1
            while again.position < between:
                got.append(again.poll(1000, 5.0, until=between))
            assert ids([b for b in got if b]) == [0, 1, 2, 3]
            assert again.position == between
            assert ids(read_all(source, again)) == [4, 5]


def test_a_restart_from_any_position_repeats_and_loses_nothing(table: Database) -> None:
    with opened(table, "t") as (source, [relation]):
        position = source.current_position()
        got: list[int] = []
        written = 0
        for round_number in range(8):
            with streaming(source, position, [relation]) as stream:
                for _ in range(5):
                    table.execute(f"INSERT INTO t VALUES ({written})")
                    written += 1
                batch = stream.poll(round_number % 4 + 1, 5.0)
                assert batch is not None
                got += ids([batch])
                position = batch.position
                if round_number % 2:
                    stream.confirm(position)
        with streaming(source, position, [relation]) as stream:
            got += ids(read_all(source, stream))
        assert got == list(range(written))


def test_nothing_is_confirmed_but_what_was_confirmed(table: Database) -> None:
    """Neither keepalives nor reading moves the slot; a confirmation moves it at once."""
    with opened(table, "t") as (source, [relation]):
        start = confirmed(table, source.slot_name)
        limits = StreamLimits(status_s=0.05)
        with streaming(source, source.current_position(), [relation], limits=limits) as stream:
            table.execute("INSERT INTO t VALUES (1)")
            batches = read_all(source, stream)
            for i in range(5):
                table.execute(f"INSERT INTO other VALUES ({i})")
                batches += read_all(source, stream)
                time.sleep(0.1)
            assert confirmed(table, source.slot_name) == start
            middle = batches[0].position
            stream.confirm(middle)
            wait_until(lambda: confirmed(table, source.slot_name) == middle)
            read_all(source, stream)
            time.sleep(0.3)
            assert confirmed(table, source.slot_name) == middle
            with pytest.raises(InvariantError):
                stream.confirm(stream.position + 1)
            last = stream.position
            stream.confirm(last)
        # The last confirmation goes out when the stream is closed.
        wait_until(lambda: confirmed(table, source.slot_name) == last)


def test_an_idle_source_moves(table: Database) -> None:
    """By other tables' WAL through keepalives, and at once by a heartbeat."""
    with following(table, "t") as (source, stream):
        table.execute("INSERT INTO other SELECT generate_series(1, 1000)")
        target = source.current_position()
        while stream.position < target:
            batch = stream.poll(100, 20.0)
            assert batch is not None and not batch.changes
        started = time.monotonic()
        beat = source.heartbeat()
        batch = stream.poll(100, 5.0)
        assert batch is not None and batch.position > beat
        assert time.monotonic() - started < 1.0


def test_latency_of_a_single_row(table: Database) -> None:
    """Not a benchmark: it only shows that nothing waits for a timer."""
    with following(table, "t") as (_, stream):
        connection = table.connect()
        cursor = connection.cursor()
        waits = []
        for i in range(50):
            cursor.execute(f"INSERT INTO t VALUES ({i})")
            started = time.perf_counter()
            while (batch := stream.poll(100, 5.0)) is not None and not batch.rows:
                continue
            waits.append(time.perf_counter() - started)
        connection.close()
    assert sorted(waits)[25] < 0.02


@pytest.mark.parametrize("timeout", ["1s", "0"])
def test_backpressure_keeps_the_connection(
    own_postgres: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch, timeout: str
) -> None:
    """A poller that is away for longer than wal_sender_timeout, and than the server waits for a
    client that takes nothing, loses nothing."""
    monkeypatch.setattr(TIME_LIMITS, "liveness_timeout_s", 2.0)
    with new_database(own_postgres) as database:
        database.execute("CREATE TABLE t (id int PRIMARY KEY, filler text)")
        database.execute(f"ALTER SYSTEM SET wal_sender_timeout = '{timeout}'")
        database.execute("SELECT pg_reload_conf()")
        with opened(database, "t") as (source, [relation]):
            limits = StreamLimits(queue_bytes=100_000)
            with streaming(source, source.current_position(), [relation], limits=limits) as stream:
                for i in range(20):
                    database.execute(
                        f"INSERT INTO t SELECT {i} * 1000 + g, repeat('x', 500)"
                        " FROM generate_series(0, 999) g"
                    )
                reader = database.rows("SELECT active_pid FROM pg_replication_slots")
                time.sleep(5)
                assert stream.queued_bytes < 2_000_000
                assert database.rows("SELECT active_pid FROM pg_replication_slots") == reader
                rows = sum(b.rows for b in read_all(source, stream, max_rows=1000))
            assert rows == 20_000


def test_a_big_transaction_goes_by_file(table: Database) -> None:
    with opened(table, "t") as (source, [relation]):
        limits = StreamLimits(spill_bytes=1 << 20, queue_bytes=1 << 20)
        with streaming(source, source.current_position(), [relation], limits=limits) as stream:
            table.execute("INSERT INTO t SELECT generate_series(1, 100000)")
            most = 0
            while (batch := stream.poll(10, 10.0)) is None or not batch.rows:
                most = max(most, stream.queued_bytes)
            assert batch.rows == 100_000 and batch.transactions == 1
            assert most <= 2 << 20
            assert ids([batch]) == list(range(1, 100_001))


def test_a_big_transaction_is_decoded_a_chunk_at_a_time(table: Database) -> None:
    table.execute("CREATE TABLE wide (id int PRIMARY KEY, v text)")
    with opened(table, "t", "wide") as (source, relations):
        limits = StreamLimits(spill_bytes=1 << 16, chunk_rows=300, chunk_bytes=20_000)
        with streaming(source, source.current_position(), relations, limits=limits) as stream:
            table.execute(
                "BEGIN; INSERT INTO t SELECT generate_series(1, 1000);"
                "INSERT INTO wide SELECT g, repeat('x', 9000) FROM generate_series(1, 20) g;"
                "UPDATE t SET id = -id; DELETE FROM t WHERE id < -900; COMMIT"
            )
            while (batch := stream.poll(10, 10.0)) is None or not batch.rows:
                pass
            with pytest.raises(InvariantError, match="not read to its end"):
                stream.poll(10, 0.1)
            sizes, changes = [], []
            for chunk in batch.chunks():
                sizes.append(sum(map(len, chunk)))
                held = sum(c.nbytes() for part in chunk for c in part.columns)
                assert sizes[-1] <= 600 and held < 200_000
                changes += chunk
            assert len(sizes) > 10 and batch.rows == 1000 + 20 + 1000 + 100
            replays = [Replay(r) for r in relations]
            for change in changes:
                for replay in replays:
                    replay.apply(change)
            assert [r.rows for r in replays] == [table_rows(table, r) for r in relations]
            table.execute("INSERT INTO t VALUES (1)")
            assert ids(read_all(source, stream)) == [1]


def test_a_table_that_changes_within_a_big_transaction_is_refused_before_any_of_it(
    table: Database,
) -> None:
    with opened(table, "t") as (source, [relation]):
        limits = StreamLimits(chunk_rows=100)
        with streaming(source, source.current_position(), [relation], limits=limits) as stream:
            table.execute(
                "BEGIN; INSERT INTO t SELECT generate_series(1, 1000);"
                "ALTER TABLE t RENAME COLUMN id TO other; INSERT INTO t VALUES (1001); COMMIT"
            )
            with pytest.raises(SourceError) as caught:
                while (batch := stream.poll(10, 10.0)) is None or not batch.rows:
                    pass
            assert caught.value.code == "source.schema_changed"
            assert caught.value.relation == relation.name


@pytest.mark.parametrize("spill_bytes", [1 << 10, 32 << 20])
def test_a_foreign_server_s_transaction_is_decoded_before_any_of_it_is_handed_out(
    table: Database, monkeypatch: pytest.MonkeyPatch, spill_bytes: int
) -> None:
    decode = Decoder.decode

    def strict(self: Decoder, payloads: Sequence[bytes]) -> list[Changes]:
        if any(b"-77" in payload for payload in payloads):
            raise ValueError("no such row")
        return decode(self, payloads)

    monkeypatch.setattr(Decoder, "decode", strict)
    with opened(table, "t") as (source, relations):
        limits = StreamLimits(chunk_rows=100, spill_bytes=spill_bytes, is_foreign=True)
        with streaming(source, source.current_position(), relations, limits=limits) as stream:
            # Whole ones arrive whole, though their table is described in them alone.
            table.execute("INSERT INTO t SELECT generate_series(1, 1000)")
            while (batch := stream.poll(10, 10.0)) is None or not batch.rows:
                pass
            assert ids([batch]) == list(range(1, 1001))
            table.execute(
                "BEGIN; INSERT INTO t SELECT generate_series(1001, 2000);"
                "INSERT INTO t VALUES (-77); COMMIT"
            )
            position = stream.position
            with pytest.raises(ValueError, match="no such row"):
                while (batch := stream.poll(10, 10.0)) is None or not batch.rows:
                    pass
            assert stream.position == position
            with pytest.raises(ValueError, match="no such row"):
                stream.poll(10, 0.1)


def test_a_lost_connection_is_temporary(table: Database) -> None:
    with opened(table, "t") as (source, [relation]):
        with streaming(source, source.current_position(), [relation]) as stream:
            table.execute("INSERT INTO t VALUES (1)")
            batch = stream.poll(10, 5.0)
            assert batch is not None and ids([batch]) == [1]
            table.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_replication")
            with pytest.raises(TemporaryError) as caught:
                for _ in range(100):
                    stream.poll(10, 0.1)
            assert caught.value.code == "source.unreachable"
        table.execute("INSERT INTO t VALUES (2)")
        with streaming(source, batch.position, [relation]) as stream:
            assert ids(read_all(source, stream)) == [2]


def test_close_leaves_nothing(table: Database) -> None:
    with opened(table, "t") as (source, [relation]):
        before = threading.active_count()
        for _ in range(5):
            stream = source.stream(source.current_position(), [relation])
            stream.close()
        assert threading.active_count() == before
        wait_until(lambda: table.rows("SELECT count(*) FROM pg_stat_replication") == [(0,)])
    assert table.rows("SELECT count(*) FROM pg_replication_slots") == [(0,)]
    assert table.rows("SELECT count(*) FROM pg_publication") == [(0,)]


def test_a_former_reader_that_has_not_ended_is_temporary(
    table: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a server under load: its process does not come to hear that it shall end."""
    monkeypatch.setattr(postgres_source, "_EVICT_WAIT_S", 0.3)
    with opened(table, "t") as (source, [relation]):
        start = source.current_position()
        first = source.stream(start, [relation])
        [(pid,)] = table.rows("SELECT active_pid FROM pg_replication_slots")
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(TemporaryError, match=r"source\.slot_in_use"):
                source.stream(start, [relation], takes_over=True)
        finally:
            os.kill(pid, signal.SIGCONT)
        source.stream(start, [relation], takes_over=True).close()
        first.close()


def test_a_former_reader_of_ours_that_comes_late_is_temporary(
    table: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody read the slot when that was looked at: it is taken while the stream starts."""
    monkeypatch.setattr(wal_connection, "_START_WAIT_S", 0.3)
    with opened(table, "t") as (source, [relation]):
        start = source.current_position()
        source._claim = ours = Claim("tidemark", "here")
        first = source.stream(start, [relation])
        with pytest.raises(TemporaryError, match=r"source\.slot_in_use"):
            source.stream(start, [relation])
        # To another service it is a refusal.
        source._claim = Claim("tidemark", "there")
        with pytest.raises(SourceError, match=r"source\.slot_in_use"):
            source.stream(start, [relation])
        source._claim = ours
        first.close()
        source.stream(start, [relation]).close()


def test_a_slot_is_dropped_once_its_former_reader_has_ended(
    table: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our own reader that has not heard of its end is no other reader; a stranger is."""
    monkeypatch.setattr(slot, "RELEASE_WAIT_S", 1.5)
    with opened(table, "t") as (source, [relation]):
        source._claim = Claim("tidemark", "here")
        stream = source.stream(source.current_position(), [relation])
        [(pid,)] = table.rows("SELECT active_pid FROM pg_replication_slots")
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(TemporaryError, match=r"source\.slot_in_use"):
                source.drop_slot()
            ours, source._claim = source._claim, Claim("tidemark", "there")
            with pytest.raises(SourceError, match=r"source\.slot_in_use") as caught:
                source.drop_slot()
            assert ours.stream_application in caught.value.detail
        finally:
            os.kill(pid, signal.SIGCONT)
        source._claim = ours
        source.drop_slot()
        assert table.rows("SELECT FROM pg_replication_slots") == []
        stream.close()


@pytest.mark.whole
def test_a_slot_that_is_read_elsewhere(table: Database) -> None:
    with opened(table, "t") as (source, [relation]):
        start = source.current_position()
        first = source.stream(start, [relation])
        try:
            with pytest.raises(SourceError) as caught:
                source.stream(start, [relation])
            assert caught.value.code == "source.slot_in_use"
            second = source.stream(start, [relation], takes_over=True)
            second.close()
            with pytest.raises(TemporaryError):
                for _ in range(100):
                    first.poll(10, 0.1)
        finally:
            first.close()
