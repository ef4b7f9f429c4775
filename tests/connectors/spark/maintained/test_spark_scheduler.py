"""Oracle: the local dataflow after the same changes, here with Spark's own tasks: on a local
master, and on a standalone one with two workers, whose executors and workers are killed."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random

import psutil
import pytest

from connectors.objects.folder_storage import FolderStorage
from connectors.spark.maintained.connect_scheduler import ConnectScheduler
from connectors.spark.maintained.driver import Driver, Limits
from connectors.spark.maintained.spark_scheduler import DAEMON, SETTINGS, SparkScheduler
from connectors.spark.master import is_connect
from connectors.spark.session import LazySession
from tests.connectors.spark.clusters import HOST, ROOT, connect_server, standalone
from tests.property.test_buckets import CheckedSink, History

pytestmark = pytest.mark.skipif(
    shutil.which("java") is None, reason="no Java on this machine, Spark needs it"
)
# Of the property tests: a join below an aggregate, whose rows pass two shuffles.
SEED = 6
CLUSTER = {
    **SETTINGS,
    "spark.driver.host": HOST,
    "spark.driver.bindAddress": HOST,
    "spark.executor.memory": "512m",
    # As an installation on each machine: the daemon is imported before any file is sent.
    "spark.executorEnv.PYTHONPATH": str(ROOT),
}


@contextmanager
def running(master: str, folder: Path, **limits: int) -> Iterator[tuple[Driver, History]]:
    kind = ConnectScheduler if is_connect(master) else SparkScheduler
    settings = SETTINGS if master.startswith("local") else CLUSTER
    session = LazySession(master, {} if is_connect(master) else settings)
    try:
        history = History(Random(SEED))
        assert history.name == "aggregate of join"
        driver = Driver(
            history.view("spark"),
            FolderStorage(folder / "shared"),
            kind(session, str(folder)),
            CheckedSink(history),
            buckets=4,
            limits=Limits(**limits),
        )
        driver.start()
        yield driver, history
    finally:
        session.stop()


def step(driver: Driver, history: History) -> None:
    """One epoch, which the sink compares."""
    at = driver.positions.get("at", 0)
    driver.step(history.batch(at, at + 1))


@pytest.mark.whole
@pytest.mark.timeout(300)
def test_a_local_master(tmp_path: Path) -> None:
    with running("local[2]", tmp_path) as (driver, history):
        for number in range(3):
            step(driver, history)
            restored = sum(f.restored for f in driver.figures)
            assert restored == 0 or number == 0, "a bucket was not found where it was"


@pytest.mark.timeout(400)
def test_a_standalone_master(tmp_path: Path) -> None:
    """Tasks find their buckets where they were: on the same one of two executors.

    On a busy machine Spark may give up waiting for a place: then one of the next epochs is asked.
    """
    with standalone(tmp_path) as url, running(url, tmp_path) as (driver, history):
        step(driver, history)
        found: list[bool] = []
        while found[-2:] != [True, True]:
            assert len(found) < 8, found
            processes = {(f.level, f.group): f.process for f in driver.figures}
            step(driver, history)
            found.append(processes == {(f.level, f.group): f.process for f in driver.figures})
            assert not found[-1] or sum(f.restored for f in driver.figures) == 0
        assert len(set(processes.values())) == 2


@pytest.mark.whole
@pytest.mark.timeout(400)
def test_a_connect_server(tmp_path: Path) -> None:
    """Its executors have our packages from us, and its processes each other's buckets."""
    with connect_server(tmp_path) as url, running(url, tmp_path, min_log_bytes=1) as (d, history):
        for _ in range(6):
            step(d, history)
        for process in descendants("-m pyspark.daemon"):
            os.kill(process.pid, signal.SIGKILL)
        for folder in tmp_path.glob("tidemark-buckets-*"):
            shutil.rmtree(folder)
        step(d, history)
        assert sum(f.restored for f in d.figures) > 0
        step(d, history)


def descendants(word: str) -> list[psutil.Process]:
    """Processes below this one with a word in their command lines."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it may end by itself at this moment
            if word in " ".join(process.cmdline()):
                found.append(process)
    return found


@pytest.mark.whole
@pytest.mark.timeout(600)
def test_executors_workers_and_caches_are_lost(tmp_path: Path) -> None:
    with standalone(tmp_path) as url, running(url, tmp_path, min_log_bytes=1) as (d, history):
        for _ in range(2):
            step(d, history)
        victims = [p for p in descendants("--executor-id") if p.name() == "java"]
        os.kill(victims[-1].pid, signal.SIGKILL)
        for _ in range(2):
            step(d, history)
        for process in descendants(f"-m {DAEMON}"):
            os.kill(process.pid, signal.SIGKILL)
        for _ in range(2):
            step(d, history)
        for folder in tmp_path.glob("tidemark-buckets-*"):
            shutil.rmtree(folder)
        for process in descendants(f"-m {DAEMON}"):
            os.kill(process.pid, signal.SIGKILL)
        step(d, history)
        assert sum(f.restored for f in d.figures) > 0
        step(d, history)
