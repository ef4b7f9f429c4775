"""The contract of file locations, and a folder of this machine.

Invariant: an opened file has exactly the version that its listing showed, or reading ends with
`source.file_changed`. A folder that cannot be listed is an error, never an empty folder: otherwise
all its rows would be retracted.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from typing import IO, Protocol

from connectors import netguard
from connectors.files.journal import FileStat
from connectors.files.pattern import Pattern
from dataflow.errors import TemporaryError
from dataflow.types import EPOCH_2000_US
from storage import clock

_FOLDER, _FILE, _LOOP = "folder", "file", "loop"
_OUTSIDE = "after following links, it is outside the folders that may be read"


class Folder(Protocol):
    """The files of one pattern."""

    pattern: Pattern

    def list_files(self) -> list[FileStat]:
        """List all files of the pattern. TemporaryError: the location is unreachable."""
        ...

    def open(self, stat: FileStat) -> IO[bytes]:
        """Open a seekable binary file. TemporaryError `source.file_changed`: it has another
        version.
        """
        ...

    def verify(self, file: IO[bytes], stat: FileStat) -> None:
        """Check that the open file still has this version, else raise `source.file_changed`."""
        ...


def file_changed(path: str) -> TemporaryError:
    """Return the error for a file that is no longer the listed one; the next listing shows it."""
    what = f'file "{path}" was changed while it was read'
    return TemporaryError(
        "source.file_changed", what, hint="write under another name, then rename the finished file"
    )


class LocalFolder:
    """A pattern over local folders.

    settle_s: a file is stable once it was not touched for this time, or two listings this far apart
    show the same file.
    """

    def __init__(self, pattern: Pattern, settle_s: float) -> None:
        self.pattern = pattern
        self._settle_s = settle_s
        self._last_listed: dict[str, tuple[str, float]] = {}

    def list_files(self) -> list[FileStat]:
        """List all files of the pattern."""
        root = self.pattern.root or "/"
        netguard.check_path(root)
        try:
            found = list(self._walk(root, ()))
        except OSError as error:
            what = f'folder "{root}" cannot be listed'
            hint = "create it, or grant the service read access"
            raise TemporaryError("source.folder", what, detail=str(error), hint=hint) from error
        there = {stat.path for stat in found}
        self._last_listed = {
            path: listed for path, listed in self._last_listed.items() if path in there
        }
        return found

    def open(self, stat: FileStat) -> IO[bytes]:
        """Open the file, unbuffered."""
        path = f"{self.pattern.root}/{stat.path}"
        netguard.check_path(path)
        try:
            file = open(path, "rb", buffering=0)  # noqa: SIM115
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise file_changed(stat.path) from None
        except OSError as error:
            what = f'file "{stat.path}" cannot be opened'
            hint = "grant the service read access"
            raise TemporaryError(
                "source.file_denied", what, detail=str(error), hint=hint
            ) from error
        try:
            netguard.check_open(file.fileno(), path)
            self.verify(file, stat)
        except BaseException:
            file.close()
            raise
        return file

    def verify(self, file: IO[bytes], stat: FileStat) -> None:
        """Check that the open file still has the listed version."""
        if _version(os.fstat(file.fileno())) != stat.version:
            raise file_changed(stat.path)

    def _walk(self, folder: str, names: tuple[str, ...]) -> Iterator[FileStat]:
        folders: list[str] = []
        with os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                path = "/".join((*names, entry.name))
                kind = self._kind(entry)
                if kind == _FOLDER and self.pattern.enters((*names, entry.name)):
                    if netguard.may_read(entry.path):
                        folders.append(entry.name)
                        continue
                    stat = self._barred(entry, path, _OUTSIDE)
                elif kind == _FOLDER or not self.pattern.matches(path):
                    continue
                elif kind == _LOOP:
                    stat = self._barred(entry, path, "it is a link into a loop of links")
                else:
                    stat = self._stat(entry, path) if kind == _FILE else None
                if stat is not None:
                    yield stat
        for name in folders:
            try:
                yield from self._walk(f"{folder}/{name}", (*names, name))
            except FileNotFoundError:
                # The folder was removed since it was listed, and its files with it.
                continue

    def _kind(self, entry: os.DirEntry[str]) -> str:
        """Return what an entry is, links followed; "" for what is never read."""
        try:
            # A link to a folder is followed only where the pattern limits the depth, so never into
            # a loop.
            if entry.is_dir(follow_symlinks=self.pattern.depth is not None):
                return _FOLDER
            return _FILE if entry.is_file() else ""
        except OSError as error:
            if error.errno == errno.ELOOP:
                return _LOOP
            if netguard.may_read(entry.path):
                raise
            return _FILE

    def _barred(self, entry: os.DirEntry[str], path: str, fault: str) -> FileStat | None:
        """Return a file or folder that must not be opened; nothing is read of what it leads to."""
        try:
            found = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            return None
        # A folder changes with each of its files, and the fault does not.
        version = _version(found) if entry.is_symlink() else f"{found.st_ino}"
        modified_us = found.st_mtime_ns // 1000 - EPOCH_2000_US
        shown = path if is_utf8_name(path) else shown_path(path)
        is_resolved = self._is_resolved(found, shown, version)
        return FileStat(shown, 0, modified_us, version, is_resolved, fault, "path.forbidden")

    def _stat(self, entry: os.DirEntry[str], path: str) -> FileStat | None:
        if entry.is_symlink() and not netguard.may_read(entry.path):
            if self.pattern.is_exact:
                netguard.check_path(entry.path)
            return self._barred(entry, path, _OUTSIDE)
        try:
            found = entry.stat()
        except FileNotFoundError:
            return None
        version, fault = _version(found), ""
        modified_us = found.st_mtime_ns // 1000 - EPOCH_2000_US
        if not is_utf8_name(path):
            path, fault = shown_path(path), "its name is not UTF-8; rename it"
        is_resolved = self._is_resolved(found, path, version)
        code = "source.file_name" if fault else ""
        return FileStat(path, found.st_size, modified_us, version, is_resolved, fault, code)

    def _is_resolved(self, found: os.stat_result, path: str, version: str) -> bool:
        now = time.monotonic()
        # Programs cannot set the change time back, unlike the modification time.
        age_s = clock.age_s(max(found.st_ctime_ns, found.st_mtime_ns) / 1e9)
        last_version, since = self._last_listed.get(path, ("", now))
        if last_version != version:
            since = now
            self._last_listed[path] = (version, now)
        return age_s >= self._settle_s or now - since >= self._settle_s


def _version(found: os.stat_result) -> str:
    return f"{found.st_ino}-{found.st_mtime_ns}-{found.st_size}"


def is_utf8_name(path: str) -> bool:
    """Return True if the path is UTF-8, so that it can be a value of `_file`."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def shown_path(path: str) -> str:
    """Return a readable path for a name that is not UTF-8; no readable file has the same.

    >>> shown_path("caf\\udce9.csv")
    './caf\\\\xe9.csv'
    """
    escaped = os.fsencode(path.replace("\\", "\\\\"))
    return "./" + escaped.decode("utf-8", "backslashreplace")
