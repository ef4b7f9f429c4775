"""Oracle: one process that maintains the same view without a move.

A view's state goes from one store into buckets, to other numbers of buckets, and back into one
store, and continues after each move."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
import pytest

from connectors.spark.maintained.bases import ingest, rows_of
from connectors.spark.maintained.driver import Driver, Limits
from connectors.spark.maintained.growth import GrowthLimits
from connectors.spark.maintained.layout import Layout
from connectors.spark.maintained.scheduler import InProcessScheduler
from connectors.spark.maintained.tasks import STATES
from connectors.spark.stages import Spec
from dataflow.collect import ErrorRows
from dataflow.delta import Delta
from dataflow.expressions.evaluator import NoEvaluator
from dataflow.graph import ViewDataflow
from dataflow.operators.tables.table import TableState
from storage.bulk import partition_rows
from storage.rocks import RocksStore
from storage.store import ArrangementSpec
from tests.harness.buckets import (
    MemoryStorage,
    TableSink,
    backfilled,
    counted,
    memory_folder,
    random_spread,
)
from tests.harness.tiers import count
from tests.property.plans import JOINS
from tests.property.test_buckets import EPOCHS, History

SEEDS = range(1, 30, 2)


class Local:
    """One process over a RocksStore, with tables, as before a move or after one."""

    def __init__(self, history: History, store: RocksStore) -> None:
        self.store = store
        self.errors = ErrorRows()
        self.dataflow = ViewDataflow(history.nodes, "v1", store, NoEvaluator(), self.errors)
        needed = history.needed
        self.tables = {
            r.name: TableState(r, needed[r.name], store, "v1") for r in history.relations
        }

    def step(self, history: History, at: int) -> list:
        """One epoch; its output rows."""
        changed = history.changes[at]
        for name, delta in changed.items():
            self.tables[name].load(delta)
        out = self.dataflow.step(changed)
        self.store.commit()
        return out.rows()


def local_after(history: History, epochs: int, folder: Path) -> tuple[Local, Counter]:
    """One process after so many epochs, and the view's rows."""
    local = Local(history, RocksStore(folder))
    rows = counted(local.dataflow.seed().rows())
    for at in range(epochs):
        rows.update(counted(local.step(history, at)))
    return local, rows


@pytest.mark.parametrize("seed", SEEDS)
def test_a_view_moves_to_buckets_and_back(seed: int) -> None:
    history = History(Random(seed))
    with memory_folder() as folder:
        local, rows = local_after(history, 4, folder / "one")
        sink = TableSink()
        sink.rows, sink.epoch, sink.position = +rows, 4, 4
        storage = MemoryStorage(f"moves-{seed}")
        scheduler = InProcessScheduler(str(folder / "tasks"), 2)
        driver = Driver(history.view(f"moves-{seed}"), storage, scheduler, sink, buckets=3)
        driver.start_moved(local.store, {"at": 4}, folder / "files", epoch=4)
        local.store.close()
        for at in range(4, 8):
            if at == 6:
                driver.split(5)
            driver.step(history.batch(at, at + 1))
            assert sink.rows == history.rows[at + 1]
        (folder / "back").mkdir()
        files = driver.export(folder / "back")
        STATES.close()
        store = RocksStore(folder / "again")
        again = Local(history, store)
        store.ingest(files)
        again = Local(history, store)
        rows = +sink.rows
        for at in range(8, EPOCHS):
            rows.update(counted(again.step(history, at)))
            assert +rows == history.rows[at + 1]
        store.close()


@pytest.mark.parametrize("seed", range(count("TIDEMARK_TEST_IMPORTS", 6, 200)))
def test_the_state_of_a_backfill_is_imported(seed: int) -> None:
    """By tasks, whatever the number of buckets that wrote it; and frequent keys are found."""
    random = Random(seed)
    history = History(Random(seed), JOINS) if seed % 2 else History(Random(seed))
    with memory_folder() as folder:
        local, rows = local_after(history, 4, folder / "one")
        sink = TableSink()
        sink.rows, sink.errors = +rows, Counter(history.errors[4])
        sink.epoch, sink.position = 1, 4
        view, storage = history.view(f"imports-{seed}"), MemoryStorage(f"imports-{seed}")
        # Of 100 bytes there would be more buckets than a process may have open.
        limits = Limits(heavy_rows=1, growth=GrowthLimits(random.choice([2_000, 1 << 30])))
        scheduler = InProcessScheduler(str(folder / "tasks"), random.randint(1, 4))
        driver = Driver(view, storage, scheduler, sink, buckets=random.randint(1, 4), limits=limits)
        state = backfilled(view, local.store, random.randint(1, 5), folder)
        driver.start_imported(state, {"at": 4}, epoch=1)
        local.store.close()
        assert driver.positions == {"at": 4} and driver.epoch == 1
        for at in range(4, EPOCHS):
            driver.step(history.batch(at, at + 1))
            assert (sink.rows, sink.errors) == (history.rows[at + 1], history.errors[at + 1])
        STATES.close()


@pytest.mark.parametrize("seed", range(count("TIDEMARK_TEST_SPREAD_MOVES", 2, 60)))
def test_spread_keys_are_moved_and_exported_once(seed: int) -> None:
    """The state of each join is then that of one process, row by row."""
    history, random = History(Random(seed), JOINS), Random(seed)
    with memory_folder() as folder:
        local, rows = local_after(history, 3, folder / "one")
        sink = TableSink()
        sink.rows, sink.errors = +rows, Counter(history.errors[3])
        sink.epoch = sink.position = 3
        view, storage = history.view(f"spread-{seed}"), MemoryStorage(f"spread-{seed}")
        driver = Driver(view, storage, InProcessScheduler(str(folder), 2), sink, buckets=3)
        driver.start_moved(local.store, {"at": 3}, folder / "files", epoch=3)
        for at in range(3, 9):
            driver.spread_keys(random_spread(driver.layout, random))
            if at in (5, 7):
                driver.split(random.choice([1, 2, 4, 5]))
            driver.step(history.batch(at, at + 1))
            local.step(history, at)
            assert (sink.rows, sink.errors) == (history.rows[at + 1], history.errors[at + 1])
        is_spread = bool(driver.spread) and driver.buckets > 1
        (folder / "back").mkdir()
        files = driver.export(folder / "back")
        assert (bool(driver.spread) and driver.buckets > 1) or not is_spread, "it is still spread"
        driver.step(history.batch(9, 10))
        assert sink.rows == history.rows[10]
        again = RocksStore(folder / "again")
        states = [
            spec
            for level in driver.layout.levels
            for stage in level
            if stage.relation is not None or driver.layout.spread_sides(stage)
            for spec, _ in driver.layout.specs[stage.number]
        ]
        ingest(again, [s for ss in driver.layout.specs.values() for s, _ in ss], files, folder)
        for spec in states:
            assert content(again, spec) == content(local.store, spec), spec.name
        again.close()
        local.store.close()


def content(store: RocksStore, spec: Spec) -> Counter:
    """The rows of a state, with their weights or sums."""
    found: Counter = Counter()
    for columns, values in rows_of(store, spec):
        every = Delta(columns, np.ones(values.shape[1], np.int64)).rows()
        for (row, _), held in zip(every, values.T.tolist(), strict=True):
            found[row, tuple(held)] += 1
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_every_state_is_in_the_bucket_of_its_key(seed: int) -> None:
    """So that it can be cut for other buckets by the leading columns of its key."""
    history = History(Random(seed))
    with memory_folder() as folder:
        view, sink = history.view(f"keys-{seed}"), TableSink()
        scheduler = InProcessScheduler(str(folder), 1)
        driver = Driver(view, MemoryStorage(view.identity), scheduler, sink, buckets=4)
        driver.start()
        for at in range(6):
            driver.step(history.batch(at, at + 1))
        layout = Layout(view, 4)
        assert layout.keys
        for states in STATES._open.values():
            for state in states.values():
                for number, specs in state.specs.items():
                    for spec, width in specs:
                        check(layout, state, number, spec, width)


def check(layout: Layout, state, number: int, spec, width: int) -> None:
    if layout.is_single(layout.cut.stages[number]):
        return
    assert width > 0
    key = spec.key if isinstance(spec, ArrangementSpec) else range(len(spec.key_kinds))
    for columns, values in rows_of(state.store, spec):
        n = values.shape[1]
        bucket = partition_rows([columns[c] for c in key[:width]], n, layout.buckets)
        assert np.all(bucket == state.bucket), spec.name
