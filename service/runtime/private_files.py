"""What the service writes is for its own user: rows and queries of everybody pass through it.

Each process takes group and others out of its umask before it writes anything; what it starts
(Spark's JVM, private servers) inherits that. Invariant: whatever umask the service was started
under, nobody else may read its state, its copies on a local disk or its temporary files.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from service.runtime.settings import Settings

UMASK = 0o077
_OTHERS = 0o077
_MAY_PASS = 0o011
# The folders of a state, by name: what else lies in a folder that somebody has chosen is not ours.
_FOLDERS = ("store", "groups", "builds", "changes", "checkpoint", "state", "reports")


def keep_private() -> None:
    """From now on what this process makes, and what it starts, is for its own user."""
    os.umask(UMASK)


def own_folders(settings: Settings) -> Iterator[Path]:
    """Where a service with these settings keeps rows on disks of this machine."""
    yield settings.state
    if settings.checkpoint_to and not settings.checkpoint_to.startswith("s3://"):
        copies = Path(settings.checkpoint_to).absolute() / settings.prefix
        if copies.is_dir():
            yield copies


def make_private(folder: Path, *, may_pass: bool = False) -> bool:
    """Make a folder of state, or take from group and others what they may do in one that is there.

    may_pass: others may go through it to what is theirs, and still list nothing. False when it is
    somebody else's, or everybody's as /tmp is: then it stays as it is. OSError when it cannot be
    made or changed.
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
            for place, folders, files in os.walk(entry.path):
                yield from (Path(place, name) for name in (*folders, *files))


def _take(path: Path, allowed: int = 0) -> None:
    """allowed: what others keep."""
    found = path.lstat()
    mode = stat.S_IMODE(found.st_mode) & ~_OTHERS | allowed
    if not stat.S_ISLNK(found.st_mode) and mode != stat.S_IMODE(found.st_mode):
        path.chmod(mode)


def replace_file(path: Path, figures: dict[str, Any]) -> None:
    """Write figures so that a reader sees the old ones or the new ones."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(json.dumps(figures))
    part.replace(path)
