"""What the pipeline needs of its machine: time, threads, waiting, fsync.

Invariant: everything that decides what the pipeline does, and in which order, goes through this
module. So the same code runs under another runtime, in one thread and in simulated time
(docs/contributing/SIMULATION.md).
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from service.runtime.work_clock import WorkClock
from storage import clock

# Linux's boot id, new at each start (random(4)).
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class Thread(Protocol):
    """The part of threading.Thread that we use."""

    def start(self) -> None:
        """Start running."""
        ...

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end, at most `timeout` seconds."""
        ...

    def is_alive(self) -> bool:
        """Return True while it runs."""
        ...


class Event(Protocol):
    """The part of threading.Event that we use."""

    def set(self) -> None:
        """Set it and wake all waiting threads."""
        ...

    def clear(self) -> None:
        """Reset it to not set."""
        ...

    def is_set(self) -> bool:
        """Return True if it is set."""
        ...

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, at most `timeout` seconds; return whether it is."""
        ...


class Condition(Protocol):
    """The part of threading.Condition that we use."""

    def __enter__(self) -> Any: ...

    def __exit__(self, kind: Any, error: Any, trace: Any, /) -> Any: ...

    def wait(self, timeout: float | None = None) -> bool:
        """Release the lock and sleep until notified, at most `timeout` seconds."""
        ...

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        """Wait until the predicate holds, at most `timeout` seconds; return its last value."""
        ...

    def notify_all(self) -> None:
        """Wake all waiting threads."""
        ...


class Runtime:
    """The real machine."""

    def monotonic(self) -> float:
        """Return the seconds of a clock that never goes back."""
        return time.monotonic()

    def time(self) -> float:
        """Return the Unix time."""
        return clock.wall()

    def sleep(self, seconds: float) -> None:
        """Block this thread."""
        time.sleep(seconds)

    def thread(self, run: Callable[[], None], name: str) -> Thread:
        """Return a thread, not started, that does not keep the process alive."""
        return threading.Thread(target=run, name=name, daemon=True)

    def event(self) -> Event:
        """Return a new event, not set."""
        return threading.Event()

    def condition(self) -> Condition:
        """Return a new condition with its own reentrant lock."""
        return threading.Condition()

    def boot(self) -> str:
        """Return an identifier that changes with each start of the machine."""
        return _BOOT.read_text().strip()

    def force(self, file: int) -> None:
        """Fsync an open file."""
        os.fsync(file)

    def draw(self, low: float, high: float) -> float:
        """Return a random number in between, for jitter."""
        return random.uniform(low, high)

    def work_clock(self) -> WorkClock:
        """Return a clock of the work of the thread that reads it."""
        return WorkClock()

    def begin(self, run: Callable[[], None], name: str) -> Thread:
        """Start a thread and return it."""
        made = self.thread(run, name)
        made.start()
        return made


RUNTIME = Runtime()
