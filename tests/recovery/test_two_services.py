"""Oracle: the model of tests.recovery.prefix at every state of the sink, while a second service is
started beside the first, on its state, its sink or its slot, or takes over from one that sleeps;
what an independent reader finds in a topic of both."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from connectors.kafka.embedded import EmbeddedKafka
from connectors.loopback import free_port
from tests.harness.broker import unique_name
from tests.harness.postgres import Database, new_database
from tests.harness.service import RunningService
from tests.harness.sinks import add_sink
from tests.recovery.prefix import SCHEMA, VIEWS, Checker, Writer
from tests.recovery.test_topics import Prefixes

pytestmark = pytest.mark.timeout(900)


class Watched:
    """The shared check over whichever service is at work."""

    def __init__(self, database: Database) -> None:
        self.database = database
        database.execute(SCHEMA)
        self.writer = Writer(database, 12)
        self.checker = Checker(database, self.writer)

    def begin(self, service: RunningService) -> None:
        for name, query in VIEWS.items():
            service.create(name, query, backfill="local")
        self.writer.start()

    def move_on(self, prefixes: int = 10, timeout_s: float = 120) -> None:
        self.checker.await_further(prefixes, timeout_s)

    def until(self, condition: Callable[[], object], timeout_s: float = 120) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline
            self.checker.check()
            time.sleep(0.02)

    def finish(self, service: RunningService) -> None:
        last = self.writer.stop()
        position = self.database.rows("SELECT pg_current_wal_flush_lsn()::text")[0][0]
        for name in VIEWS:
            service.wait(name, position, timeout_s=90)
        assert self.checker.check() == last
        self.checker.close()


def _refusal(service: RunningService) -> dict:
    pipeline = service.call("GET", "/health").json()["pipeline"] or {}
    return pipeline.get("refused") or {}


@contextlib.contextmanager
def _asleep(service: RunningService) -> Iterator[None]:
    """All of its processes are stopped."""
    family = [p for p in psutil.process_iter(["environ"]) if _is_of(p, service)]
    for process in family:
        process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)


def _is_of(process: psutil.Process, service: RunningService) -> bool:
    return (process.info["environ"] or {}).get("TIDEMARK_STATE") == str(service.state)


@pytest.mark.whole
def test_two_on_one_state(database: Database, tmp_path: Path) -> None:
    watched = Watched(database)
    with RunningService(database.dsn, tmp_path) as first:
        watched.begin(first)
        ended = subprocess.run(
            [sys.executable, "-m", "service.cli.main", "serve"],
            env={**first.environment, "TIDEMARK_PORT": str(free_port())},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        told = " ".join((ended.stdout + ended.stderr).split())
        assert ended.returncode == 1, told
        assert "state.locked" in told and f"pid {first.pid}" in told.replace(" ", " "), told
        watched.move_on()
        assert not _refusal(first)
        # Free at once, however it ends.
        first.kill()
        first.start()
        watched.move_on()
        watched.finish(first)


@pytest.mark.whole
def test_two_on_one_sink(database: Database, tmp_path: Path) -> None:
    watched = Watched(database)
    with RunningService(database.dsn, tmp_path / "first") as first:
        watched.begin(first)
        with RunningService(database.dsn, tmp_path / "second") as second:
            watched.until(lambda: _refusal(second).get("code") == "sink.in_use")
            assert f"state {first.state}" in _refusal(second)["detail"]
            watched.move_on()
            assert not _refusal(first)
            first.kill()
            # With an empty state it builds view after view again: they are together in the end.
            deadline = time.monotonic() + 180
            while second.log_tail(1_000_000).count('"view.joined"') < len(VIEWS):
                assert time.monotonic() < deadline, second.log_tail()
                time.sleep(0.1)
            last = watched.writer.stop()
            position = database.rows("SELECT pg_current_wal_flush_lsn()::text")[0][0]
            for name in VIEWS:
                second.wait(name, position, timeout_s=180)
            assert watched.checker.check() == last
            watched.checker.close()


@pytest.mark.whole
def test_two_on_one_slot(database: Database, tmp_path: Path) -> None:
    """Each with a sink of its own, and the same prefix."""
    watched = Watched(database)
    with (
        new_database(database.server) as other,
        RunningService(database.dsn, tmp_path / "first") as first,
    ):
        watched.begin(first)
        folder = tmp_path / "second"
        with RunningService(database.dsn, folder, sink=other.dsn) as second:
            second.create("prefix", VIEWS["prefix"], wait_s=0, backfill="local")
            watched.until(lambda: _refusal(second).get("code") == "source.slot_in_use")
            watched.move_on()
            assert not _refusal(first)
        watched.move_on()
        watched.finish(first)


@pytest.mark.whole
def test_one_that_was_thought_dead_is_fenced(database: Database, tmp_path: Path) -> None:
    with _taken_over(database, tmp_path, lambda first: None):
        pass


@pytest.mark.whole
def test_a_topic_of_one_that_was_thought_dead(
    database: Database, broker: EmbeddedKafka, tmp_path: Path
) -> None:
    topic = unique_name("prefix")
    chosen = {"topic": topic, "bootstrap_servers": broker.bootstrap}
    with _taken_over(database, tmp_path, lambda first: add_sink(first, "prefix", **chosen)):
        # Epochs without rows of the view are told to its topic later, by a service that still runs.
        epoch = database.rows("SELECT epoch FROM tidemark.progress")[0][0]
        (last,) = database.rows("SELECT max(id) FROM marker")[0]
        assert Prefixes(broker, topic, epoch).at(epoch) == last


@contextlib.contextmanager
def _taken_over(
    database: Database, tmp_path: Path, add: Callable[[RunningService], object]
) -> Iterator[None]:
    """From a service that sleeps; it wakes up. Afterwards the second one has all that was
    committed, and runs. add: what the first one has beside its tables."""
    watched = Watched(database)
    first = RunningService(database.dsn, tmp_path / "first")
    second = RunningService(database.dsn, tmp_path / "second")
    with contextlib.ExitStack() as stack:
        stack.enter_context(first)
        stack.callback(second.stop)
        watched.begin(first)
        add(first)
        watched.move_on()
        with _asleep(first):
            shutil.copytree(first.state, second.state)
            second.start()
            # Its sessions are there: nobody can know that it sleeps.
            watched.until(lambda: _refusal(second).get("code") == "sink.in_use")
            database.rows(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name LIKE 'tidemark sink%'"
            )
            watched.move_on()
        # It wakes up, and finds that it is not wanted any more.
        watched.until(lambda: "sink.in_use" in first.log_tail(1_000_000))
        watched.move_on(50)
        assert not _refusal(second)
        assert _refusal(first)["code"] in ("sink.in_use", "sink.fenced")
        first.kill()
        watched.move_on()
        watched.finish(second)
        yield
        assert second.stop() == 0
