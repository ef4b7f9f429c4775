"""Oracle: PostgreSQL's own answer to each view's query, and the model of tests.recovery.prefix,
after the state directory was lost, set back to an older copy, or shared by two services."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from tests.harness.postgres import Database, new_database
from tests.harness.service import RunningService
from tests.harness.tiers import is_fast
from tests.harness.verdicts import require_same_rows
from tests.recovery.prefix import SCHEMA, VIEWS, Checker, Writer

pytestmark = pytest.mark.timeout(600)

# That are seen from one fault to the next.
PREFIXES = 8 if is_fast() else 20


def _flush_position(database: Database) -> str:
    return database.rows("SELECT pg_current_wal_flush_lsn()::text")[0][0]


def _run_a_while(
    service: RunningService, database: Database, writer: Writer, checker: Checker
) -> None:
    checker.await_further(PREFIXES, log=service.log_tail)


def _finish(service: RunningService, database: Database, writer: Writer, checker: Checker) -> None:
    last = writer.stop()
    for name in VIEWS:
        service.wait(name, _flush_position(database), timeout_s=60)
    assert checker.check() == last
    checker.close()


@pytest.mark.whole
def test_state_older_than_the_sink_catches_up_muted(database: Database, tmp_path: Path) -> None:
    """As after a crash of the machine: the sink has commits that the state has lost."""
    database.execute(SCHEMA)
    writer = Writer(database, 3)
    checker = Checker(database, writer)
    service = RunningService(database.dsn, tmp_path, sync_interval_s=3600)
    with service:
        for name, query in VIEWS.items():
            service.create(name, query, backfill="local")
        writer.start()
        _run_a_while(service, database, writer, checker)
        service.kill()
        older = tmp_path / "older"
        shutil.copytree(service.state, older)
        service.start()
        _run_a_while(service, database, writer, checker)
        service.kill()
        shutil.rmtree(service.state)
        shutil.copytree(older, service.state)
        service.start()
        _run_a_while(service, database, writer, checker)
        _finish(service, database, writer, checker)
        assert "recover.replay" in service.log_tail(1_000_000)


@pytest.mark.whole
def test_lost_state_is_rebuilt(database: Database, tmp_path: Path) -> None:
    database.execute(SCHEMA)
    writer = Writer(database, 4)
    checker = Checker(database, writer)
    service = RunningService(database.dsn, tmp_path)
    with service:
        for name, query in VIEWS.items():
            service.create(name, query, backfill="local")
        above = "SELECT owner, entries FROM by_owner WHERE entries > 3"
        service.create("above", above, backfill="local")
        service.stop()
        shutil.rmtree(service.state)
        database.execute("INSERT INTO entries SELECT -i, 1 + i, 5 FROM generate_series(1, 30) i")
        service.start()
        for name, query in {**VIEWS, "above": above}.items():
            service.await_status(name)
            service.wait(name, _flush_position(database), timeout_s=60)
            require_same_rows(database, name, query)
    checker.close()


def test_second_service_on_a_state_is_refused(database: Database, tmp_path: Path) -> None:
    database.execute(SCHEMA)
    with RunningService(database.dsn, tmp_path) as service:
        service.create("prefix", VIEWS["prefix"], backfill="local")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TIDEMARK_SOURCE", database.dsn)
            patch.setenv("TIDEMARK_STATE", str(service.state))
            second = subprocess.run(
                [sys.executable, "-m", "service.supervisor.run_pipeline"],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
        assert second.returncode == 3
        assert "state.locked" in second.stderr
        database.execute("INSERT INTO marker VALUES (1)")
        service.wait("prefix", _flush_position(database))
        assert database.rows("SELECT id FROM prefix") == [(1,)]


@pytest.mark.whole
def test_dropped_slot_is_reported_and_not_made_again(database: Database, tmp_path: Path) -> None:
    database.execute(SCHEMA)
    service = RunningService(database.dsn, tmp_path)
    with service:
        service.create("prefix", VIEWS["prefix"], backfill="local")
        service.stop()
        ours = f"tidemark_{database.name}_source"
        database.execute("SELECT pg_drop_replication_slot(%s)", (ours,))
        service.start()
        view = service.await_status("prefix", "failed")
        assert view["error"]["code"] == "source.slot_missing"
        slots = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
        assert database.rows(slots) == [(0,)]
        service.drop("prefix")
        database.execute("INSERT INTO marker VALUES (9)")
        service.create("prefix", VIEWS["prefix"], backfill="local")
        assert database.rows("SELECT id FROM prefix") == [(9,)]


@pytest.mark.whole
def test_the_state_of_another_database_is_refused(
    postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    """Two directories were mixed up; put right again, each continues."""
    with new_database(postgres) as one, new_database(postgres) as two:
        services = [
            RunningService(database.dsn, tmp_path / name, prefix=f"tide{name}")
            for name, database in (("one", one), ("two", two))
        ]
        for database, service in zip((one, two), services, strict=True):
            database.execute(SCHEMA)
            with service:
                service.create("prefix", VIEWS["prefix"], backfill="local")
        other, own = (service.state for service in services)
        own.rename(tmp_path / "own")
        other.rename(own)
        with RunningService(two.dsn, tmp_path / "two", prefix="tidetwo") as service:
            deadline = time.monotonic() + 60
            while "state.foreign" not in service.call("GET", "/health").text:
                assert time.monotonic() < deadline, service.log_tail()
                time.sleep(0.1)
            assert two.rows("SELECT id FROM prefix") == [(0,)]
        own.rename(other)
        (tmp_path / "own").rename(own)
        two.execute("INSERT INTO marker VALUES (5)")
        with RunningService(two.dsn, tmp_path / "two", prefix="tidetwo") as service:
            service.wait("prefix", _flush_position(two), timeout_s=60)
            assert two.rows("SELECT id FROM prefix") == [(5,)]
            assert "view.state_lost" not in service.log_tail(1_000_000)
