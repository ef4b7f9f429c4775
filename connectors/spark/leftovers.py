"""Directories of Spark sessions, and cleanup after a process was killed.

Everything that Spark and PySpark write for a session is in its directory, whose name contains the
owner's process id. Invariant: only a directory of ours whose process is gone is removed, after its
JVM was ended. A JVM that was still starting would otherwise find no file for its port, and run
forever.
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
# This option on its command line identifies the JVM of a session's directory.
_LOG_OPTION = "-Dlog4j2.configurationFile=file:"
_OF_SESSION = re.compile(re.escape(_LOG_OPTION) + rf"[^\0]*/({_PREFIX}\d+-[^/\0]*)/")


def new_directory() -> Path:
    """Return a new directory for a session of this process."""
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))


def sweep() -> None:
    """End the JVMs and remove the directories of sessions whose owner was killed."""
    for jvm in _orphans():
        with suppress(ProcessLookupError, PermissionError):
            os.kill(jvm, signal.SIGKILL)
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*-*"):
        # Another process may sweep at the same time.
        with suppress(FileNotFoundError):
            if not _has_owner(left.name) and left.stat().st_uid == os.getuid():
                shutil.rmtree(left, ignore_errors=True)


def _has_owner(name: str) -> bool:
    """Return True if the owner of a directory of this name is alive, or if it is not ours."""
    owner = name.removeprefix(_PREFIX).split("-")[0]
    return not owner.isdigit() or Path(f"/proc/{owner}").exists()


def log_option(directory: Path) -> str:
    """Return the JVM option that names the log configuration and identifies the session."""
    return f"{_LOG_OPTION}{directory / 'log4j2.properties'}"


def _orphans() -> Iterator[int]:
    """Yield JVMs, and the scripts that start them, whose session has no owner."""
    for arguments in Path("/proc").glob("[0-9]*/cmdline"):
        # It may end by itself at this moment.
        with suppress(FileNotFoundError, ProcessLookupError):
            found = _OF_SESSION.search(arguments.read_text(errors="replace"))
            if found and not _has_owner(found[1]):
                yield int(arguments.parent.name)


@contextmanager
def temporary_files_in(directory: Path) -> Iterator[None]:
    """Collect temporary files that this process makes meanwhile.

    PySpark makes a directory for the handshake with the JVM, which nothing would find again.
    """
    before, tempfile.tempdir = tempfile.tempdir, str(directory)
    try:
        yield
    finally:
        tempfile.tempdir = before
