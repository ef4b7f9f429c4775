"""The rounds of a loop that are still to be resolved in this step.

Invariant: they are taken in increasing order, each once, however often they were added.
"""

from __future__ import annotations

import heapq


class RoundQueue:
    """Rounds by number. Only a round after the last one taken may be added."""

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._waiting: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._numbers)

    def add(self, number: int) -> None:
        """Add a round."""
        if number not in self._waiting:
            self._waiting.add(number)
            heapq.heappush(self._numbers, number)

    def pop(self) -> int:
        """Remove and return the lowest round."""
        number = heapq.heappop(self._numbers)
        self._waiting.remove(number)
        return number
