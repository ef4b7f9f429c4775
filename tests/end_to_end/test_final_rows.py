"""Oracle: PostgreSQL's answer over the rows that came in time, for the windows that are closed.

A reader of the view's topic, one of its changes, and a named one that was away all the time hold
each of those rows exactly once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from connectors.kafka.embedded import EmbeddedKafka
from tests.harness.broker import unique_name
from tests.harness.change_stream import Fold, events
from tests.harness.postgres import Database
from tests.harness.service import RunningService
from tests.harness.sinks import add_sink, await_sink, sink_of
from tests.harness.tiers import count
from tests.harness.topic_reader import TopicReader

MINUTES = "SELECT date_bin('1 minute', at, 'epoch') AS minute, count(*) AS n FROM {} GROUP BY 1"
OPTIONS = {
    "lateness": {"events.at": "10 seconds"},
    "emit": "final",
    "window": {"minute": "1 minute"},
}
START = "timestamptz '2024-05-01 12:00:00+00'"
SHOWN = "to_char(minute AT TIME ZONE 'UTC', 'HH24:MI')"


@pytest.fixture
def feed(database: Database) -> Database:
    database.execute("SET timezone = 'UTC'")
    database.execute("CREATE TABLE events (id integer PRIMARY KEY, at timestamptz NOT NULL)")
    return database


def _insert(database: Database, number: int, second: int) -> None:
    sql = f"INSERT INTO events VALUES (%s, {START} + %s * interval '1 second')"
    database.execute(sql, (number, second))


def _mark(database: Database) -> int | None:
    """The watermark in seconds after START."""
    sql = f"SELECT extract(epoch FROM watermark - {START})::int FROM tidemark.watermarks"
    found = database.rows(sql)
    return found[0][0] if found else None


def _closed(database: Database, table: str = "events") -> Counter[tuple[str, int]]:
    """PostgreSQL's answer for the windows before the watermark, without rows left out."""
    late = database.rows("SELECT source_row FROM tidemark.late_rows WHERE outcome = 'left out'")
    numbers = [int(row.strip("(").split(",")[0]) for (row,) in late]
    sql = (
        f"SELECT {SHOWN}, n::int FROM ({MINUTES.format(table)}) q WHERE minute"
        " + interval '1 minute' <= (SELECT min(watermark) FROM tidemark.watermarks)"
    )
    if table == "events":
        kept = "(SELECT * FROM events WHERE id <> ALL (%s)) e"
        sql = sql.replace("FROM events", f"FROM {kept}")
        return Counter(database.rows(sql, (numbers,)))
    return Counter(database.rows(sql))


def _read(reader: TopicReader, closed: Counter[tuple[str, int]]) -> Counter[tuple[str, int]]:
    """The topic's rows once there are as many as there are closed windows, or in a minute."""
    deadline = time.monotonic() + 60

    def is_read() -> bool:
        return sum(reader.rows().values()) >= closed.total() or time.monotonic() > deadline

    for _ in reader.epochs(until=is_read, timeout_s=90):
        continue
    found: Counter[tuple[str, int]] = Counter()
    for text, n in reader.rows().items():
        found[_row(json.loads(text))] += n
    return found


def _row(row: dict) -> tuple[str, int]:
    return row["minute"][11:16], row["n"]


async def _fold(
    fold: Fold, service: RunningService, closed: Counter[tuple[str, int]], query: str = ""
) -> None:
    """Fold the view's changes until they have as many rows; resumes where it was."""
    async with asyncio.timeout(60):
        while sum(fold.rows.values()) < sum(closed.values()):
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                stream = events(service.url, "minutes", token=fold.token, query=query)
                async with contextlib.aclosing(stream) as found:
                    async for name, body, _ in found:
                        if name == "error":
                            fold.lose()
                            break
                        fold.take(name, body)
                        if sum(fold.rows.values()) >= sum(closed.values()):
                            break


def _folded(fold: Fold) -> Counter[tuple[str, int]]:
    found: Counter[tuple[str, int]] = Counter()
    for text, n in fold.rows.items():
        found[_row(json.loads(text))] += n
    return found


@pytest.mark.whole
def test_each_window_once_whatever_is_killed(
    feed: Database, broker: EmbeddedKafka, tmp_path: Path
) -> None:
    topic, random = unique_name("final"), Random(5)
    for number, second in enumerate((10, 70, 80, 130, 300)):
        _insert(feed, number, second)
    with RunningService(feed.dsn, tmp_path) as service:
        options = {**OPTIONS, "late": "dead-letter", "history": "1 day"}
        service.create("minutes", MINUTES.format("events"), **options)
        service.await_so(lambda: _mark(feed) == 290)
        known = _closed(feed)
        named = service.call("POST", "/views/minutes/subscriptions", {"name": "billing"})
        assert named.status_code == 201, named.text
        add_sink(service, "minutes", topic=topic, bootstrap_servers=broker.bootstrap)
        reader, fold = TopicReader(broker, topic), Fold()
        asyncio.run(_fold(fold, service, _closed(feed)))
        second = 300
        for round_ in range(count("TIDEMARK_TEST_KILLS", 3, 10)):
            for step in range(8):
                second += random.randrange(40)
                number = 100 * (round_ + 1) + 4 * step
                _insert(feed, number, second)
                _insert(feed, number + 1, max(0, second - random.randrange(9)))
                _insert(feed, number + 2, max(0, second - random.randrange(200)))
            if round_ % 3 != 1:
                assert service.kill_child("pipeline")
            service.await_status("minutes")
            service.wait("minutes", feed.rows("SELECT pg_current_wal_flush_lsn()::text")[0][0])
            newest = feed.rows(f"SELECT extract(epoch FROM max(at) - {START})::int FROM events")
            mark = newest[0][0] - 10
            service.await_so(lambda m=mark: _mark(feed) == m)
            closed = _closed(feed)
            await_sink(service, "minutes", status="live")
            shown = feed.rows("SELECT epoch FROM tidemark.progress")[0][0]
            service.await_so(lambda n=shown: sink_of(service, "minutes")["epoch"] >= n)
            assert _read(reader, closed) == closed, round_
            asyncio.run(_fold(fold, service, closed))
            assert _folded(fold) == closed, round_
            assert set(closed.values()) == {1}
        away = Fold()
        asyncio.run(_fold(away, service, closed - known, "subscription=billing"))
        assert _folded(away) == closed - known and len(closed - known) > 2
        # The table is live: it has the open windows too.
        answer = service.call("POST", "/views/minutes/verify").json()
        assert answer["result"] == "equal" and answer["left_out"] > 0, answer
        assert answer["rows"] > sum(closed.values())
        refused = service.call(
            "POST", "/views/minutes/replace", {"query": MINUTES.format("events")}
        )
        assert refused.json()["code"] == "view.has_sinks", refused.text
        reader.close()


def test_applied_rows_change_the_table_alone(feed: Database, tmp_path: Path) -> None:
    for number, second in enumerate((10, 70, 300)):
        _insert(feed, number, second)
    with RunningService(feed.dsn, tmp_path) as service:
        service.create("minutes", MINUTES.format("events"), **OPTIONS)
        service.await_so(lambda: _mark(feed) == 290)
        fold = Fold()
        before = _closed(feed)
        asyncio.run(_fold(fold, service, before))
        _insert(feed, 10, 20)
        _insert(feed, 11, 150)
        _insert(feed, 12, 400)
        service.await_so(lambda: _mark(feed) == 390)
        asyncio.run(_fold(fold, service, before + Counter({("12:05", 1): 1})))
        # A row of 12:00 and one of 12:02 came too late for the reader; 12:05 was closed since.
        assert _folded(fold) == before + Counter({("12:05", 1): 1})
        table = f"SELECT {SHOWN}, n::int FROM minutes ORDER BY 1"
        rows = [("12:00", 2), ("12:01", 1), ("12:02", 1), ("12:05", 1), ("12:06", 1)]
        assert feed.rows(table) == rows
        assert service.call("POST", "/views/minutes/verify").json()["result"] == "equal"
