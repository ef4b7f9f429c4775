"""The rounds of a loop that are still to be settled in this step.

Invariant: they come in increasing order, each once, however often they were asked for.
"""

from __future__ import annotations

import heapq


class RoundQueue:
    """Rounds by number. A round may be added until it has come, and only after the last one."""

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._waiting: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._numbers)

    def add(self, number: int) -> None:
        """Ask for a round."""
        if number not in self._waiting:
            self._waiting.add(number)
            heapq.heappush(self._numbers, number)

    def pop(self) -> int:
        """The lowest round that was asked for."""
        number = heapq.heappop(self._numbers)
        self._waiting.remove(number)
        return number
