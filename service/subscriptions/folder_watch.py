"""Being told when files in a folder change: Linux's inotify, in an event loop.

Where there is none, `is_told` is False and the caller looks by itself. Invariant: a change after
`add` is told or the caller was told that it has to look.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
from collections.abc import Callable
from pathlib import Path

_MODIFY, _MOVED_TO, _CREATE, _DELETE = 0x2, 0x80, 0x100, 0x200
_EVENTS = _MODIFY | _MOVED_TO | _CREATE | _DELETE
_HEADER = struct.Struct("iIII")
_READ_BYTES = 64 << 10


class FolderWatch:
    """One for an event loop. changed: called with a folder's path, once for all its news."""

    def __init__(self, changed: Callable[[Path], None]) -> None:
        self._changed = changed
        self._folders: dict[int, Path] = {}
        self._libc = ctypes.CDLL(None, use_errno=True)
        has_inotify = hasattr(self._libc, "inotify_init1")
        self._file = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC) if has_inotify else -1
        if self.is_reported:
            asyncio.get_running_loop().add_reader(self._file, self._read)

    @property
    def is_reported(self) -> bool:
        """Whether changes are told at all."""
        return self._file >= 0

    def add(self, folder: Path) -> bool:
        """Tell of this folder from now on; False when the system does not."""
        if not self.is_reported:
            return False
        number = self._libc.inotify_add_watch(self._file, os.fsencode(folder), _EVENTS)
        if number >= 0:
            self._folders[number] = folder
        return number >= 0

    def remove(self, folder: Path) -> None:
        """Tell of it no more."""
        for number in [n for n, found in self._folders.items() if found == folder]:
            self._libc.inotify_rm_watch(self._file, number)
            del self._folders[number]

    def close(self) -> None:
        """Tell of nothing any more."""
        if self.is_reported:
            asyncio.get_running_loop().remove_reader(self._file)
            os.close(self._file)
            self._file = -1

    def _read(self) -> None:
        try:
            raw = os.read(self._file, _READ_BYTES)
        except BlockingIOError:
            return
        told: dict[Path, None] = {}
        at = 0
        while at < len(raw):
            number, _, _, size = _HEADER.unpack_from(raw, at)
            at += _HEADER.size + size
            if number in self._folders:
                told[self._folders[number]] = None
        for folder in told:
            self._changed(folder)
