"""Files of the service, readable by its own user only, because they hold everybody's rows.

Each process removes group and others from its umask before it writes anything; programs it starts
(Spark's JVM, private servers) inherit that. Invariant: whatever the umask at the start, nobody else
can read the service's state, its local copies or its temporary files. No process leaves a core
dump, which would hold rows, keys and passwords.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from service.runtime.settings import Settings

UMASK = 0o077
_PR_SET_DUMPABLE = 4
_OTHERS = 0o077
_MAY_PASS = 0o011
# The folders of a state by name; other contents of a user's folder are not ours.
_FOLDERS = ("store", "groups", "builds", "changes", "checkpoint", "state", "reports", "moves")


def keep_private() -> None:
    """Make all files that this process and its children create private to its user, and let
    none of them be dumped.

    A kernel that pipes dumps into a program ignores the limit, so this process also asks not to be
    dumped; that closes /proc/PID/mem and /proc/PID/environ to other processes of the same user.
    """
    os.umask(UMASK)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def own_folders(settings: Settings) -> Iterator[Path]:
    """Yield the local folders where a service with these settings stores rows."""
    yield settings.state
    if settings.checkpoint_to and not settings.checkpoint_to.startswith("s3://"):
        copies = Path(settings.checkpoint_to).absolute() / settings.prefix
        if copies.is_dir():
            yield copies


def make_private(folder: Path, *, may_pass: bool = False) -> bool:
    """Create a folder of state, or remove the permissions of group and others from an existing one.

    may_pass: others may still traverse it to their own files, but list nothing. Return False, and
    change nothing, if it belongs to another user or to everybody, as /tmp does. OSError if it
    cannot be created or changed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found = folder.stat()
    allowed = _MAY_PASS if may_pass else 0
    if not found.st_mode & _OTHERS & ~allowed:
        _take(folder, allowed)
        return True
    if found.st_uid != os.geteuid() or found.st_mode & stat.S_ISVTX:
        return False
    _take(folder, allowed)
    for path in _contents(folder):
        _take(path)
    return True


def _contents(folder: Path) -> Iterator[Path]:
    for entry in os.scandir(folder):
        if entry.is_file(follow_symlinks=False):
            yield Path(entry.path)
        elif entry.is_dir(follow_symlinks=False) and entry.name in _FOLDERS:
            yield Path(entry.path)
            for parent, folders, files in os.walk(entry.path):
                yield from (Path(parent, name) for name in (*folders, *files))


def _take(path: Path, allowed: int = 0) -> None:
    """Remove the permissions of group and others; allowed: those that stay."""
    found = path.lstat()
    mode = stat.S_IMODE(found.st_mode) & ~_OTHERS | allowed
    if not stat.S_ISLNK(found.st_mode) and mode != stat.S_IMODE(found.st_mode):
        path.chmod(mode)


def replace_file(path: Path, figures: dict[str, Any]) -> None:
    """Replace the file atomically: a reader sees the old figures or the new ones."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(json.dumps(figures))
    part.replace(path)
