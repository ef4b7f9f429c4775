"""Folders that are opened one component at a time, so that no link leads out of them.

A path that was checked may be another folder by the time it is opened: whoever can write beside it
replaces a part of it by a link. Here a folder is a descriptor, and each name below is opened
relative to it without following a link. Invariant: what is opened, written or deleted lies in the
very folder that was opened at first.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath

from dataflow.errors import SourceError

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_LINK_ERRORS = (errno.ELOOP, errno.ENOTDIR)


def parts_of(name: str) -> list[str]:
    """Return the components of a relative name. SourceError path.forbidden.

    >>> parts_of("data/a.parquet")
    ['data', 'a.parquet']
    >>> parts_of("../a")
    Traceback (most recent call last):
    dataflow.errors.SourceError: the name "../a" leads out of its folder [path.forbidden]
    """
    parts = name.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        shown = name.replace("\0", "\\0")[:200]
        what = f'the name "{shown}" leads out of its folder'
        raise SourceError("path.forbidden", what, hint="check who else can write to this storage")
    return parts


def open_nearest(path: PurePath) -> tuple[int, list[str]]:
    """Open a folder, or its nearest parent that exists; links are followed. OSError.

    Returns the descriptor, which the caller closes, and the components that are missing.
    """
    missing: list[str] = []
    while True:
        try:
            return os.open(path, _FOLDER), missing[::-1]
        except FileNotFoundError:
            if path == path.parent:
                raise
            missing.append(path.name)
            path = path.parent


def real_path(folder: int, path: PurePath) -> str:
    """Return where an opened folder lies; the path itself where the system does not say."""
    link = f"/proc/self/fd/{folder}"
    return os.readlink(link) if os.path.lexists(link) else os.path.realpath(path)


def path_in(folder: int, name: str, path: PurePath) -> Path:
    """Return a path of a name in an opened folder, also if its own path is replaced meanwhile.

    path: of the folder, for systems whose descriptors have none. It is good while the folder is
    open, in this process.
    """
    link = Path(f"/proc/self/fd/{folder}")
    return link / name if link.exists() else Path(path, name)


@contextmanager
def opened_below(folder: int, parts: Sequence[str], *, makes: bool) -> Iterator[int]:
    """Yield the descriptor of a folder below another one. FileNotFoundError, OSError.

    makes: create what is missing. SourceError path.forbidden: a component is a link.
    """
    opened = os.dup(folder)
    try:
        for part in parts:
            if makes:
                with suppress(FileExistsError):
                    os.mkdir(part, dir_fd=opened)
            deeper = open_unlinked(part, _FOLDER, opened)
            os.close(opened)
            opened = deeper
        yield opened
    finally:
        os.close(opened)


def open_unlinked(name: str, flags: int, folder: int) -> int:
    """Open a name in a folder unless it is a link. OSError; SourceError path.forbidden.

    What is no plain file or folder is refused too: a pipe would be waited for.
    """
    try:
        opened = os.open(
            name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666, dir_fd=folder
        )
    except OSError as error:
        if error.errno in _LINK_ERRORS and _is_link(name, folder):
            raise SourceError(
                "path.forbidden",
                f'"{name}" is a link, which is not followed here',
                hint="put a folder or file in its place; check who else can write beside it",
            ) from None
        raise
    mode = os.fstat(opened).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        os.close(opened)
        raise OSError(errno.EINVAL, "neither a file nor a folder", name)
    return opened


def files_below(folder: int) -> Iterator[str]:
    """Yield the relative names of all plain files in a folder at any depth, in no order.

    Links are neither followed nor yielded; hidden names are.
    """
    for where, _, names, opened in os.fwalk(".", dir_fd=folder, follow_symlinks=False):
        for name in names:
            with suppress(FileNotFoundError):
                if stat.S_ISREG(os.stat(name, dir_fd=opened, follow_symlinks=False).st_mode):
                    yield os.path.normpath(os.path.join(where, name))


def links_below(folder: int) -> Iterator[str]:
    """Yield the relative names of all links in a folder at any depth, in no order."""
    for where, folders, names, opened in os.fwalk(".", dir_fd=folder, follow_symlinks=False):
        for name in (*folders, *names):
            if _is_link(name, opened):
                yield os.path.normpath(os.path.join(where, name))


def _is_link(name: str, folder: int) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False
