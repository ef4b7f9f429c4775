"""Oracle: servers and folders that are known to be well, or known to lack one thing."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from service.runtime.settings import Settings
from service.setup import doctor
from service.setup.doctor import NOTE, OK, PROBLEM, Finding, check_all, check_service
from tests.harness.postgres import SERVER_SETTINGS, Database, versions_to_test
from tests.harness.service import RunningService


@pytest.fixture(scope="module")
def plain() -> Iterator[EmbeddedPostgres]:
    """A server that nobody can follow."""
    settings = {**SERVER_SETTINGS, "wal_level": "replica"}
    with EmbeddedPostgres(versions_to_test()[0], settings) as server:
        yield server


def settings_of(dsn: str, folder: Path, **more: Any) -> Settings:
    facts = {"source": dsn, "sink": dsn, "state": folder / "state", "port": 0, **more}
    return Settings.model_validate(facts)


def named(found: list[Finding], name: str) -> Finding:
    return next(finding for finding in found if finding.name == name)


def test_what_is_well_is_ok(database: Database, tmp_path: Path) -> None:
    settings = settings_of(database.dsn, tmp_path, memory=384)
    found = check_all(settings)
    assert not [f for f in found if f.status == PROBLEM], [f.facts() for f in found]
    for name in ("source: wal_level", "source: clock", "source: slot", "sink: schema tidemark"):
        assert named(found, name).status == OK
    assert check_service(settings) == []
    command = [
        sys.executable,
        "-m",
        "service.cli.main",
        "doctor",
        "--json",
        "--source",
        database.dsn,
    ]
    told = subprocess.run(
        [*command, "--state", str(tmp_path / "state")],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
    )
    facts = json.loads(told.stdout)
    assert {"name", "status", "found"} <= facts[0].keys()
    assert told.returncode == any(fact["status"] == PROBLEM for fact in facts)


@pytest.mark.whole
def test_a_source_that_cannot_be_followed_does_for_feeds(
    plain: EmbeddedPostgres, tmp_path: Path
) -> None:
    """A note for doctor, no hindrance for the service; a view of its own tables is refused."""
    settings = settings_of(plain.dsn, tmp_path)
    note = named(check_all(settings), "source: wal_level")
    assert (note.status, note.facts()["code"]) == (NOTE, "source.wal_level")
    assert "ALTER SYSTEM" in note.facts()["hint"]
    assert [f.status for f in check_service(settings)] == [NOTE]
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.csv").write_text("id,price\n1,2.50\n2,3.50\n")
    columns = [{"name": "id", "type": "bigint"}, {"name": "price", "type": "numeric(10,2)"}]
    relation = {"path": f"{folder}/*.csv", "columns": columns}
    with RunningService(plain.dsn, tmp_path / "service", allow_folders=folder) as service:
        body = {"name": "shop", "type": "files", "options": {"relations": {"prices": relation}}}
        assert service.call("POST", "/sources", body).status_code == 201
        service.create("spent", "SELECT sum(price) AS total FROM shop.prices", backfill="local")
        database = Database(plain, "postgres")
        assert database.rows("SELECT total::text FROM spent") == [("6.00",)]
        database.execute("CREATE TABLE t (id int PRIMARY KEY)")
        answer = service.call("POST", "/views", {"name": "own", "query": "SELECT id FROM t"})
        assert (answer.status_code, answer.json()["code"]) == (422, "source.wal_level")
        assert service.call("GET", "/health").json()["status"] == "ok"
        declared = named(check_all(settings_of(plain.dsn, tmp_path)), "source shop: files")
        assert (declared.status, declared.found) == (OK, "1 relations")


def test_what_is_wrong_here_is_reported_with_what_to_do(database: Database, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        settings = settings_of(database.dsn, tmp_path, memory=10**9, port=port)
        (tmp_path / "state").mkdir()
        (tmp_path / "state" / "version.json").write_text('{"version": 99}')
        found = check_all(settings)
    codes = {f.facts()["code"] for f in found if f.status == PROBLEM}
    assert codes == {"port.taken", "memory.too_little", "state.version"}
    assert all(f.facts()["hint"] for f in found if f.status == PROBLEM)
    missing = check_all(settings_of("host=127.0.0.1 port=1 dbname=x user=y", tmp_path))
    # One database is source and sink: it is told once.
    codes = [f.facts().get("code") for f in missing if f.status == PROBLEM]
    assert codes.count("source.unreachable") == 1 and "sink.unreachable" not in codes


def test_limits_and_disks_are_read_as_the_kernel_reports_them(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:       4194304 kB\n")
    assert doctor.memory_mb(tmp_path, tmp_path) == 4096
    (tmp_path / "memory.max").write_text("max\n")
    assert doctor.memory_mb(tmp_path, tmp_path) == 4096
    (tmp_path / "memory.max").write_text(f"{512 << 20}\n")
    assert doctor.memory_mb(tmp_path, tmp_path) == 512
    mounts = tmp_path / "mounts"
    mounts.write_text(f"overlay / overlay rw 0 0\n/dev/a {tmp_path} ext4 rw 0 0\n")
    assert doctor.file_system(tmp_path / "state", str(mounts)) == "ext4"
    assert doctor.file_system(Path("/elsewhere"), str(mounts)) == "overlay"


@pytest.mark.whole
def test_the_contents_of_a_state_are_read_to_the_end(database: Database, tmp_path: Path) -> None:
    """Beside the service that writes them; then one bit of a table is not what it was."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t VALUES (1, 1)")
    settings = settings_of(database.dsn, tmp_path / "service")
    with RunningService(database.dsn, tmp_path / "service") as service:
        assert settings.state == service.state
        service.create("v", "SELECT v, count(*) AS n FROM t GROUP BY v", backfill="local")
        found = named(check_all(settings, is_deep=True), "state: contents of group default")
        assert found.status == OK, found.facts()
        assert "all checksums match" in found.found
    tables = sorted((settings.state / "store").glob("*.sst"), key=lambda p: p.stat().st_size)
    content = bytearray(tables[-1].read_bytes())
    content[len(content) // 4] ^= 4
    tables[-1].write_bytes(content)
    found = named(check_all(settings, is_deep=True), "state: contents of group default")
    assert found.status == PROBLEM and found.facts()["code"] == "state.corrupt"
    assert "tidemark restore" in found.facts()["hint"]
