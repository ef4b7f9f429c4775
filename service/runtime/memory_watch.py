"""The memory of the process, checked between two steps and held under the limit.

`service.runtime.memory_budget` bounds what is retained, but not what malloc retains of freed
memory: arrays and pages of all sizes leave holes, a hundred megabytes under load. Invariant: while
the process exceeds the threshold, freed memory goes back to the system. If that is not enough, the
page cache shrinks, since all of it is on disk too. A step that cannot do with less fails with a
named error before the kernel would kill the process. What the kernel still grants is the least of
the machine's free memory and that of every control group; the page cache of files counts as free.
"""

from __future__ import annotations

import ctypes
import os
import resource
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from service.runtime.huge_pages import HugePages
from storage.store import Yielding

# The threshold in percent of the limit; the rest is for what one step allocates between two checks.
THRESHOLD_PERCENT = 84
# Between two steps of less than this, a process allocates a few megabytes at most.
INTERVAL_S = 0.002
# Trimming takes milliseconds: do it again only after this much growth.
_STEP_BYTES = 4 << 20
# Reserve for the rest of the process meanwhile.
_LEFT_BYTES = 16 << 20
# Folder of each cgroup version, with its file names for limit and usage.
_CGROUPS = (
    ("memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")),
    ("", ("memory.max", "memory.current")),
)
_FILE_PAGES = ("inactive_file", "active_file")
_NO_LIMIT = 1 << 62


def free_bytes(root: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc")) -> int:
    """Return the bytes that the process may still allocate; where nothing can be read, no limit."""
    return min(_of_machine(proc), *_of_groups(root, proc))


class MemoryWatch:
    """Keep the process under `cap_bytes`.

    resident: returns the resident bytes. give_back: returns free memory to the system. free:
    returns the bytes that the kernel would still grant. interval_s: how soon after a check another
    one has nothing to find.
    """

    def __init__(
        self,
        cap_bytes: int,
        resident: Callable[[], int] | None = None,
        give_back: Callable[[], None] | None = None,
        free: Callable[[], int] = free_bytes,
        *,
        interval_s: float = 0.0,
    ) -> None:
        self._threshold_bytes = cap_bytes * THRESHOLD_PERCENT // 100
        self._resident = resident or resident_reader()
        self._give_back = give_back or _trimmer()
        self._free = free
        self._huge_pages = HugePages()
        self._left_bytes = 0
        self._interval_s = interval_s
        self._next_s = 0.0

    def check(self, cache: Yielding) -> None:
        """Trim freed memory, and shrink the cache, while the process exceeds the threshold."""
        if self._interval_s:
            now = time.monotonic()
            if now < self._next_s:
                return
            self._next_s = now + self._interval_s
        resident = self._resident()
        if resident <= self._threshold_bytes:
            self._huge_pages.follow(resident)
            self._left_bytes = 0
            cache.press(resident - self._threshold_bytes)
            return
        if resident < self._left_bytes + _STEP_BYTES:
            return
        self._give_back()
        excess = self._resident() - self._threshold_bytes
        if excess > 0 and cache.press(excess):
            self._give_back()
        self._left_bytes = self._resident()

    def has_space(self, requested_bytes: int, cache: Yielding) -> bool:
        """Return True if the kernel would grant so many more bytes, after freeing what can be
        freed.
        """
        requested_bytes += _LEFT_BYTES
        if requested_bytes <= self._free():
            return True
        self._give_back()
        if cache.press(requested_bytes - self._free()):
            self._give_back()
        return requested_bytes <= self._free()


@cache
def resident_reader() -> Callable[[], int]:
    """Return a reader of the resident bytes. One open file per process: a read takes 2 us."""
    statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    page_bytes = resource.getpagesize()

    def resident() -> int:
        return int(os.pread(statm, 128, 0).split()[1]) * page_bytes

    return resident


def _trimmer() -> Callable[[], None]:
    """Return glibc's malloc_trim, which frees holes too; elsewhere a function that does nothing."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return (lambda: None) if trim is None else (lambda: trim(0))


def _of_machine(proc: Path) -> int:
    for line in _lines(proc / "meminfo"):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return _NO_LIMIT


def _of_groups(root: Path, proc: Path) -> Iterator[int]:
    yield _NO_LIMIT
    for line in _lines(proc / "self" / "cgroup"):
        _, controllers, path = line.split(":", 2)
        for controller, names in _CGROUPS:
            if controller in controllers.split(","):
                top = root / controller if controller else root
                # A container sees its own group at the top, whatever its name outside.
                for folder in dict.fromkeys([*_up(top, path), top]):
                    yield _of_group(folder, *names)


def _up(top: Path, path: str) -> list[Path]:
    """Return the folder of a group and its parents."""
    group = top / path.strip("/")
    return [group, *(p for p in group.parents if p.is_relative_to(top))]


def _of_group(folder: Path, limit: str, used: str) -> int:
    most, now = ("".join(_lines(folder / name)) for name in (limit, used))
    if not (most.isdigit() and now.isdigit()):
        return _NO_LIMIT
    stat = dict(line.split() for line in _lines(folder / "memory.stat"))
    files = sum(int(stat.get(f"total_{name}", stat.get(name, 0))) for name in _FILE_PAGES)
    return int(most) - int(now) + files


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
