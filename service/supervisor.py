"""The parent of the service: keeps one API process and a pipeline process a group running.

Either may die at any moment (kill -9 included) and comes back after a pause that doubles up to a
limit; a process that stayed up for a while starts over with the shortest pause. A group's process
that ends with 0 has nothing left to do, and one that ends with FINAL needs someone: it stays away,
and `/health` says why. The supervisor holds no state; of the catalog it reads which groups there
are, and nothing waits for that.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from dataclasses import dataclass

from connectors.postgres.control import Control
from service.budget import MALLOC
from service.groups import GroupWatch
from service.log import log
from service.metrics import SUPERVISOR_FILE, replace_file
from service.settings import Settings
from service.signals import FINAL, SIGNALLED
from storage.failpoints import failpoint

PAUSE_S = (0.2, 15.0)
HEALTHY_S = 5.0
# The children end by themselves in `signals.STOP_S`.
STOP_S = 4.5


@dataclass
class Child:
    """One supervised process. is_over: it is not to be started again. restarts: how often it has
    come back."""

    name: str
    module: str
    group: str = ""
    process: subprocess.Popen | None = None
    started_at: float = 0.0
    pause_s: float = PAUSE_S[0]
    start_at: float = 0.0
    is_over: bool = False
    restarts: int = 0


class Supervisor:
    """Runs until SIGTERM or SIGINT, then stops its children; a second one kills them."""

    def __init__(self, settings: Settings) -> None:
        self._environment = {**MALLOC, **settings.child_environment()}
        self._state = settings.state
        self._signals: list[int] = []
        self.children = [Child("pipeline", "service.run_pipeline"), Child("api", "service.run_api")]
        self._groups = GroupWatch(Control(settings.sink), settings.state)

    def run(self) -> int:
        """Start what is wanted, watch it, restart what ends; the exit code."""
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)
        try:
            self._tell()
            while not self._signals:
                self._add_groups()
                for child in list(self.children):
                    self._watch(child)
                time.sleep(0.05)
        finally:
            self._stop_children()
            self._groups.close()
        log.info("service.stopped")
        return 0 if len(self._signals) < 2 else SIGNALLED + self._signals[1]

    def _on_signal(self, number: int, _: object) -> None:
        self._signals.append(number)

    def _add_groups(self) -> None:
        running = {child.group for child in self.children}
        for group in sorted(self._groups.wanted - running):
            self.children.append(Child(f"pipeline {group}", "service.run_pipeline", group))

    def _watch(self, child: Child) -> None:
        now = time.monotonic()
        if child.process is not None:
            code = child.process.poll()
            if code is not None:
                self._ended(child, code, now)
        elif now >= child.start_at and not child.is_over:
            command = [sys.executable, "-m", child.module, *child.group.split()]
            child.process = subprocess.Popen(command, env=self._environment)
            child.started_at = now
            log.info("process.started", name=child.name, child=child.process.pid)

    def _ended(self, child: Child, code: int, now: float) -> None:
        child.process = None
        if child.group and code == 0:
            log.info("process.done", name=child.name)
            self.children.remove(child)
            return
        if code == FINAL:
            child.is_over = True
            log.error("process.given_up", name=child.name, code=code)
            return
        if now - child.started_at > HEALTHY_S:
            child.pause_s = PAUSE_S[0]
        log.warning("process.ended", name=child.name, code=code, pause_s=child.pause_s)
        child.start_at = now + child.pause_s
        child.pause_s = min(child.pause_s * 2, PAUSE_S[1])
        child.restarts += 1
        self._tell()
        failpoint("supervisor.child.ended")

    def _tell(self) -> None:
        """For the metrics."""
        restarts = {child.name: child.restarts for child in self.children}
        try:
            self._state.mkdir(parents=True, exist_ok=True)
            replace_file(self._state / SUPERVISOR_FILE, {"restarts": restarts, "at": time.time()})
        except OSError as error:
            log.warning("supervisor.unwritten", why=str(error))

    def _stop_children(self) -> None:
        running = [c.process for c in self.children if c.process is not None]
        for process in running:
            process.terminate()
        deadline = time.monotonic() + STOP_S
        while any(p.poll() is None for p in running):
            if time.monotonic() > deadline or len(self._signals) > 1:
                break
            time.sleep(0.02)
        for process in running:
            if process.poll() is None:
                log.warning("process.killed", child=process.pid)
                process.kill()
                process.wait()
