"""One figure, `--memory`, cut into what each part of the pipeline process may keep.

Invariant: the shares and the process itself come to the whole; whatever can grow with the size of
a transaction, the rows of a join or the wait for a sink has a share, and spills or stops reading
when that is used up.
"""

from __future__ import annotations

import ctypes
import gc
import resource
from dataclasses import dataclass

MEBIBYTE = 1 << 20
# Interpreter, libraries and compiled loops, measured; and the least that the shares can do with.
BASE_MB = 270
LEAST_MB = 384
# Hundredths of what is left. What is worked on exists more than once: encoded, decoded, added up.
_CACHE, _RUNS, _AHEAD, _WRITE_BUFFER = 32, 12, 5, 5
_QUEUE, _TRANSACTION, _CHUNK = 6, 3, 1.5
_EPOCH, _WAITING = 6, 6

# glibc's malloc: freed memory goes back to the system. Without a bound the threshold from which
# arrays have pages of their own grows with the largest one freed; few arenas, since each keeps
# what its threads have freed. Measured: 40 MB less at the peak, and no time for arrays below.
# By the variable for programs that are started, and the name of mallopt(3) for this process.
_MALLOC = {
    ("MALLOC_ARENA_MAX", -8): 2,
    ("MALLOC_MMAP_THRESHOLD_", -3): 4 << 20,
    ("MALLOC_TRIM_THRESHOLD_", -1): 16 << 20,
}
MALLOC = {variable: str(value) for (variable, _), value in _MALLOC.items()}


def calm_malloc() -> None:
    """Have freed memory given back, here and in what is forked off. To be called before there are
    threads."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for (_, name), value in _MALLOC.items():
            mallopt(name, value)


def allow_files() -> None:
    """Let this process, and what it starts, open as many files as the system lets it: a large state
    has thousands."""
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def calm_collector() -> None:
    """Let Python look for cycles rarely.

    What an epoch makes is freed without that, and one look at all pages in memory takes longer
    than an epoch. To be called once a process has loaded what stays.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


@dataclass(frozen=True)
class MemoryBudget:
    """Bytes by purpose.

    cache: pages of the state. runs: small runs not yet on disk. ahead: pages and parts of the
    open epoch. write_buffer: one of RocksDB's two. queue: what has arrived from the source;
    transaction: of one of them, beyond it goes to a file. chunk: what is decoded at a time.
    epoch: an epoch's output, beyond it goes to disk; also what one step should make. waiting:
    epochs that wait for the sink.
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
        """The shares of so many mebibytes; cache_mb: another size for the page cache.

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
