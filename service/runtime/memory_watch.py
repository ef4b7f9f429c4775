"""The memory of the process, looked at between two steps and held under the cap.

The shares of `service.runtime.memory_budget` bound what is kept, not what malloc keeps of what was
freed: arrays
and pages of all sizes leave holes, a hundred megabytes of them under load. Invariant: as long as
the process is beyond the mark, freed memory goes back to the system, and where that is not enough
the page cache, all of which is on disk as well, gives way. What a step cannot do with less is
refused by name before the kernel would end the process for it.
"""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Callable
from functools import cache

from service.runtime.memory_limits import free_bytes
from storage.store import Yielding

# The mark in hundredths of the cap: the rest is for what one step makes between two looks.
MARK = 84
# Giving back takes milliseconds: not again before so much has been added since.
_STEP_BYTES = 4 << 20
# What the rest of the process takes meanwhile.
_LEFT_BYTES = 16 << 20


class MemoryWatch:
    """cap_bytes: what the process may take. resident: bytes that it takes; give_back: returns to
    the system what is free; free: bytes that the kernel would give beyond."""

    def __init__(
        self,
        cap_bytes: int,
        resident: Callable[[], int] | None = None,
        give_back: Callable[[], None] | None = None,
        free: Callable[[], int] = free_bytes,
    ) -> None:
        self._mark_bytes = cap_bytes * MARK // 100
        self._resident = resident or resident_reader()
        self._give_back = give_back or _trimmer()
        self._free = free
        self._left_bytes = 0

    def look(self, cache: Yielding) -> None:
        """Give back what is free, and press the cache, while the process is beyond the mark."""
        resident = self._resident()
        if resident <= self._mark_bytes:
            self._left_bytes = 0
            cache.press(resident - self._mark_bytes)
            return
        if resident < self._left_bytes + _STEP_BYTES:
            return
        self._give_back()
        excess = self._resident() - self._mark_bytes
        if excess > 0 and cache.press(excess):
            self._give_back()
        self._left_bytes = self._resident()

    def has_space(self, wanted_bytes: int, cache: Yielding) -> bool:
        """Whether the kernel would give so many bytes more, having given back what can be."""
        wanted_bytes += _LEFT_BYTES
        if wanted_bytes <= self._free():
            return True
        self._give_back()
        if cache.press(wanted_bytes - self._free()):
            self._give_back()
        return wanted_bytes <= self._free()


@cache
def resident_reader() -> Callable[[], int]:
    """Reads what the kernel counts; the file stays open, one a process: a look takes 2 us."""
    statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    page_bytes = resource.getpagesize()

    def resident() -> int:
        return int(os.pread(statm, 128, 0).split()[1]) * page_bytes

    return resident


def _trimmer() -> Callable[[], None]:
    """glibc's malloc_trim, which gives back holes too; elsewhere nothing can be done."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return (lambda: None) if trim is None else (lambda: trim(0))
