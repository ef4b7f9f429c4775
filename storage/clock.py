"""The wall clock, which somebody may set at any moment, forwards and back.

What it says is shown to people and written down; nothing waits, expires or is dropped by it: that
goes by `time.monotonic`. `steady` stands between the two: Unix time as the process would have it
if nobody had set the clock since it began, for comparisons with the times of files.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime

from storage.failpoints import shift_s

_BEGAN, _BEGAN_WALL = time.monotonic(), time.time()


def wall() -> float:
    """Unix time, in seconds."""
    return time.time() + shift_s()


def wall_ns() -> int:
    """Unix time, in nanoseconds."""
    return time.time_ns() + int(shift_s() * 1e9)


def utc() -> datetime:
    """The same as a moment in UTC."""
    return datetime.fromtimestamp(wall(), UTC)


def steady() -> float:
    """Unix time without the jumps since the process began."""
    return _BEGAN_WALL + time.monotonic() - _BEGAN


def age_s(since: float) -> float:
    """How old a file of this Unix time is at least, whether the clock was set meanwhile or not."""
    return min(wall(), steady()) - since
