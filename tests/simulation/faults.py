"""What goes wrong, and when: drawn from the seed at each step that a crash may come before.

A plan says how likely each kind is. The draws are made in any case, so that a run with fewer
faults goes the same way up to the first one that is left out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any
from zlib import crc32

from greenlet import getcurrent

from connectors.sink import SinkEpoch
from tests.simulation.fibers import Killed, Loop, Process

TRACE = 2_000


class Violation(AssertionError):
    """The product violated a guarantee."""


@dataclass
class Plan:
    """How likely each fault is, at each occasion; crash: of a process, machine: share of crashes
    that take the machine with them."""

    crash: float = 0.0
    machine: float = 0.5
    odds: dict[str, float] = field(default_factory=dict)

    @staticmethod
    def drawn(random: Random) -> Plan:
        """Some kinds often, some never: each seed has its own weather."""
        kinds = ("sink.error", "sink.answer_lost", "sink.unknown", "sink.stall", "source.lost")
        kinds += ("source.error",)
        levels = {
            "sink.error": (0, 0.01, 0.08),
            "sink.answer_lost": (0, 0.01, 0.06),
            "sink.unknown": (0, 0.02, 0.1),
            "sink.stall": (0, 0.02, 0.1),
            "source.lost": (0, 0.003, 0.02),
            "source.error": (0, 0.01, 0.06),
        }
        odds = {kind: random.choice(levels[kind]) for kind in kinds}
        return Plan(random.choice((0, 0.001, 0.004, 0.012)), random.choice((0.1, 0.5, 1.0)), odds)


@dataclass(frozen=True)
class Late:
    """What the server has of a lost session (its holder) and commits at some time."""

    at: float
    epoch: SinkEpoch
    session: object


class Faults:
    """One for a run. most: how many faults there may be, for making a failure small; streams: the
    random numbers of kinds that have their own."""

    def __init__(self, loop: Loop, random: Random, plan: Plan, most: int | None = None) -> None:
        self.random = random
        self.count = 0
        self.steps = 0
        self.is_calm = False
        self.counts: dict[str, int] = {}
        self.lines: deque[str] = deque(maxlen=TRACE)
        self.late: list[Late] = []
        self.streams: dict[str, Random] = {}
        self._loop = loop
        self.plan = plan
        self._most = most
        self._sent: dict[Process, tuple[SinkEpoch, object]] = {}
        self.on_crash: Callable[[Process, bool], None] = lambda process, is_machine: None
        self.digest = 0

    def step(self, name: str) -> None:
        """A moment: the process may die here, and others may continue."""
        fiber = getcurrent()
        self._loop.require_alive(fiber)
        self.steps += 1
        process = getattr(fiber, "process", None)
        draw = self.random.random()
        may_die = process is not None and not process.is_steady
        if process is not None and may_die and draw < self.plan.crash and self.is_allowed("crash"):
            is_machine = self.random.random() < self.plan.machine
            self.kill(process, is_machine=is_machine, where=name)
            raise Killed
        self._loop.pause(self.random.choice((0.0, 0.0, 0.001, 0.004)))

    def kill(self, process: Process, *, is_machine: bool, where: str) -> None:
        """kill -9 of a process, or power off."""
        self.trace("machine crash" if is_machine else "kill", f"{process.pid} at {where}")
        process.is_dead = True
        process.code = -9
        sent = self._sent.pop(process, None)
        if sent is not None and self.random.random() < 0.5:
            self.send_late(*sent)
        self.on_crash(process, is_machine)

    def happens(self, kind: str) -> bool:
        """Whether a fault of this kind comes now."""
        random = self.streams.get(kind, self.random)
        return random.random() < self.plan.odds.get(kind, 0) and self.is_allowed(kind)

    def is_allowed(self, kind: str) -> bool:
        """Whether there may be one more fault, of this kind; it is counted."""
        if self.is_calm or (self._most is not None and self.count >= self._most):
            return False
        self.count += 1
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if kind != "crash":
            self.trace("fault", kind)
        return True

    def own_commit(self, epoch: SinkEpoch | None, session: object) -> None:
        """What the running process has sent and not heard of."""
        process: Any = getattr(getcurrent(), "process", None)
        self._sent.pop(process, None)
        if epoch is not None:
            self._sent[process] = epoch, session

    def send_late(self, epoch: SinkEpoch, session: object) -> None:
        """The server has it, and makes the commit when it comes to it."""
        at = self._loop.now + self.random.choice((0.0, 0.05, 0.3, 2.0))
        self.late.append(Late(at, epoch, session))

    def end_lost(self, is_ended: Callable[[object], bool]) -> None:
        """The server ends what it has of lost sessions: nothing of them is committed from here."""
        for late in self.late:
            if is_ended(late.session):
                self.trace("never shown", f"epoch {late.epoch.progress.epoch}")
        self.late = [late for late in self.late if not is_ended(late.session)]

    def pause(self, seconds: float, ready: Callable[[], bool] | None = None) -> None:
        """Wait, without a fault."""
        self._loop.pause(seconds, ready)

    @property
    def now(self) -> float:
        """What time it is."""
        return self._loop.now

    def trace(self, what: str, detail: str) -> None:
        """A line for who reads how it came to this."""
        line = f"{self._loop.now - 1_000_000:9.3f}  {what:14s} {detail}"
        self.lines.append(line)
        self.digest = crc32(line.encode(), self.digest)
