"""Oracle: PostgreSQL's view of its slots, and the view's query once it is kept up to date again."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from connectors.postgres.source import PostgresSource
from tests.connectors.postgres.reading import opened, streaming
from tests.harness.postgres import Database
from tests.harness.service import RunningService

QUERY = "SELECT grp, count(*) AS n FROM t GROUP BY grp"
TABLE = """
CREATE TABLE t (id int PRIMARY KEY, grp int NOT NULL, v text);
INSERT INTO t SELECT i, i % 5, 'x' FROM generate_series(1, 100) i;
"""


def write_wal(database: Database, megabytes: int) -> None:
    for _ in range(megabytes):
        database.execute("SELECT pg_logical_emit_message(true, 'filler', repeat('x', 1048576))")


def slots(database: Database) -> list[tuple]:
    return database.rows(
        "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
    )


def await_true(is_true: Callable[[], bool], service: RunningService, timeout_s: float = 90) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < deadline, service.log_tail()
        time.sleep(0.2)


def reasons(service: RunningService) -> str:
    return " ".join(service.call("GET", "/health").json()["reasons"])


def test_what_is_retained_and_released(database: Database) -> None:
    database.execute(TABLE)
    with opened(database, "t") as (source, relations):
        start = source.current_position()
        with streaming(source, start, relations):
            before = source.retained_wal_bytes()
            write_wal(database, 2)
            kept = source.retained_wal_bytes()
            assert kept - before > 1 << 20
            other = PostgresSource(database.dsn, database.name)
            other.release_slot()
            assert slots(database) == []
            assert other.retained_wal_bytes() == 0
            other.close()


@pytest.mark.timeout(600)
def test_a_transaction_that_does_not_end_and_the_budget(database: Database, tmp_path: Path) -> None:
    """First only an alarm, which is over when the transaction is; then the slot is dropped."""
    database.execute(TABLE)
    settings = {"wal_budget_mb": 64, "wal_alarm_percent": 10, "wal_limit": "release"}
    with RunningService(database.dsn, tmp_path, **settings) as service:
        service.create("grouped", QUERY, backfill="local")
        holder = database.connect(autocommit=False)
        holder.cursor().execute("INSERT INTO t VALUES (1000, 7, 'open')")
        write_wal(database, 12)
        await_true(lambda: "source.wal_alarm" in reasons(service), service)
        assert service.call("GET", "/health").status_code == 503
        assert slots(database) == [(f"tidemark_{database.name}_source",)]
        figures = service.call("GET", "/metrics").text
        assert 'tidemark_wal_budget_bytes{group="default"} 6.7108864e+07' in figures
        holder.rollback()
        await_true(lambda: is_over(database, service), service)

        holder.cursor().execute("INSERT INTO t VALUES (1001, 7, 'open')")
        write_wal(database, 90)
        await_true(lambda: slots(database) == [], service)
        await_true(lambda: "source.wal_budget" in reasons(service), service)
        view = service.call("GET", "/views/grouped").json()
        assert view["error"]["code"] == "source.wal_budget"
        # A restart tells the same; drops are served, and a new view gets a new slot.
        service.kill_child("pipeline")
        time.sleep(1)
        await_true(lambda: "source.wal_budget" in reasons(service), service)
        holder.commit()
        holder.close()
        service.drop("grouped")
        service.create("grouped", QUERY, backfill="local")
        shown = database.rows("SELECT grp, n FROM grouped ORDER BY grp")
        assert shown == database.rows(QUERY + " ORDER BY grp")
        assert (7, 1) in shown
        await_true(lambda: reasons(service) == "", service)


def is_over(database: Database, service: RunningService) -> bool:
    """Lets the server note that no transaction is open; whether the alarm has ended."""
    database.execute("CHECKPOINT")
    database.execute("UPDATE t SET v = 'y' WHERE id = 1")
    return "source.wal_alarm" not in reasons(service)
