"""Oracle: PostgreSQL's own answer to each view's query, and the cap that the service was given.

By hand with TIDEMARK_TEST_ROWS=1000000 (`make torture`). The cap is a limit of the kernel where a
cgroup can be made; the peak of the process's resident memory is held against it everywhere.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.harness import fan_out, figures
from tests.harness.cgroup import MemoryCgroup
from tests.harness.postgres import Database
from tests.harness.service import RunningService
from tests.harness.waiting import wait_until

ROWS = int(os.environ.get("TIDEMARK_TEST_ROWS", "50000"))
FAN_OUT = 1_000
HOT_ROWS = 6 * ROWS
UPDATED = max(ROWS // FAN_OUT // 2, 1)
CAP_MB = 384 if ROWS <= 100_000 else 512
STALL_S = float(os.environ.get("TIDEMARK_TEST_STALL_S", "6"))
FILE = "tests/recovery/test_memory.py"
WAIT_S = 60 + ROWS / 1_000 + STALL_S

pytestmark = pytest.mark.timeout(600 + ROWS / 500 + 3 * STALL_S)


@pytest.fixture
def service(database: Database, tmp_path: Path) -> Iterator[RunningService]:
    database.execute(fan_out.TABLES)
    database.execute(fan_out.fill_owners(1_000))
    with RunningService(
        database.dsn, tmp_path, memory=f"{CAP_MB}MB", **fan_out.ANY_BUDGET
    ) as running:
        for name, query in fan_out.VIEWS.items():
            running.create(name, query, backfill="local")
        yield running


def _metrics(service: RunningService) -> dict[str, Any]:
    return json.loads((service.state / "pipeline.json").read_text())


def _peak_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(x.split()[1]) for x in lines if x.startswith("VmHWM")) / 1024


def _count(case: str, pid: int, answers: int) -> None:
    """A line of what was held under the cap. answers: of PostgreSQL that the views were equal to,
    all of them each time."""
    command = f"TIDEMARK_TEST_ROWS={ROWS} TIDEMARK_TEST_STALL_S={STALL_S:g} pytest {FILE}"
    peak = round(_peak_mb(pid))
    epochs = answers * len(fan_out.VIEWS)
    figures.add(
        "bounded", count=1, epochs=epochs, command=command, case=case, peak_mb=peak, cap_mb=CAP_MB
    )


def _await_equal(service: RunningService, database: Database) -> None:
    position = database.rows("SELECT pg_current_wal_flush_lsn()::text")[0][0]
    for name in fan_out.VIEWS:
        service.wait(name, position, timeout_s=WAIT_S)
    with database.connect().cursor() as cursor:
        assert fan_out.differences(cursor) == dict.fromkeys(fan_out.VIEWS, 0)


def test_big_transactions_and_fan_out_stay_under_the_cap(
    service: RunningService, database: Database
) -> None:
    pid = service.pid_of("pipeline")
    assert pid is not None
    with MemoryCgroup(CAP_MB) as limit:
        is_limited = limit.add(pid)
        for statement in fan_out.steps(ROWS, FAN_OUT, UPDATED).values():
            database.execute(statement)
            _await_equal(service, database)
        assert service.pid_of("pipeline") == pid, "the pipeline was ended"
        assert _peak_mb(pid) <= CAP_MB, f"under a cgroup: {is_limited} {limit.reason}"
    assert _metrics(service)["epochs_in_parts_total"] >= 1
    _count(f"transactions of up to {ROWS} rows", pid, len(fan_out.steps(ROWS, FAN_OUT, UPDATED)))


@pytest.mark.whole
def test_one_row_that_meets_very_many_stays_under_the_cap(
    service: RunningService, database: Database
) -> None:
    """What it meets, old and new, would be some hundreds of megabytes at once."""
    pid = service.pid_of("pipeline")
    assert pid is not None
    with MemoryCgroup(CAP_MB) as limit:
        is_limited = limit.add(pid)
        for statement in fan_out.hot_steps(HOT_ROWS).values():
            database.execute(statement)
            _await_equal(service, database)
        assert service.pid_of("pipeline") == pid, "the pipeline was ended"
        assert _peak_mb(pid) <= CAP_MB, f"under a cgroup: {is_limited} {limit.reason}"
    _count(f"one row that meets {HOT_ROWS}", pid, len(fan_out.hot_steps(HOT_ROWS)))


@pytest.mark.whole
def test_a_sink_that_is_paused_stops_the_reading_and_nothing_else(
    service: RunningService, database: Database
) -> None:
    pid = service.pid_of("pipeline")
    assert pid is not None
    service.create("other", "SELECT count(*) AS n FROM owners", backfill="local")
    lock = database.connect(autocommit=False)
    with lock.cursor() as cursor:
        cursor.execute("LOCK TABLE totals IN ACCESS EXCLUSIVE MODE")
    started, number = time.monotonic(), 0
    while time.monotonic() - started < STALL_S:
        number += 1
        database.execute(fan_out.insert_some(number))
    told = _metrics(service)
    assert told["sink_stalled_s"] > STALL_S / 2
    assert time.time() - told["updated_at"] < 5, "status is told"
    assert told["source_position"] - told["position"] > 1_000_000, "lag is told"
    assert database.rows("SELECT active FROM pg_replication_slots") == [(True,)]
    assert service.call("DELETE", "/views/other?wait_s=1").status_code in (202, 204)
    lock.rollback()
    lock.close()
    _await_equal(service, database)
    assert _peak_mb(pid) <= CAP_MB
    assert service.pid_of("pipeline") == pid
    _count(f"a sink stalled for {STALL_S:g} s", pid, 1)
    wait_until(
        lambda: service.call("GET", "/views/other").status_code == 404,
        why=lambda: "the view is not dropped",
    )


@pytest.mark.whole
def test_kill_in_the_middle_of_an_epoch_that_is_on_disk(
    service: RunningService, database: Database
) -> None:
    """While it is decoded, stepped, or on its way to the sink: nothing of it is lost or twice."""
    pick = random.Random(7)
    for statement in fan_out.steps(ROWS, FAN_OUT, UPDATED).values():
        database.execute(statement)
        for _ in range(2):
            time.sleep(pick.uniform(0.3, 2.0))
            service.kill_child("pipeline")
            while (pid := service.pid_of("pipeline")) is None or not psutil.pid_exists(pid):
                time.sleep(0.05)
        _await_equal(service, database)
