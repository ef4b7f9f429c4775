"""Oracle: docs/PSQL.md: what was asked for is done once, whoever dies, goes away or is there
twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from connectors.loopback import free_port
from tests.harness.postgres import Database
from tests.harness.psql import (
    call,
    psql,
    psql_command,
    psql_environment,
    refusal,
    states,
)
from tests.harness.service import RunningService
from tests.harness.waiting import wait_until

# --- what survives ------------------------------------------------------------------------


@contextmanager
def closed_gate(place: Database) -> Iterator[None]:
    """While table gate is locked no view of it gets past its analysis."""
    session = place.connect(autocommit=False)
    session.cursor().execute("LOCK TABLE gate IN ACCESS EXCLUSIVE MODE")
    try:
        yield
    finally:
        session.close()


COUNT = 4
CREATE_GATED = "CALL tidemark.create_view('gated', 'SELECT a, count(*) AS n FROM gate GROUP BY a');"


def waiting_psql(place: Database) -> subprocess.Popen[str]:
    """psql that has asked for the view, and waits."""
    waiting = subprocess.Popen(
        psql_command(place), stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=psql_environment(),
    )  # fmt: skip
    assert waiting.stdin is not None
    waiting.stdin.write(CREATE_GATED)
    waiting.stdin.close()
    waiting.stdin = None
    wait_until(lambda: states(place) == [("running",)])
    return waiting


def test_cancel_ends_the_waiting_alone(service: RunningService, place: Database) -> None:
    with closed_gate(place):
        waiting = waiting_psql(place)
        waiting.send_signal(signal.SIGINT)
        _, said = waiting.communicate(timeout=30)
    assert "canceling statement" in said
    service.await_status("gated")
    wait_until(lambda: not states(place))
    call(place, "CALL tidemark.drop_view('gated')")


def test_a_killed_api_does_it_once(service: RunningService, place: Database) -> None:
    """Also a caller that waits still waits, and hears of it from the next process."""
    with closed_gate(place):
        waiting = waiting_psql(place)
        assert service.kill_child("api")
    _, said = waiting.communicate(timeout=120)
    assert (waiting.returncode, "view public.gated is live" in said) == (0, True), said
    assert place.rows("SELECT * FROM gated") == [(1, 1)]
    call(place, "CALL tidemark.drop_view('gated')")


@pytest.mark.whole
def test_two_processes_do_nothing_twice(service: RunningService, place: Database) -> None:
    environment = {
        **os.environ,
        "TIDEMARK_SOURCE": place.dsn,
        "TIDEMARK_STATE": str(service.state),
        "TIDEMARK_PORT": str(free_port()),
    }
    before = service.log_path.stat().st_size
    log = service.state.parent / "second.log"
    with log.open("wb") as output:
        second = subprocess.Popen(
            [sys.executable, "-m", "service.supervisor.run_api"], env=environment, stderr=output
        )
    try:
        wait_until(lambda: place.rows("SELECT count(*) FROM tidemark.listeners") == [(2,)])
        text = "CALL tidemark.create_view('n{0}', 'SELECT id + {0} AS x FROM t', '{1}');"
        ended = psql(place, "\n".join(text.format(i, '{"wait": false}') for i in range(COUNT)))
        assert ended.returncode == 0, ended.stderr
        wait_until(lambda: not states(place), 180)
    finally:
        second.terminate()
        second.wait(30)
    ends = place.rows(f"SELECT status FROM tidemark.requests ORDER BY id DESC LIMIT {COUNT}")
    assert ends == [("done",)] * COUNT
    with service.log_path.open("rb") as first:
        first.seek(before)
        lines = first.read().splitlines() + log.read_bytes().splitlines()
    taken = [json.loads(line)["id"] for line in lines if b'"psql.request"' in line]
    assert sorted(taken) == sorted(set(taken)) and len(taken) == COUNT
    for i in range(COUNT):
        call(place, f"CALL tidemark.drop_view('n{i}', '{{\"wait\": false}}')")
    wait_until(lambda: not states(place))


# --- no service ---------------------------------------------------------------------------


def test_without_a_service(service: RunningService, place: Database) -> None:
    """Last, since the service is stopped; a request that needs no answer waits for the next one."""
    service.stop()
    error = refusal(lambda: call(place, "CALL tidemark.create_view('v', 'SELECT id FROM t')"))
    assert error.pgcode == "57P03"
    assert "tidemark serve" in error.diag.message_hint
    call(place, "CALL tidemark.create_view('v', 'SELECT id FROM t', '{\"wait\": false}')")
    service.start()
    service.await_status("v")
    call(place, "CALL tidemark.drop_view('v')")
