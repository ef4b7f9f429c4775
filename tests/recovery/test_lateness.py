"""Oracle: PostgreSQL's answer over the rows that were not left out, by `verify`, after the sink or
the state went back in time: a view that depends on the order of rows is rebuilt."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from tests.harness.postgres import SERVER_SETTINGS, Database
from tests.harness.service import RunningService
from tests.recovery.test_sink_rewind import _copy, _set_back

pytestmark = [pytest.mark.whole, pytest.mark.timeout(900)]
MINUTES = "SELECT date_bin('1 minute', at, 'epoch') AS minute, count(*) AS n FROM events GROUP BY 1"
TOTAL = "SELECT count(*) AS n FROM events"


def _insert(database: Database, number: int, second: int) -> None:
    sql = "INSERT INTO events VALUES (%s, '2024-05-01 12:00+00'::timestamptz + %s)"
    database.execute(sql, (number, f"{second} seconds"))


def _late(sink: Database) -> int:
    return sink.rows("SELECT count(*)::int FROM tidemark.late_rows")[0][0]


def _begin(service: RunningService, source: Database, sink: Database) -> None:
    source.execute("CREATE TABLE events (id integer PRIMARY KEY, at timestamptz NOT NULL)")
    _insert(source, 1, 300)
    service.create("minutes", MINUTES, lateness={"events.at": "10 seconds"}, late="dead-letter")
    service.await_so(lambda: sink.rows("SELECT 1 FROM tidemark.watermarks"))
    _insert(source, 2, 0)
    service.await_so(lambda: _late(sink) == 1)
    assert _verify(service)["left_out"] == 1


def _verify(service: RunningService) -> dict[str, Any]:
    deadline = time.monotonic() + 180
    while True:
        service.await_status("minutes", timeout_s=180)
        found = service.call("POST", "/views/minutes/verify").json()
        # A service that has just started may yet find that it must build the view again.
        if found.get("code") != "view.not_live" or time.monotonic() > deadline:
            break
    assert found.get("result") == "equal", f"{found}\n{service.log_tail()}"
    return found


def test_the_sink_goes_back(database: Database, tmp_path: Path) -> None:
    """Between two copies a row was left out that the older sink knows nothing of."""
    with EmbeddedPostgres(settings={**SERVER_SETTINGS, "synchronous_commit": "on"}) as server:
        Database(server, "postgres").execute("CREATE DATABASE sink")
        sink = Database(server, "sink")
        with RunningService(database.dsn, tmp_path, sink=sink.dsn) as service:
            _begin(service, database, sink)
            service.create("total", TOTAL)
            service.stop()
            copy = _copy(server, "copy")
            service.start()
            _insert(database, 3, 5)
            _insert(database, 4, 400)
            service.await_so(lambda: _late(sink) == 2)
            service.stop()
            _set_back(server, copy)
            server.start()
            service.start()
            _verify(service)
            service.await_status("total", timeout_s=180)
            _insert(database, 5, 500)
            service.await_so(lambda: sink.rows("SELECT n FROM total") == [(5,)])
            _insert(database, 6, 1)
            service.await_so(lambda: _late(sink) > 0)
            assert _verify(service)["left_out"] == _late(sink)


def test_the_state_goes_back(database: Database, tmp_path: Path) -> None:
    """As after a power loss that a disk did not keep its promise in."""
    with RunningService(database.dsn, tmp_path) as service:
        _begin(service, database, database)
        service.stop()
        shutil.copytree(service.state, tmp_path / "older", symlinks=True)
        service.start()
        _insert(database, 3, 5)
        service.await_so(lambda: _late(database) == 2)
        service.stop()
        shutil.rmtree(service.state)
        shutil.copytree(tmp_path / "older", service.state, symlinks=True)
        service.start()
        _verify(service)
        _insert(database, 4, 600)
        service.await_so(lambda: database.rows("SELECT n::int FROM minutes") != [])
        assert _verify(service)["left_out"] == _late(database)
