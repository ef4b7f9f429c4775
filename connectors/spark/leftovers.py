"""Directories of Spark sessions, and what is left of them when a process was killed.

Whatever Spark and PySpark write for a session lies in its directory, whose name tells the process
that has it. Invariant: only a directory of our own whose process is gone is removed, and its JVM
ends: one that had only begun to start would find nothing to tell its parent in, and stay.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX = "tidemark-spark-"
# By this option of its command line a JVM is known as the one of a session's directory.
_LOG_OPTION = "-Dlog4j2.configurationFile=file:"
_OF_SESSION = re.compile(re.escape(_LOG_OPTION) + rf"[^\0]*/({_PREFIX}\d+-[^/\0]*)/")


def new_directory() -> Path:
    """A directory for a session of this process."""
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))


def sweep() -> None:
    """End the JVMs and remove the directories of sessions whose owner was killed."""
    for jvm in _orphans():
        with suppress(ProcessLookupError, PermissionError):
            os.kill(jvm, signal.SIGKILL)
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*-*"):
        # Another process may be sweeping as well.
        with suppress(FileNotFoundError):
            if not _has_owner(left.name) and left.stat().st_uid == os.getuid():
                shutil.rmtree(left, ignore_errors=True)


def _has_owner(name: str) -> bool:
    """Whether the process is there that has a directory of this name; True when it is not ours."""
    owner = name.removeprefix(_PREFIX).split("-")[0]
    return not owner.isdigit() or Path(f"/proc/{owner}").exists()


def log_option(directory: Path) -> str:
    """The option of the JVM that tells where its log goes, and whose it is."""
    return f"{_LOG_OPTION}{directory / 'log4j2.properties'}"


def _orphans() -> Iterator[int]:
    """JVMs, and the scripts that start them, whose session has no owner any more."""
    for arguments in Path("/proc").glob("[0-9]*/cmdline"):
        # It may end by itself just now.
        with suppress(FileNotFoundError, ProcessLookupError):
            found = _OF_SESSION.search(arguments.read_text(errors="replace"))
            if found and not _has_owner(found[1]):
                yield int(arguments.parent.name)


@contextmanager
def temporary_files_in(directory: Path) -> Iterator[None]:
    """What this process makes meanwhile without saying where: PySpark makes a directory to meet the
    JVM in, which nobody would find again."""
    before, tempfile.tempdir = tempfile.tempdir, str(directory)
    try:
        yield
    finally:
        tempfile.tempdir = before
