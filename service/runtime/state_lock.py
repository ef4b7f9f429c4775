"""One service per state directory: a lock that the supervisor holds as long as it lives.

The file names the holder for whoever comes second. The lock is the kernel's and ends with the
process, however that ends. The store has its own lock; this one is taken before anything is started
or written there.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from storage.errors import StorageError

FILE = "lock"


def require_free(folder: Path) -> None:
    """Require that nobody holds the lock of a folder; nothing is written. StorageError
    state.locked.
    """
    try:
        file = os.open(folder / FILE, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        _lock(file, folder)
    finally:
        os.close(file)


class StateLock:
    """Take the lock, or raise StorageError state.locked, which names the holder.

    location: where this service runs, for the message.
    """

    def __init__(self, folder: Path, location: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = os.open(folder / FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _lock(self._file, folder)
        except StorageError:
            os.close(self._file)
            raise
        os.ftruncate(self._file, 0)
        os.write(self._file, f"{location}\n".encode())

    def close(self) -> None:
        """Release the lock."""
        os.close(self._file)


def _lock(file: int, folder: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(file, 1000).decode(errors="replace").strip()
        raise StorageError(
            "state.locked",
            f'"{folder}" is in use by the service of {holder or "an unknown process"}',
            "stop that service, or start this one with another --state directory",
        ) from None
