"""Oracle: the view's own rows, and readers of each target that refuse an epoch that is doubled,
left out or out of order, and a second snapshot.

The master is local[2], as in test_on_spark.py.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from connectors.kafka.embedded import EmbeddedKafka
from tests.end_to_end.test_runtime import (
    AT_EXPORT,
    AT_GIVER,
    AT_TAKER,
    SETTINGS,
    is_reached,
    move,
    moved_by_force,
    require_only,
    scans,
)
from tests.end_to_end.test_sinks import postgres_options
from tests.harness.background_writer import BackgroundWriter
from tests.harness.broker import unique_name
from tests.harness.failpoints import arm
from tests.harness.postgres import Database
from tests.harness.prefix_writer import REGIONS, SCHEMA, PrefixWriter
from tests.harness.service import RunningService
from tests.harness.sinks import add_sink, drop_sink, sink_of
from tests.harness.topic_reader import TopicReader, canonical
from tests.harness.webhook_receiver import Receiver

pytestmark = [
    pytest.mark.skipif(shutil.which("java") is None, reason="no Java here, Spark needs it"),
    pytest.mark.timeout(1200),
]
NAMES = ("copy", "events", "hook")


def newest(database: Database) -> str:
    """The position that has everything."""
    return database.rows("SELECT pg_current_wal_flush_lsn()::text")[0][0]


class Orders(BackgroundWriter):
    """One more order in each change, and another amount of an earlier one."""

    def __init__(self, database: Database, number: int) -> None:
        super().__init__(number)
        self._database = database

    def write(self) -> None:
        number = self.number = self.number + 1
        sql = "INSERT INTO orders VALUES (%s, %s, 1); UPDATE orders SET amount = %s WHERE id = %s"
        self._database.execute(sql, (number, number % 30, number, number // 2))
        time.sleep(0.01)


class Targets:
    """One sink of each kind for the view `moved`, and what reads them."""

    def __init__(
        self, service: RunningService, other: Database, broker: EmbeddedKafka, receiver: Receiver
    ) -> None:
        self.service, self.other, self.receiver = service, other, receiver
        topic = unique_name("moved")
        add_sink(service, "moved", "copy", type_name="postgres", **postgres_options(other))
        add_sink(service, "moved", "events", topic=topic, bootstrap_servers=broker.bootstrap)
        url = f"http://127.0.0.1:{receiver.port}/"
        hook: dict[str, Any] = {"url": url, "secret": "${env:SECRET_WEBHOOK}"}
        add_sink(service, "moved", "hook", type_name="webhook", **hook)
        self.topic = TopicReader(broker, topic)
        self.first = 0

    def require(self, database: Database) -> None:
        """Wait until each sink has what the view shows; nothing is written meanwhile."""
        self.service.wait("moved", newest(database), timeout_s=180)
        key = "tidemark/" + self.service.call("GET", "/views/moved").json()["group"]
        key = key.removesuffix("/default")
        found = database.rows("SELECT epoch FROM tidemark.progress WHERE sink_key = %s", (key,))
        epoch = found[0][0]
        for name in NAMES:
            self.service.await_so(lambda n=name: self._has(n, epoch), 180)
        expected = sorted(map(_json, database.rows("SELECT region, n, total FROM moved")))
        shown = self.other.rows("SELECT region, n, total FROM moved")
        assert sorted(map(_json, shown)) == expected
        marks = list(self.topic.epochs(lambda: self.topic.last_epoch >= epoch))
        self.first += sum(mark.is_initial for mark in marks)
        assert sorted(self.topic.rows()) == expected
        assert set(self.topic.rows().values()) <= {1}
        assert not self.receiver.faults
        assert sorted(map(_named, self.receiver.rows)) == expected
        # Nothing was sent as a whole a second time.
        assert self.first == 1

    def _has(self, name: str, epoch: int) -> bool:
        found = sink_of(self.service, "moved", name)
        assert found["status"] in ("live", "retrying", "starting"), found
        return found["status"] == "live" and (found["epoch"] or 0) >= epoch


def _json(row: Sequence[Any]) -> str:
    region, n, total = row
    return canonical({"region": region, "n": n, "total": str(total)})


def _named(text: str) -> str:
    row = json.loads(text)
    return canonical({**row, "total": str(row["total"])})


@pytest.mark.whole
def test_sinks_go_along(
    database: Database, other: Database, broker: EmbeddedKafka, receiver: Receiver, tmp_path: Path
) -> None:
    """One of them cannot be reached during the first move; one is dropped by its new group."""
    database.execute(SCHEMA)
    with RunningService(database.dsn, tmp_path, allow_own_database=True, **SETTINGS) as service:
        service.create("stays", "SELECT customer, count(*) AS n FROM orders GROUP BY customer")
        service.create("moved", REGIONS, backfill="local")
        targets = Targets(service, other, broker, receiver)
        before = scans(database)
        with PrefixWriter(database, 3) as writer:
            for runtime in ("spark", "local", "spark"):
                if runtime == "spark":
                    receiver.before = lambda _: (503, {})
                at = writer.number
                service.await_so(lambda n=at: writer.number > n + 20)
                group = move(service, "moved", runtime)["group"]
                refused = service.call("POST", "/views/moved/pause")
                assert refused.json()["code"] == "view.has_sinks", refused.text
                at = writer.number
                service.await_so(lambda n=at: writer.number > n + 20)
                receiver.before = lambda _: (200, {})
                service.wait("moved", newest(database), timeout_s=180)
                require_only(service, database, group)
        targets.require(database)
        assert scans(database) == before
        groups = database.rows("SELECT DISTINCT view_group FROM tidemark.sinks")
        assert groups == [(group,)]
        drop_sink(service, "moved", "copy", "?drop_data=true")
        assert other.rows("SELECT to_regclass('moved')::text") == [(None,)]
        service.drop("moved")
        assert database.rows("SELECT count(*) FROM tidemark.sinks") == [(0,)]
        require_only(service, database)


@pytest.mark.whole
@pytest.mark.parametrize(
    "points",
    [AT_GIVER[2:], (*AT_TAKER, *AT_EXPORT)],
    ids=["given", "taken"],
)
def test_killed_on_the_way_with_sinks(
    points: Sequence[str],
    database: Database,
    other: Database,
    broker: EmbeddedKafka,
    receiver: Receiver,
    tmp_path: Path,
) -> None:
    """After each kill every sink continues where it was."""
    folder = tmp_path / "points"
    folder.mkdir()
    database.execute(SCHEMA)
    with RunningService(database.dsn, tmp_path, failpoints_folder=folder, **SETTINGS) as service:
        service.create("other", "SELECT count(*) AS n FROM orders")
        service.create("moved", REGIONS, backfill="local")
        targets = Targets(service, other, broker, receiver)
        number = 0
        for point in points:
            for runtime in ("spark", "local"):
                is_passed = point not in AT_EXPORT or runtime == "local"
                receiver.before = lambda _: (503, {})
                writer = Orders(database, number)
                writer.start()
                service.await_so(lambda w=writer, n=number: w.number > n + 10)
                if is_passed:
                    arm(folder, point)
                group = moved_by_force(service, runtime)
                if not is_passed:
                    # A later epoch, which another process finishes while a sink lags.
                    arm(folder, point)
                service.await_so(lambda p=point: is_reached(folder, p), 120)
                receiver.before = lambda _: (200, {})
                number = writer.stop()
                targets.require(database)
                require_only(service, database, group)
        events = [e["event"] for e in service.events()]
        assert not {"view.state_lost", "view.failed", "handover.refused", "sink.failed"} & {*events}
