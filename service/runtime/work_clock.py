"""The clock of views' work: the processor's time of this thread, and its waits for PostgreSQL.

What the machine does for others does not count, so a busy machine takes no view out of its epoch.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class WorkClock:
    """Seconds of one thread's work."""

    def __init__(self) -> None:
        self._waited_s = 0.0

    def __call__(self) -> float:
        """Return the seconds so far."""
        return time.thread_time() + self._waited_s

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count all time within, also while this thread sleeps."""
        started, worked = time.perf_counter(), time.thread_time()
        try:
            yield
        finally:
            slept = time.perf_counter() - started - (time.thread_time() - worked)
            self._waited_s += max(0.0, slept)
