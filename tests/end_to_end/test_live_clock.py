"""Oracle: rows say themselves when they are due, and PostgreSQL's clock says whether they are.

A view of now() must let them go in time, though nothing else happens and no process has ever been
killed: after each thing that puts a view into an engine, in one process and on Spark.
"""

from __future__ import annotations

import shutil
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import psycopg2
import pytest

import tidemark
from tests.harness.postgres import Database
from tests.harness.service import RunningService

pytestmark = pytest.mark.timeout(900)
needs_java = pytest.mark.skipif(shutil.which("java") is None, reason="no Java here, Spark needs it")
QUERY = "SELECT id FROM events WHERE at > now()"
OTHER = "SELECT id, at FROM events WHERE at > now()"
# How long after it is due a row may still be shown. The clock ticks each second.
LATE_S = 60
RUNTIMES = [
    "local",
    pytest.param("spark", marks=[needs_java, pytest.mark.whole]),
]


def require_ticking(service: RunningService, database: Database, shown: set[int]) -> None:
    """Rows that come are shown, and leave once they are due: nothing but the clock takes them."""
    first = max(shown, default=0) + 1
    shown |= {first, first + 1}
    database.execute(
        f"INSERT INTO events VALUES ({first}, clock_timestamp() + interval '6 seconds'),"
        f" ({first + 1}, clock_timestamp() + interval '8 seconds')"
    )
    (position,) = database.rows("SELECT pg_current_wal_flush_lsn()::text")[0]
    # The first epoch after a move waits for Spark's session.
    service.wait("soon", position, timeout_s=240)
    rows = lambda: {id for (id,) in database.rows("SELECT id FROM soon")}  # noqa: E731
    # Each leaves at a tick of its own, in an epoch in which no table changes.
    service.await_so(lambda: not rows() & {first, first + 1}, within_s=LATE_S)
    due = database.rows(f"SELECT count(*) FROM events WHERE id >= {first} AND at > now()")
    assert due == [(0,)], "rows have left too early"
    assert rows() == {0}, "what is never due is shown"


def require_equal(service: RunningService) -> None:
    answer = service.call("POST", "/views/soon/verify").json()
    assert answer.get("result") == "equal", answer


def changed(service: RunningService, path: str, body: dict | None = None) -> None:
    """A change of the view, until it is live again."""
    answer = service.call("POST", f"/views/soon/{path}?wait_s=180", body, timeout_s=240)
    assert answer.status_code in (200, 202), f"{answer.text}\n{service.log_tail()}"

    def is_done() -> bool:
        view = service.call("GET", "/views/soon").json()
        return view["status"] == "live" and not view.get("replacing")

    service.await_so(is_done, within_s=180)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_clock_ticks_in_a_process_that_was_never_killed(
    database: Database, tmp_path: Path, runtime: str
) -> None:
    database.execute("CREATE TABLE events (id integer PRIMARY KEY, at timestamptz NOT NULL)")
    database.execute("INSERT INTO events VALUES (0, 'infinity')")
    settings = {"spark": "local[2]", "spark_buckets": 2} if runtime == "spark" else {}
    shown: set[int] = set()
    with RunningService(database.dsn, tmp_path, **settings) as service:
        service.create("soon", QUERY, wait_s=300, runtime=runtime, backfill="local")
        require_ticking(service, database, shown)
        require_equal(service)
        changed(service, "rebuild")
        require_ticking(service, database, shown)
        changed(service, "replace", {"query": OTHER})
        require_ticking(service, database, shown)
        assert service.call("POST", "/views/soon/pause").status_code in (200, 202)
        service.await_status("soon", "paused")
        changed(service, "resume")
        require_ticking(service, database, shown)
        require_equal(service)


@needs_java
@pytest.mark.whole
def test_a_clock_ticks_after_each_move(database: Database, tmp_path: Path) -> None:
    """From one process to Spark and back. Rows that became due before a move leave after it, and
    verify, which says of a clock that it stands, says it of none."""
    database.execute("CREATE TABLE events (id integer PRIMARY KEY, at timestamptz NOT NULL)")
    database.execute("INSERT INTO events VALUES (0, 'infinity')")
    shown: set[int] = set()
    settings = {"spark": "local[2]", "spark_buckets": 2}
    with RunningService(database.dsn, tmp_path, **settings) as service:
        service.create("soon", QUERY, wait_s=300, backfill="local")
        require_ticking(service, database, shown)
        require_equal(service)
        for runtime in ("spark", "local"):
            # Due while the view moves, or right after it.
            row = max(shown) + 1
            shown.add(row)
            database.execute(
                f"INSERT INTO events VALUES ({row}, clock_timestamp() + interval '10 seconds')"
            )
            changed(service, "runtime", {"runtime": runtime})
            due = f"SELECT id FROM soon WHERE id = {row}"
            service.await_so(lambda due=due: not database.rows(due), within_s=240)
            view = service.call("GET", "/views/soon").json()
            assert view["options"]["runtime"] == runtime
            require_ticking(service, database, shown)
            require_equal(service)


def test_a_clock_that_stands_is_reported(database: Database, tmp_path: Path) -> None:
    """A pipeline that is stopped: its rows are right at its clock, and wrong since."""
    with RunningService(database.dsn, tmp_path) as service:
        due = datetime.now(UTC) + timedelta(seconds=30)
        query = f"SELECT x FROM (VALUES (1), (2)) AS v (x) WHERE now() > '{due.isoformat()}'"
        service.create("soon", query, backfill="local")
        require_equal(service)
        pid = service.pid_of("pipeline")
        assert pid is not None
        pipeline = psutil.Process(pid)
        pipeline.suspend()
        try:
            # Nothing is due yet, so its clock need not have moved.
            if datetime.now(UTC) < due - timedelta(seconds=5):
                require_equal(service)
            time.sleep(max(0.0, (due - datetime.now(UTC)).total_seconds()) + 3)
            with tidemark.connect(service.url) as client:
                found = client.view("soon").verify()
            assert found.result == "different", found
            assert (found.missing, found.surplus, found.different) == (0, 0, 0)
            clock = found.clock
            assert clock is not None and clock.code == "verify.clock_stands"
            assert (clock.missing, clock.surplus, clock.different) == (2, 0, 0)
            assert (clock.source, clock.due_by >= due) == ("clock", True)
            (event,) = (e for e in service.events() if e["event"] == "verify.different")
            assert "it had to tick by" in event["clock"]
            shown = service.call("GET", "/views/soon").json()["verification"]
            assert shown["result"] == "different" and shown["clock"]["missing"] == 2
            connection = database.connect()
            with closing(connection), pytest.raises(psycopg2.Error) as caught:
                connection.cursor().execute("CALL tidemark.verify_view('soon')")
            assert "verify.clock_stands" in str(caught.value.diag.message_detail)
        finally:
            pipeline.resume()
        service.await_so(lambda: len(database.rows("SELECT x FROM soon")) == 2)
        require_equal(service)
