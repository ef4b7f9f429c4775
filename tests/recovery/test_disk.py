"""Oracle: the rows that the history has after each epoch, and the arrangements of a run on a disk
that works; for the service, PostgreSQL's own answer.

A disk that is full, or that does not take what it is given, stops the work that needs it with a
code, nothing of which was confirmed to the source; with room again it continues by itself.
TIDEMARK_TEST_DISK sets how many cases there are, TIDEMARK_TEST_SEED where the seeds begin.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from service.metrics.metrics import read_metrics, write_refusal
from service.runtime.log import Lossy
from storage.faults import corrupt
from storage.reserve import RESERVE_PART
from tests.harness import figures
from tests.harness.blocking_connector import FOLDER
from tests.harness.blocking_service import BlockingService
from tests.harness.postgres import Database
from tests.harness.service import RunningService
from tests.harness.tiers import count

CASES = count("TIDEMARK_TEST_DISK", 2, 20)
SEED = int(os.environ.get("TIDEMARK_TEST_SEED", "0"))
SHIM = Path(__file__).parent.parent / "harness" / "failing_disk.c"
DISK_MB = 1024

pytestmark = pytest.mark.timeout(600 + 10 * CASES)


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that makes calls fail."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler, of which a disk that fails is made")
    made = tmp_path_factory.mktemp("shim") / "failing_disk.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(made), str(SHIM), "-ldl"]
    subprocess.run(command, check=True, timeout=60)
    return made


def test_a_disk_that_refuses_loses_nothing(shim: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.recovery.failing", str(SEED), str(CASES), str(tmp_path)],
        env={**os.environ, "LD_PRELOAD": str(shim)},
        capture_output=True,
        text=True,
        timeout=100 + 10 * CASES,
        check=False,
    )
    command = f"TIDEMARK_TEST_SEED={SEED} TIDEMARK_TEST_DISK={CASES} pytest {Path(__file__).name}"
    if done.returncode:
        # How far it came is not known.
        figures.add("disk_full", count=0, wrong=1, command=command)
    assert done.returncode == 0, f"{command}\n{done.stderr[-3000:]}"
    outcomes = json.loads(done.stdout.splitlines()[-1])
    refused = sum((Counter(found) for found in outcomes.values()), Counter())
    assert any("refused" in name for name in refused)
    for kind, name in (("disk_full", "ENOSPC"), ("io_errors", "EIO")):
        count = sum(outcomes[name].values())
        figures.add(kind, count=count, command=command, outcomes=outcomes[name])


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own, on which there is little room."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"no disk can be mounted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=False)


def test_a_full_disk_stops_the_service_by_name_until_there_is_space(
    database: Database, small_disk: Path
) -> None:
    """The log lies on it too."""
    database.execute("CREATE TABLE items (id int PRIMARY KEY, name text NOT NULL)")
    query = "SELECT id, name FROM items"
    with RunningService(database.dsn, small_disk) as service:
        service.create("shown", query, backfill="local")
        _fill(small_disk)
        # More than RocksDB has set aside, so that it must ask the disk.
        writes = (
            "INSERT INTO items SELECT n, repeat(md5(n::text), 30) FROM generate_series({}, {}) n"
        )
        for start in range(0, 60_000, 20_000):
            database.execute(writes.format(start + 1, start + 20_000))
        _await(lambda: "state.disk_full" in str(_health(service)), service)
        assert _health(service)["status"] == "degraded"
        (small_disk / "filler").unlink()
        database.execute("DELETE FROM items WHERE id % 3 <> 0")
        both = f"(({query}) EXCEPT TABLE shown) UNION ALL (TABLE shown EXCEPT ({query}))"
        _await(lambda: database.rows(both) == [], service)
        _await(lambda: _health(service)["status"] == "ok", service)


def test_what_a_source_sends_does_not_take_the_last_space(
    database: Database, small_disk: Path, tmp_path: Path
) -> None:
    """It is not read while only the reserve is left; the database's changes arrive meanwhile."""
    database.execute("CREATE TABLE items (id bigserial PRIMARY KEY)")
    blocks = tmp_path / "blocks"
    blocks.mkdir()
    (blocks / "flood.count").write_text("1")
    service = BlockingService(database.dsn, small_disk)
    service.set_variable(FOLDER, str(blocks))
    with service:
        body = {"name": "flood", "type": "dbapi", "options": {"name": "flood"}}
        assert service.call("POST", "/sources", body).status_code == 201
        service.create("shown", "SELECT count(*) AS n FROM items")
        service.create("sent", "SELECT count(*) AS n FROM flood.t")
        pipeline = service.pid_of("pipeline")
        reserve = int(RESERVE_PART * shutil.disk_usage(small_disk).total)
        with (small_disk / "filler").open("wb") as file:
            file.write(bytes(shutil.disk_usage(small_disk).free - reserve * 3 // 4))
        found = lambda: service.call("GET", "/sources/flood").json()["error"] or {}  # noqa: E731
        _await(lambda: found().get("code") == "state.disk_full", service)
        (blocks / "flood.count").write_text("100000")
        for _ in range(3):
            database.execute("INSERT INTO items DEFAULT VALUES")
            wanted = database.rows("SELECT count(*) FROM items")
            _await(lambda n=wanted: database.rows("SELECT n FROM shown") == n, service)
        assert database.rows("SELECT n FROM sent") == [(1,)]
        assert service.pid_of("pipeline") == pipeline
        (small_disk / "filler").unlink()
        _await(lambda: database.rows("SELECT n FROM sent") == [(100_000,)], service)
        _await(lambda: not found(), service)


def _fill(disk: Path) -> None:
    """Take all the room there is."""
    with (disk / "filler").open("wb", buffering=0) as file:
        for size in (1 << 20, 4096):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue


def _health(service: RunningService) -> dict:
    try:
        return service.call("GET", "/health").json()
    except (httpx.HTTPError, ValueError):
        return {}


def _await(is_done, service: RunningService) -> None:
    deadline = time.monotonic() + 180
    while not is_done():
        assert time.monotonic() < deadline, f"{_health(service)}\n{service.log_tail()}"
        time.sleep(0.1)


def test_a_refusal_is_reported_on_a_full_disk_and_logs_stop_nothing(small_disk: Path) -> None:
    write_refusal(small_disk, corrupt("before"))
    _fill(small_disk)
    write_refusal(small_disk, corrupt("after"))
    told = read_metrics(small_disk)
    assert told is not None and told["refused"]["detail"] == "after"
    with (small_disk / "log").open("w", buffering=1) as file:
        log = Lossy(file)
        log.write("a line\n")
        assert log.lost == 1
        (small_disk / "filler").unlink()
        log.write("another\n")
        assert log.lost == 1
