"""Oracle: docs/OPERATING.md: what starts first, and when the service gives up."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
import uvicorn

from service.supervisor import run_api


@pytest.fixture
def handlers() -> Iterator[None]:
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def test_the_api_leaves_ctrl_c_to_its_supervisor() -> None:
    """Also one that comes after the supervisor's SIGTERM, as in a terminal."""
    server = uvicorn.Server(uvicorn.Config("never:loaded"))
    run_api.end_in_time(server)
    server.handle_exit(signal.SIGINT, None)
    assert not server.should_exit
    server.should_exit = True
    server.handle_exit(signal.SIGINT, None)
    assert not server.force_exit
