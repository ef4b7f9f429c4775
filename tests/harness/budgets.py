"""CPU seconds each folder of tests may take in the fast tier (docs/contributing/TESTING.md).

Measured where a test runs: the process of the worker, and its children that ended within the test.
Servers that tests share are not in it. The seconds are those of a machine that does `_work` in
`_WORK_S`, so that what a slower one takes can be compared.
"""

from __future__ import annotations

import re
import resource
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.harness.warm import spent_s

PAGE = Path(__file__).parent.parent.parent / "docs" / "contributing" / "TESTING.md"
# A folder may take half as much again: machines differ, and so do runs.
SLACK = 1.5
_ROW = re.compile(r"^\| `tests/([\w.]+)` \| (\d+) \|", re.MULTILINE)
_WORK_S = 0.062


def read_budgets() -> dict[str, int]:
    """Return folder -> CPU seconds from the page; "." has the files beside folders."""
    return {folder: int(seconds) for folder, seconds in _ROW.findall(PAGE.read_text())}


def exceeded(spent: Mapping[str, float], allowed: Mapping[str, int], speed: float) -> list[str]:
    """Return a line for each folder that took more than its budget by half, or has none. speed: of
    this machine, 1.0 is the one of the budgets."""
    found = []
    for folder, seconds in sorted(spent.items()):
        budget, taken = allowed.get(folder), seconds * speed
        if budget is None:
            found.append(f"tests/{folder} took {taken:.0f} s of CPU and has no budget")
        elif taken > budget * SLACK:
            found.append(f"tests/{folder} took {taken:.0f} s of CPU, its budget is {budget} s")
    return found


def measure_speed() -> float:
    """How fast this machine is just now: above 1.0 faster than that of the budgets."""
    return _WORK_S / min(_work() for _ in range(5))


class Meter:
    """CPU seconds by folder, of this process and of its children that have ended."""

    def __init__(self) -> None:
        self.spent: Counter[str] = Counter()

    @contextmanager
    def measure(self, folder: str) -> Iterator[None]:
        """Count what is done within."""
        before = _cpu_s()
        yield
        self.spent[folder] += _cpu_s() - before


def _cpu_s() -> float:
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in both) + spent_s()


def _work() -> float:
    begin, found = time.process_time(), 0
    for number in range(2_000_000):
        found += number & 7
    assert found
    return time.process_time() - begin
