"""Into how many buckets the state of a distributed view is cut as it grows.

Rule: their number is doubled while the buckets of a level have more than a limit on average, and
while epochs take long and more tasks could run at a time than there are buckets. It never falls, so
each row is moved about once for each doubling of the state. Levels of which every stage is in one
bucket do not count: more buckets would not help them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from connectors.spark.maintained.layout import MAX_BUCKETS, Layout
from connectors.spark.maintained.tasks import Figures
from connectors.spark.stages import Stage

# A bucket is restored at about 100 MB/s where no executor has it.
BUCKET_BYTES = 1 << 30
# Epochs take long if the last of them took so many seconds together.
BUSY_EPOCHS, BUSY_S = 8, 8.0


@dataclass(frozen=True)
class GrowthLimits:
    """When buckets are split.

    bucket_bytes: in the shared storage, on average. least: as many buckets as there are at least.
    busy_s: what the last BUSY_EPOCHS epochs take together, if they take long.
    """

    bucket_bytes: int = BUCKET_BYTES
    least: int = 1
    busy_s: float = BUSY_S


DEFAULT_GROWTH = GrowthLimits()


class Growth:
    """What the last epochs of a view took; only in memory. Used by its driver's thread."""

    def __init__(self, limits: GrowthLimits) -> None:
        self._limits = limits
        self._seconds: list[float] = []

    def add(self, figures: Iterable[Figures]) -> None:
        """Add what the tasks of an epoch took."""
        levels: dict[int, float] = {}
        for one in figures:
            levels[one.level] = max(levels.get(one.level, 0.0), one.seconds)
        self._seconds = [*self._seconds[1 - BUSY_EPOCHS :], sum(levels.values())]

    def forget(self) -> None:
        """Forget the epochs: those that follow are split differently."""
        self._seconds = []

    def buckets(self, layout: Layout, level_bytes: Mapping[int, int], tasks: int) -> int:
        """Return how many buckets a view is to have from now on.

        level_bytes: of its state, by level. tasks: how many can run at a time.
        """
        found = layout.buckets
        split = [at for at, level in enumerate(layout.levels) if _is_split(layout, level)]
        if not split:
            return found
        while found < self._limits.least:
            found *= 2
        largest = max(level_bytes.get(level, 0) for level in split)
        while largest > found * self._limits.bucket_bytes:
            found *= 2
        is_busy = len(self._seconds) == BUSY_EPOCHS and sum(self._seconds) > self._limits.busy_s
        while is_busy and found < tasks:
            found *= 2
        return max(layout.buckets, min(found, MAX_BUCKETS))


def _is_split(layout: Layout, level: Sequence[Stage]) -> bool:
    return any(not layout.is_single(stage) for stage in level)
