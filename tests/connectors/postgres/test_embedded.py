"""Oracle: PostgreSQL itself, by its version, settings and rows, and the process table."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psycopg2
import pytest

from connectors.postgres.embedded import server as embedded_server
from connectors.postgres.embedded.server import EmbeddedPostgres, available_versions
from dataflow.errors import SourceError
from tests.harness.postgres import Database, new_database
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.versions


def test_every_version_serves_logical_replication(every_postgres: EmbeddedPostgres) -> None:
    admin = Database(every_postgres, "postgres")
    [(number,)] = admin.rows("SHOW server_version_num")
    assert int(number) // 10000 == every_postgres.version
    assert admin.rows("SHOW wal_level") == [("logical",)]
    assert admin.rows("SHOW listen_addresses") == [("127.0.0.1",)]


def test_a_database_leaves_no_session_and_no_slot(postgres: EmbeddedPostgres) -> None:
    with new_database(postgres) as database:
        session = database.connect()
        database.rows("SELECT pg_create_logical_replication_slot('left_over', 'pgoutput')")
    admin = Database(postgres, "postgres")
    assert admin.rows("SELECT 1 FROM pg_replication_slots WHERE slot_name = 'left_over'") == []
    assert admin.rows("SELECT 1 FROM pg_database WHERE datname = %s", (database.name,)) == []
    with pytest.raises(psycopg2.OperationalError):
        session.cursor().execute("SELECT 1")


@pytest.mark.whole
def test_restarts_keep_port_and_rows(own_postgres: EmbeddedPostgres) -> None:
    admin = Database(own_postgres, "postgres")
    admin.execute("CREATE TABLE kept (a int)")
    port = own_postgres.port
    for count, again in enumerate(
        [
            own_postgres.restart,
            lambda: own_postgres.restart(immediate=True),
            lambda: (own_postgres.kill(), own_postgres.start()),
        ],
        start=1,
    ):
        admin.execute("INSERT INTO kept VALUES (1)")
        again()
        assert own_postgres.port == port
        assert admin.rows("SELECT count(*) FROM kept") == [(count,)]


def test_close_removes_everything() -> None:
    server = EmbeddedPostgres().start()
    directory, pid = server.directory, server.pid
    server.close()
    assert not directory.exists()
    assert not Path(f"/proc/{pid}").exists()


def test_nothing_is_left_after_kill_9_of_the_parent() -> None:
    script = (
        "import time; from connectors.postgres.embedded.server import EmbeddedPostgres;"
        "s = EmbeddedPostgres().start(); print(s.pid, s.directory, flush=True); time.sleep(600)"
    )
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    pid, directory = child.stdout.readline().split()
    assert Path(directory).exists()
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    wait_until(lambda: not Path(directory).exists())
    comm = Path(f"/proc/{pid}/comm")
    assert not comm.exists() or comm.read_text().strip() != "postgres"


@pytest.mark.whole
@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts servers as someone else")
def test_binaries_that_the_server_user_cannot_reach_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = importlib.util.find_spec(embedded_server.WHEEL)
    if spec is None or not spec.origin:
        pytest.skip("the wheel is not installed")
    packages = Path(spec.origin).parent.parent
    for name in (embedded_server.WHEEL, f"{embedded_server.WHEEL}.libs"):
        shutil.copytree(packages / name, tmp_path / "closed" / name, symlinks=True)
    (tmp_path / "closed").chmod(0o700)
    binaries = tmp_path / "closed" / embedded_server.WHEEL / "pginstall18" / "bin"
    monkeypatch.setattr(embedded_server, "available_versions", lambda: {18: binaries})
    with EmbeddedPostgres(18) as server:
        assert Database(server, "postgres").rows("SELECT 1") == [(1,)]
        executable = Path(f"/proc/{server.pid}/exe").readlink()
        assert executable.is_relative_to(server.directory)


def test_an_unknown_version_is_refused_by_name() -> None:
    with pytest.raises(SourceError) as refused:
        EmbeddedPostgres(9)
    assert refused.value.code == "postgres.no_binaries"
    assert 9 not in available_versions()
