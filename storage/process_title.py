"""The title that `ps` shows for a process of the service: its role, without command-line options.

The kernel shows the memory of the arguments, which nothing else reads once the interpreter runs. If
it cannot be found, the command line stays. We find it in /proc: setproctitle starts from the first
environment variable, and silently does nothing in a child with another environment, which all of
ours have (`forking`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

PREFIX = "tidemark: "
# proc(5): the first and last address of the arguments, counted from the field after the name.
_ARGUMENTS = slice(45, 47)


def set_title(name: str) -> None:
    """Show this process as "tidemark: NAME", cut to the length of its command line."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = map(int, fields[_ARGUMENTS])
    size = end - begin
    if size > 0:
        title = f"{PREFIX}{name}".encode()[: size - 1]
        ctypes.memmove(begin, title.ljust(size, b"\0"), size)


def title_of(command: Sequence[str]) -> str:
    """Return the title in a command line (as /proc or psutil splits it); "" if it is not ours.

    >>> title_of(["tidemark: pipeline fast", "", ""]), title_of(["tidemark", "serve"])
    ('pipeline fast', '')
    """
    shown = " ".join(command).rstrip()
    return shown.removeprefix(PREFIX) if shown.startswith(PREFIX) else ""
