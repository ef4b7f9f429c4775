"""Oracle: PostgreSQL's answer to the same query, after a standalone cluster of two workers could
not run the tasks of a live view, and could again. Meanwhile the view says why, in Spark's words."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from connectors.postgres.embedded.server import free_port
from connectors.spark.session import LazySession
from tests.connectors.spark.clusters import HOST, master, worker
from tests.end_to_end.test_on_spark import SETTINGS, SPENT, change, require_equal, shop
from tests.harness.postgres import Database
from tests.harness.service import RunningService

__all__ = ["shop"]

pytestmark = [
    pytest.mark.skipif(shutil.which("java") is None, reason="no Java here, Spark needs it"),
    pytest.mark.timeout(1200),
]

CONF = {
    "spark.driver.host": HOST,
    "spark.driver.bindAddress": HOST,
    "spark.executor.memory": "512m",
}
# Far beyond what the service promises: Spark itself may take long on a busy machine.
DEGRADED_S = 300


class Cluster:
    """A master and two workers of one core each, which a test ends and begins again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"spark://{HOST}:{self.port}"
        self._master, self._workers = ExitStack(), ExitStack()

    def begin_master(self) -> None:
        """Start a master, which knows no application."""
        self._master.enter_context(master(self.folder, self.port))

    def begin_workers(self) -> None:
        """Start both workers."""
        for name in ("one", "two"):
            self._workers.enter_context(worker(self.folder, name, self.url))

    def kill_master(self) -> None:
        """Kill the master only."""
        self._master.close()

    def kill_workers(self) -> None:
        """Kill the workers with their executors."""
        self._workers.close()


@contextmanager
def cluster_in(folder: Path) -> Iterator[Cluster]:
    cluster = Cluster(folder)
    try:
        cluster.begin_master()
        cluster.begin_workers()
        yield cluster
    finally:
        cluster.kill_workers()
        cluster.kill_master()


def service_on(cluster: Cluster, shop: Database, folder: Path) -> RunningService:
    conf = " ".join(f"{name}={value}" for name, value in CONF.items())
    shared = folder / "shared"
    settings = {**SETTINGS, "spark": cluster.url, "spark_storage": shared, "spark_conf": conf}
    return RunningService(shop.dsn, folder, **settings)


def await_degraded(service: RunningService, *words: str) -> dict[str, Any]:
    """Wait until the view and the service are degraded for a reason with one of these words."""
    found: list[dict[str, Any]] = []

    def is_degraded() -> bool:
        view = service.call("GET", "/views/spent").json()
        text = str(view["error"])
        found[:] = [view]
        return view["status"] == "degraded" and any(word in text for word in words)

    service.await_so(is_degraded, within_s=DEGRADED_S)
    health = service.call("GET", "/health").json()
    assert health["status"] == "degraded"
    assert any("spark.waiting" in reason for reason in health["reasons"]), health
    assert found[0]["error"]["code"] == "spark.waiting"
    return found[0]


def require_healed(service: RunningService, shop: Database) -> None:
    require_equal(service, shop, "spent", SPENT, within_s=300)
    service.await_status("spent", timeout_s=60)
    service.await_so(lambda: service.call("GET", "/health").json()["status"] == "ok", within_s=120)
    events = [event["event"] for event in service.events()]
    assert "view.failed" not in events and "spark.waiting" in events
    # One build, however long it took.
    assert events.count("build.started") == 1


def changing(shop: Database, draw: random.Random) -> Callable[[int], None]:
    def run(times: int) -> None:
        for _ in range(times):
            change(shop, draw)
            time.sleep(0.2)

    return run


@pytest.mark.whole
def test_the_master_restarts(shop: Database, tmp_path: Path) -> None:
    """It has no recovery mode, so it knows the application no more, and ends its executors."""
    run = changing(shop, random.Random(41))
    with cluster_in(tmp_path) as cluster, service_on(cluster, shop, tmp_path) as service:
        service.create("spent", SPENT, wait_s=480, runtime="spark", backfill="spark")
        run(5)
        require_equal(service, shop, "spent", SPENT)
        (before,) = drivers(service)
        cluster.kill_master()
        run(3)
        cluster.begin_master()

        def is_begun_again() -> bool:
            # Workers come back to the new master in their own time; only an epoch finds out.
            run(1)
            found = drivers(service)
            return bool(found) and before not in found

        service.await_so(is_begun_again, within_s=300)
        run(3)
        require_healed(service, shop)


def drivers(service: RunningService) -> list[int]:
    """The JVMs of the service: those of Spark's driver."""
    assert service.pid is not None
    found = []
    for child in psutil.Process(service.pid).children(recursive=True):
        with suppress(psutil.Error):
            if child.name() == "java":
                found.append(child.pid)
    return found


@pytest.mark.whole
def test_all_workers_are_killed_and_come_back(shop: Database, tmp_path: Path) -> None:
    run = changing(shop, random.Random(42))
    with cluster_in(tmp_path) as cluster, service_on(cluster, shop, tmp_path) as service:
        service.create("spent", SPENT, wait_s=480, runtime="spark", backfill="spark")
        run(5)
        require_equal(service, shop, "spent", SPENT)
        cluster.kill_workers()
        run(3)
        await_degraded(service, "Lost executor", "no task runs")
        cluster.begin_workers()
        run(5)
        require_healed(service, shop)


@pytest.mark.whole
def test_another_application_holds_all_cores(shop: Database, tmp_path: Path) -> None:
    run = changing(shop, random.Random(43))
    with cluster_in(tmp_path) as cluster, service_on(cluster, shop, tmp_path) as service:
        service.create("spent", SPENT, wait_s=480, runtime="spark", backfill="spark")
        run(5)
        require_equal(service, shop, "spent", SPENT)
        service.stop()
        other = LazySession(cluster.url, CONF)
        try:
            assert other.get().sparkContext.parallelize(range(2), 2).count() == 2
            service.start()
            run(3)
            await_degraded(service, "Initial job has not accepted any resources")
        finally:
            other.stop()
        run(5)
        require_healed(service, shop)
