"""Named points in the code at which a developer can kill the process, raise an error or sleep.

They are set by the environment alone, when the process starts; never from REST or SQL. Invariant:
if none is set, passing one costs one truth test, and no other code here runs. Names and syntax:
docs/contributing/FAILPOINTS.md.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

# "name=kill@3;name=error": which action at which failpoint, here at the third pass (default: every
# pass; a kill: the first). And a folder: a file named after a failpoint, with the action in it,
# sets it from the next pass on, for all processes, once.
VARIABLE, FOLDER_VARIABLE = "TIDEMARK_FAILPOINTS", "TIDEMARK_FAILPOINTS_FOLDER"
REACHED, CLOCK = ".reached", "clock"
_ACTION = re.compile(r"(kill|error|sleep:(\d+(?:\.\d+)?))(?:@(\d+))?")


@dataclass
class _Set:
    """The action of one failpoint: at each pass, or only at the `at`-th."""

    action: str
    seconds: float = 0.0
    at: int | None = None
    passed: int = 0

    def is_due(self) -> bool:
        self.passed += 1
        return self.at is None or self.passed == self.at


# Empty in production. The folder, if any, is stored under the empty name.
_SET: dict[str, _Set | Path] = {}
_PASSED: dict[str, int] = {}
# What set them last, for other processes.
_AS_SET = ["", ""]


def failpoint(name: str, error: Callable[[str], Exception] = OSError) -> None:
    """Pass a named failpoint; do nothing unless it is set.

    error: makes the exception of the action `error` from a message.
    """
    if _SET:
        _pass(name, error)


def set_failpoints(text: str, folder: str = "") -> None:
    """Set exactly these failpoints. ValueError if the text is malformed."""
    found: dict[str, _Set | Path] = {}
    for part in filter(None, (p.strip() for p in text.split(";"))):
        name, _, action = part.partition("=")
        found[name] = _parse(action)
    if folder:
        found[""] = Path(folder)
    _SET.clear()
    _PASSED.clear()
    _SET.update(found)
    _AS_SET[:] = text, folder


def as_set() -> tuple[str, str]:
    """Return the arguments of `set_failpoints` that set the present ones, for another process."""
    text, folder = _AS_SET
    return text, folder


def _parse(text: str) -> _Set:
    matched = _ACTION.fullmatch(text.strip())
    if matched is None:
        raise ValueError(f"a failpoint's action is kill, error or sleep:SECONDS, not {text!r}")
    action, seconds, at = matched.groups()
    return _Set(action.split(":")[0], float(seconds or 0), int(at) if at else None)


def _pass(name: str, error: Callable[[str], Exception]) -> None:
    found = _SET.get(name)
    folder = _SET.get("")
    if isinstance(folder, Path):
        found = _find(folder, name) or found
    if isinstance(found, _Set) and found.is_due():
        _act(name, found, error)


def _find(folder: Path, name: str) -> _Set | None:
    """Return the folder's action for a failpoint, if it is due.

    The file is then renamed to `.reached`, so that only one process acts, and only once.
    """
    path = folder / name
    try:
        found = _parse(path.read_text())
    except FileNotFoundError:
        _PASSED.pop(name, None)
        return None
    _PASSED[name] = _PASSED.get(name, 0) + 1
    if _PASSED[name] < (found.at or 1):
        return None
    try:
        path.rename(path.with_name(name + REACHED))
    except FileNotFoundError:
        return None
    return _Set(found.action, found.seconds)


def _act(name: str, found: _Set, error: Callable[[str], Exception]) -> None:
    if found.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if found.action == "error":
        raise error(f"failpoint {name}")
    time.sleep(found.seconds)


def shift_s() -> float:
    """Return the simulated shift of the wall clock in seconds.

    It is the number in the folder's file `clock`; 0 if nothing is set.
    """
    folder = _SET.get("") if _SET else None
    if not isinstance(folder, Path):
        return 0.0
    try:
        return float((folder / CLOCK).read_text() or 0)
    except FileNotFoundError:
        return 0.0


set_failpoints(os.environ.get(VARIABLE, ""), os.environ.get(FOLDER_VARIABLE, ""))
