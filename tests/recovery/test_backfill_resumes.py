"""Oracle: PostgreSQL's own answer, and its count of the rows that scans of the table have given:
what a backfill had read before something was killed is not read again."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import psutil
import pytest

from connectors.partition_cache import FOLDER
from tests.harness.postgres import Database
from tests.harness.service import RunningService
from tests.harness.verdicts import require_same_rows

ROWS = 400_000
PARTS = 8
READ_BEFORE = 4  # parts read to their end before something is killed
TABLE = f"""
CREATE TABLE big (id int PRIMARY KEY, grp int NOT NULL, v int NOT NULL, note text);
INSERT INTO big SELECT i, i % 1000, i, repeat('x', 100 + i % 50) FROM generate_series(1, {ROWS}) i;
ANALYZE big
"""
QUERY = "SELECT grp, count(*) AS n, sum(v) AS s, max(note) AS m FROM big GROUP BY grp"
# By the index, so that these are no scans.
CHANGES = f"""
SET enable_seqscan = off;
UPDATE big SET v = v + 1, note = repeat('y', 140)
WHERE id IN (SELECT generate_series(3, {ROWS}, 1000));
UPDATE big SET id = id + 1000000 WHERE id IN (SELECT generate_series(4, {ROWS}, 1000));
DELETE FROM big WHERE id IN (SELECT generate_series(5, {ROWS}, 1000));
INSERT INTO big SELECT i, 7, i, 'new' FROM generate_series(2000000, 2000200) i
"""
# Rows that have changed are read again, and what was read of a part when it was interrupted: of
# two parts at once at most.
MAX_READ = ROWS * (1 + 2.5 / PARTS)


def scanned(database: Database) -> int:
    """Rows that scans of the table have given, in sessions that are idle or gone."""
    [(found,)] = database.rows("SELECT seq_tup_read FROM pg_stat_user_tables WHERE relname = 'big'")
    return found


def await_parts(service: RunningService, count: int) -> None:
    """Wait until so many parts have been read to their end."""
    deadline = time.monotonic() + 120
    while True:
        found = list(service.state.glob(f"builds/*/{FOLDER}/*/[!.]*"))
        if len(found) >= count:
            assert len(found) < PARTS, "all of it was read before anything could be killed"
            return
        assert time.monotonic() < deadline, service.log_tail()
        time.sleep(0.001)


def check(service: RunningService, database: Database) -> None:
    database.execute("DELETE FROM big WHERE id % 7 = 0")
    position = database.rows("SELECT pg_current_wal_flush_lsn()::text")[0][0]
    service.wait("sums", position, timeout_s=60)
    require_same_rows(database, "sums", QUERY)


@pytest.mark.whole
@pytest.mark.timeout(600)
def test_a_killed_service_continues_where_it_was(database: Database, tmp_path: Path) -> None:
    database.execute(TABLE)
    before = scanned(database)
    with RunningService(database.dsn, tmp_path) as service:
        service.create("other", "SELECT count(*) AS n FROM big WHERE id < 0", backfill="local")
        beside = scanned(database) - before
        service.create("sums", QUERY, wait_s=0, backfill="local")
        await_parts(service, READ_BEFORE)
        service.kill()
        database.execute(CHANGES)
        service.start()
        view = service.await_status("sums", timeout_s=120)
        assert view["error"] is None
        assert scanned(database) - before - beside < MAX_READ
        assert "build.read_again" not in service.log_tail(1 << 20)
        check(service, database)
    assert not list(service.state.glob("builds/*"))


@pytest.mark.whole
@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("java") is None, reason="no Java on this machine, Spark needs it")
def test_a_killed_spark_and_a_killed_pipeline(database: Database, tmp_path: Path) -> None:
    database.execute(TABLE)
    before = scanned(database)
    with RunningService(database.dsn, tmp_path) as service:
        service.create("sums", QUERY, wait_s=0, backfill="spark")
        await_parts(service, 2)
        kill_java(service)
        database.execute(CHANGES)
        await_parts(service, READ_BEFORE + 1)
        service.kill_child("pipeline")
        database.execute("UPDATE big SET v = v - 1 WHERE id BETWEEN 8 AND 800")
        view = service.await_status("sums", timeout_s=240)
        assert view["error"] is None
        assert scanned(database) - before < MAX_READ + 2 * ROWS / PARTS
        check(service, database)


def kill_java(service: RunningService) -> None:
    pid = service.pid_of("pipeline")
    assert pid is not None
    [java] = [c for c in psutil.Process(pid).children() if c.name() == "java"]
    java.kill()
