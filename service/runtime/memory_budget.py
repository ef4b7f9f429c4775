"""The `--memory` limit, divided among the parts of the pipeline process.

Invariant: the shares plus the process itself add up to the limit. Everything that can grow with the
size of a transaction, the rows of a join or the wait for a sink has a share. When its share is used
up, it spills to disk or stops reading.
"""

from __future__ import annotations

import ctypes
import gc
import resource
from dataclasses import dataclass

MEBIBYTE = 1 << 20
# Interpreter, libraries and compiled loops, measured; and the smallest limit that works.
BASE_MB = 270
LEAST_MB = 384
# Percent of the rest. Data in progress exists several times: encoded, decoded, consolidated.
_CACHE, _RUNS, _AHEAD, _WRITE_BUFFER = 32, 12, 5, 5
_QUEUE, _TRANSACTION, _CHUNK = 6, 3, 1.5
_EPOCH, _WAITING = 6, 6

# glibc's malloc: return freed memory to the system. Unbounded, the mmap threshold grows with the
# largest array freed. Few arenas, since each retains what its threads freed. Measured: 40 MB less
# at the peak, and no time lost on smaller arrays. Keys: the environment variable for started
# programs, and the parameter of mallopt(3) for this process.
_MALLOC = {
    ("MALLOC_ARENA_MAX", -8): 2,
    ("MALLOC_MMAP_THRESHOLD_", -3): 4 << 20,
    ("MALLOC_TRIM_THRESHOLD_", -1): 16 << 20,
}
MALLOC = {variable: str(value) for (variable, _), value in _MALLOC.items()}


def calm_malloc() -> None:
    """Make malloc return freed memory, here and in forked children; call before threads start."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for (_, name), value in _MALLOC.items():
            mallopt(name, value)


def allow_files() -> None:
    """Raise the open file limit to the system's maximum, here and in children: a large state has
    thousands of files.
    """
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def calm_collector() -> None:
    """Make Python's cycle collector run rarely.

    An epoch's objects are freed without it, and one collection over all pages in memory takes
    longer than an epoch. Call once the process has loaded its long-lived objects.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


@dataclass(frozen=True)
class MemoryBudget:
    """Bytes by purpose.

    - cache: pages of the state
    - runs: small runs not yet on disk
    - ahead: pages and parts of the open epoch
    - write_buffer: one of RocksDB's two
    - queue: changes received from the source
    - transaction: one source transaction; a larger one spills to a file
    - chunk: how much is decoded at a time
    - epoch: an epoch's output, beyond which it spills to disk; also the target size of one step
    - waiting: epochs that wait for the sink
    """

    cache: int
    runs: int
    ahead: int
    write_buffer: int
    queue: int
    transaction: int
    chunk: int
    epoch: int
    waiting: int

    @staticmethod
    def of(memory_mb: int, cache_mb: int | None = None) -> MemoryBudget:
        """Return the shares of `memory_mb` mebibytes; cache_mb overrides the page cache's share.

        >>> MemoryBudget.of(1024).cache >> 20
        241
        >>> MemoryBudget.of(1024, cache_mb=64).cache >> 20
        64
        """
        percent = max(memory_mb - BASE_MB, LEAST_MB - BASE_MB) * MEBIBYTE / 100
        return MemoryBudget(
            cache=int(_CACHE * percent) if cache_mb is None else cache_mb * MEBIBYTE,
            runs=int(_RUNS * percent),
            ahead=int(_AHEAD * percent),
            write_buffer=int(_WRITE_BUFFER * percent),
            queue=int(_QUEUE * percent),
            transaction=int(_TRANSACTION * percent),
            chunk=int(_CHUNK * percent),
            epoch=int(_EPOCH * percent),
            waiting=int(_WAITING * percent),
        )
