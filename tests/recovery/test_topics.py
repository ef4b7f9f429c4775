"""Oracle: a plain-Python model of the writer's transactions; at every END mark of every topic the
independent reader holds the model's rows at the prefix which that epoch names, whatever was
killed meanwhile."""

from __future__ import annotations

import json
import os
import random
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from connectors.kafka.embedded import EmbeddedKafka
from tests.harness.broker import unique_name
from tests.harness.postgres import Database
from tests.harness.service import RunningService
from tests.harness.sinks import add_sink, await_sink, drop_sink
from tests.harness.tiers import is_fast
from tests.harness.topic_reader import TopicReader
from tests.recovery.prefix import SCHEMA, VIEWS, Checker, Writer

KILLS = max(3 if is_fast() else 6, int(os.environ.get("TIDEMARK_TEST_KILLS", "0")) // 20)
SEED = int(os.environ.get("TIDEMARK_TEST_SEED", "11"))
# What the reader calls the columns of a row, as the model has them.
COLUMNS = {"by_owner": ("owner", "entries", "moved"), "rich": ("owner", "balance")}


def _position(database: Database) -> str:
    return database.rows("SELECT pg_current_wal_flush_lsn()::text")[0][0]


def _finish(service: RunningService, database: Database) -> int:
    """The epoch at which the views' tables show everything."""
    for name in VIEWS:
        service.wait(name, _position(database), timeout_s=60)
    return database.rows("SELECT epoch FROM tidemark.progress")[0][0]


class Prefixes:
    """Which prefix each epoch shows, as the topic of the view `prefix` says."""

    def __init__(self, broker: EmbeddedKafka, topic: str, epoch: int) -> None:
        self._epochs: list[int] = []
        self._prefixes: list[int] = []
        reader = TopicReader(broker, topic)
        for seen in reader.epochs(until=lambda: reader.last_epoch >= epoch):
            (row,) = reader.rows()
            self._epochs.append(seen.number)
            self._prefixes.append(json.loads(row)["id"])
        reader.close()
        assert self._prefixes == sorted(self._prefixes)

    def at(self, epoch: int) -> int:
        """The newest transaction that the epoch shows."""
        return self._prefixes[bisect_right(self._epochs, epoch) - 1]


def _compare(
    broker: EmbeddedKafka,
    topic: str,
    until: int,
    wanted: Callable[[int], Counter],
    columns: tuple[str, ...],
    *,
    is_upsert: bool = False,
) -> int:
    """Every epoch of a topic against the model; how many there were."""
    reader = TopicReader(broker, topic, is_upsert=is_upsert)
    count = 0
    for seen in reader.epochs(until=lambda: reader.last_epoch >= until):
        rows: Counter[tuple] = Counter()
        for text, n in reader.rows().items():
            row = json.loads(text)
            rows[tuple(_number(row[c]) for c in columns)] += n
        assert rows == wanted(seen.number), f"{topic} at epoch {seen.number}"
        count += 1
    reader.close()
    return count


def _number(value: object) -> object:
    """Sums of bigint are numeric, which the topic writes as text."""
    return int(value) if isinstance(value, str) and value.lstrip("-").isdigit() else value


@pytest.mark.whole
@pytest.mark.timeout(900 + KILLS * 10)
def test_kill_pipeline_while_topics_are_written(
    database: Database, broker: EmbeddedKafka, tmp_path: Path
) -> None:
    print(f"repeat: TIDEMARK_TEST_SEED={SEED} TIDEMARK_TEST_KILLS={20 * KILLS} pytest {__file__}")
    database.execute(SCHEMA)
    pick, writer = random.Random(SEED), Writer(database, SEED)
    checker = Checker(database, writer)
    topics = {name: unique_name(name) for name in ("prefix", "by_owner", "upsert", "rich", "late")}
    chosen = {"bootstrap_servers": broker.bootstrap}
    with RunningService(database.dsn, tmp_path) as service:
        for name, query in VIEWS.items():
            service.create(name, query, backfill="local")
        writer.start()
        add_sink(service, "prefix", topic=topics["prefix"], **chosen)
        add_sink(service, "by_owner", topic=topics["by_owner"], partitions=3, **chosen)
        upsert = {"mode": "upsert", "values": "before_after", "topic": topics["upsert"], **chosen}
        add_sink(service, "by_owner", "upsert", **upsert)
        add_sink(service, "rich", topic=topics["rich"], partitions=2, **chosen)
        for kill in range(KILLS):
            _look_on(checker, pick.uniform(0.1, 2.0))
            if kill == KILLS // 2:
                # Added, and its pipeline killed, while it begins.
                add_sink(service, "rich", "late", topic=topics["late"], wait_s=0, **chosen)
                time.sleep(pick.uniform(0, 0.5))
            service.kill_child("pipeline")
        await_sink(service, "rich", "late", status="live")
        _look_on(checker, 2.0)
        last = writer.stop()
        epoch = _finish(service, database)
        assert checker.check() == last
        prefixes = Prefixes(broker, topics["prefix"], epoch)
        expected = writer.expected
        by_owner = _compare(
            broker,
            topics["by_owner"],
            epoch,
            lambda e: expected[prefixes.at(e)][0],
            COLUMNS["by_owner"],
        )
        _compare(
            broker,
            topics["upsert"],
            epoch,
            lambda e: expected[prefixes.at(e)][0],
            COLUMNS["by_owner"],
            is_upsert=True,
        )
        for topic in (topics["rich"], topics["late"]):
            rich = lambda e: expected[prefixes.at(e)][1]  # noqa: E731
            assert _compare(broker, topic, epoch, rich, COLUMNS["rich"]) > 1
        assert prefixes.at(epoch) == last
        assert by_owner > 2 * KILLS, f"only {by_owner} epochs were seen"
        drop_sink(service, "rich", "late")
    checker.close()
    print(f"{KILLS} kills, {by_owner} epochs of by_owner compared, {last} transactions")


def _look_on(checker: Checker, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        checker.check()
        time.sleep(0.005)


@pytest.mark.whole
@pytest.mark.timeout(600)
def test_broker_is_killed_while_topics_are_written(
    database: Database, own_broker: EmbeddedKafka, tmp_path: Path
) -> None:
    database.execute(SCHEMA)
    writer = Writer(database, SEED)
    chosen = {"bootstrap_servers": own_broker.bootstrap}
    with RunningService(database.dsn, tmp_path) as service:
        for name, query in VIEWS.items():
            service.create(name, query, backfill="local")
        writer.start()
        add_sink(service, "prefix", topic="prefix", **chosen)
        add_sink(service, "rich", topic="rich", **chosen)
        for _ in range(3):
            time.sleep(1.0)
            own_broker.kill()
            time.sleep(1.0)
            own_broker.start()
        time.sleep(1.0)
        last = writer.stop()
        epoch = _finish(service, database)
        prefixes = Prefixes(own_broker, "prefix", epoch)
        expected = writer.expected
        rich = lambda e: expected[prefixes.at(e)][1]  # noqa: E731
        assert _compare(own_broker, "rich", epoch, rich, COLUMNS["rich"]) > 3
        assert prefixes.at(epoch) == last
