"""The time that one exchange may take as a whole.

A timeout of a socket counts from byte to byte, so a server that sends a byte a second is never late
by it. Invariant: an exchange that checks its deadline before each wait ends in time, however slowly
it is answered.
"""

from __future__ import annotations

import time


class LateError(TimeoutError):
    """An exchange has taken longer than it may; an OSError, as the timeouts of sockets are."""


class Deadline:
    """A moment of the monotonic clock. seconds: from now; None for never.

    >>> Deadline(5).remaining_s(2.0)
    2.0
    """

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._at = None if seconds is None else time.monotonic() + seconds

    @property
    def is_over(self) -> bool:
        """Whether the time is over."""
        return self._at is not None and time.monotonic() >= self._at

    def check(self) -> None:
        """LateError: the time is over."""
        if self.is_over:
            raise LateError(f"it took longer than {self._seconds:g} s as a whole")

    def remaining_s(self, most_s: float | None = None) -> float | None:
        """Return how long to wait at most, as a timeout of sockets; None for as long as it takes.

        most_s: of this wait alone. LateError: the time is over.
        """
        self.check()
        if self._at is None:
            return most_s
        # Never zero, which sockets understand as "do not wait".
        left_s = max(0.001, self._at - time.monotonic())
        return left_s if most_s is None else min(left_s, most_s)
