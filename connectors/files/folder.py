"""Where files lie: the contract, and a folder of this machine.

Invariant: a file that was opened holds exactly the version that its listing showed, or reading
ends with `source.file_changed`. A folder that cannot be listed is an error, never an empty one:
otherwise all its rows would be taken back.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import IO, Protocol

from connectors import netguard
from connectors.files.journal import FileStat
from connectors.files.pattern import Pattern
from dataflow.errors import TemporaryError
from storage import clock

# Microseconds from 1970 to 2000, where PostgreSQL's timestamps begin.
EPOCH_2000_US = 946_684_800_000_000


class Folder(Protocol):
    """The files of one pattern."""

    pattern: Pattern

    def look(self) -> list[FileStat]:
        """All files of the pattern now. TemporaryError when the place is away."""
        ...

    def open(self, stat: FileStat) -> IO[bytes]:
        """A seekable binary file. TemporaryError `source.file_changed` when it is another."""
        ...

    def verify(self, file: IO[bytes], stat: FileStat) -> None:
        """What was read of the open file is of this version, else `source.file_changed`."""
        ...


def file_changed(path: str) -> TemporaryError:
    """The file is no longer the one that was listed; the next look tells what it is."""
    what = f'file "{path}" was changed while it was read'
    return TemporaryError("source.file_changed", what, hint="rename finished files into place")


class LocalFolder:
    """A pattern over local folders.

    settle_s: a file counts once it was not touched for so long, or two looks so far apart have
    shown the same.
    """

    def __init__(self, pattern: Pattern, settle_s: float) -> None:
        self.pattern = pattern
        self._settle_s = settle_s
        self._seen: dict[str, tuple[str, float]] = {}

    def look(self) -> list[FileStat]:
        """All files of the pattern now."""
        root = self.pattern.root or "/"
        netguard.check_path(root)
        try:
            found = list(self._walk(root, ()))
        except OSError as error:
            what = f'folder "{root}" cannot be listed'
            hint = "create it, or give the service the right to read it"
            raise TemporaryError("source.folder", what, detail=str(error), hint=hint) from error
        there = {stat.path for stat in found}
        self._seen = {path: seen for path, seen in self._seen.items() if path in there}
        return found

    def open(self, stat: FileStat) -> IO[bytes]:
        """The file, unbuffered."""
        path = f"{self.pattern.root}/{stat.path}"
        netguard.check_path(path)
        try:
            file = open(path, "rb", buffering=0)  # noqa: SIM115
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise file_changed(stat.path) from None
        except OSError as error:
            what = f'file "{stat.path}" cannot be opened'
            hint = "give the service the right to read it"
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
        """The open file is still the listed version."""
        if _version(os.fstat(file.fileno())) != stat.version:
            raise file_changed(stat.path)

    def _walk(self, folder: str, names: tuple[str, ...]) -> Iterator[FileStat]:
        folders: list[str] = []
        is_any_depth = self.pattern.depth is None
        with os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                path = "/".join((*names, entry.name))
                # A link to a folder is followed where the pattern says how deep, never into a loop.
                if entry.is_dir(follow_symlinks=not is_any_depth):
                    if self.pattern.enters((*names, entry.name)):
                        if entry.is_symlink():
                            netguard.check_path(f"{folder}/{entry.name}")
                        folders.append(entry.name)
                elif self.pattern.matches(path) and entry.is_file():
                    stat = self._stat(entry, path)
                    if stat is not None:
                        yield stat
        for name in folders:
            try:
                yield from self._walk(f"{folder}/{name}", (*names, name))
            except FileNotFoundError:
                # It went away since it was listed, and its files with it.
                continue

    def _stat(self, entry: os.DirEntry[str], path: str) -> FileStat | None:
        try:
            found = entry.stat()
        except FileNotFoundError:
            return None
        version, fault = _version(found), ""
        modified_us = found.st_mtime_ns // 1000 - EPOCH_2000_US
        if not is_utf8_name(path):
            path, fault = shown_path(path), "its name is not UTF-8; rename it"
        settled = self._settled(found, path)
        return FileStat(path, found.st_size, modified_us, version, settled, fault)

    def _settled(self, found: os.stat_result, path: str) -> bool:
        version, now = _version(found), time.monotonic()
        # The time of the last change cannot be set back, as that of the last write can.
        age_s = clock.age_s(max(found.st_ctime_ns, found.st_mtime_ns) / 1e9)
        known, since = self._seen.get(path, ("", now))
        if known != version:
            since = now
            self._seen[path] = (version, now)
        return age_s >= self._settle_s or now - since >= self._settle_s


def _version(found: os.stat_result) -> str:
    return f"{found.st_ino}-{found.st_mtime_ns}-{found.st_size}"


def is_utf8_name(path: str) -> bool:
    """Whether a path of this machine can be told at all."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def shown_path(path: str) -> str:
    """A path whose name is not UTF-8, for people; no file that can be read has the same.

    >>> shown_path("caf\\udce9.csv")
    './caf\\\\xe9.csv'
    """
    escaped = os.fsencode(path.replace("\\", "\\\\"))
    return "./" + escaped.decode("utf-8", "backslashreplace")
