"""Notifications of changed files in a folder: Linux's inotify, in an event loop.

Without inotify, `is_reported` is False and the caller must poll. Invariant: every change after
`add` is reported, or `add` has returned False.
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
    """One per event loop. changed: called with a folder's path, once for several changes."""

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
        """Return True if the system reports changes."""
        return self._file >= 0

    def add(self, folder: Path) -> bool:
        """Watch this folder; return False if the system cannot."""
        if not self.is_reported:
            return False
        number = self._libc.inotify_add_watch(self._file, os.fsencode(folder), _EVENTS)
        if number >= 0:
            self._folders[number] = folder
        return number >= 0

    def remove(self, folder: Path) -> None:
        """Stop watching a folder."""
        for number in [n for n, found in self._folders.items() if found == folder]:
            self._libc.inotify_rm_watch(self._file, number)
            del self._folders[number]

    def close(self) -> None:
        """Stop watching all folders."""
        if self.is_reported:
            asyncio.get_running_loop().remove_reader(self._file)
            os.close(self._file)
            self._file = -1

    def _read(self) -> None:
        try:
            raw = os.read(self._file, _READ_BYTES)
        except BlockingIOError:
            return
        changed_folders: dict[Path, None] = {}
        at = 0
        while at < len(raw):
            number, _, _, size = _HEADER.unpack_from(raw, at)
            at += _HEADER.size + size
            if number in self._folders:
                changed_folders[self._folders[number]] = None
        for folder in changed_folders:
            self._changed(folder)
