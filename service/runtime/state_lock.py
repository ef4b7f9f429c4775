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


class StateLock:
    """Take the lock, or raise StorageError state.locked, which names the holder.

    location: where this service runs, for the message.
    """

    def __init__(self, folder: Path, location: str) -> None:
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
                "stop that service, or start this one with another --state directory",
            ) from None
        os.ftruncate(self._file, 0)
        os.write(self._file, f"{location}\n".encode())

    def close(self) -> None:
        """Release the lock."""
        os.close(self._file)
