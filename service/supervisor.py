"""The parent of the service: keeps one API process and a pipeline process a group running.

Either may die at any moment (kill -9 included) and comes back after a pause that doubles up to a
limit; a process that stayed up for a while starts over with the shortest pause. A group's process
that ends with 0 has nothing left to do. The supervisor holds no state; of the catalog it reads
which groups there are, and nothing waits for that.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

from connectors.postgres.control import Control
from service.budget import MALLOC
from service.groups import GroupWatch
from service.log import log
from service.settings import Settings

PAUSE_S = (0.2, 15.0)
HEALTHY_S = 5.0
STOP_S = 15.0


@dataclass
class Child:
    """One supervised process."""

    name: str
    module: str
    group: str = ""
    process: subprocess.Popen | None = None
    started_at: float = 0.0
    pause_s: float = PAUSE_S[0]
    start_at: float = 0.0


class Supervisor:
    """Runs until SIGTERM or SIGINT, then stops its children and returns."""

    def __init__(self, settings: Settings) -> None:
        self._environment = {**MALLOC, **os.environ, **settings.to_environment()}
        self._is_stopping = False
        self.children = [Child("pipeline", "service.run_pipeline"), Child("api", "service.run_api")]
        self._groups = GroupWatch(Control(settings.sink), settings.state)

    def run(self) -> None:
        """Start what is wanted, watch it, restart what ends."""
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)
        try:
            while not self._is_stopping:
                self._add_groups()
                for child in list(self.children):
                    self._watch(child)
                time.sleep(0.05)
        finally:
            self._stop_children()
            self._groups.close()

    def _on_signal(self, *_: object) -> None:
        self._is_stopping = True

    def _add_groups(self) -> None:
        running = {child.group for child in self.children}
        for group in sorted(self._groups.wanted - running):
            self.children.append(Child(f"pipeline {group}", "service.run_pipeline", group))

    def _watch(self, child: Child) -> None:
        now = time.monotonic()
        if child.process is not None:
            code = child.process.poll()
            if code is None:
                return
            if child.group and code == 0:
                log.info("process.done", name=child.name)
                self.children.remove(child)
                return
            if now - child.started_at > HEALTHY_S:
                child.pause_s = PAUSE_S[0]
            log.warning("process.ended", name=child.name, code=code, pause_s=child.pause_s)
            child.process = None
            child.start_at = now + child.pause_s
            child.pause_s = min(child.pause_s * 2, PAUSE_S[1])
        elif now >= child.start_at:
            command = [sys.executable, "-m", child.module, *child.group.split()]
            child.process = subprocess.Popen(command, env=self._environment)
            child.started_at = now
            log.info("process.started", name=child.name, pid=child.process.pid)

    def _stop_children(self) -> None:
        running = [c.process for c in self.children if c.process is not None]
        for process in running:
            process.terminate()
        deadline = time.monotonic() + STOP_S
        for process in running:
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                log.warning("process.killed", pid=process.pid)
                process.kill()
                process.wait()
