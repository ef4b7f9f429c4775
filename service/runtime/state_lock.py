"""One service on a state folder: a lock that the supervisor holds as long as it lives.

The file says who has it, for whoever comes second; the lock is the kernel's and goes with the
process, however that ends. (The store below has a lock of its own: this one is asked for before
anything is started or written there.)
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from storage.errors import StorageError

FILE = "lock"


class StateLock:
    """place: where this service runs, for people. StorageError state.locked, which names the one
    that has it."""

    def __init__(self, folder: Path, place: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = os.open(folder / FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(self._file, 1000).decode(errors="replace").strip()
            os.close(self._file)
            raise StorageError(
                "state.locked",
                f'"{folder}" is in use by the service of {holder or "an unknown process"}',
                "stop that one, or give this one another --state",
            ) from None
        os.ftruncate(self._file, 0)
        os.write(self._file, f"{place}\n".encode())

    def close(self) -> None:
        """Let the next one have it."""
        os.close(self._file)
