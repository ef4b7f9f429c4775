"""Oracle: a dictionary of what the child had written by its last acknowledged commit.

A child writes epochs and says on its output which one is committed; it is killed with SIGKILL at
a random moment, often in the middle of a commit or a merge. The state then is that of one epoch
from the last one acknowledged on, at most one later, in rows, sums and named values alike.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from storage.delta import Column
from storage.failpoints import VARIABLE
from storage.pages import Tuning
from storage.rocks import RocksStore, StoreBudget
from storage.store import ArrangementSpec, SumsSpec
from storage.write_set import stored_keys
from tests.unit.storage.oracle import (
    Row,
    check_lookup,
    check_scan,
    check_sums,
    columns_of,
    delta_of,
    random_delta,
)

KINDS = "isf"
ROWS = ArrangementSpec("view/join/left", KINDS, (0,))
SUMS = SumsSpec("view/aggregate/groups", "i", 2)
TUNING = Tuning(
    page_rows=8, memory_rows=60, file_rows=100, fan=2, fuel=3, merge_pages=1, scan_pages=4
)
CACHE_BYTES = 20_000
# The second one writes nearly every page ahead of its commit, and makes runs at every step.
BUDGETS = (None, StoreBudget(run_bytes=1_500, ahead_bytes=500))


class History:
    """Random epochs that any two of us make alike from a seed, and what they add up to."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.rows: Counter[Row] = Counter()
        self.sums: dict[Row, np.ndarray] = {}
        self.epoch = 0

    def step(self) -> list[tuple[Row, int]]:
        """The changes of the next epoch; the sums count rows and weights by the first column."""
        self.epoch += 1
        size = self.rng.choice([1, 5, 40, 100])
        changes = random_delta(self.rng, KINDS, self.rows, size)
        for row, weight in changes:
            vector = self.sums.get(row[:1], 0) + np.array([weight, 2 * weight])
            self.sums[row[:1]] = vector
            if not vector.any():
                del self.sums[row[:1]]
        return changes


def write(store: RocksStore, epoch: int, changes: list[tuple[Row, int]]) -> None:
    """One epoch of the history, not committed."""
    arrangement, sums = store.arrange(ROWS), store.arrange_sums(SUMS)
    half = len(changes) // 2
    for part in (changes[:half], changes[half:]):
        arrangement.apply(delta_of(KINDS, part))
    totals: dict[Row, int] = {}
    for row, weight in changes:
        totals[row[:1]] = totals.get(row[:1], 0) + weight
    vectors = np.array([list(totals.values()), [2 * w for w in totals.values()]], np.int64)
    sums.add(columns_of("i", list(totals)), vectors)
    store.relieve()
    store.put_ahead(f"part/{epoch}", b"x" * 400)
    store.put("epoch", str(epoch).encode())


def write_for_ever(path: str, seed: int, done: int, budget: StoreBudget | None) -> None:
    """What the child does: continue after `done` epochs and say each one that is committed."""
    history = History(seed)
    for _ in range(done):
        history.step()
    store = RocksStore(path, cache_bytes=CACHE_BYTES, tuning=TUNING, budget=budget)
    print("open", flush=True)
    while True:
        changes = history.step()
        write(store, history.epoch, changes)
        store.commit(sync=history.epoch % 10 == 0)
        print(history.epoch, flush=True)


def run_and_kill(path: str, history: History, number: int, rng: random.Random) -> int:
    """Start a child and kill it some epochs and moments later; the last one it acknowledged."""
    seed, done = history.seed, history.epoch
    code = f"from {__name__} import *; write_for_ever({path!r}, {seed}, {done}, BUDGETS[{number}])"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "open\n"
        lines = [child.stdout.readline().strip() for _ in range(rng.randint(10, 60))]
        time.sleep(rng.uniform(0, 0.02))
        child.send_signal(signal.SIGKILL)
        lines += child.stdout.read().split("\n")[:-1]
    return max(int(line) for line in lines)


@pytest.mark.parametrize("number", range(2))
def test_killed_state_is_the_last_commit(tmp_path, number):
    path = str(tmp_path / "state")
    history = History(number)
    rng = random.Random(number)
    for _ in range(5):
        said = run_and_kill(path, history, number, rng)
        store = RocksStore(path, cache_bytes=CACHE_BYTES, tuning=TUNING)
        found = int(store.get("epoch") or b"0")
        assert said <= found <= said + 1
        while history.epoch < found:
            history.step()
        arrangement, sums = store.arrange(ROWS), store.arrange_sums(SUMS)
        check_scan(arrangement, history.rows)
        keys = sorted({row[:1] for row in history.rows}, key=repr)
        check_lookup(arrangement, history.rows, keys)
        check_sums(sums, history.sums, keys)
        assert all(store.get(f"part/{epoch}") for epoch in range(1, found + 1))
        store.close()
    assert history.epoch > 50


@pytest.mark.parametrize(
    "point", ["merge.flush.step", "merge.runs.step", "merge.runs.entered", "state.commit.before"]
)
def test_killed_at_a_failpoint_it_is_the_last_commit(tmp_path, point):
    path, history = str(tmp_path / "state"), History(7)
    for passed in (1, 3, 20):
        code = (
            f"from {__name__} import *; write_for_ever({path!r}, {history.seed}, "
            f"{history.epoch}, BUDGETS[{passed % 2}])"
        )
        ended = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, VARIABLE: f"{point}=kill@{passed}"},
            stdout=subprocess.PIPE,
            text=True,
            timeout=120,
            check=False,
        )
        assert ended.returncode == -signal.SIGKILL
        said = max(map(int, ended.stdout.split()[1:]), default=history.epoch)
        store = RocksStore(path, cache_bytes=CACHE_BYTES, tuning=TUNING)
        assert int(store.get("epoch") or b"0") == said
        while history.epoch < said:
            history.step()
        check_scan(store.arrange(ROWS), history.rows)
        check_sums(store.arrange_sums(SUMS), history.sums, sorted(history.sums, key=repr))
        assert not list((tmp_path / "state" / "unfinished").iterdir())
        store.close()


@pytest.mark.parametrize("budget", BUDGETS)
def test_uncommitted_writes_are_gone_all_of_them(tmp_path, budget):
    history = History(5)
    store = RocksStore(tmp_path, cache_bytes=CACHE_BYTES, tuning=TUNING, budget=budget)
    for _ in range(30):
        changes = history.step()
        write(store, history.epoch, changes)
        store.commit()
    rows, sums = history.rows.copy(), dict(history.sums)
    for _ in range(3):
        changes = history.step()
        write(store, history.epoch, changes)
    check_scan(store.arrange(ROWS), history.rows)
    store.drop("view/agg")
    store.close()
    store = RocksStore(tmp_path, cache_bytes=CACHE_BYTES, tuning=TUNING)
    check_scan(store.arrange(ROWS), rows)
    check_sums(store.arrange_sums(SUMS), sums, sums)
    assert store.get("epoch") == b"30"
    store.close()


def test_pages_are_written_ahead_but_never_into_a_range_that_the_commit_removes(tmp_path):
    budget = StoreBudget(run_bytes=0, ahead_bytes=0)
    store = RocksStore(tmp_path, tuning=TUNING, budget=budget)
    first: Counter[Row] = Counter({(n, b"first", None): 1 for n in range(50)})
    second: Counter[Row] = Counter({(n, b"second", None): 1 for n in range(30)})
    store.arrange(ROWS).apply(delta_of(KINDS, list(first.items())))
    store.relieve()
    assert _stored_pages(store), "nothing was written ahead"
    store.commit()
    # The same names again in one epoch: what the first one stored goes with the commit only.
    for _ in range(2):
        store.drop("view/")
        arrangement = store.arrange(ROWS)
        arrangement.apply(delta_of(KINDS, list(second.items())))
        store.relieve()
        check_scan(arrangement, second)
    store.commit()
    check_scan(store.arrange(ROWS), second)
    store.close()
    store = RocksStore(tmp_path, tuning=TUNING, budget=budget)
    check_scan(store.arrange(ROWS), second)
    store.close()


def test_pages_of_an_unfinished_merge_are_removed_on_open(tmp_path):
    slow = Tuning(page_rows=8, memory_rows=16, fan=2, fuel=1, merge_pages=1)
    store = RocksStore(tmp_path, tuning=slow)
    arrangement = store.arrange(ROWS)
    kept: Counter[Row] = Counter({(n, b"x", None): 1 for n in range(400)})
    for start in range(0, 400, 20):
        arrangement.apply(delta_of(KINDS, list(kept.items())[start : start + 20]))
        store.commit()
    before = _stored_pages(store)
    store.close()
    store = RocksStore(tmp_path, tuning=slow)
    assert _stored_pages(store) < before, "the test was to stop in the middle of a merge"
    check_scan(store.arrange(ROWS), kept)
    store.close()


def _stored_pages(store: RocksStore) -> int:
    return len(stored_keys(store._db, b"p", b"q"))


NUMBERS = ArrangementSpec("a", "i", (0,))
SLOW_FILES = Tuning(page_rows=32, memory_rows=300, file_rows=100, fan=2, merge_pages=1, fuel=1)


def _write_half_a_file(store: RocksStore, begun: int = 0) -> int:
    """Rows of a number each, from `begun` on, until a file of them is being written; their end."""
    rows = store.arrange(NUMBERS)
    while not list((Path(store.path) / "unfinished").iterdir()):
        rows.apply(delta_of("i", [((begun + n,), 1) for n in range(150)]))
        begun += 150
        store.commit()
    return begun


def _check_numbers(store: RocksStore, count: int) -> None:
    rows = store.arrange(NUMBERS)
    assert rows.row_count() == count
    assert sum(len(d) for d in rows.scan()) == count


def test_a_file_that_was_not_finished_is_removed(tmp_path):
    store = RocksStore(tmp_path, tuning=SLOW_FILES)
    kept = _write_half_a_file(store)
    (tmp_path / "unfinished" / "left.sst").write_bytes(b"of a crash")
    store.close()
    store = RocksStore(tmp_path, tuning=SLOW_FILES)
    assert not list((tmp_path / "unfinished").iterdir())
    _check_numbers(store, kept)
    store.close()


def test_what_is_let_go_of_late_removes_no_file_of_who_came_after(tmp_path):
    before = RocksStore(tmp_path, tuning=SLOW_FILES)
    # As the traceback of an error has it.
    held = before.arrange(NUMBERS)
    kept = _write_half_a_file(before)
    before.close()
    store = RocksStore(tmp_path, tuning=SLOW_FILES)
    kept = _write_half_a_file(store, kept)
    del held
    gc.collect()
    rows = store.arrange(NUMBERS)
    unfinished = list((tmp_path / "unfinished").iterdir())
    assert unfinished
    while list((tmp_path / "unfinished").iterdir()) == unfinished:
        rows.apply(delta_of("i", [((kept,), 1)]))
        kept += 1
        store.commit()
    _check_numbers(store, kept)
    store.close()


def test_an_arrangement_made_again_in_the_epoch_that_drops_it_keeps_its_long_runs(tmp_path):
    spec = ArrangementSpec("a", "i", (0,))
    tuning = Tuning(page_rows=32, memory_rows=50, file_rows=10)
    store = RocksStore(tmp_path, tuning=tuning)
    for start in (0, 1000):
        store.drop("a")
        store.arrange(spec).apply(delta_of("i", [((start + n,), 1) for n in range(200)]))
        store.commit()
    store.close()
    store = RocksStore(tmp_path, tuning=tuning)
    index, rows = store.arrange(spec).lookup([Column.of("i", [5, 1000, 1199])])
    assert index.tolist() == [1, 2]
    assert rows.columns[0].values.tolist() == [1000, 1199]
    store.close()
