"""Oracle: the modes and umasks that the kernel has of files and processes: under umask 022 nothing
that a service writes may be read by anybody but its own user."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil
import pytest

import tidemark
from connectors.kafka.embedded import EmbeddedKafka, missing
from service.checkpoint.checkpoint_repository import open_repository
from service.runtime.private_files import make_private
from tests.harness.files import files_below
from tests.harness.postgres import Database
from tests.harness.service import RunningService

OTHERS = 0o077


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def open_to_others(*folders: Path) -> list[str]:
    """What group or others may do something with, below folders and themselves."""
    found = []
    for path in (*folders, *_below(folders)):
        with contextlib.suppress(FileNotFoundError):
            mode = path.lstat().st_mode
            if mode & OTHERS and not stat.S_ISLNK(mode):
                found.append(f"{stat.filemode(mode)} {path}")
    return found


def _below(folders: Iterable[Path]) -> Iterator[Path]:
    yield from files_below(*folders)
    for folder in folders:
        for place, names, _ in os.walk(folder):
            yield from (Path(place, name) for name in names)


def umasks(service: RunningService) -> dict[str, str]:
    """Of each process of a service, by what it is called."""
    found = {}
    for one in service._family():
        with contextlib.suppress(OSError, psutil.Error):
            lines = Path(f"/proc/{one.pid}/status").read_text().splitlines()
            name = f"{one.pid} {' '.join(one.cmdline())[:60]}"
            # Not every kernel tells.
            found.update((name, line.split()[1]) for line in lines if line.startswith("Umask:"))
    return found


@pytest.mark.parametrize("road", ["local", pytest.param("spark", marks=pytest.mark.whole)])
def test_a_service_of_every_kind_of_file(database: Database, tmp_path: Path, road: str) -> None:
    """Views of two groups, built in process and by Spark, rows followed, copies made, restored."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, a int)")
    database.execute("INSERT INTO t SELECT i, i % 7 FROM generate_series(1, 5000) i")
    temporary, copies = tmp_path / "temporary", tmp_path / "copies"
    temporary.mkdir(mode=0o755)
    old = tmp_path / "service" / "state"
    (old / "builds").mkdir(parents=True)
    (old / "builds" / "left").write_text("rows")
    (old / "changes-2.spool").write_text("rows")
    assert len(open_to_others(old)) == 4
    service = RunningService(
        database.dsn, tmp_path / "service", checkpoint_to=copies, checkpoint_every_s=0.5
    )
    service.set_variable("TMPDIR", str(temporary))
    query = "SELECT a, count(*) AS n FROM t GROUP BY a"
    with service:
        assert open_to_others(old) == []
        service.create("built", query, backfill=road, wait_s=180)
        seen = open_to_others(*temporary.glob("tidemark-*"), old)
        service.create("own", query, backfill="local", group="reports")
        database.execute("INSERT INTO t VALUES (0, 0)")
        for name in ("own", "built"):
            service.await_so(
                lambda n=name: database.rows(f"SELECT n FROM {n} WHERE a = 0") == [(715,)]
            )
        for group in ("default", "reports"):
            copied = open_repository(str(copies), "tidemark", group, None)
            service.await_so(lambda of=copied: of.numbers() != [])
        masks = umasks(service)
        seen += open_to_others(service.state, *temporary.iterdir(), *copies.iterdir())
    assert seen == []
    assert set(masks.values()) <= {"0077"}, masks
    seen = open_to_others(service.state, *copies.iterdir())
    assert seen == []
    restored = tmp_path / "restored" / "state"
    key = service.state / "checkpoint.key"
    command = [sys.executable, "-m", "service.cli.main", "restore", str(copies), "--key", str(key)]
    ended = subprocess.run(
        [*command, "--state", str(restored), "--source", database.dsn],
        capture_output=True,
        text=True,
        check=False,
        umask=0o022,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert open_to_others(restored) == []


def test_what_is_everybodys_or_somebody_elses_stays_as_it_is(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    assert not make_private(shared)
    assert stat.S_IMODE(shared.stat().st_mode) == 0o1777
    chosen = tmp_path / "chosen"
    (chosen / "photographs").mkdir(parents=True)
    (chosen / "store").mkdir()
    (chosen / "store" / "link").symlink_to(shared)
    assert make_private(chosen)
    assert open_to_others(chosen) == [f"drwxr-xr-x {chosen / 'photographs'}"]
    assert stat.S_IMODE(shared.stat().st_mode) == 0o1777


@pytest.mark.whole
def test_an_engine_keeps_its_folder_to_itself() -> None:
    """Its private server runs as another user where we are root: that one gets through."""
    with tempfile.TemporaryDirectory(prefix="tidemark-test-") as made:
        Path(made).chmod(0o755)
        folder = Path(made) / "kept"
        with tidemark.Engine(state_dir=folder) as engine:
            engine.register("towns", [{"town": "Oslo", "celsius": 4}], key="town")
            engine.view("SELECT town FROM towns", "shown")
        own = {0o711 if os.geteuid() == 0 else 0o700}
        assert {stat.S_IMODE(folder.stat().st_mode)} == own
        assert open_to_others(*(path for path in folder.iterdir())) == []
    assert os.umask(0o022) == 0o022  # the user's own process keeps its


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_a_private_broker_keeps_its_folder_to_itself() -> None:
    with EmbeddedKafka() as broker:
        broker.create_topic("t", 1)
        assert stat.S_IMODE(broker.directory.stat().st_mode) == 0o700
        assert open_to_others(broker.directory / "records") == []
