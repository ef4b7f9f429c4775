"""Oracle: a plain-Python model of the writer's transactions; every state that the sink ever shows
must be the model's at the prefix which it names itself, whichever server has crashed meanwhile."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg2
import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from tests.harness import figures
from tests.harness.postgres import SERVER_SETTINGS, Database, new_database, versions_to_test
from tests.harness.service import RunningService
from tests.harness.tiers import count
from tests.recovery.prefix import SCHEMA, VIEWS, Checker, Writer

RUN = "pytest tests/recovery/test_servers.py"
RESTARTS = count("TIDEMARK_TEST_RESTARTS", 2, 5)
SEED = int(os.environ.get("TIDEMARK_TEST_SEED", "7"))
WITHIN_S = 60.0
CONNECTIONS = 60


@dataclass
class World:
    """The service between two servers."""

    service: RunningService
    source: Database
    sink: Database


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    settings = {**SERVER_SETTINGS, "max_connections": CONNECTIONS, "max_wal_senders": 10}
    version = versions_to_test()[0]
    with (
        EmbeddedPostgres(version, settings) as first,
        EmbeddedPostgres(version, settings) as second,
        new_database(first) as source,
        new_database(second) as sink,
        RunningService(source.dsn, tmp_path / "service", sink=sink.dsn) as service,
    ):
        yield World(service, source, sink)


def _restart(database: Database, checker: Checker, pick: random.Random) -> None:
    database.server.stop(immediate=True)
    checker.look_for(pick.choice((0, 0, 0.5, 2.0)))
    database.server.start()


def _kill_postmaster(database: Database, checker: Checker, pick: random.Random) -> None:
    database.server.kill()
    checker.look_for(pick.choice((0, 0, 0.5)))
    database.server.start()


def _kill_backend(database: Database, checker: Checker, pick: random.Random) -> None:
    """One of ours dies: the server ends all sessions and recovers as after a crash."""
    with contextlib.suppress(psycopg2.Error):
        ours = database.rows(
            "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'tidemark%%'"
        )
        if ours:
            os.kill(pick.choice(ours)[0], signal.SIGKILL)


def _crowd(database: Database, checker: Checker, pick: random.Random) -> None:
    """Every connection is taken for a while, after all of ours were ended."""
    with contextlib.ExitStack() as held:
        with contextlib.suppress(psycopg2.Error):
            for _ in range(CONNECTIONS):
                held.callback(database.connect().close)
        with contextlib.suppress(psycopg2.Error):
            Database(database.server, "postgres").execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name LIKE 'tidemark%%'"
            )
        with contextlib.suppress(psycopg2.Error):
            for _ in range(CONNECTIONS):
                held.callback(database.connect().close)
        checker.look_for(pick.choice((0.5, 2.0)))


FAULTS = (_restart, _kill_postmaster, _restart, _kill_backend, _crowd)


@pytest.mark.timeout(300 + RESTARTS * 40)
def test_servers_crash_under_load(world: World) -> None:
    command = f"TIDEMARK_TEST_SEED={SEED} TIDEMARK_TEST_RESTARTS={RESTARTS} {RUN}"
    print(f"repeat: {command}")
    service = world.service
    world.source.execute(SCHEMA)
    pick, writer = random.Random(SEED), Writer(world.source, SEED)
    checker = Checker(world.sink, writer)
    for name, query in VIEWS.items():
        service.create(name, query, backfill="local")
    writer.start()
    with figures.counted("postgres_restarts", command) as run:
        longest_s = 0.0
        for number in range(RESTARTS):
            checker.look_for(pick.uniform(0, 0.5))
            hit = (world.source, world.sink)[pick.randrange(2)]
            FAULTS[number % len(FAULTS)](hit, checker, pick)
            longest_s = max(longest_s, checker.await_further(3, WITHIN_S, service.log_tail))
            run.count, run.epochs = number + 1, checker.states
        last = writer.stop()
        started = time.monotonic()
        while checker.check() != last:
            assert time.monotonic() - started < WITHIN_S, service.log_tail()
        checker.close()
        refused = [e for e in service.events() if e["level"] == "error"]
        assert not refused, refused[:3]
        run.epochs = checker.states
        run.told.update(
            longest_s=round(longest_s, 1),
            restarts=sum(e["event"] == "process.ended" for e in service.events()),
        )
