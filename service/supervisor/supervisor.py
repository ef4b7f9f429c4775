"""The parent process: keep one API process and one pipeline process per group running.

Invariant: a child may die at any moment (kill -9 included) and is restarted after a backoff. The
backoff doubles while a child dies before it reports progress (readiness pipe); progress, or a long
run, resets it. A group's process that exits with 0 is done. One that exits with FINAL needs human
action: it is not restarted, and `/health` has the reason.

The supervisor has no state. A child reads the catalog and reports the groups; nothing waits for it.
Children are forked, so their modules are imported once, here.
"""

from __future__ import annotations

import gc
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from service.metrics.metrics import SUPERVISOR_FILE
from service.runtime.forking import Forked
from service.runtime.log import log
from service.runtime.memory_budget import MALLOC, allow_files, calm_malloc
from service.runtime.private_files import replace_file
from service.runtime.readiness_pipe import ReadinessPipe
from service.runtime.restart_policy import Restarts
from service.runtime.settings import Settings
from service.runtime.signals import SIGNALLED
from service.supervisor import run_pipeline
from service.views.groups import GroupWatch
from storage import clock
from storage.failpoints import failpoint

# The children exit by themselves within `signals.STOP_S`.
STOP_S = 4.5


@dataclass
class Child:
    """One supervised process. main: its entry point. group: of its pipeline, "" for others. keep:
    file descriptors that it inherits."""

    name: str
    main: Callable[[], int]
    group: str = ""
    keep: tuple[int, ...] = ()
    process: Forked | None = None
    restarts: Restarts = field(default_factory=Restarts)
    readiness: ReadinessPipe | None = None


class Supervisor:
    """Runs until SIGTERM or SIGINT, then stops its children; a second one kills them."""

    def __init__(self, settings: Settings) -> None:
        self._environment = {**MALLOC, **settings.child_environment()}
        self._state = settings.state
        self._signals: list[int] = []
        self._groups = GroupWatch(settings.state)
        watch_groups = partial(self._groups.watch, settings)
        self.children = [
            Child("pipeline", run_pipeline.main),
            Child("api", _run_api),
            Child("groups", watch_groups, keep=(self._groups.descriptor,)),
        ]

    def run(self) -> int:
        """Start, watch and restart the children until a signal; return the exit code."""
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)
        calm_malloc()
        allow_files()
        # The collector no longer visits existing objects, so their pages stay shared after a fork.
        gc.freeze()
        try:
            self._report()
            while not self._signals:
                self._add_groups()
                for child in list(self.children):
                    self._watch(child)
                time.sleep(0.05)
        finally:
            self._stop_children()
        log.info("service.stopped")
        return 0 if len(self._signals) < 2 else SIGNALLED + self._signals[1]

    def _on_signal(self, number: int, _: object) -> None:
        self._signals.append(number)

    def _add_groups(self) -> None:
        running = {child.group for child in self.children}
        for group in sorted(self._groups.desired - running):
            main, restarts = partial(run_pipeline.main, group), Restarts(is_group=True)
            self.children.append(Child(f"pipeline {group}", main, group, restarts=restarts))

    def _watch(self, child: Child) -> None:
        now = time.monotonic()
        if child.process is not None:
            code = child.process.poll()
            if code is not None:
                self._ended(child, code, now)
        elif child.restarts.is_due(now):
            self._start(child, now)

    def _start(self, child: Child, now: float) -> None:
        readiness = child.readiness = ReadinessPipe()
        environment = readiness.child_environment(self._environment)
        child.process = Forked(child.main, environment, (readiness.descriptor, *child.keep))
        readiness.started()
        child.restarts.started(now)
        log.info("process.started", name=child.name, child=child.process.pid)
        self._report()

    def _ended(self, child: Child, code: int, now: float) -> None:
        child.process = None
        has_progressed = child.readiness is not None and child.readiness.ended()
        found = child.restarts.ended(code, now, has_progressed=has_progressed)
        if found == "done":
            log.info("process.done", name=child.name)
            self.children.remove(child)
        elif found == "not restarted":
            log.error("process.not_restarted", name=child.name, code=code)
        else:
            pause_s = round(child.restarts.start_at - now, 3)
            log.warning("process.ended", name=child.name, code=code, pause_s=pause_s)
            if child.restarts.is_crash_looping:
                times = child.restarts.in_a_row
                log.error("process.crash_loop", name=child.name, code=code, times=times)
        self._report()
        if found == "again":
            failpoint("supervisor.child.ended")

    def _report(self) -> None:
        """Write the children's facts, for the metrics and the API's status decisions."""
        facts = {
            "restarts": {child.name: child.restarts.count for child in self.children},
            "processes": {child.name: child.restarts.facts() for child in self.children},
            "at": clock.wall(),
        }
        try:
            self._state.mkdir(parents=True, exist_ok=True)
            replace_file(self._state / SUPERVISOR_FILE, facts)
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


def _run_api() -> int:
    # Imported after the fork, so that the other children do not hold these modules.
    from service.supervisor import run_api

    return run_api.main()
