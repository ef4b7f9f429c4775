"""Threads of a simulated machine: fibers that one loop switches, in a time of their own.

A fiber runs until it waits; then the loop picks another one that could continue, as the seed says.
When none can, time continues to the first moment at which one could. Nothing else switches, so a
seed gives one order of everything.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from random import Random
from typing import Any

from greenlet import getcurrent, greenlet

from service.runtime.runtime import Runtime
from service.runtime.work_clock import WorkClock

FOREVER = float("inf")


class Killed(BaseException):
    """The end of a fiber whose process was killed; it is on its way out and touches nothing."""


class Hang(Exception):
    """Nothing can continue any more, or nothing has come of too many steps."""


class Process:
    """What is killed together. pid: a number for the trace."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.is_dead = False
        # Whether no step of its own is its end.
        self.is_steady = False
        self.code: int | None = None


class Fiber(greenlet):
    """until: when it continues; ready: or as soon as this is so."""

    def __init__(self, loop: Loop, run: Callable[[], None], name: str, process: Process | None):
        super().__init__(self._whole, loop.hub)
        self.name = name
        self.loop = loop
        self.process = process
        self.until = 0.0
        self.ready: Callable[[], bool] | None = None
        self._body = run

    def _whole(self) -> None:
        try:
            self._body()
        except Killed:
            return


class Loop:
    """Switches fibers until it is stopped."""

    def __init__(self, random: Random) -> None:
        self.now = 1_000_000.0
        self.switches = self.boots = 0
        self.fibers: list[Fiber] = []
        self.hub = getcurrent()
        self._random = random
        self._failure: BaseException | None = None

    def start(self, run: Callable[[], None], name: str, process: Process | None = None) -> Fiber:
        """A fiber that begins when the loop comes to it."""
        fiber = Fiber(self, run, name, process)
        self.fibers.append(fiber)
        return fiber

    def pause(self, seconds: float = 0.0, ready: Callable[[], bool] | None = None) -> None:
        """Let others continue, for so long or until ready; Killed where that came in between."""
        fiber = getcurrent()
        assert isinstance(fiber, Fiber), "only fibers wait"
        self.require_alive(fiber)
        fiber.until = self.now + seconds
        fiber.ready = ready
        self.hub.switch()
        self.require_alive(fiber)

    @staticmethod
    def require_alive(fiber: greenlet | None = None) -> None:
        """Killed in a fiber of a process that is dead."""
        fiber = fiber or getcurrent()
        process = getattr(fiber, "process", None)
        if process is not None and process.is_dead:
            raise Killed

    def fail(self, error: BaseException) -> None:
        """The run ends with this error, from any fiber."""
        self._failure = self._failure or error

    def run(self, is_over: Callable[[], bool], max_switches: int) -> None:
        """Until it is over; raises what a fiber has failed with. Hang."""
        while not is_over():
            self._reap()
            fiber = self._next()
            self.switches += 1
            if self.switches > max_switches:
                raise Hang(f"not done after {self.switches} switches")
            fiber.switch()
            if self._failure is not None:
                raise self._failure

    def close(self) -> None:
        """End all fibers where they are."""
        for fiber in self.fibers:
            if fiber.process is None:
                fiber.process = Process(0)
            fiber.process.is_dead = True
        self._reap()

    def _next(self) -> Fiber:
        while True:
            able = [f for f in self.fibers if f.until <= self.now or (f.ready and f.ready())]
            if able:
                return able[0] if len(able) == 1 else self._random.choice(able)
            soonest = min((f.until for f in self.fibers), default=FOREVER)
            if soonest == FOREVER:
                raise Hang("everything waits for everything")
            self.now = soonest

    def _reap(self) -> None:
        """Forget fibers that have ended; those of dead processes end now."""
        for fiber in self.fibers:
            if fiber.process is not None and fiber.process.is_dead and not fiber.dead:
                fiber.parent = getcurrent()
                if fiber:
                    fiber.throw(Killed)
                else:
                    fiber.throw()
        self.fibers = [f for f in self.fibers if not f.dead]


class FiberThread:
    """As service.runtime.runtime.Thread."""

    def __init__(self, loop: Loop, run: Callable[[], None], name: str, process: Process) -> None:
        self._loop = loop
        self._given = (run, name, process)
        self._fiber: Fiber | None = None

    def start(self) -> None:
        self._fiber = self._loop.start(*self._given)

    def join(self, timeout: float | None = None) -> None:
        self._loop.pause(FOREVER if timeout is None else timeout, lambda: not self.is_alive())

    def is_alive(self) -> bool:
        return self._fiber is not None and not self._fiber.dead


class FiberEvent:
    """As service.runtime.runtime.Event."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def clear(self) -> None:
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        if not self._is_set:
            self._loop.pause(FOREVER if timeout is None else timeout, self.is_set)
        return self._is_set


class FiberCondition:
    """As service.runtime.runtime.Condition."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._owner: greenlet | None = None
        self._depth = 0
        self._told = 0

    def __enter__(self) -> None:
        me = getcurrent()
        self._loop.require_alive(me)
        if self._owner not in (None, me):
            self._loop.pause(FOREVER, lambda: self._owner is None)
        self._owner = me
        self._depth += 1

    def __exit__(self, kind: Any, error: Any, trace: Any, /) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = None

    def wait(self, timeout: float | None = None) -> bool:
        reported, depth = self._told, self._depth
        self._owner, self._depth = None, 0
        seconds = FOREVER if timeout is None else timeout
        try:
            self._loop.pause(seconds, lambda: self._told > reported and self._owner is None)
            if self._owner is not None:
                self._loop.pause(FOREVER, lambda: self._owner is None)
        finally:
            self._owner, self._depth = getcurrent(), depth
        return self._told > reported

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        deadline = FOREVER if timeout is None else self._loop.now + timeout
        while not (found := predicate()):
            left = deadline - self._loop.now
            if left <= 0:
                break
            self.wait(left)
        return found

    def notify_all(self) -> None:
        self._told += 1


class SimWorkClock(WorkClock):
    """Work takes no time, or far too long."""

    def __init__(self, is_slow: Callable[[], bool]) -> None:
        super().__init__()
        self._seconds = 0.0
        self._is_slow = is_slow

    def __call__(self) -> float:
        self._seconds += 1000.0 * self._is_slow()
        return self._seconds

    def waiting(self) -> AbstractContextManager[None]:
        return nullcontext()


class FiberHost(Runtime):
    """The machine that one process runs on. forced: called for each file that is forced to disk.

    is_slow: whether what a view does just now takes far too long.
    """

    def __init__(
        self,
        loop: Loop,
        process: Process,
        random: Random,
        forced: Callable[[int], None],
        is_slow: Callable[[], bool] = lambda: False,
    ) -> None:
        self._is_slow = is_slow
        self._loop = loop
        self._process = process
        self._random = random
        self._forced = forced

    def monotonic(self) -> float:
        return self._loop.now

    def time(self) -> float:
        return self._loop.now

    def sleep(self, seconds: float) -> None:
        self._loop.pause(seconds)

    def thread(self, run: Callable[[], None], name: str) -> FiberThread:
        return FiberThread(self._loop, run, name, self._process)

    def event(self) -> FiberEvent:
        return FiberEvent(self._loop)

    def condition(self) -> FiberCondition:
        return FiberCondition(self._loop)

    def work_clock(self) -> SimWorkClock:
        return SimWorkClock(self._is_slow)

    def boot(self) -> str:
        return f"boot {self._loop.boots}"

    def force(self, file: int) -> None:
        self._loop.require_alive()
        self._forced(file)

    def draw(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)
