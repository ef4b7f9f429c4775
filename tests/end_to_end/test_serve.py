"""Oracle: what somebody who starts the service must be told, and how soon; the exit code."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from connectors.loopback import free_port
from tests.harness import http
from tests.harness.postgres import Database
from tests.harness.tiers import is_fast

SERVE = [sys.executable, "-m", "service.cli.main", "serve"]


def environment(**settings: object) -> dict[str, str]:
    own = {k: v for k, v in os.environ.items() if not k.startswith("TIDEMARK_")}
    return {**own, **{f"TIDEMARK_{k.upper()}": str(v) for k, v in settings.items()}}


def refused(**settings: object) -> str:
    """What a service that cannot start says."""
    done = subprocess.run(
        SERVE, env=environment(**settings), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr and not done.stdout
    assert "process.started" not in done.stderr
    return done.stderr


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def codes_of(text: str) -> list[str]:
    return re.findall(r"^error: .*\[([a-z_.]+)\]$", text, re.MULTILINE)


def test_a_port_that_cannot_be_had(database: Database, tmp_path: Path, taken: int) -> None:
    wrong = [
        {"port": taken},
        {"port": free_port(), "host": "no.such.host.invalid"},
        {"port": taken, "host": "localhost"},
        {"port": free_port(), "host": "203.0.113.7"},
    ]
    for settings in wrong[:1] if is_fast() else wrong:
        told = refused(source=database.dsn, state=tmp_path / "state", **settings)
        assert codes_of(told) == ["port.taken"], told
    assert database.rows("SELECT 1 FROM pg_namespace WHERE nspname = 'tidemark'") == []


@pytest.mark.whole
def test_a_state_that_cannot_be_had(database: Database, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for state in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/state")):
        told = refused(source=database.dsn, state=state, port=free_port())
        assert codes_of(told) == ["state.io"], told


# A part of the DSN and what stands in its place.
DSNS = {
    "port": (r"port=\d+", "port=1"),
    "host": (r"host=\S+", "host=no.such.host.invalid"),
    "database": (r"dbname=\S+", "dbname=no_such_database"),
    "role": (r"user=\S+", "user=no_such_role"),
    "word": (r"dbname=\S+", "dbname=x nosuchword=1"),
    "none": (r".*", "this is no DSN"),
    "url": (r".*", "postgresql://[::1/x"),
}


@pytest.mark.parametrize("name", list(DSNS))
def test_a_dsn_that_is_wrong(database: Database, tmp_path: Path, name: str) -> None:
    pattern, instead = DSNS[name]
    dsn = re.sub(pattern, instead, database.dsn, count=1)
    assert dsn != database.dsn
    told = refused(source=dsn, state=tmp_path / "state", port=free_port())
    assert len(codes_of(told)) == 1, told
    told = refused(source=database.dsn, sink=dsn, state=tmp_path / "state", port=free_port())
    assert len(codes_of(told)) == 1 and "sink" in told, told


class Terminal:
    """A service in a terminal of its own."""

    def __init__(self, settings: dict[str, str]) -> None:
        ours, theirs = pty.openpty()
        self.screen = b""
        self._ours = ours
        self.process = subprocess.Popen(
            SERVE, env=settings, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
        )
        os.close(theirs)

    def read(self, until: str, timeout_s: float = 60) -> str:
        """What is on the screen, once that is."""
        end = time.monotonic() + timeout_s
        while until not in self.text and time.monotonic() < end:
            if select.select([self._ours], [], [], 0.1)[0]:
                with suppress(OSError):
                    self.screen += os.read(self._ours, 65_536)
        assert until in self.text, self.text
        return self.text

    @property
    def text(self) -> str:
        return re.sub(r"\x1b\[[0-9;]*m", "", self.screen.decode()).replace("\r", "")

    def interrupt(self) -> tuple[int, str]:
        """Ctrl-C, which a terminal sends to all of its processes: exit code, what was told."""
        with suppress(AssertionError):
            self.read("\0", 1)
        before = len(self.text)
        os.killpg(self.process.pid, signal.SIGINT)
        code = self.process.wait(30)
        with suppress(OSError, AssertionError):
            self.read("\0", 1)
        return code, self.text[before:]


def await_health(url: str) -> dict[str, object]:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with suppress(httpx.HTTPError):
            return http.get(f"{url}/health").json()
        time.sleep(0.1)
    raise AssertionError("no answer")


def test_a_terminal_shows_the_address_and_how_to_stop(database: Database, tmp_path: Path) -> None:
    port = free_port()
    secret = f"{database.dsn} password=hunter2"
    terminal = Terminal(environment(source=secret, state=tmp_path / "s", port=port))
    shown = terminal.read("process.started")
    url = f"http://127.0.0.1:{port}"
    for fact in (f"{url}/", f"{url}/docs", str(tmp_path / "s"), "the source", "Ctrl-C"):
        assert fact in shown, shown
    assert "hunter2" not in shown and not re.search(r"^\{", shown, re.MULTILINE)
    await_health(url)
    terminal.read("pipeline.started")
    code, told = terminal.interrupt()
    assert code == 0
    assert len(told.splitlines()) == 1 and "service.stopped" in told, told


@pytest.mark.whole
def test_ctrl_c_at_an_early_moment_ends_as_quietly(database: Database, tmp_path: Path) -> None:
    port = free_port()
    early = Terminal(environment(source=database.dsn, state=tmp_path / "s", port=port))
    early.read("process.started")
    code, told = early.interrupt()
    assert code == 0 and "crashed" not in told and "Traceback" not in told


@pytest.mark.whole
def test_elsewhere_each_line_is_json(database: Database, tmp_path: Path) -> None:
    port = free_port()
    process = subprocess.Popen(
        SERVE,
        env=environment(source=database.dsn, state=tmp_path / "s", port=port),
        stderr=subprocess.PIPE,
        text=True,
    )
    await_health(f"http://127.0.0.1:{port}")
    process.terminate()
    _, told = process.communicate(timeout=30)
    events = [json.loads(line) for line in told.splitlines()]
    (starting,) = [e for e in events if e["event"] == "service.starting"]
    assert starting["url"] == f"http://127.0.0.1:{port}" and starting["state"] == str(
        tmp_path / "s"
    )
