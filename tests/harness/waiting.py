"""Waiting for what comes by itself. A deadline says that a test failed, never how fast something
is; it lies far beyond what a slow machine takes."""

from __future__ import annotations

import time
from collections.abc import Callable

WITHIN_S = 60.0


def wait_until(
    is_so: Callable[[], object], within_s: float = WITHIN_S, why: Callable[[], object] = str
) -> None:
    """Ask again and again until it is so. why: what is printed if it does not come to be."""
    deadline = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < deadline, why()
        time.sleep(0.05)
