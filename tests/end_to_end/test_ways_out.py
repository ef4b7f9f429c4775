"""Oracle: the way out that docs/ERRORS.md names for what no restart can heal, and PostgreSQL's
answer to each view's query after it was taken."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from tests.harness.postgres import Database, new_database
from tests.harness.service import RunningService
from tests.harness.verdicts import require_same_rows

TABLES = """
CREATE TABLE orders (id int PRIMARY KEY, region text NOT NULL, amount numeric NOT NULL, note text);
INSERT INTO orders SELECT i, 'r' || i % 5, i, 'n' FROM generate_series(1, 100) i;
"""
QUERIES = {
    "by_region": "SELECT region, sum(amount) AS total FROM orders GROUP BY region",
    "notes": "SELECT id, note FROM orders",
}
SLOT = "SELECT active_pid FROM pg_replication_slots WHERE database = current_database()"
END_READER = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = %s"
DROP_SLOT = (
    "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
    "WHERE database = current_database() AND active_pid IS NULL"
)


@pytest.fixture
def service(database: Database, tmp_path: Path) -> Iterator[RunningService]:
    database.execute(TABLES)
    with RunningService(database.dsn, tmp_path) as running:
        for name, query in QUERIES.items():
            running.create(name, query, backfill="local")
        yield running


def await_refusal(service: RunningService, code: str) -> None:
    """Until /health answers 503 with the code; the views say it too."""
    deadline = time.monotonic() + 60
    while True:
        answer = service.call("GET", "/health")
        if code in answer.text:
            assert answer.status_code == 503
            break
        assert time.monotonic() < deadline, f"{answer.text}\n{service.log_tail()}"
        time.sleep(0.1)
    assert service.call("GET", "/views/by_region").json()["error"]["code"] == code


def start_anew(service: RunningService) -> None:
    """Stop, move the state away, start."""
    assert service.stop() == 0
    shutil.move(service.state, service.state.with_name("moved away"))
    service.start()


def rebuild_all(service: RunningService) -> None:
    """By the one command that hints name."""
    command = [sys.executable, "-m", "service.cli.main", "rebuild", "--all", "--url", service.url]
    done = subprocess.run(command, timeout=120, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def lose(service: RunningService, database: Database, how: str) -> str:
    """Make the slot useless while the service is down; the code that tells it."""
    assert service.stop() == 0
    ours = f"tidemark_{database.name}_source"
    if how == "taken":
        # By another database of the server: names of slots are the whole server's.
        database.execute(DROP_SLOT)
        with new_database(database.server) as other:
            make = "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')"
            other.execute(make, (ours,))
            service.start()
            for name in QUERIES:
                error = service.await_status(name, "failed")["error"]
                assert error["code"] == "source.slot_foreign" and "--prefix" in error["hint"]
            named = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s"
            assert other.rows(named, (ours,)) == [(1,)]
        return ""
    if how == "invalidated":
        admin = Database(database.server, "postgres")
        admin.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'")
        admin.execute("SELECT pg_reload_conf()")
        for _ in range(4):
            database.execute("SELECT pg_logical_emit_message(true, 'x', repeat('x', 999999))")
            admin.execute("SELECT pg_switch_wal()")
            admin.execute("CHECKPOINT")
        admin.execute("ALTER SYSTEM RESET max_slot_wal_keep_size")
        admin.execute("SELECT pg_reload_conf()")
    else:
        database.execute(DROP_SLOT)
    if how == "made again":
        database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (ours,))
    database.execute("INSERT INTO orders VALUES (1000, 'unseen', 1, 'x')")
    service.start()
    return {"invalidated": "source.slot_lost", "dropped": "source.slot_missing"}.get(
        how, "source.slot_advanced"
    )


@pytest.mark.whole
@pytest.mark.timeout(300)
def test_a_slot_that_is_lost_while_the_service_is_down(
    own_postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    """It serves, its views say what has happened, also to psql, and one command brings all back."""
    with (
        new_database(own_postgres) as database,
        RunningService(database.dsn, tmp_path) as service,
    ):
        database.execute(TABLES)
        for name, query in QUERIES.items():
            service.create(name, query, backfill="local")
        service.create("above", "SELECT count(*) AS n FROM by_region", backfill="local")
        for how in ("dropped", "invalidated", "made again", "taken"):
            last = database.rows("SELECT * FROM by_region ORDER BY 1")
            code = lose(service, database, how)
            for name in (*QUERIES, "above") if code else ():
                error = service.await_status(name, "failed")["error"]
                assert error["code"] == code and "rebuild --all" in error["hint"]
                told = database.rows("SELECT status FROM tidemark.status WHERE name = %s", (name,))
                assert told == [("failed",)]
            assert database.rows("SELECT * FROM by_region ORDER BY 1") == last
            rebuild_all(service)
            database.execute("UPDATE orders SET region = 'r9' WHERE id < 10")
            for name in QUERIES:
                assert_equal(service, database, name)
            assert service.call("GET", "/views/above").json()["status"] == "live"
            database.execute("UPDATE orders SET region = 'r1'; DELETE FROM orders WHERE id = 1000")
            for name in QUERIES:
                assert_equal(service, database, name)


def assert_equal(service: RunningService, database: Database, name: str) -> None:
    position = database.rows("SELECT pg_current_wal_flush_lsn()::text")[0][0]
    service.wait(name, position)
    require_same_rows(database, name, QUERIES[name])


@pytest.mark.whole
def test_a_slot_that_is_gone(service: RunningService, database: Database) -> None:
    while slots := database.rows(SLOT):
        database.execute(END_READER, slots[0])
        database.execute(DROP_SLOT)
    await_refusal(service, "source.slot_missing")
    database.execute("INSERT INTO orders VALUES (1000, 'unseen', 1, 'x')")
    assert database.rows("SELECT count(*) FROM by_region") == [(5,)]
    start_anew(service)
    for name in QUERIES:
        service.await_status(name)
        assert_equal(service, database, name)
    database.execute("UPDATE orders SET region = 'r9' WHERE id < 10")
    for name in QUERIES:
        assert_equal(service, database, name)
