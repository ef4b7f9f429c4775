"""Oracle: the same plan evaluated per row, in plain Python, over the whole accumulated input.

After every epoch the sum of a dataflow's deltas must equal it, error rows included, from both
stores, across reopening. A failure names the seed; to repeat one:
TIDEMARK_SEED=<seed> pytest tests/property/test_operators.py -k <store>
"""

from __future__ import annotations

import contextlib
import os
import pickle
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from dataflow.collect import ErrorRows
from dataflow.delta import Delta
from dataflow.expressions.evaluator import NoEvaluator
from dataflow.graph import ViewDataflow
from dataflow.sql.lower.lowering import lower
from storage.memory import MemoryStore
from storage.pages import Tuning
from storage.rocks import RocksStore
from storage.store import Store
from tests.harness import figures
from tests.harness.oracle import Oracle, exact
from tests.harness.tiers import count
from tests.property.plans import CASES, SMALL, WIDE, Table

EPOCHS = count("TIDEMARK_TEST_EPOCHS", 2000, 10_000)
EPOCHS_A_PLAN = 20
FIRST_SEED = int(os.environ.get("TIDEMARK_FIRST_SEED", "1"))


def _accumulate(total: Counter, delta: Delta) -> None:
    rows = [(exact(row), weight) for row, weight in delta.rows()]
    assert len({row for row, _ in rows}) == len(rows), "a row comes twice in one delta"
    assert all(weight for _, weight in rows), "a row comes with weight zero"
    for row, weight in rows:
        total[row] += weight
        if not total[row]:
            del total[row]
    assert all(weight > 0 for weight in total.values()), "a row is retracted that was not out"


class Run:
    """One plan over one store, epoch by epoch."""

    def __init__(self, seed: int, store: Store) -> None:
        self.random = Random(seed)
        self.name = self.random.choice(list(CASES))
        a, b = (Table(n, SMALL, self.random) for n in "ab")
        wide = Table("w", WIDE, self.random)
        self.tables = [a, b, wide]
        self.plan = CASES[self.name](self.random, a.scan(), b.scan(), wide.scan())
        self.nodes = pickle.loads(pickle.dumps(lower(self.plan)))
        assert self.nodes == lower(self.plan)
        self.errors = ErrorRows()
        self.total: Counter = Counter()
        self.failures: Counter = Counter()
        self.open(store)
        self.take(self.dataflow.seed())

    def open(self, store: Store) -> None:
        """Stand on the state as it is, as after a restart."""
        self.dataflow = ViewDataflow(self.nodes, "v1", store, NoEvaluator(), self.errors)

    def step(self, max_rows: int = 0) -> None:
        """Change some relations, step, compare; max_rows: in parts of about so many."""
        changed = {t.relation.name: t.change() for t in self.tables if self.random.random() < 0.7}
        needed = self.dataflow.needed_columns()
        deltas = {
            name: delta.project(needed[name]).consolidate()
            for name, delta in changed.items()
            if name in needed
        }
        if max_rows:
            self.take(*self.dataflow.parts(deltas, max_rows))
        else:
            self.take(self.dataflow.step(deltas))

    def take(self, *deltas: Delta) -> None:
        """Add deltas to what is out, and compare with the oracle."""
        for delta in deltas:
            _accumulate(self.total, delta)
        for row, weight in self.errors.take().rows():
            self.failures[row[1].decode(), row[2].decode()] += weight
        oracle = Oracle({t.relation.name: t.rows for t in self.tables})
        expected = oracle.rows(self.plan)
        missing, surplus = expected - self.total, self.total - expected
        assert not missing and not surplus, f"{self.name}: missing {missing}, surplus {surplus}"
        assert +self.failures == +oracle.failures, f"{self.name}: error rows"


def _check(seed: int, store: Store) -> None:
    run = Run(seed, store)
    for _ in range(EPOCHS_A_PLAN):
        run.step()


def _seeds() -> list[int]:
    if "TIDEMARK_SEED" in os.environ:
        return [int(os.environ["TIDEMARK_SEED"])]
    return list(range(FIRST_SEED, FIRST_SEED + EPOCHS // EPOCHS_A_PLAN))


def _repeat(seed: int, store: str, error: BaseException) -> None:
    pytest.fail(
        f"seed {seed}: {type(error).__name__}: {error}\n"
        f"TIDEMARK_SEED={seed} pytest tests/property/test_operators.py -k {store}"
    )


def _counted(store: str) -> contextlib.AbstractContextManager[figures.Run]:
    command = f"TIDEMARK_FIRST_SEED={FIRST_SEED} TIDEMARK_TEST_EPOCHS={EPOCHS} pytest"
    command += f" tests/property/test_operators.py -k {store}"
    return figures.counted("operator_epochs", command, case=store)


def test_memory() -> None:
    """10,000 epochs over MemoryStore."""
    with _counted("memory") as counted:
        for seed in _seeds():
            try:
                _check(seed, MemoryStore())
            except Exception as error:
                if "TIDEMARK_SEED" in os.environ:
                    raise
                _repeat(seed, "memory", error)
            counted.count += EPOCHS_A_PLAN


def test_rocks(tmp_path: Path) -> None:
    """10,000 epochs over RocksStore with tiny runs, many of them stepped in parts; each state is
    reopened now and then."""
    tuning = Tuning(page_rows=4, page_heap_bytes=256, memory_rows=8, fan=2, merge_pages=1)
    store = RocksStore(tmp_path / "state", 1 << 20, tuning)
    with _counted("rocks") as counted:
        for seed in _seeds():
            try:
                run = Run(seed + 1_000_000, store)
                for epoch in range(EPOCHS_A_PLAN):
                    run.step(max_rows=(0, 1, 4)[epoch % 3])
                    store.commit()
                    if epoch == 10 and seed % 10 == 0:
                        store.close()
                        store = RocksStore(tmp_path / "state", 1 << 20, tuning)
                        run.open(store)
                store.drop("v1/")
                store.commit()
            except Exception as error:
                if "TIDEMARK_SEED" in os.environ:
                    raise
                _repeat(seed, "rocks", error)
            counted.count += EPOCHS_A_PLAN
    store.close()
