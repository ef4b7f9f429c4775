"""The real service as a child process, observed through REST, progress and memory."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import psutil

from bench.measure import peak_rss_mb
from storage.process_title import title_of

READY_S = 300.0  # a machine that has just been set up compiles first
BUILD_S = 900.0
PROGRESS = (
    "SELECT coalesce(max(p.position::numeric), 0)::bigint "
    "FROM tidemark.progress, jsonb_each_text(positions) AS p(source, position)"
)


class ServiceRun:
    """`with ServiceRun(dsn, folder) as service:` runs the service on a free port.

    settings: additional environment variables. program: the module that is run.
    """

    def __init__(
        self,
        dsn: str,
        folder: Path,
        settings: Mapping[str, str] | None = None,
        program: str = "service.cli.main",
    ) -> None:
        self._program = program
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self._environment = {
            **os.environ,
            "TIDEMARK_SOURCE": dsn,
            "TIDEMARK_STATE": str(folder / "state"),
            "TIDEMARK_PORT": str(port),
            "TIDEMARK_LOG_LEVEL": "warning",
            **(settings or {}),
        }
        self._log_path = folder / "service.log"
        self.url = f"http://127.0.0.1:{port}"
        self._client = httpx.Client(base_url=self.url, timeout=BUILD_S)

    def __enter__(self) -> ServiceRun:
        with self._log_path.open("wb") as log:
            self._child = subprocess.Popen(
                [sys.executable, "-m", self._program, "serve"],
                env=self._environment,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline and self._child.poll() is None:
            with contextlib.suppress(httpx.HTTPError):
                self._client.get("/health")
                return self
            time.sleep(0.05)
        self.__exit__()
        raise RuntimeError(f"the service did not start\n{self.log_tail()}")

    def __exit__(self, *_: object) -> None:
        self._client.close()
        self._child.send_signal(signal.SIGTERM)
        try:
            self._child.wait(60)
        except subprocess.TimeoutExpired:
            self._child.kill()

    def create(self, name: str, query: str, engine: str, **options: str | None) -> float:
        """Create a view; return the seconds from POST until it is live. options: of the view."""
        started = time.perf_counter()
        body = {"name": name, "query": query, "options": {"backfill": engine, **options}}
        answer = self._client.post(f"/views?wait_s={BUILD_S:.0f}", json=body)
        elapsed = time.perf_counter() - started
        view = answer.json()
        if answer.status_code != 201 or view["status"] != "live":
            raise RuntimeError(f"view {name} is not live: {answer.text}\n{self.log_tail()}")
        return elapsed

    def declare(self, name: str, kind: str, options: Mapping[str, Any]) -> None:
        """Declare a source."""
        body = {"name": name, "type": kind, "options": dict(options)}
        answer = self._client.post("/sources", json=body)
        if answer.status_code != 201:
            raise RuntimeError(f"source {name} is refused: {answer.text}\n{self.log_tail()}")

    def create_sink(self, view: str, name: str, options: Mapping[str, Any]) -> None:
        """Create a Kafka sink of a view; return once it has begun."""
        body = {"name": name, "options": dict(options)}
        answer = self._client.post(f"/views/{view}/sinks?wait_s=60", json=body)
        if answer.status_code != 201 or answer.json()["status"] != "live":
            raise RuntimeError(f"sink {name} has not begun: {answer.text}\n{self.log_tail()}")

    def view(self, name: str) -> dict[str, Any]:
        """Return REST's description of a view."""
        return self._client.get(f"/views/{name}").json()

    def dataflow(self, name: str) -> list[dict[str, Any]]:
        """Return REST's description of a view's nodes."""
        return self._client.get(f"/views/{name}/dataflow").raise_for_status().json()["nodes"]

    def await_view(self, name: str, position: str, timeout_s: float) -> None:
        """Wait until a view shows a position of the source."""
        path = f"/views/{name}/wait?position={position}&timeout_s={timeout_s:.0f}"
        self._client.get(path).raise_for_status()

    def drop(self, name: str) -> None:
        """Drop a view and wait until it is gone."""
        self._client.delete(f"/views/{name}").raise_for_status()

    def pipeline_rss_mb(self) -> float:
        """Return the peak memory of the pipeline's process so far."""
        pipeline = self._pipeline()
        return peak_rss_mb(pipeline.pid) if pipeline else 0.0

    def pipeline_pid(self) -> int:
        """Return the pid of the pipeline's process, 0 while there is none."""
        pipeline = self._pipeline()
        return pipeline.pid if pipeline else 0

    def pipeline_cpu_s(self) -> float:
        """Return the CPU seconds of the pipeline's process so far."""
        return self.cpu_s()["pipeline"]

    def cpu_s(self) -> dict[str, float]:
        """Return CPU seconds of "api" and "pipeline" so far."""
        spent = {}
        for name in ("api", "pipeline"):
            found = self._child_called(name)
            times = found.cpu_times() if found else None
            spent[name] = times.user + times.system if times else 0.0
        return spent

    def _pipeline(self) -> psutil.Process | None:
        return self._child_called("pipeline")

    def _child_called(self, name: str) -> psutil.Process | None:
        for child in psutil.Process(self._child.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if title_of(child.cmdline()) == name:
                    return child
        return None

    def log_tail(self) -> str:
        """Return the end of its log."""
        return self._log_path.read_text()[-4000:] if self._log_path.exists() else ""


def await_position(cursor: Any, position: int, timeout_s: float) -> float:
    """Return the time (perf_counter) at which the sink was seen beyond a WAL position."""
    deadline = time.perf_counter() + timeout_s
    while time.perf_counter() < deadline:
        cursor.execute(PROGRESS)
        if cursor.fetchone()[0] > position:
            return time.perf_counter()
        time.sleep(0.002)
    raise RuntimeError(f"the sink did not pass {position} in {timeout_s:.0f} s")
