"""What `ps` shows of a process of the service: which one it is, and no options of a command line.

The kernel shows the memory in which the arguments were given; nothing else reads it once the
interpreter has begun. Where it cannot be found, the command line stays what it was. It is looked up
in /proc: setproctitle looks for it from the first variable of the environment, and does nothing,
silently, in a child that has been given another environment, as all of ours are (`forking`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

PREFIX = "tidemark: "
# proc(5): where the arguments begin and end, counted from the field after the name.
_ARGUMENTS = slice(45, 47)


def set_title(name: str) -> None:
    """Be shown as "tidemark: NAME", cut to the length that the command line has had."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = map(int, fields[_ARGUMENTS])
    size = end - begin
    if size > 0:
        title = f"{PREFIX}{name}".encode()[: size - 1]
        ctypes.memmove(begin, title.ljust(size, b"\0"), size)


def title_of(command: Sequence[str]) -> str:
    """The name that a command line shows, as /proc or psutil has its words; "" for another's.

    >>> title_of(["tidemark: pipeline fast", "", ""]), title_of(["tidemark", "serve"])
    ('pipeline fast', '')
    """
    shown = " ".join(command).rstrip()
    return shown.removeprefix(PREFIX) if shown.startswith(PREFIX) else ""
