"""Huge pages for a heap that has become large.

A search in a large state waits for memory, and with pages of 4 kB also for the tables that find
them. So a process that holds a large state asks the kernel for huge pages (2 MB) for what its heap
grows by from then on. Invariant: what is in use already stays as it is, so that its holes do not
become resident. Where the C library is not glibc, or the kernel has no such pages, nothing changes.
"""

from __future__ import annotations

import ctypes

# Below this the tables fit into the processor's caches.
LEAST_BYTES = 400 << 20
HUGE_BYTES = 2 << 20
# The heap grows by so much at a time, most of which is advised before it is used.
_GROWTH_BYTES = 64 << 20
_TOP_PAD = -2
_MADV_HUGEPAGE = 14


class HugePages:
    """Follows the end of this process's heap."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._is_there = hasattr(self._libc, "mallopt") and hasattr(self._libc, "sbrk")
        self._end = 0
        self.advised_bytes = 0
        if self._is_there:
            self._libc.sbrk.restype = ctypes.c_void_p
            self._libc.sbrk.argtypes = [ctypes.c_ssize_t]
            self._libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

    def follow(self, resident_bytes: int) -> None:
        """Advise what the heap has grown by since the last call; call between two steps.

        resident_bytes: of the process. A call takes about a microsecond.
        """
        if not self._is_there or resident_bytes < LEAST_BYTES:
            return
        end = int(self._libc.sbrk(0) or 0)
        if not self._end:
            self._libc.mallopt(_TOP_PAD, _GROWTH_BYTES)
            self._end = end
        if end < self._end:
            # The heap gave memory back; what it takes again is new.
            self._end = end
        start = -(-self._end // HUGE_BYTES) * HUGE_BYTES
        size = (end - start) // HUGE_BYTES * HUGE_BYTES
        if size <= 0:
            return
        if self._libc.madvise(start, size, _MADV_HUGEPAGE) == 0:
            self.advised_bytes += size
        else:
            self._is_there = False
        self._end = start + size
