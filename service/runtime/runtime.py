"""What the pipeline asks of the machine it runs on: time, threads, waiting, files forced to disk.

Invariant: nothing that decides what the pipeline does, and in which order, asks the machine but
through here; so the same code runs against another host, in one thread and in a time of its own
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

from storage import clock

# Linux's own, new at each start (random(4)).
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class Thread(Protocol):
    """As threading.Thread, as far as it is used."""

    def start(self) -> None:
        """Begin."""
        ...

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end, at most so many seconds."""
        ...

    def is_alive(self) -> bool:
        """Whether it has begun and not ended."""
        ...


class Event(Protocol):
    """As threading.Event."""

    def set(self) -> None:
        """It has happened."""
        ...

    def clear(self) -> None:
        """It has not happened."""
        ...

    def is_set(self) -> bool:
        """Whether it has happened."""
        ...

    def wait(self, timeout: float | None = None) -> bool:
        """Sleep until it has happened, at most so many seconds; whether it has."""
        ...


class Condition(Protocol):
    """As threading.Condition."""

    def __enter__(self) -> Any: ...

    def __exit__(self, kind: Any, error: Any, trace: Any, /) -> Any: ...

    def wait(self, timeout: float | None = None) -> bool:
        """Let go of the lock and sleep until told, at most so many seconds."""
        ...

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        """Wait until it is so, at most so many seconds; what the predicate says then."""
        ...

    def notify_all(self) -> None:
        """Tell all who wait."""
        ...


class Runtime:
    """The machine as it is."""

    def monotonic(self) -> float:
        """Seconds of a clock that never goes back."""
        return time.monotonic()

    def time(self) -> float:
        """Unix time."""
        return clock.wall()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    def thread(self, run: Callable[[], None], name: str) -> Thread:
        """A thread that does not keep the process alive; not begun."""
        return threading.Thread(target=run, name=name, daemon=True)

    def event(self) -> Event:
        """A new one, which has not happened."""
        return threading.Event()

    def condition(self) -> Condition:
        """A new one, with a lock of its own that its holder may take again."""
        return threading.Condition()

    def boot(self) -> str:
        """Another word each time that the machine starts."""
        return _BOOT.read_text().strip()

    def force(self, file: int) -> None:
        """Wait until what was written to an open file is on disk."""
        os.fsync(file)

    def draw(self, low: float, high: float) -> float:
        """A number in between, for pauses that are not to be all alike."""
        return random.uniform(low, high)

    def begin(self, run: Callable[[], None], name: str) -> Thread:
        """A thread that has begun."""
        made = self.thread(run, name)
        made.start()
        return made


RUNTIME = Runtime()
