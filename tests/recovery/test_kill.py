"""Oracle: a plain-Python model of the writer's transactions; every state the sink ever shows must
be the model's at the prefix which that state itself names, whatever was killed meanwhile."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from connectors.postgres.embedded import EmbeddedPostgres
from tests.harness.postgres import Database, new_database
from tests.harness.service import RunningService
from tests.recovery.prefix import SCHEMA, VIEWS, Checker, Writer

KILLS = int(os.environ.get("TIDEMARK_TEST_KILLS", "20"))
SEED = int(os.environ.get("TIDEMARK_TEST_SEED", "7"))


def _start(service: RunningService, writer: Writer) -> None:
    for name, query in VIEWS.items():
        service.create(name, query, backfill="local")
    writer.start()


def _finish(service: RunningService, database: Database, writer: Writer, checker: Checker) -> None:
    last = writer.stop()
    position = database.rows("SELECT pg_current_wal_flush_lsn()::text")[0][0]
    for name in VIEWS:
        service.wait(name, position, timeout_s=60)
    assert checker.check() == last


def _check_for(checker: Checker, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        checker.check()
        time.sleep(0.002)


def _check_progress(checker: Checker, prefixes: int = 5) -> None:
    wanted, deadline = checker.distinct + prefixes, time.monotonic() + 60
    while checker.distinct < wanted:
        assert time.monotonic() < deadline, "the views do not move on"
        checker.check()
        time.sleep(0.002)


@pytest.mark.timeout(900 + KILLS * 10)
def test_kill_pipeline_and_api(database: Database, tmp_path: Path) -> None:
    print(f"repeat: TIDEMARK_TEST_SEED={SEED} TIDEMARK_TEST_KILLS={KILLS} pytest {__file__}")
    database.execute(SCHEMA)
    pick, writer = random.Random(SEED), Writer(database, SEED)
    checker = Checker(database, writer)
    kills = 0
    with RunningService(database.dsn, tmp_path) as service:
        _start(service, writer)
        while kills < KILLS:
            if pick.random() < 0.75:
                _check_progress(checker)
            _check_for(checker, pick.uniform(0.05, 1.0))
            kills += service.kill_child(pick.choice(("pipeline", "pipeline", "api")))
        _finish(service, database, writer, checker)
    checker.close()
    assert checker.distinct > 3 * KILLS, f"only {checker.distinct} prefixes were seen"
    print(f"{kills} kills, {checker.states} states compared, {checker.distinct} prefixes")


@pytest.mark.timeout(600)
def test_kill_during_snapshot(database: Database, tmp_path: Path) -> None:
    """The pipeline is killed while a view is being built; the build starts again and is right."""
    database.execute(SCHEMA)
    database.execute(
        "CREATE TABLE big (id int PRIMARY KEY, grp int NOT NULL, v int NOT NULL);"
        "INSERT INTO big SELECT i, i % 1000, i FROM generate_series(1, 200000) i"
    )
    pick = random.Random(SEED)
    with RunningService(database.dsn, tmp_path) as service:
        query = "SELECT grp, count(*) AS n, sum(v) AS s FROM big GROUP BY grp"
        service.create("sums", query, wait_s=0, backfill="local")
        for i in range(4):
            time.sleep(pick.uniform(0.1, 1.5))
            database.execute("UPDATE big SET v = v + 1 WHERE id %% 1000 = %s", (i,))
            service.kill_child("pipeline")
        service.await_status("sums", timeout_s=120)
        database.execute("DELETE FROM big WHERE id % 3 = 0")
        position = database.rows("SELECT pg_current_wal_flush_lsn()::text")[0][0]
        service.wait("sums", position, timeout_s=60)
        different = f"SELECT count(*) FROM (({query}) EXCEPT ALL TABLE sums) d"
        assert database.rows(different) == [(0,)]
        assert database.rows("SELECT count(*) FROM sums") == [(1000,)]


def test_kill_supervisor_leaves_nothing_running(database: Database, tmp_path: Path) -> None:
    database.execute(SCHEMA)
    service = RunningService(database.dsn, tmp_path)
    with service:
        service.create("prefix", VIEWS["prefix"], backfill="local")
        service.kill()
        database.execute("INSERT INTO marker VALUES (1)")
        service.start()
        position = database.rows("SELECT pg_current_wal_flush_lsn()::text")[0][0]
        service.wait("prefix", position)
        assert database.rows("SELECT id FROM prefix") == [(1,)]


@pytest.mark.timeout(600)
def test_postgres_restarts(own_postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    with new_database(own_postgres) as database:
        database.execute(SCHEMA)
        writer = Writer(database, SEED)
        checker = Checker(database, writer)
        with RunningService(database.dsn, tmp_path) as service:
            _start(service, writer)
            for _ in range(5):
                _check_for(checker, 1.0)
                own_postgres.restart()
            _check_for(checker, 1.0)
            _finish(service, database, writer, checker)
        checker.close()
        assert checker.distinct > 10


@pytest.mark.timeout(600)
def test_sink_is_down_for_a_while(
    database: Database, own_postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    with new_database(own_postgres) as sink:
        database.execute(SCHEMA)
        writer = Writer(database, SEED)
        checker = Checker(sink, writer)
        with RunningService(database.dsn, tmp_path, sink=sink.dsn) as service:
            _start(service, writer)
            _check_for(checker, 1.0)
            own_postgres.stop()
            time.sleep(5)
            own_postgres.start()
            _check_for(checker, 2.0)
            _finish(service, database, writer, checker)
        checker.close()
        assert checker.distinct > 10
