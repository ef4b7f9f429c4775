"""A histogram with fixed bounds, small enough to pass between processes as numbers.

One thread writes. A reader on another thread may see an observation partly counted, never a wrong
bound.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

LATENCY_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class Histogram:
    """Count values up to each bound, plus one count for values beyond the last bound.

    >>> one = Histogram((1.0, 5.0))
    >>> for value in (0.5, 1.0, 3.0, 9.0):
    ...     one.observe(value)
    >>> one.facts()
    {'bounds': [1.0, 5.0], 'counts': [2, 1, 1], 'sum': 13.5}
    >>> buckets(one.facts())
    [('1.0', 2), ('5.0', 3), ('+Inf', 4)]
    """

    def __init__(self, bounds: Sequence[float] = LATENCY_S) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def facts(self) -> dict[str, Any]:
        """Return the bounds, the count of each bucket (not cumulative), and the sum."""
        return {"bounds": list(self._bounds), "counts": list(self._counts), "sum": self._sum}


def buckets(facts: dict[str, Any]) -> list[tuple[str, float]]:
    """Return cumulative (bound, count) pairs, the form that Prometheus expects."""
    names = [*map(str, facts["bounds"]), "+Inf"]
    total, found = 0, []
    for name, count in zip(names, facts["counts"], strict=True):
        total += count
        found.append((name, total))
    return found
