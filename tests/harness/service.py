"""The real service as a child of a test: `tidemark serve` on a free port, and its REST calls."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import httpx
import psutil

from connectors.loopback import free_port
from storage.process_title import title_of
from tests.harness.leash import Leash
from tests.harness.postgres import one_session
from tests.harness.verdicts import LeakError, require_no_crash
from tests.harness.warm import WarmProcess, can_be_warm, warm_parent

READY_S = 300.0


class RunningService:
    """`with RunningService(dsn, folder) as service:`; kills leave the supervisor alone.

    It ends with the process that has started it, however that ends.
    """

    def __init__(self, source: str, folder: Path, sink: str = "", **settings: object) -> None:
        self._folder = folder
        self._folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.state = folder / "state"
        self.log_path = folder / "service.log"
        self._environment = {
            **os.environ,
            "TIDEMARK_SOURCE": source,
            "TIDEMARK_SINK": sink,
            "TIDEMARK_STATE": str(self.state),
            "TIDEMARK_PORT": str(self.port),
            **{f"TIDEMARK_{k.upper()}": str(v) for k, v in settings.items()},
        }
        # What takes memory away is started by hand, with no module that it does not import.
        self._is_warm = "memory" not in settings
        self._process: subprocess.Popen | WarmProcess | None = None
        self._leash: Leash | None = None
        # Without a TLS context, which takes 20 ms to make.
        self._client = httpx.Client(base_url=self.url, timeout=120, verify=False)

    def __enter__(self) -> RunningService:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._client.close()

    def set_variable(self, name: str, value: str) -> None:
        """A variable of its environment, from the next start on."""
        self._environment[name] = value

    def start(self) -> None:
        """Start and wait until REST answers."""
        with self.log_path.open("ab") as log:
            self._process = self._started(log)
        self._leash = Leash(self._process.pid)
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline and self._process.poll() is None:
            with contextlib.suppress(httpx.HTTPError):
                self._client.get("/health")
                return
            time.sleep(0.05)
        self.stop()
        raise AssertionError(f"the service did not start\n{self.log_tail()}")

    def _started(self, log: BinaryIO) -> subprocess.Popen | WarmProcess:
        if self._is_warm and can_be_warm(self._environment):
            return warm_parent().start(self._environment, log.fileno())
        return subprocess.Popen(
            [sys.executable, "-m", "service.cli.main", "serve"],
            env=self._environment,
            # Whatever that of the machine is: what a service writes does not depend on it.
            umask=0o022,
            stderr=log,
            stdin=subprocess.DEVNULL,
        )

    def stop(self) -> int:
        """SIGTERM; the exit code. Whatever of it is left after that fails the test."""
        if self._process is None:
            return 0
        family = self._family()
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(60)
        finally:
            self._process.kill()
            self._forget()
        _, alive = psutil.wait_procs(family, timeout=10)
        for left in alive:
            left.kill()
        _require_gone(alive)
        require_no_crash(self.events())
        return code

    def kill(self) -> None:
        """kill -9 of the supervisor; the children follow it by themselves."""
        assert self._process is not None
        family = self._family()
        self._process.kill()
        self._process.wait()
        self._forget()
        # A JVM that is just being started sees the end of its parent when it is there.
        _, alive = psutil.wait_procs(family, timeout=60)
        _require_gone(alive)

    def await_end(self, timeout_s: float = 60) -> None:
        """Until the supervisor, and with it its children, has ended by itself."""
        assert self._process is not None
        family = self._family()
        self._process.wait(timeout_s)
        self._forget()
        _, alive = psutil.wait_procs(family, timeout=timeout_s)
        _require_gone(alive)

    def _forget(self) -> None:
        self._process = None
        if self._leash is not None:
            self._leash.let_go()
            self._leash = None

    @property
    def pid(self) -> int | None:
        """The supervisor's."""
        return None if self._process is None else self._process.pid

    @property
    def environment(self) -> dict[str, str]:
        """What it is started with."""
        return dict(self._environment)

    def kill_child(self, name: str) -> bool:
        """kill -9 of "pipeline", "api" or "backfill" (a process that the pipeline has spawned);
        False when it was not running just then."""
        for child in self._family():
            with contextlib.suppress(psutil.Error):
                if is_named(name, child.cmdline()):
                    child.kill()
                    return True
        return False

    def pid_of(self, name: str) -> int | None:
        """Return the pid of "pipeline" or "api"."""
        for child in self._family():
            with contextlib.suppress(psutil.Error):
                if is_named(name, child.cmdline()):
                    return child.pid
        return None

    def log_tail(self, size: int = 6000) -> str:
        """The end of its log."""
        return self.log_path.read_text()[-size:] if self.log_path.exists() else ""

    def events(self) -> list[dict[str, Any]]:
        """What it has logged, line by line; what is not of the log is left out."""
        lines = self.log_path.read_text().splitlines() if self.log_path.exists() else []
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    # --- REST --------------------------------------------------------------------------------

    @property
    def client(self) -> httpx.Client:
        """For many requests: a client for each of them reads all certificates of the machine."""
        return self._client

    def call(
        self, method: str, path: str, body: Any = None, timeout_s: float = 120
    ) -> httpx.Response:
        """One request; tried again while the API process is being restarted."""
        deadline = time.monotonic() + 90
        while True:
            try:
                return self._client.request(method, path, json=body, timeout=timeout_s)
            except httpx.TransportError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def create(self, name: str, query: str, wait_s: float = 60, **options: str) -> dict[str, Any]:
        """Create a view and wait until it is live."""
        body = {"name": name, "query": query, "options": options}
        answer = self.call("POST", f"/views?wait_s={wait_s}", body, max(120, wait_s + 60))
        assert answer.status_code == 201, answer.text
        view = answer.json()
        if wait_s and (view["error"] or {}).get("code") == "pipeline.restarting":
            # Tests before this one have ended the pipeline often: views are degraded for a minute.
            view = self.await_status(name, timeout_s=120)
        if wait_s:
            assert view["status"] == "live", f"{view}\n{self.log_tail()}"
        return view

    def await_status(self, name: str, status: str = "live", timeout_s: float = 60) -> dict:
        """Wait until a view has a status."""
        deadline = time.monotonic() + timeout_s
        while True:
            view = self.call("GET", f"/views/{name}").json()
            if view.get("status") == status:
                return view
            assert time.monotonic() < deadline, f"{view}\n{self.log_tail()}"
            time.sleep(0.05)

    def await_so(self, is_so: Callable[[], object], within_s: float = 60) -> float:
        """Wait until it is so; how many seconds that took."""
        started = time.monotonic()
        with one_session():
            while not is_so():
                assert time.monotonic() - started < within_s, self.log_tail()
                time.sleep(0.05)
        return time.monotonic() - started

    def drop(self, name: str) -> None:
        """Drop a view and wait until nothing of it is left."""
        answer = self.call("DELETE", f"/views/{name}")
        assert answer.status_code == 204, answer.text

    def clear(self) -> None:
        """Drop all views and sources, for a test that comes after this one."""
        while views := self.call("GET", "/views").json()["views"]:
            for view in views:
                # What others read goes after them.
                self.call("DELETE", f'/views/"{view["schema"]}"."{view["name"]}"')
        for source in self.call("GET", "/sources").json()["sources"]:
            answer = self.call("DELETE", f"/sources/{source['name']}")
            assert answer.status_code == 204, answer.text

    def wait(self, name: str, position: str, timeout_s: float = 60) -> str:
        """Wait until the position is visible; the position reached."""
        deadline = time.monotonic() + timeout_s
        while True:
            piece_s = min(30.0, max(0.0, deadline - time.monotonic()))
            path = f"/views/{name}/wait?position={position}&timeout_s={piece_s}"
            answer = self.call("GET", path)
            if answer.status_code != 504 or time.monotonic() > deadline:
                assert answer.status_code == 200, f"{answer.text}\n{self.log_tail()}"
                return answer.json()["position"]

    def cpu_s(self) -> float:
        """The CPU seconds of its processes so far, with those of children that have ended."""
        found = 0.0
        for process in self._family():
            with contextlib.suppress(psutil.Error):
                found += sum(process.cpu_times()[:4])
        return found

    def processes(self) -> list[psutil.Process]:
        """Return the supervisor and all that it has started."""
        return self._family()

    def _family(self) -> list[psutil.Process]:
        if self._process is None:
            return []
        with contextlib.suppress(psutil.NoSuchProcess):
            parent = psutil.Process(self._process.pid)
            return [parent, *parent.children(recursive=True)]
        return []


def _require_gone(alive: Sequence[psutil.Process]) -> None:
    if alive:
        raise LeakError(f"left behind: {alive}")


def is_named(name: str, command: list[str]) -> bool:
    """Whether a command line is that of a process of the service."""
    return title_of(command).split()[:1] == [name]
