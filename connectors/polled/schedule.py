"""When a relation may be polled again, whatever feeds are opened and closed meanwhile.

Invariant: no source is asked before the time that it has named itself, nor more often than its
interval, and one that fails is asked ever less often.
"""

from __future__ import annotations

import threading
import time

from dataflow.errors import TemporaryError, TidemarkError
from storage.backoff import Backoff

FIRST_S, MAX_S = 1.0, 300.0
JITTER = (0.75, 1.25)


class RetryLaterError(TemporaryError):
    """A source cannot answer now. retry_after_s: how long it wants to be left alone."""

    retry_after_s = 0.0


class PollSchedule:
    """Of one relation; used by one thread at a time. interval_s: between two polls."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._backoff = Backoff(FIRST_S, max(MAX_S, interval_s), jitter=JITTER)
        self._lock = threading.Lock()
        self._due_at = 0.0
        self._is_hastened = False
        self._error: TidemarkError | None = None

    def wait_s(self) -> float:
        """Return how long to wait before the next poll."""
        return max(0.0, self._due_at - time.monotonic())

    def check(self) -> None:
        """Raise the error of the last poll again while it is too early for another one."""
        with self._lock:
            if self._error is not None and self.wait_s() > 0:
                raise self._error

    def begin(self) -> None:
        """Note that a poll begins."""
        with self._lock:
            self._is_hastened = False

    def succeeded(self, *, has_more: bool = False) -> None:
        """Note a poll. has_more: the next one need not wait."""
        with self._lock:
            self._backoff.reset()
            self._error = None
            is_due = has_more or self._is_hastened
            self._due_at = time.monotonic() + (0.0 if is_due else self._interval_s)

    def hasten(self) -> None:
        """Let a poll that begins later follow at once, unless the last one has failed."""
        with self._lock:
            self._is_hastened = True
            if self._error is None:
                self._due_at = 0.0

    def failed(self, error: TidemarkError) -> None:
        """Note a failure."""
        pause_s = error.retry_after_s if isinstance(error, RetryLaterError) else 0.0
        with self._lock:
            self._error = error
            self._due_at = time.monotonic() + max(pause_s, self._backoff.next_s())
