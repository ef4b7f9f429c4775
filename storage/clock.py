"""The wall clock, which may be set forwards or back at any moment.

Its times are shown and stored only. Nothing waits, expires or is dropped by it: use
`time.monotonic` for that. `steady` is between the two: Unix time without the jumps since the
process started, for comparisons with file times.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime

from storage.failpoints import shift_s

_BEGAN, _BEGAN_WALL = time.monotonic(), time.time()


def wall() -> float:
    """Return Unix time in seconds."""
    return time.time() + shift_s()


def wall_ns() -> int:
    """Return Unix time in nanoseconds."""
    return time.time_ns() + int(shift_s() * 1e9)


def utc() -> datetime:
    """Return the current time in UTC."""
    return datetime.fromtimestamp(wall(), UTC)


def steady() -> float:
    """Return Unix time without jumps since the process started."""
    return _BEGAN_WALL + time.monotonic() - _BEGAN


def age_s(since: float) -> float:
    """Return the minimum age of a file with this Unix time, even if the clock was set meanwhile."""
    return min(wall(), steady()) - since
