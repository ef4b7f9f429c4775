"""Additional sinks of a running service: REST calls, and waiting for their results."""

from __future__ import annotations

import time
from typing import Any

from tests.harness.service import RunningService


def add_sink(
    service: RunningService,
    view: str,
    name: str = "events",
    wait_s: float = 60,
    type_name: str = "kafka",
    **options: Any,
) -> dict[str, Any]:
    """Add a sink and wait until it has begun."""
    body = {"name": name, "type": type_name, "options": options}
    answer = service.call("POST", f"/views/{view}/sinks?wait_s={wait_s}", body)
    assert answer.status_code == 201, answer.text
    sink = answer.json()
    if wait_s:
        assert sink["status"] == "live", f"{sink}\n{service.log_tail()}"
    return sink


def sink_of(service: RunningService, view: str, name: str = "events") -> dict[str, Any]:
    """One sink as it stands."""
    return service.call("GET", f"/views/{view}/sinks/{name}").json()


def drop_sink(service: RunningService, view: str, name: str = "events", query: str = "") -> None:
    """Drop a sink and wait until it is gone."""
    answer = service.call("DELETE", f"/views/{view}/sinks/{name}{query}")
    assert answer.status_code == 204, answer.text


def await_sink(
    service: RunningService, view: str, name: str = "events", timeout_s: float = 60, **facts: Any
) -> dict[str, Any]:
    """Wait until a sink has all these facts."""
    deadline = time.monotonic() + timeout_s
    while True:
        sink = sink_of(service, view, name)
        if all(sink.get(fact) == value for fact, value in facts.items()):
            return sink
        assert time.monotonic() < deadline, f"{sink}\n{service.log_tail()}"
        time.sleep(0.05)


def progress_of(service: RunningService, rows: list[tuple[Any, ...]]) -> int:
    """The epoch of `SELECT epoch FROM tidemark.progress`."""
    assert rows, service.log_tail()
    return rows[0][0]
