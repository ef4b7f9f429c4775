"""Exponential backoff: how long to wait before each retry of a failed operation.

It neither measures time nor waits: the caller does, by its own clock. A simulation that supplies
`draw` therefore repeats every pause from its seed. Jitter keeps many clients that lost one server
from reconnecting at once.
"""

from __future__ import annotations

import random
from collections.abc import Callable


class Backoff:
    """Pauses in seconds, each `growth` times the one before, up to `max_s`.

    jitter: the range of the factor that multiplies each pause; none by default. draw: returns a
    number between two others.

    >>> backoff = Backoff(0.1, 0.5)
    >>> [backoff.next_s() for _ in range(4)]
    [0.1, 0.2, 0.4, 0.5]
    >>> backoff.reset()
    >>> backoff.next_s()
    0.1
    >>> Backoff(2.0, 9.0, jitter=(0.5, 1.0), draw=lambda low, high: low).next_s()
    1.0
    """

    def __init__(
        self,
        first_s: float,
        max_s: float,
        *,
        growth: float = 2.0,
        jitter: tuple[float, float] | None = None,
        draw: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._first_s = self._pause_s = first_s
        self._max_s = max_s
        self._growth = growth
        self._jitter = jitter
        self._draw = draw

    def next_s(self) -> float:
        """Return the pause before the next attempt."""
        pause_s = self._pause_s
        self._pause_s = min(pause_s * self._growth, self._max_s)
        return pause_s if self._jitter is None else pause_s * self._draw(*self._jitter)

    def reset(self) -> None:
        """Start with the shortest pause again, after a successful attempt."""
        self._pause_s = self._first_s
