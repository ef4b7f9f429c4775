"""Oracle: a dictionary of the rows, and counters of what was merged and read.

Merges continue in small steps between applies, lookups and commits; these tests look at how much an
epoch does, at what reads bring about, and at every moment at which a crash may stop a merge.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from storage.delta import Column, Delta
from storage.merge_policy import (
    KEYS_A_ROW,
    MergeMeter,
    choose_by_reads,
    choose_merge,
    choose_tail,
    windows,
)
from storage.pages import Tuning
from storage.rocks import RocksStore
from storage.store import ArrangementSpec
from tests.unit.storage.oracle import check_lookup, check_scan, delta_of, random_delta

SPEC = ArrangementSpec("a", "ii", (0,))
SMALL = Tuning(page_rows=16, memory_rows=128, fan=3, fuel=4, epoch_merge_rows=64, merge_pages=1)


def rows(keys: range | list[int]) -> Delta:
    """A row for each key."""
    return Delta.of("ii", [(key, -key) for key in keys])


def test_no_epoch_merges_more_than_its_allowance_and_a_step(tmp_path):
    """Epochs of one row too: what is due is spread over many."""
    store = RocksStore(tmp_path, tuning=SMALL)
    arrangement = store.arrange(SPEC)
    kept: Counter = Counter()
    at = 0
    for size in [1] * 900 + [100] * 40 + [1] * 300 + [700, 1, 1] * 5:
        arrangement.apply(rows(range(at, at + size)))
        store.commit()
        kept.update({(key, -key): 1 for key in range(at, at + size)})
        at += size
    runs = len(arrangement.runs.run_rows())
    step_rows = SMALL.page_rows * SMALL.merge_pages * max(runs, 8)
    assert 0 < store.meter.worst_excess_rows <= step_rows
    assert store.meter.merged_rows >= at, "every row was flushed, most were merged"
    assert store.meter.merged_rows <= SMALL.fuel * at
    assert runs < 40
    check_scan(arrangement, kept)
    store.close()


def test_one_row_epochs_never_wait_for_a_flush(tmp_path):
    """The allowance of an epoch of one row is far below the rows in memory that become a run."""
    tuning = Tuning(page_rows=64, memory_rows=4096, epoch_merge_rows=256, merge_pages=1)
    store = RocksStore(tmp_path, tuning=tuning)
    arrangement = store.arrange(SPEC)
    for key in range(4000):
        arrangement.apply(rows([key]))
    assert store.meter.merged_rows == 0
    for key in range(4000, 5500):
        arrangement.apply(rows([key]))
        store.commit()
        if key % 100 == 0:
            check_lookup(arrangement, Counter({(key, -key): 1}), [(key,)])
    assert store.meter.merged_rows > 4000
    assert store.meter.worst_epoch_rows < 2048
    assert arrangement.runs.run_rows()[0] == 4096
    store.close()


def test_runs_are_merged_late_while_there_is_memory(tmp_path):
    """More of them then; where pages do not fit into memory, as few as ever."""
    tuning = Tuning(page_rows=16, memory_rows=128, fan=2, fan_growth=4, fuel=20, merge_pages=1)
    found = {}
    for budget_bytes in (1 << 20, 20_000):
        store = RocksStore(tmp_path / str(budget_bytes), budget_bytes, tuning)
        arrangement = store.arrange(SPEC)
        most = 0
        for at in range(0, 12_000, 200):
            arrangement.apply(rows(range(at, at + 200)))
            store.commit()
            most = max(most, len(arrangement.runs.run_rows()))
        found[budget_bytes] = most, store.meter.merged_rows
        assert store.meter.worst_excess_rows <= 2 * tuning.page_rows * tuning.fan
        check_scan(arrangement, Counter({(key, -key): 1 for key in range(12_000)}))
        store.close()
    (roomy_runs, roomy_rows), (tight_runs, tight_rows) = found.values()
    assert roomy_runs > tight_runs
    assert 3 * roomy_rows < 2 * tight_rows


def test_searches_in_memory_pay_for_the_merge_that_saves_them(tmp_path):
    """No page has to be read; the work is bounded by what was searched, and ends."""
    tuning = Tuning(page_rows=32, memory_rows=100, fan=64, epoch_merge_rows=512, merge_pages=2)
    store = RocksStore(tmp_path, 1 << 24, tuning)
    arrangement = store.arrange(SPEC)
    kept: Counter = Counter()
    for at in range(0, 4000, 200):
        arrangement.apply(rows(range(at, at + 200)))
        kept.update({(key, -key): 1 for key in range(at, at + 200)})
        store.commit()
    before, searched = store.meter.merged_rows, 0
    assert len(arrangement.runs.run_rows()) == 20
    keys = Column(np.arange(1024, dtype=np.int64))
    while len(arrangement.runs.run_rows()) > 1:
        index, _ = arrangement.lookup([keys])
        assert len(index) == 1024
        searched += 1024
        store.commit()
        assert searched < 40 * 4000 * KEYS_A_ROW
    assert store.cache.pages_read == 0
    merged = store.meter.merged_rows - before
    assert merged * KEYS_A_ROW <= 20 * searched
    for _ in range(40):
        arrangement.lookup([keys])
        store.commit()
    assert store.meter.merged_rows - before == merged
    check_scan(arrangement, kept)
    store.close()


@pytest.mark.parametrize("is_search_first", [True, False])
@pytest.mark.parametrize("width", [1, 500])
def test_searches_pay_whatever_they_find_and_whatever_comes_after(tmp_path, width, is_search_first):
    """Few keys with many rows cost as much as many keys, and a change in the same epoch does not
    undo what its searches have paid."""
    tuning = Tuning(page_rows=32, memory_rows=100, fan=64, epoch_merge_rows=512, merge_pages=2)
    store = RocksStore(tmp_path, 1 << 24, tuning)
    arrangement = store.arrange(SPEC)
    given = np.random.default_rng(1).permutation(4000)
    for part in given.reshape(20, 200):
        keys = Column(part // width)
        arrangement.apply(Delta([keys, Column(part)], np.ones(200, np.int64)))
        store.commit()
    assert len(arrangement.runs.run_rows()) == 20
    sought = Column(np.arange(1000 // width))
    for key in range(-1, -401, -1):
        if is_search_first:
            arrangement.lookup([sought])
        arrangement.apply(rows([key]))
        if not is_search_first:
            arrangement.lookup([sought])
        store.commit()
    assert max(arrangement.runs.run_rows()) >= 4000
    store.close()


def test_idle_time_merges_what_is_alike_and_then_ends(tmp_path):
    """Also a merge that writes had begun; later changes find every row."""
    tuning = Tuning(page_rows=32, memory_rows=100, fan=64, epoch_merge_rows=512, merge_pages=2)
    store = RocksStore(tmp_path, 1 << 24, tuning)
    arrangement = store.arrange(SPEC)
    unsearched = store.arrange(ArrangementSpec("b", "ii", (0, 1), is_searched=False))
    kept: Counter = Counter()
    at = 0

    def grow(epochs: int) -> None:
        nonlocal at
        for _ in range(epochs):
            for one in (arrangement, unsearched):
                one.apply(rows(range(at, at + 200)))
            kept.update({(key, -key): 1 for key in range(at, at + 200)})
            at += 200
            store.commit()

    grow(20)
    steps = 0
    while store.merge_when_idle():
        store.commit()
        steps += 1
        if steps == 3:
            # Changes come before it is done.
            grow(3)
    assert steps > 3 and store.meter.worst_excess_rows <= 2 * 32 * 64
    counts = arrangement.runs.run_rows()
    assert all(2 * newer <= older for older, newer in pairwise(counts)), counts
    assert len(unsearched.runs.run_rows()) > 10
    check_scan(arrangement, kept)
    merged = store.meter.merged_rows
    for _ in range(20):
        # Each row is written again a few times, not for each pause.
        grow(1)
        while store.merge_when_idle():
            store.commit()
    assert store.meter.merged_rows - merged < 4 * 2 * at
    store.close()
    again = RocksStore(tmp_path, 1 << 24, tuning)
    check_scan(again.arrange(SPEC), kept)
    check_lookup(again.arrange(SPEC), kept, [(0,), (at - 1,), (at,)])
    again.close()


def cold(path, budget_bytes: int = 40_000) -> RocksStore:
    """A store of 24,000 rows in several runs, of which few pages fit into memory."""
    tuning = Tuning(page_rows=32, memory_rows=1000, fan=4, epoch_merge_rows=512, merge_pages=2)
    store = RocksStore(path, budget_bytes, tuning)
    keys = list(range(6000)) * 4
    random.Random(2).shuffle(keys)
    for at in range(0, 24_000, 500):
        some = keys[at : at + 500]
        store.arrange(SPEC).apply(Delta.of("ii", [(k, at + n) for n, k in enumerate(some)]))
        store.commit()
    return store


def test_reads_pay_for_the_merge_that_saves_them(tmp_path):
    """Runs that are searched become one, at no more than the reads that led to it; then it ends."""
    store = cold(tmp_path)
    arrangement = store.arrange(SPEC)
    rng = random.Random(3)
    runs_before = len(arrangement.runs._table.runs)
    merged_before, reads = store.meter.merged_rows, []
    for _ in range(400):
        before = store.cache.pages_read
        _, found = arrangement.lookup([Column.of("i", rng.sample(range(6000), 20))])
        assert len(found) == 80
        store.commit()
        reads.append(store.cache.pages_read - before)
    assert runs_before > 2 and len(arrangement.runs._table.runs) == 1
    assert sum(reads[-20:]) < 0.6 * sum(reads[:20])
    assert store.meter.merged_rows - merged_before <= 32 * sum(reads)
    merged = store.meter.merged_rows
    for _ in range(50):
        arrangement.lookup([Column.of("i", rng.sample(range(6000), 20))])
        store.commit()
    assert store.meter.merged_rows == merged, "one run has nothing left to save"
    store.close()


def test_what_is_in_memory_is_not_merged_for_reads(tmp_path):
    store = cold(tmp_path, 16 << 20)
    arrangement = store.arrange(SPEC)
    runs, merged = arrangement.runs.run_rows(), store.meter.merged_rows
    for start in range(0, 6000, 100):
        arrangement.lookup([Column.of("i", range(start, start + 100))])
        store.commit()
    assert store.cache.pages_read == 0
    assert arrangement.runs.run_rows() == runs and store.meter.merged_rows == merged
    store.close()


def test_what_runs_in_memory_hold_is_counted(tmp_path):
    """Whatever adds, merges, flushes, clears, drops or opens them."""
    tuning = Tuning(page_rows=16, memory_rows=300, fan=3)
    rng = random.Random(8)
    names = ["a", "b", "c"]
    store = RocksStore(tmp_path, tuning=tuning)
    for step in range(600):
        name = rng.choice(names)
        arrangement = store.arrange(ArrangementSpec(name, "ii", (0,)))
        arrangement.apply(rows(range(step * 10, step * 10 + rng.choice([1, 2, 40, 400]))))
        what = rng.random()
        if what < 0.02:
            store.drop(name)
        elif what < 0.04:
            arrangement.clear()
        elif what < 0.06:
            arrangement.runs.flush()
        elif what < 0.07:
            store.commit()
            store.close()
            store = RocksStore(tmp_path, tuning=tuning)
        if what > 0.5:
            store.commit()
        assert store._held.total == sum(runs.memory_bytes for _, runs in store._open.values())
    store.close()


def test_an_arrangement_is_dropped_in_the_middle_of_its_merges(tmp_path):
    store = RocksStore(tmp_path, tuning=SMALL)
    for at in range(0, 3000, 10):
        store.arrange(SPEC).apply(rows(range(at, at + 10)))
        store.commit()
        runs = store.arrange(SPEC).runs
        if at > 1000 and (runs._flushing or runs._merging):
            break
    assert store.cache.reserved_bytes > 0, "the test was to stop in the middle of a merge"
    store.drop("a")
    assert store.cache.used_bytes == store.cache.reserved_bytes == store.cache.filter_bytes == 0
    store.commit()
    arrangement = store.arrange(SPEC)
    check_scan(arrangement, Counter())
    arrangement.apply(rows(range(5)))
    store.commit()
    check_scan(arrangement, Counter({(key, -key): 1 for key in range(5)}))
    store.close()


@pytest.mark.parametrize("seed", range(3))
def test_a_crash_after_any_commit_of_a_merge_keeps_every_row(tmp_path, seed):
    """The directory as it is after each commit is opened as if the machine had gone there.

    With one page a step and little allowed an epoch, flushes and merges of all sizes are cut in
    the middle; from some places the copy continues for a while.
    """
    tuning = Tuning(page_rows=4, memory_rows=24, fan=2, fuel=3, epoch_merge_rows=4, merge_pages=1)
    rng = random.Random(seed)
    store = RocksStore(tmp_path / "state", 2_000, tuning)
    arrangement = store.arrange(SPEC)
    kept: Counter = Counter()
    cut = Counter()
    for epoch in range(120):
        arrangement.apply(delta_of("ii", random_delta(rng, "ii", kept, rng.choice([1, 3, 8]))))
        check_lookup(arrangement, kept, [row[:1] for row in list(kept)[:2]])
        store.commit()
        runs = arrangement.runs
        cut["flush"] += runs._flushing is not None
        cut["merge"] += runs._merging is not None
        if not (runs._flushing or runs._merging) and epoch % 10:
            continue
        copy = tmp_path / "copy"
        shutil.copytree(tmp_path / "state", copy, ignore=shutil.ignore_patterns("LOCK"))
        other = RocksStore(copy, 2_000, tuning)
        check_scan(other.arrange(SPEC), kept)
        check_lookup(other.arrange(SPEC), kept, [row[:1] for row in kept])
        later = kept.copy()
        for _ in range(epoch % 7):
            other.arrange(SPEC).apply(delta_of("ii", random_delta(rng, "ii", later, 8)))
            other.commit()
        check_scan(other.arrange(SPEC), later)
        other.close()
        shutil.rmtree(copy)
    assert cut["flush"] > 5 and cut["merge"] > 5
    store.close()


def test_windows_cover_everything_once():
    """Random tracks: each first row is in exactly one window, and no window is long."""
    rng = np.random.default_rng(4)
    for _ in range(50):
        tracks = []
        for _ in range(rng.integers(1, 5)):
            pairs = sorted({tuple(p) for p in rng.integers(0, 6, (rng.integers(1, 40), 2))})
            first, first_row = np.array(pairs, np.uint64).T
            tracks.append((np.ascontiguousarray(first), np.ascontiguousarray(first_row)))
        step = int(rng.integers(1, 5))
        found = [window.tolist() for window in windows(tracks, step)]
        assert found[0][:2] == [0, 0] and found[-1][4] == 0
        assert all(a[2:4] == b[:2] and a[:2] < a[2:4] for a, b in pairwise(found))
        for first, first_row in tracks:
            starts = list(zip(first.tolist(), first_row.tolist(), strict=True))
            for window in found:
                lower, upper = tuple(window[:2]), tuple(window[2:4])
                inside = [p for p in starts if lower <= p and (not window[4] or p < upper)]
                assert len(inside) <= step
    assert len(list(windows([], 4))) == 1


def test_the_meter_counts_by_epochs():
    meter = MergeMeter(10, 2)
    assert meter.is_open()
    meter.count(11)
    assert not meter.is_open()
    meter.take_in(3)
    assert meter.is_open()
    meter.read(100)
    meter.count(60)
    meter.end_epoch()
    assert (meter.merged_rows, meter.worst_epoch_rows, meter.worst_excess_rows) == (71, 71, 5)
    assert meter.is_open()
    meter.count(9)
    assert meter.is_open()


@pytest.mark.parametrize("fan", [2, 4, 5])
def test_a_tail_is_what_a_new_run_completes(fan):
    """As all neighbours are chosen, wherever those before the new run had nothing to merge."""
    rng = random.Random(fan)
    sizes: list[int] = []
    merges = 0
    for _ in range(4000):
        sizes.append(rng.choice([1, 1, 1, 2, 30, rng.randrange(1, 5000)]))
        chosen, start = choose_merge(sizes, fan), choose_tail(sizes, fan)
        if len(sizes) <= 4 * fan:
            assert chosen == (None if start is None else (start, len(sizes)))
        while start is not None:
            merges += 1
            sizes[start:] = [sum(sizes[start:])]
            start = choose_tail(sizes, fan)
        assert len(sizes) < 8 * fan
    assert merges > 200


def test_choices():
    """A tail is merged when its reads have cost as much; nothing for one run or none."""
    assert choose_by_reads([], []) is None
    assert choose_by_reads([100], [10**9]) is None
    assert choose_by_reads([100, 100], [10**9, 199]) is None
    assert choose_by_reads([100, 100], [200, 199]) is None
    assert choose_by_reads([100, 100], [0, 200]) == (0, 2)
    assert choose_by_reads([1000, 10, 10], [0, 0, 20]) == (1, 3)
    assert choose_merge([], 4) is None
    assert choose_tail([], 4) is None
