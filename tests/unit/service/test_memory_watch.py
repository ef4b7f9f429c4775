"""Oracle: what the kernel would count for pages of known size, and the mark."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import pytest

from service.memory_watch import MARK, MemoryWatch, resident_reader
from storage.memory import MemoryStore
from storage.page_cache import PageCache
from storage.pages import Tuning
from storage.rocks import RocksStore
from storage.store import ArrangementSpec
from tests.unit.storage.oracle import delta_of

MEBIBYTE = 1 << 20
CAP = 100 * MEBIBYTE
AT_MARK = MARK * MEBIBYTE


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


def test_below_the_mark_nothing_is_asked_for() -> None:
    process = Process(held=30, freed=30, pages=20)
    process.watch().look(process)
    assert (process.freed, process.pages, process.given_back) == (30, 20, 0)


def test_what_is_free_goes_first_and_pages_only_then() -> None:
    process = Process(held=30, freed=50, pages=20)
    process.watch().look(process)
    assert (process.resident(), process.pages) == (50 * MEBIBYTE, 20)
    process = Process(held=75, freed=10, pages=20)
    process.watch().look(process)
    assert process.resident() == AT_MARK
    assert process.pages == MARK - 75


def test_what_cannot_be_given_back_is_not_asked_for_again_and_again() -> None:
    process = Process(held=95, freed=0, pages=0)
    watch = process.watch()
    for _ in range(100):
        watch.look(process)
    assert process.given_back == 1
    process.freed = 5
    watch.look(process)
    assert (process.freed, process.given_back) == (0, 2)


def test_the_kernel_is_asked() -> None:
    resident = resident_reader()
    before = resident()
    with mmap.mmap(-1, 64 * MEBIBYTE) as pages:
        ctypes.memset(ctypes.addressof(ctypes.c_char.from_buffer(pages)), 1, len(pages))
        assert resident() - before > 60 * MEBIBYTE


@pytest.mark.parametrize("rows", [40_000])
def test_a_pressed_cache_answers_the_same_from_fewer_bytes(tmp_path, rows: int) -> None:
    """Until there is room again."""
    excess = [0]

    def watch(cache: PageCache) -> None:
        cache.press(excess[0])

    spec = ArrangementSpec("scope/join/left", "ii", (0,))
    tuning = Tuning(memory_rows=1000, file_rows=1 << 30)
    store = RocksStore(tmp_path / "state", 4 * MEBIBYTE, tuning, watch=watch)
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
