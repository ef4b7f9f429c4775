"""Oracle: a plain-Python model of the writer's transactions; every state the sink ever shows must
be the model's at the prefix which that state itself names, whatever was killed meanwhile."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from tests.harness import figures
from tests.harness.postgres import Database, new_database
from tests.harness.service import RunningService
from tests.harness.tiers import count
from tests.harness.verdicts import require_same_rows
from tests.recovery.operations import Operations
from tests.recovery.prefix import SCHEMA, VIEWS, Checker, Writer
from tests.recovery.scene import Scene, repeat_command

KILLS = count("TIDEMARK_TEST_KILLS", 3, 20)
SEED = int(os.environ.get("TIDEMARK_TEST_SEED", "7"))
# How often each is killed.
VICTIMS = {"pipeline": 12, "api": 3, "backfill": 3, "supervisor": 1}


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


@pytest.mark.timeout(900 + KILLS * 20)
def test_kills_at_random(database: Database, tmp_path: Path) -> None:
    """Pipeline, API, backfill and supervisor, while views are made, changed, read and dropped."""
    command = repeat_command(__file__, TIDEMARK_TEST_SEED=SEED, TIDEMARK_TEST_KILLS=KILLS)
    print(f"repeat: {command}")
    pick, kills = random.Random(SEED), Counter[str]()
    scene = Scene(database, tmp_path, SEED)
    operations = Operations(scene, pick)
    began = time.monotonic()
    with figures.counted("kills", command) as run:
        try:
            scene.begin()
            while kills.total() < KILLS:
                if pick.random() < 0.7:
                    operations.do_any()
                if pick.random() < 0.4:
                    scene.move_on(2)
                scene.look(pick.uniform(0, 1.0))
                victim = pick.choices(list(VICTIMS), list(VICTIMS.values()))[0]
                kills[victim] += _kill(scene, victim)
                if kills.total() % 100 == 99:
                    operations.settle()
            took_s = time.monotonic() - began
            operations.settle()
            scene.finish()
            scene.drop_all()
        finally:
            run.count, run.epochs = kills.total(), scene.checker.distinct
            scene.close()
        assert run.epochs > KILLS
    print(f"{dict(kills)}, {scene.checker.states} states, {dict(operations.done)}, {took_s:.0f} s")


def _kill(scene: Scene, victim: str) -> bool:
    if victim != "supervisor":
        return scene.service.kill_child(victim)
    scene.service.kill()
    scene.service.start()
    return True


@pytest.mark.whole
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
        require_same_rows(database, "sums", query)
        assert database.rows("SELECT count(*) FROM sums") == [(1000,)]


@pytest.mark.whole
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


@pytest.mark.whole
@pytest.mark.timeout(600)
def test_postgres_restarts(own_postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    with new_database(own_postgres) as database:
        database.execute(SCHEMA)
        writer = Writer(database, SEED)
        checker = Checker(database, writer)
        with RunningService(database.dsn, tmp_path) as service:
            _start(service, writer)
            for _ in range(5):
                checker.look_for(1.0)
                own_postgres.restart()
            checker.look_for(1.0)
            _finish(service, database, writer, checker)
        checker.close()
        assert checker.distinct > 10


@pytest.mark.whole
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
            checker.look_for(1.0)
            own_postgres.stop()
            time.sleep(5)
            own_postgres.start()
            checker.look_for(2.0)
            _finish(service, database, writer, checker)
        checker.close()
        assert checker.distinct > 10
