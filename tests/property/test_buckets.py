"""Oracle: the local dataflow of the same plan, after the same changes; it is checked elsewhere
(test_operators.py) against evaluation per row.

A view in buckets reads a numbered source. Whenever its sink shows an epoch, the rows and the error
rows are those of the local dataflow at the position that the epoch claims, whatever has failed.
To repeat a seed: TIDEMARK_SEED=<seed> pytest tests/property/test_buckets.py
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from connectors.spark.maintained import bucket_state, changes, skew, tasks
from connectors.spark.maintained.driver import Batch, Driver, Limits
from connectors.spark.maintained.files import number_of
from connectors.spark.maintained.growth import GrowthLimits
from connectors.spark.maintained.layout import Layout, MaintainedView, Spread
from connectors.spark.maintained.skew import HEAVY_ROWS, KeyCounts
from dataflow.collect import ErrorRows
from dataflow.delta import Delta
from dataflow.errors import TemporaryError, TidemarkError
from dataflow.expressions.evaluator import NoEvaluator
from dataflow.graph import ViewDataflow, needed_columns
from dataflow.operators.aggregates import aggregate
from dataflow.operators.aggregates.aggregate import AggregateOperator
from dataflow.plan.nodes import Aggregate, Plan, Shard, scans_of
from dataflow.schema import RelationName
from dataflow.sql.lower.lowering import Node, lower
from dataflow.sql.rules.split_aggregates import split_aggregates
from dataflow.sql.rules.split_top_k import split_top_k
from storage.failpoints import set_failpoints
from storage.memory import MemoryStore
from tests.harness.buckets import (
    Faults,
    FaultyScheduler,
    MemoryStorage,
    TableSink,
    counted,
    memory_folder,
    random_spread,
)
from tests.harness.tiers import count
from tests.property.plans import (
    ADDITIVE,
    CASES,
    FIRST_ROWS,
    JOINS,
    OF_ALL_ROWS,
    SMALL,
    WIDE,
    Table,
)

PLANS = count("TIDEMARK_TEST_BUCKET_PLANS", 15, 400)
SUMS_PLANS = count("TIDEMARK_TEST_BUCKET_SUMS", 4, 100)
PHASES_PLANS = count("TIDEMARK_TEST_BUCKET_PHASES", 3, 200)
ALL_ROWS_PLANS = count("TIDEMARK_TEST_BUCKET_ALL_ROWS", 7, 200)
SLICED_PLANS = count("TIDEMARK_TEST_BUCKET_SLICES", 6, 300)
GROWING_PLANS = count("TIDEMARK_TEST_BUCKET_GROWTH", 2, 200)
SPREAD_PLANS = count("TIDEMARK_TEST_BUCKET_SPREAD", 4, 200)
EPOCHS = 12
FIRST_SEED = int(os.environ.get("TIDEMARK_FIRST_SEED", "1"))
CRASHES = ("fixed", "computed", "stored", "committed")
IN_TASKS = ("bucket.before", "bucket.after", "bucket.commit")
Changed = dict[RelationName, Delta]


@dataclass
class History:
    """A plan, numbered changes of its relations, and the local answers after each."""

    random: Random
    cases: Mapping[str, Callable[..., Plan]] = field(default_factory=lambda: CASES)
    changes: list[Changed] = field(default_factory=list)
    rows: list[Counter] = field(default_factory=list)
    errors: list[Counter] = field(default_factory=list)
    # The nodes that are maintained in buckets, if it is not these.
    in_buckets: tuple[Node, ...] | None = None

    def __post_init__(self) -> None:
        self.name = self.random.choice(list(self.cases))
        a, b = (Table(n, SMALL, self.random) for n in "ab")
        tables = [a, b, Table("w", WIDE, self.random)]
        plan = self.cases[self.name](self.random, *(t.scan() for t in tables))
        self.nodes, collected = lower(plan), ErrorRows()
        if self.cases is FIRST_ROWS:
            self.in_buckets = lower(split_top_k(plan))
        if self.cases is OF_ALL_ROWS:
            self.in_buckets = lower(split_aggregates(plan))
        self.relations = tuple({s.relation.name: s.relation for s in scans_of(plan)}.values())
        self.needed = needed_columns(self.nodes)
        local = ViewDataflow(self.nodes, "v1", MemoryStore(), NoEvaluator(), collected)
        rows, errors = counted(local.seed().rows()), Counter()
        for _ in range(EPOCHS):
            self.rows.append(+rows)
            self.errors.append(+errors)
            changed = {
                t.relation.name: t.change().project(self.needed[t.relation.name]).consolidate()
                for t in tables
                if t.relation.name in self.needed and self.random.random() < 0.7
            }
            self.changes.append(changed)
            rows.update(counted(local.step(changed).rows()))
            for row, weight in collected.take().rows():
                errors[row[1].decode(), row[2].decode()] += weight
        self.rows.append(+rows)
        self.errors.append(+errors)

    def view(self, identity: str) -> MaintainedView:
        """The view, to be maintained in buckets."""
        nodes = self.nodes if self.in_buckets is None else self.in_buckets
        return MaintainedView(identity, nodes, "v1", self.relations, self.needed, NoEvaluator)

    def batch(self, start: int, stop: int) -> Batch:
        """What an epoch reads from one position to another."""
        found: dict[RelationName, list[Delta]] = {}
        for changed in self.changes[start:stop]:
            for name, delta in changed.items():
                found.setdefault(name, []).append(delta)
        rows = {name: Delta.concat(parts).consolidate() for name, parts in found.items()}
        return Batch({"at": stop}, rows=rows)


class CheckedSink(TableSink):
    """Compares each epoch with the local answer at its position."""

    def __init__(self, history: History) -> None:
        super().__init__()
        self._history = history

    def apply(self, epoch) -> None:
        before = self.position
        super().apply(epoch)
        rows, errors = self._history.rows[self.position], self._history.errors[self.position]
        assert self.position >= before
        missing, surplus = rows - self.rows, self.rows - rows
        assert not missing and not surplus, f"missing {missing}, surplus {surplus}"
        assert self.errors == errors, "error rows"


class Run:
    """One history in buckets, under faults of a seed."""

    # The rows from which on a driver spreads heavy keys by itself.
    heavy_rows = HEAVY_ROWS

    def __init__(
        self, seed: int, folder: Path, cases: Mapping[str, Callable[..., Plan]] = CASES
    ) -> None:
        self.random, self._outputs = Random(seed), Random(seed)
        self.history = History(self.random, cases)
        self.seed, self.happened = seed, Counter()
        self.begin()
        self.scheduler = FaultyScheduler(folder, Random(seed + 2), self.random.choice([1, 2, 3]))
        self.buckets = self.random.choice([1, 2, 4])
        self.now = 0.0
        self.driver = self.new_driver()

    def begin(self) -> None:
        """A view without epochs, in a place of its own."""
        name = f"property-{self.seed}-{self.happened['built again']}"
        self.storage = MemoryStorage(name)
        self.storage.files.content.clear()
        self.storage.files.random = Random(self.seed + 1)
        self.sink = CheckedSink(self.history)
        self.view = self.history.view(name)

    def new_driver(self) -> Driver:
        """A driver that has taken over; it may fail at that. A view whose state is lost is built
        again.
        """
        while True:
            least = self.random.choice([1, 200, 2000])
            limits = Limits(
                inline_bytes=self.random.choice([0, 1 << 20]),
                min_log_bytes=least,
                rewritten=self.random.choice([0, 1, 3, 100]),
                max_epochs=self.random.choice([2, 100]),
                grace_s=10.0,
                heavy_rows=self.heavy_rows,
                output_bytes=self._outputs.choice([0, 200, 1 << 20]),
                growth=self.growth(),
            )
            driver = Driver(
                self.view,
                self.storage,
                self.scheduler,
                self.sink,
                buckets=self.buckets,
                limits=limits,
                clock=lambda: self.now,
            )
            try:
                driver.start()
            except (OSError, TemporaryError):
                self.happened["start failed"] += 1
                continue
            except TidemarkError as error:
                self.require_lost(error)
                self.happened["built again"] += 1
                self.begin()
                continue
            finally:
                set_failpoints("")
            return driver

    def require_lost(self, error: TidemarkError) -> None:
        """Nothing but a manifest that was lost makes a state one that cannot be continued.

        A number whose manifest was lost may be written again: then it is not the file that the
        history names.
        """
        assert error.code in ("spark.state_lost", "spark.unauthentic"), error
        assert self.happened["manifest lost"], error

    def growth(self) -> GrowthLimits:
        """When a new driver splits buckets by itself."""
        return GrowthLimits()

    def step(self, driver: Driver) -> bool:
        """One epoch, or something that happens between two; False if the driver is gone."""
        self.now += self.random.choice([1.0, 20.0])
        try:
            if self.random.random() < 0.1:
                driver.split(self.random.choice([1, 2, 3, 4, 8]))
                self.happened["split"] += 1
            self.spread(driver)
            if self.random.random() < 0.2:
                driver.collect_garbage()
            # Whatever another driver had fixed meanwhile has been read.
            start = driver.positions.get("at", 0)
            stop = min(start + self.random.choice([1, 1, 2]), EPOCHS)
            driver.step(self.history.batch(start, stop))
        except (OSError, TemporaryError):
            return False
        except TidemarkError as error:
            if error.code != "spark.fenced":
                self.require_lost(error)
            self.happened["fenced"] += error.code == "spark.fenced"
            return False
        finally:
            set_failpoints("")
        return True

    def spread(self, driver: Driver) -> None:
        """What happens to the keys of joins between two epochs: nothing here."""

    def play(self) -> None:
        """The whole history."""
        rivals: list[Driver] = []
        while self.sink.position < EPOCHS:
            self.disturb()
            if self.random.random() < 0.1:
                rivals.append(self.driver)
                self.driver = self.new_driver()
                self.happened["rival"] += 1
            for rival in list(rivals):
                if self.random.random() < 0.5 and not self.step(rival):
                    rivals.remove(rival)
            if not self.step(self.driver):
                self.happened["driver lost"] += 1
                if self.random.random() < 0.4:
                    self.lose_input()
                self.driver = self.new_driver()

    def lose_input(self) -> None:
        """An epoch that was fixed, perhaps stepped, is gone: another one takes its number."""
        newest = max(map(number_of, self.storage.names("manifest")), default=0)
        for name in self.storage.names("epochs"):
            if number_of(name) > max(newest, self.sink.epoch):
                self.storage.delete(name)
                self.happened["input lost"] += 1

    def disturb(self) -> None:
        """Something that fails in the next epoch, or a file that is gone."""
        chance, files = self.random.random(), self.storage.files
        files.stale = set()
        if chance < 0.2:
            set_failpoints(f"spark.epoch.{self.random.choice(CRASHES)}=error@1")
        elif chance < 0.35:
            point, at = self.random.choice(IN_TASKS), self.random.randint(1, 6)
            set_failpoints(f"spark.{point}=error@{at}")
        elif chance < 0.45 and not self.happened["built again"]:
            manifests = self.storage.names("manifest")
            for name in manifests[-self.random.choice([1, 2]) :]:
                del files.content[name]
            self.happened["manifest lost"] += bool(manifests)
            self.driver = self.new_driver()
        elif chance < 0.55:
            files.stale = set(self.storage.names("manifest")[-2:])
            self.driver = self.new_driver()
            self.happened["stale"] += 1


class SpreadRun(Run):
    """Keys of joins are spread, and gathered again, at random and by the drivers' own rule."""

    heavy_rows = 8

    def spread(self, driver: Driver) -> None:
        """See Run."""
        if self.random.random() < 0.3:
            before = driver.spread
            driver.spread_keys(random_spread(driver.layout, self.random))
            self.happened["spread"] += bool(driver.spread and driver.buckets > 1)
            self.happened["gathered"] += bool(set(before) - set(driver.spread))


class GrowingRun(Run):
    """Each driver has another opinion of when buckets are to be split."""

    def growth(self) -> GrowthLimits:
        """See Run."""
        size = self.random.choice([500, 2000, 1 << 30])
        return GrowthLimits(size, self.random.choice([1, 2, 4]), busy_s=0.0)

    def step(self, driver: Driver) -> bool:
        """See Run."""
        before = driver.buckets
        is_there = super().step(driver)
        self.happened["grown"] += driver.epoch > 1 and driver.buckets > before
        return is_there


def chosen(count: int) -> list[int]:
    """So many seeds, or the one that the environment names."""
    if "TIDEMARK_SEED" in os.environ:
        return [int(os.environ["TIDEMARK_SEED"])]
    return list(range(FIRST_SEED, FIRST_SEED + count))


def played(
    seed: int, cases: Mapping[str, Callable[..., Plan]] = CASES, kind: type[Run] = Run
) -> Counter:
    """What has happened in the run of a seed."""
    with memory_folder() as folder:
        run = kind(seed, folder, cases)
        try:
            run.play()
        except Exception as error:
            if "TIDEMARK_SEED" in os.environ:
                raise
            pytest.fail(
                f"seed {seed}, {run.history.name}: {type(error).__name__}: {error}\n"
                f"TIDEMARK_SEED={seed} pytest tests/property/test_buckets.py"
            )
        lost = Counter({"reply lost": run.storage.files.lost_replies})
        return run.happened + run.scheduler.done + lost


@pytest.mark.timeout(1800)
def test_every_epoch_is_the_local_answer() -> None:
    happened: Counter = Counter()
    for seed in chosen(PLANS):
        happened += played(seed)
    print(dict(happened))
    if "TIDEMARK_SEED" not in os.environ:
        faults = ("driver lost", "manifest lost", "input lost", "stale", "fenced", "start failed")
        for name in (*faults, "split", "cache lost", "process lost", "refused", "reply lost"):
            assert happened[name], f"{name}: never"


def test_sums_of_rows_give_the_local_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Aggregates of few rows, of which sums cross the exchange as those of many rows do."""
    crossed = 0
    partial_sums = AggregateOperator.partial_sums

    def counting(self: AggregateOperator, delta: Delta) -> tuple[Delta, Delta]:
        nonlocal crossed
        rows, sums = partial_sums(self, delta)
        crossed += len(sums)
        return rows, sums

    monkeypatch.setattr(AggregateOperator, "partial_sums", counting)
    for seed in chosen(SUMS_PLANS):
        monkeypatch.setattr(aggregate, "SUMMED_ROWS", 1 + seed % 3)
        played(seed, ADDITIVE)
    assert crossed, "no sums cross an exchange"


@pytest.mark.timeout(1800)
def test_slices_and_stored_rows_give_the_local_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of a few rows, whose output goes to other tasks by the shared storage."""
    sliced: Counter = Counter()
    positions = changes.slice_positions

    def counting(*arguments: Any) -> Iterator[tuple[int, np.ndarray]]:
        found = list(positions(*arguments))
        sliced[len(found) > 1] += 1
        return iter(found)

    for module in (bucket_state, changes):
        monkeypatch.setattr(module, "slice_positions", counting)
    for seed in chosen(SLICED_PLANS):
        monkeypatch.setattr(bucket_state, "SLICE_ROWS", 1 + seed % 4)
        monkeypatch.setattr(tasks, "FILED_BYTES", 600 * (seed % 2))
        played(seed)
    assert sliced[True], "nothing was sliced"


def test_first_rows_in_two_phases_give_the_local_answer() -> None:
    phases = Counter(
        node.name.partition(".")[2]
        for seed in chosen(PHASES_PLANS)
        for node in History(Random(seed), FIRST_ROWS).view("phases").nodes
    )
    assert phases["shard"] * 2 <= phases["top_k"], phases
    assert phases["shard"] >= PHASES_PLANS or "TIDEMARK_SEED" in os.environ, phases
    for seed in chosen(PHASES_PLANS):
        played(seed, FIRST_ROWS, GrowingRun)


def test_aggregates_of_all_rows_in_two_phases_give_the_local_answer() -> None:
    histories = [History(Random(seed), OF_ALL_ROWS) for seed in chosen(ALL_ROWS_PLANS)]
    plans = [node.plan for history in histories for node in history.view("phases").nodes]
    shards = [plan for plan in plans if isinstance(plan, Shard)]
    # Distinct values are groups without calls.
    values = [p for p in plans if isinstance(p, Aggregate) and p.groups and not p.calls]
    assert (shards and values) or "TIDEMARK_SEED" in os.environ, plans
    for seed in chosen(ALL_ROWS_PLANS):
        played(seed, OF_ALL_ROWS, GrowingRun)


def test_buckets_that_grow_give_the_local_answer() -> None:
    happened: Counter = Counter()
    for seed in chosen(GROWING_PLANS):
        happened += played(seed, kind=GrowingRun)
    print(dict(happened))
    if "TIDEMARK_SEED" not in os.environ:
        for name in ("grown", "driver lost", "manifest lost", "input lost"):
            assert happened[name], f"{name}: never"


def test_spread_keys_give_the_local_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Joins of all kinds, of which each bucket has a part of a key's rows of one input."""
    monkeypatch.setattr(skew, "_REPORTED_ROWS", 1)
    monkeypatch.setattr(skew, "MAX_KEYS", 3)
    happened: Counter = Counter()
    spread = KeyCounts.spread

    def noting(self: KeyCounts, layout: Layout) -> Spread:
        found = spread(self, layout)
        happened["spread by the rule"] += bool(set(found) - set(layout.spread))
        return found

    monkeypatch.setattr(KeyCounts, "spread", noting)
    for seed in chosen(SPREAD_PLANS):
        happened += played(seed, JOINS, SpreadRun)
    print(dict(happened))
    if "TIDEMARK_SEED" not in os.environ:
        faults = ("driver lost", "manifest lost", "input lost", "cache lost", "refused", "split")
        for name in ("spread", "gathered", "spread by the rule", *faults):
            assert happened[name], f"{name}: never"


def test_without_faults_nothing_is_read_twice() -> None:
    """The faults above do not hide that a quiet run is quiet: no state is made a second time."""
    with memory_folder() as folder:
        run = Run(3, folder)
        run.storage.files.random = None
        run.scheduler.faults = Faults(0, 0, 0, 0, 0, 0)
        while run.sink.position < EPOCHS:
            assert run.driver.epoch == run.sink.epoch
            at = run.sink.position
            run.driver.step(run.history.batch(at, at + 1))
            figures = run.driver.figures
            assert sum(f.replayed for f in figures) == 0
            assert at == 0 or sum(f.restored for f in figures) == 0
        assert run.sink.applied == EPOCHS
        assert run.driver.collect_garbage() == 0
