"""Oracle: the kernel's own account of the process's memory (/proc/self/smaps_rollup)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")
# Pages of a state, and what the kernel says of them: in a process whose heap is its own.
GROW = """
import sys
from service.runtime.huge_pages import LEAST_BYTES, HugePages
pages, heap = [], HugePages()
for number in range(3000):
    heap.follow(int(sys.argv[1]))
    pages.append(bytes([number & 127]) * 50_000)
rollup = open("/proc/self/smaps_rollup").read()
found = {line.split(":")[0]: int(line.split()[1]) for line in rollup.splitlines()[1:]}
print(heap.advised_bytes >> 20, found["AnonHugePages"] >> 10, found["Rss"] >> 10, len(pages))
"""


def _grown(resident_bytes: int) -> tuple[int, int, int]:
    """Return megabytes (advised, in huge pages, resident) of a process with 150 MB of pages."""
    done = subprocess.run(
        [sys.executable, "-c", GROW, str(resident_bytes)],
        capture_output=True,
        text=True,
        check=True,
    )
    advised, huge, resident, _ = map(int, done.stdout.split())
    return advised, huge, resident


def test_a_small_process_is_left_alone() -> None:
    advised, huge, _ = _grown(399 << 20)
    assert (advised, huge) == (0, 0)


def test_what_a_large_heap_grows_by_is_in_huge_pages() -> None:
    if not ENABLED.is_file() or "[never]" in ENABLED.read_text():
        pytest.skip("the kernel gives no huge pages")
    _, _, before = _grown(0)
    advised, huge, resident = _grown(400 << 20)
    assert advised >= 100 and huge >= 50
    # Untouched memory at the end of the heap is not resident, but for a page.
    assert resident <= before + 8
