"""Oracle: sums over all that was written, by Python. Before something is killed, the records and
files of the parts that were read are taken away: a part that is read twice lacks rows."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from kafka import TopicPartition
from kafka.admin import KafkaAdminClient

from connectors.kafka.embedded import EmbeddedKafka
from connectors.partition_cache import FOLDER
from connectors.spark.session import DAEMON
from tests.harness.broker import admin_of, new_topic, send
from tests.harness.postgres import Database
from tests.harness.service import RunningService
from tests.harness.waiting import wait_until

PARTITIONS, RECORDS = 16, 1024  # each partition is a part
FILES, LINES = 8, 2200  # of 4 kB each, so that each file is a part
QUERY = (
    "SELECT u.region, count(*) AS n, sum(c.n) AS total FROM shop.clicks c "
    "JOIN users u ON u.id = c.n % 10 GROUP BY u.region"
)


@pytest.fixture
def admin(broker: EmbeddedKafka) -> Iterator[KafkaAdminClient]:
    """Connected beforehand: between a look and what follows little may be read."""
    with admin_of(broker) as client:
        yield client


@pytest.fixture
def service(database: Database, tmp_path: Path) -> Iterator[RunningService]:
    database.execute("CREATE TABLE users (id integer PRIMARY KEY, region text NOT NULL)")
    database.execute("INSERT INTO users SELECT n, 'r' || n % 3 FROM generate_series(0, 9) n")
    with RunningService(database.dsn, tmp_path / "service", allow_folders=tmp_path) as running:
        yield running


def answer(count: int) -> list[tuple[str, int, int]]:
    """Of the numbers below count."""
    found: dict[str, tuple[int, int]] = {}
    for n in range(count):
        region = f"r{n % 10 % 3}"
        rows, total = found.get(region, (0, 0))
        found[region] = (rows + 1, total + n)
    return [(region, *sums) for region, sums in sorted(found.items())]


def declare(service: RunningService, kind: str, options: dict[str, Any]) -> None:
    body = {"name": "shop", "type": kind, "options": options}
    told = service.call("POST", "/sources", body)
    assert told.status_code == 201, told.text


def kept_parts(service: RunningService, least: int, parts: int, rows: int) -> list[str]:
    """The names of the feed's parts that were read to their end, once there are so many.

    parts: of the relation in all; rows: of each, by which they are told from the table's."""
    told: dict[Path, dict[str, Any]] = {}
    deadline = time.monotonic() + 120
    while True:
        for path in service.state.glob(f"builds/*/{FOLDER}/*/[!.]*"):
            if path not in told:
                told[path] = told_of(path)
        found = {part["name"] for part in told.values() if part["rows"] == rows}
        if len(found) >= least:
            assert len(found) < parts, "all of it was read before anything could be killed"
            return sorted(found)
        assert time.monotonic() < deadline, service.log_tail()
        time.sleep(0.002)


def told_of(path: Path) -> dict[str, Any]:
    """What stands at the end of a part's file: its name and how many rows it has."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 500))
        end = file.read()
    return json.loads(end[end.rindex(b'{"name"') :])


def check(service: RunningService, database: Database, count: int) -> None:
    view = service.await_status("totals", timeout_s=240)
    assert view["error"] is None
    found = database.rows("SELECT region, n::int, total::int FROM totals ORDER BY 1")
    assert found == answer(count)
    assert "build.read_again" not in service.log_tail(1 << 20)
    # Live is told a moment before the files of the build are removed.
    wait_until(lambda: not list(service.state.glob("builds/*")))


def fill(broker: EmbeddedKafka) -> str:
    topic = new_topic(broker, PARTITIONS)
    numbers = range(PARTITIONS * RECORDS)
    send(broker, topic, [(n % PARTITIONS, None, b'{"n": %d}' % n) for n in numbers])
    return topic


def take_read(admin: KafkaAdminClient, service: RunningService, topic: str, least: int) -> None:
    """Delete the records of each partition that was read to its end."""
    names = kept_parts(service, least, PARTITIONS, RECORDS)
    read = [int(name.split(":")[1]) for name in names]
    admin.delete_records({TopicPartition(topic, p): RECORDS for p in read})


def watch_topic(service: RunningService, broker: EmbeddedKafka, topic: str) -> None:
    clicks = {"topic": topic, "format": "json", "columns": {"n": "int8"}}
    options = {"bootstrap_servers": broker.bootstrap, "check_ms": 100}
    declare(service, "kafka", {**options, "topics": {"clicks": clicks}})


@pytest.mark.whole
@pytest.mark.timeout(400)
def test_a_topic_and_a_killed_service(
    broker: EmbeddedKafka, admin: KafkaAdminClient, service: RunningService, database: Database
) -> None:
    topic = fill(broker)
    watch_topic(service, broker, topic)
    service.create("totals", QUERY, wait_s=0, backfill="local")
    take_read(admin, service, topic, 2)
    assert service.kill_child("pipeline")
    take_read(admin, service, topic, 5)
    service.kill()
    service.start()
    check(service, database, PARTITIONS * RECORDS)


@pytest.mark.whole
@pytest.mark.timeout(400)
@pytest.mark.skipif(shutil.which("java") is None, reason="no Java on this machine, Spark needs it")
def test_a_topic_and_killed_parts_of_spark(
    broker: EmbeddedKafka, admin: KafkaAdminClient, service: RunningService, database: Database
) -> None:
    topic = fill(broker)
    watch_topic(service, broker, topic)
    service.create("totals", QUERY, wait_s=0, backfill="spark")
    take_read(admin, service, topic, 1)
    kill_worker(java_of(service))
    take_read(admin, service, topic, 3)
    check(service, database, PARTITIONS * RECORDS)


def java_of(service: RunningService) -> psutil.Process:
    """The driver's JVM."""
    pid = service.pid_of("pipeline")
    assert pid is not None
    [java] = [c for c in psutil.Process(pid).children() if c.name() == "java"]
    return java


def kill_worker(java: psutil.Process) -> None:
    """One of the Python processes that run tasks: they are forked of one that the JVM starts."""
    python: dict[int, psutil.Process] = {}
    for child in java.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # zombies too
            if DAEMON in child.cmdline():
                python[child.pid] = child
    workers = [child for child in python.values() if child.ppid() in python]
    assert workers, python
    workers[0].kill()


@pytest.mark.whole
@pytest.mark.timeout(400)
def test_a_folder_and_a_killed_service(
    service: RunningService, database: Database, tmp_path: Path
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    padding = "x" * 4000
    for file in range(FILES):
        numbers = range(file * LINES, (file + 1) * LINES)
        lines = [f'{{"n": {n:9}, "padding": "{padding}"}}' for n in numbers]
        (folder / f"{file}.jsonl").write_text("\n".join(lines))
    clicks = {"path": f"{folder}/*.jsonl", "columns": [{"name": "n", "type": "int8"}]}
    options = {"settle_ms": 0, "append_only": True, "relations": {"clicks": clicks}}
    declare(service, "files", options)
    service.create("totals", QUERY, wait_s=0, backfill="local")
    for least in (2, 4):
        # In the order of their names, one after the other.
        for file in range(len(kept_parts(service, least, FILES, LINES))):
            (folder / f"{file}.jsonl").unlink(missing_ok=True)
        service.kill()
        service.start()
    check(service, database, FILES * LINES)
