"""Oracle: what the kernel would count for pages of known size, and the mark."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from service.runtime.memory_watch import (
    THRESHOLD_PERCENT,
    MemoryWatch,
    free_bytes,
    resident_reader,
)
from storage.delta import Column
from storage.errors import OutOfSpaceError
from storage.memory import MemoryStore
from storage.pages import Tuning
from storage.rocks import RocksStore
from storage.store import ArrangementSpec, Yielding
from tests.unit.storage.oracle import delta_of

MEBIBYTE = 1 << 20
CAP = 100 * MEBIBYTE
AT_THRESHOLD = THRESHOLD_PERCENT * MEBIBYTE


class Process:
    """A process that holds something, has freed something, and keeps pages in a cache."""

    def __init__(self, held: int, freed: int, pages: int) -> None:
        self.held, self.freed, self.pages = held, freed, pages
        self.given_back = 0

    def resident(self) -> int:
        return (self.held + self.freed + self.pages) * MEBIBYTE

    def give_back(self) -> None:
        self.freed = 0
        self.given_back += 1

    def press(self, excess_bytes: int) -> int:
        given = min(max(-(-excess_bytes // MEBIBYTE), 0), self.pages)
        self.pages -= given
        self.freed += given
        return given * MEBIBYTE

    def watch(self) -> MemoryWatch:
        return MemoryWatch(CAP, self.resident, self.give_back)


def test_below_the_limit_the_kernel_is_not_called() -> None:
    process = Process(held=30, freed=30, pages=20)
    process.watch().check(process)
    assert (process.freed, process.pages, process.given_back) == (30, 20, 0)


def test_what_is_free_goes_first_and_pages_only_then() -> None:
    process = Process(held=30, freed=50, pages=20)
    process.watch().check(process)
    assert (process.resident(), process.pages) == (50 * MEBIBYTE, 20)
    process = Process(held=75, freed=10, pages=20)
    process.watch().check(process)
    assert process.resident() == AT_THRESHOLD
    assert process.pages == THRESHOLD_PERCENT - 75


def test_memory_that_cannot_be_returned_is_not_requested_repeatedly() -> None:
    process = Process(held=95, freed=0, pages=0)
    watch = process.watch()
    for _ in range(100):
        watch.check(process)
    assert process.given_back == 1
    process.freed = 5
    watch.check(process)
    assert (process.freed, process.given_back) == (0, 2)


def test_memory_is_freed_before_a_step_is_refused() -> None:
    """What is free goes first, then pages; 16 are left for the rest of the process."""
    for wanted, is_there, left in ((4, True, (50, 20)), (50, True, (0, 20)), (68, True, (0, 6))):
        process = Process(held=30, freed=50, pages=20)
        free = lambda: 120 * MEBIBYTE - process.resident()  # noqa: B023, E731
        watch = MemoryWatch(CAP, process.resident, process.give_back, free)
        assert watch.has_space(wanted * MEBIBYTE, process) == is_there
        assert (process.freed, process.pages) == left
    assert not watch.has_space(75 * MEBIBYTE, process)
    assert process.pages == 0


def _group(folder: Path, files: dict[str, object]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(f"{content}\n")


@pytest.mark.parametrize("is_container", [False, True])
def test_of_all_limits_of_the_kernel_the_least_counts(tmp_path: Path, is_container: bool) -> None:
    root, proc = tmp_path / "cgroup", tmp_path / "proc"
    assert free_bytes(root, proc) == 1 << 62
    _group(proc, {"meminfo": "MemFree: 1 kB\nMemAvailable:  4096 kB"})
    assert free_bytes(root, proc) == 4096 << 10
    _group(proc / "self", {"cgroup": "3:cpu:/a\n4:memory:/a/b\n0::/c"})
    v1 = {"memory.limit_in_bytes": 5000, "memory.usage_in_bytes": 4500}
    stat = "cache 7\ntotal_inactive_file 100\ntotal_active_file 20"
    _group(root / "memory" / ("" if is_container else "a"), {**v1, "memory.stat": stat})
    assert free_bytes(root, proc) == 5000 - 4500 + 120
    _group(root / "c", {"memory.max": "max", "memory.current": 10})
    assert free_bytes(root, proc) == 620
    _group(root / ("" if is_container else "c"), {"memory.max": 300, "memory.current": 10})
    assert free_bytes(root, proc) == 290


def test_more_rows_at_once_than_fit_in_memory_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only where they are held together, and before all of them are read."""

    class Full:
        wanted: ClassVar[list[int]] = []

        def check(self, cache: Yielding) -> None: ...

        def has_space(self, requested_bytes: int, cache: Yielding) -> bool:
            self.wanted.append(requested_bytes)
            return requested_bytes < 300_000

    monkeypatch.setattr("storage.arrangement._CHECK_ROWS", 500)
    monkeypatch.setattr("storage.arrangement._CHECK_BYTES", 10_000)
    store = RocksStore(tmp_path / "state", watch=Full())
    arrangement = store.arrange(ArrangementSpec("scope/window/rows", "ii", (0,)))
    arrangement.apply(delta_of("ii", [((n % 3, n), 1) for n in range(9_000)]))
    few, all_keys = ([Column(np.arange(n))] for n in (1, 3))
    assert len(arrangement.lookup(few)[1]) == 3_000
    assert not [n for n in Full.wanted if n >= 300_000]
    with pytest.raises(OutOfSpaceError):
        arrangement.lookup(all_keys)
    assert 300_000 <= max(Full.wanted) < 600_000
    assert sum(len(rows) for _, rows in arrangement.lookup_parts(all_keys, 400)) == 9_000
    with pytest.raises(OutOfSpaceError):
        store.require_space(300_000)
    store.close()


def test_the_kernel_is_called() -> None:
    resident = resident_reader()
    before = resident()
    with mmap.mmap(-1, 64 * MEBIBYTE) as pages:
        ctypes.memset(ctypes.addressof(ctypes.c_char.from_buffer(pages)), 1, len(pages))
        assert resident() - before > 60 * MEBIBYTE


@pytest.mark.parametrize("rows", [40_000])
def test_a_pressed_cache_answers_the_same_from_fewer_bytes(tmp_path, rows: int) -> None:
    """Until there is room again."""
    excess = [0]

    class Pressing:
        def check(self, cache: Yielding) -> None:
            cache.press(excess[0])

        def has_space(self, requested_bytes: int, cache: Yielding) -> bool:
            return True

    spec = ArrangementSpec("scope/join/left", "ii", (0,))
    tuning = Tuning(memory_rows=1000, file_rows=1 << 30)
    store = RocksStore(tmp_path / "state", 4 * MEBIBYTE, tuning, watch=Pressing())
    specified = MemoryStore().arrange(spec)
    arrangement = store.arrange(spec)
    delta = delta_of("ii", [((n, -n), 1) for n in range(rows)])
    for kept in (arrangement, specified):
        kept.apply(delta)
    store.commit()
    keys = [delta.columns[0].take(np.arange(0, rows, 7))]
    wanted = dict(specified.lookup(keys)[1].rows())
    assert dict(arrangement.lookup(keys)[1].rows()) == wanted
    full = store.cache.used_bytes
    excess[0] = full // 2
    store.relieve()
    assert store.cache.used_bytes <= full - full // 2
    assert dict(arrangement.lookup(keys)[1].rows()) == wanted
    excess[0] = 1 << 40
    store.relieve()
    assert 0 < store.cache.budget_bytes <= MEBIBYTE
    assert dict(arrangement.lookup(keys)[1].rows()) == wanted
    excess[0] = -MEBIBYTE
    for _ in range(50):
        store.relieve()
    assert store.cache.budget_bytes == 4 * MEBIBYTE
    store.close()
