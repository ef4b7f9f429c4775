"""The last space of a disk, which what comes from outside may not take.

Records of a source and files that buffer them are refused before the disk is full, so that the rest
of the service still has space: it can commit, report and free some. Invariant: whoever buffers on
disk what somebody else sends asks here before each write.
"""

from __future__ import annotations

import errno
import os
import tempfile
import threading
import time
from pathlib import Path

# Of a small disk, a part; of a large one, no more than this.
RESERVE_BYTES, RESERVE_PART = 1 << 30, 0.05
CHECK_S, CHECK_BYTES = 1.0, 8 << 20


class Reserve:
    """Of the disk of a folder; thread-safe. folder: None for the one of temporary files."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._checked_at = float("-inf")
        self._unchecked_bytes = 0
        self._is_short = False

    @property
    def is_short(self) -> bool:
        """Return True if only the reserve is left; it is looked at once a second."""
        with self._lock:
            if time.monotonic() - self._checked_at > CHECK_S:
                self._check()
            return self._is_short

    def take(self, nbytes: int) -> None:
        """Announce a write of so many bytes. OSError ENOSPC if only the reserve is left."""
        with self._lock:
            self._unchecked_bytes += nbytes
            is_due = time.monotonic() - self._checked_at > CHECK_S
            if is_due or self._unchecked_bytes >= CHECK_BYTES:
                self._check()
            if self._is_short:
                why = "No space left on device, except for the reserve"
                raise OSError(errno.ENOSPC, why, str(self._folder or tempfile.gettempdir()))

    def _check(self) -> None:
        self._checked_at, self._unchecked_bytes = time.monotonic(), 0
        try:
            found = os.statvfs(self._folder or tempfile.gettempdir())
        except OSError:
            # Whoever writes there learns of it.
            self._is_short = False
            return
        reserve = min(RESERVE_BYTES, RESERVE_PART * found.f_blocks * found.f_frsize)
        self._is_short = found.f_bavail * found.f_frsize < reserve


TEMPORARY = Reserve()
