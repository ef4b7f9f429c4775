"""Oracle: docs/OPERATING.md: what starts first, and when the service gives up."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn

from service.runtime import kernels, signals
from service.runtime.settings import Settings
from service.supervisor import run_api
from service.supervisor.supervisor import Supervisor


@pytest.fixture
def handlers() -> Iterator[None]:
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("code", [0, signals.FINAL])
def test_pipelines_wait_for_kernels(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "is_done", lambda _: False)
    supervisor = Supervisor(Settings(source="dbname=x", state=tmp_path))
    compiler, pipeline = supervisor.children[:2]
    assert (compiler.name, pipeline.name) == ("kernels", "pipeline")
    compiler.main = lambda: code
    supervisor.children = [compiler, pipeline]
    started = tmp_path / "started"

    def run() -> int:
        # Only once there is nothing left to compile.
        started.write_text("")
        signals.end_now(0)

    def stop() -> bool:
        if started.exists():
            supervisor._on_signal(signal.SIGTERM, None)
        return False

    pipeline.main = run
    monkeypatch.setattr(supervisor, "_add_groups", stop)
    assert supervisor.run() == (1 if code else 0)
    assert started.exists() == (code == 0)


def test_leftovers_of_a_killed_compiler_are_not_reported(tmp_path: Path) -> None:
    (tmp_path / kernels.COMPILING).write_text('{"done": 3, "total": 150}')
    assert kernels.compiling(tmp_path).endswith("3 of 150")
    Supervisor(Settings(source="dbname=x", state=tmp_path))
    assert kernels.compiling(tmp_path) == ""


def test_the_api_leaves_ctrl_c_to_its_supervisor() -> None:
    """Also one that comes after the supervisor's SIGTERM, as in a terminal."""
    server = uvicorn.Server(uvicorn.Config("never:loaded"))
    run_api.end_in_time(server)
    server.handle_exit(signal.SIGINT, None)
    assert not server.should_exit
    server.should_exit = True
    server.handle_exit(signal.SIGINT, None)
    assert not server.force_exit
