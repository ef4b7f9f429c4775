"""The clock of views' work: the processor's time of this thread, and its waits for PostgreSQL.

What the machine does for others does not count, so a busy machine takes no view out of its epoch.
Nor does what a first call pays once: compiling a kernel, or loading it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any


class WorkClock:
    """Seconds of one thread's work."""

    def __init__(self) -> None:
        self._waited_s = 0.0
        self._compiling = _compiling()

    def __call__(self) -> float:
        """Return the seconds so far."""
        return time.thread_time() + self._waited_s - self._compiling.seconds()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count all time within, also while this thread sleeps."""
        started, worked = time.perf_counter(), time.thread_time()
        try:
            yield
        finally:
            slept = time.perf_counter() - started - (time.thread_time() - worked)
            self._waited_s += max(0.0, slept)


class _Compiling:
    """Seconds of processor time that each thread has spent in numba's compiler."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}
        self._since: dict[int, list[float]] = {}

    def seconds(self) -> float:
        """Return those of this thread."""
        return self._seconds.get(threading.get_ident(), 0.0)

    def start(self) -> None:
        """Enter the compiler; it may call itself."""
        self._since.setdefault(threading.get_ident(), []).append(time.thread_time())

    def end(self) -> None:
        """Leave it."""
        thread = threading.get_ident()
        started = self._since[thread].pop()
        if not self._since[thread]:
            self._seconds[thread] = self.seconds() + time.thread_time() - started


@cache
def _compiling() -> _Compiling:
    """Return the only one of this process."""
    from numba.core import event

    found = _Compiling()

    class Listener(event.Listener):
        def on_start(self, event: Any) -> None:
            found.start()

        def on_end(self, event: Any) -> None:
            found.end()

    # Held for each kernel that is compiled, or loaded from disk.
    event.register("numba:compiler_lock", Listener())
    return found
