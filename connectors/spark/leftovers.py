"""Directories of Spark sessions, and what is left of them when a process was killed.

Whatever Spark and PySpark write for a session lies in its directory, whose name tells the process
that has it. Invariant: only a directory of our own whose process is gone is removed.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX = "tidemark-spark-"


def new_directory() -> Path:
    """A directory for a session of this process."""
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))


def sweep() -> None:
    """Remove the directories of sessions whose owner was killed."""
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*-*"):
        owner = left.name.removeprefix(_PREFIX).split("-")[0]
        if not owner.isdigit() or Path(f"/proc/{owner}").exists():
            continue
        # Another process may be sweeping as well.
        with suppress(FileNotFoundError):
            if left.stat().st_uid == os.getuid():
                shutil.rmtree(left, ignore_errors=True)


@contextmanager
def temporary_files_in(directory: Path) -> Iterator[None]:
    """What this process makes meanwhile without saying where: PySpark makes a directory to meet the
    JVM in, which nobody would find again."""
    before, tempfile.tempdir = tempfile.tempdir, str(directory)
    try:
        yield
    finally:
        tempfile.tempdir = before
