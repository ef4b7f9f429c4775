"""Oracle: the way out that docs/ERRORS.md names for what no restart can heal, and PostgreSQL's
answer to each view's query after it was taken."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.postgres import Database
from tests.harness.service import RunningService

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
    deadline = time.monotonic() + 30
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


def assert_equal(service: RunningService, database: Database, name: str) -> None:
    position = database.rows("SELECT pg_current_wal_flush_lsn()::text")[0][0]
    service.wait(name, position)
    query = QUERIES[name]
    differing = (
        f"((TABLE {name} EXCEPT ALL ({query})) UNION ALL (({query}) EXCEPT ALL TABLE {name}))"
    )
    assert database.rows(differing) == []


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
