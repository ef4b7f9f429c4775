"""Oracle: a plain loop over the records of two topics up to the positions that an epoch claims.

A view in buckets whose tasks read the records: `sum` and `count` of a join of an append topic and
an upsert topic. Whatever fails, each epoch is the loop's answer. Where the topic is compacted
between two attempts, a position has no single answer: then nothing is retracted that was not there,
and the last epoch is the loop's answer.
To repeat a seed: TIDEMARK_SEED=<seed> pytest tests/property/test_bucket_ranges.py
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from connectors.spark.maintained import driver as driver_module
from connectors.spark.maintained.driver import Batch, CommittedEpoch, Driver, Limits
from connectors.spark.maintained.files import number_of
from connectors.spark.maintained.layout import MaintainedView
from connectors.spark.maintained.scheduler import InProcessScheduler
from dataflow.errors import SourceError, TemporaryError, TidemarkError
from dataflow.expressions.evaluator import NoEvaluator
from dataflow.expressions.ir import ColumnRef
from dataflow.graph import needed_columns
from dataflow.plan.nodes import Aggregate, AggregateCall, Join, Scan
from dataflow.schema import Field, Relation, RelationName
from dataflow.sql.lower.lowering import lower
from dataflow.types import INT8, NUMERIC
from storage.failpoints import set_failpoints
from tests.harness.buckets import FaultyScheduler, MemoryStorage, TableSink, memory_folder
from tests.harness.ranges import BAD, MemoryPlanner, MemoryTopic
from tests.harness.tiers import count

SEEDS = count("TIDEMARK_TEST_BUCKET_RANGES", 8, 120)
EPOCHS = 8
FIRST_SEED = int(os.environ.get("TIDEMARK_FIRST_SEED", "1"))
CRASHES = ("epoch.read", "epoch.fixed", "epoch.computed", "epoch.stored", "epoch.committed")
IN_TASKS = ("range.read", "bucket.before", "bucket.after", "bucket.commit")
FIELDS = (Field("id", INT8, False), Field("n", INT8))
Positions = dict[str, dict[str, int]]


def relation(name: str, *, is_append: bool) -> Relation:
    key = () if is_append else (0,)
    return Relation(RelationName("m", "m", name), 1, FIELDS, key, is_append=is_append)


def totals() -> tuple[tuple[Relation, ...], MaintainedView]:
    """SELECT s.id, count(*), sum(p.n) FROM sales s JOIN prices p ON p.id = s.id GROUP BY s.id."""
    relations = (relation("sales", is_append=True), relation("prices", is_append=False))
    sales, prices = (Scan(r, (0, 1), FIELDS) for r in relations)
    keys = (ColumnRef(0, INT8),), (ColumnRef(0, INT8),)
    joined = Join("inner", sales, prices, *keys, None, FIELDS + FIELDS)
    calls = (
        AggregateCall("count", None, False, None, Field("orders", INT8)),
        AggregateCall("sum", ColumnRef(3, INT8), False, None, Field("total", NUMERIC)),
    )
    plan = Aggregate(joined, (ColumnRef(0, INT8),), calls, (FIELDS[0], *(c.field for c in calls)))
    nodes = lower(plan)
    view = MaintainedView("ranges", nodes, "v1", relations, needed_columns(nodes), NoEvaluator)
    return relations, view


class Shop:
    """The topics, all records that were ever written, and the loop."""

    def __init__(self, random: Random, *, has_bad: bool = True) -> None:
        self.random = random
        self.relations, self.view = totals()
        self.has_bad = has_bad
        self.topics = {
            r.name.name: MemoryTopic(r, [[] for _ in range(random.choice([1, 2, 4]))], random)
            for r in self.relations
        }
        self.written: dict[str, list[list[Any]]] = {
            name: [[] for _ in topic.partitions] for name, topic in self.topics.items()
        }

    def write(self) -> None:
        """Some records of both."""
        for name, topic in self.topics.items():
            for _ in range(self.random.choice([0, 3, 12])):
                key, chance = self.random.randrange(8), self.random.random()
                value = self.random.randrange(100)
                if self.has_bad and chance < 0.05:
                    record = (key, BAD)
                else:
                    record = (key, None if chance < 0.2 and name == "prices" else value)
                topic.append(record)
                self.written[name][key % len(topic.partitions)].append(record)

    def answer(self, positions: Positions) -> Counter[tuple[Any, ...]]:
        """The view's rows."""
        read = {
            name: [
                record
                for p, records in enumerate(self.written[name])
                for record in records[: positions.get(name, {}).get(str(p), 0)]
                if record[1] != BAD
            ]
            for name in self.topics
        }
        prices = {k: v for k, v in dict(read["prices"]).items() if v is not None}
        orders = Counter(key for key, _ in read["sales"])
        return Counter(
            (key, n, str(n * prices[key]).encode()) for key, n in orders.items() if key in prices
        )

    def ends(self) -> Positions:
        """The positions after all records."""
        return {
            name: {str(p): end for p, end in topic.ends().items()}
            for name, topic in self.topics.items()
        }

    def bad(self, positions: Positions) -> int:
        """How many malformed records there are."""
        return sum(
            record[1] == BAD
            for name, partitions in self.written.items()
            for p, records in enumerate(partitions)
            for record in records[: positions.get(name, {}).get(str(p), 0)]
        )


class CheckedSink(TableSink):
    """Compares each epoch with the loop; is_exact: unless records were compacted away."""

    def __init__(self, shop: Shop) -> None:
        super().__init__()
        self.shop = shop
        self.is_exact = True
        self.positions: Positions = {}

    def apply(self, epoch: CommittedEpoch) -> None:
        """See EpochSink."""
        super().apply(epoch)
        self.positions = dict(epoch.positions)
        if self.is_exact:
            self.check()

    def check(self) -> None:
        """The rows are the loop's."""
        expected = self.shop.answer(self.positions)
        assert self.rows == expected, (self.rows - expected, expected - self.rows)


class Run:
    """A shop that is followed under faults of a seed."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.random = Random(seed)
        self.shop = Shop(self.random)
        for topic in self.shop.topics.values():
            topic.away = 0.05
        self.storage = MemoryStorage(f"ranges-{seed}")
        self.storage.files.content.clear()
        self.storage.files.random = Random(seed + 1)
        self.scheduler = FaultyScheduler(folder, Random(seed + 2), self.random.choice([1, 2, 3]))
        self.sink = CheckedSink(self.shop)
        self.buckets = self.random.choice([1, 2, 4])
        self.happened: Counter[str] = Counter()
        self.now = 0.0
        self.driver = self.new_driver()

    def new_driver(self) -> Driver:
        """A driver that has taken over."""
        while True:
            limits = Limits(
                inline_bytes=self.random.choice([0, 1 << 20]),
                min_log_bytes=self.random.choice([1, 500]),
                rewritten=self.random.choice([0, 1, 100]),
                max_epochs=self.random.choice([2, 100]),
                grace_s=10.0,
            )
            driver = Driver(
                self.shop.view,
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
                continue
            finally:
                set_failpoints("")
            return driver

    def step(self, max_rows: int) -> bool:
        """Read and step once; False if nothing was left. Another driver takes over if it fails."""
        self.now += self.random.choice([1.0, 20.0])
        planner = MemoryPlanner(self.shop.topics, self.driver.positions)
        try:
            if self.random.random() < 0.2:
                self.driver.collect_garbage()
            batch = self.driver.read(planner, max_rows)
            if batch is None:
                return False
            if self.random.random() < 0.1:
                # Something else takes the number of the epoch that was read for.
                self.driver.step(Batch(self.driver.positions))
            self.driver.step(Batch(dict(batch.positions or {}), stored=batch.stored))
        except (OSError, TemporaryError) as error:
            self.happened[getattr(error, "code", "crash")] += 1
            set_failpoints("")
            self.compact()
            self.driver = self.new_driver()
        finally:
            set_failpoints("")
        return True

    def compact(self) -> None:
        """Now and then, records go between two attempts."""
        if self.random.random() < 0.3:
            self.shop.topics["prices"].compact()
            self.sink.is_exact = False
            self.happened["compacted"] += 1

    def disturb(self) -> None:
        """Something that fails in the next epoch."""
        chance = self.random.random()
        if chance < 0.25:
            set_failpoints(f"spark.{self.random.choice(CRASHES)}=error@1")
        elif chance < 0.5:
            point = self.random.choice(IN_TASKS)
            set_failpoints(f"spark.{point}=error@{self.random.randint(1, 4)}")
        elif chance < 0.6:
            newest = max(map(number_of, self.storage.names("manifest")), default=0)
            for name in self.storage.names("epochs"):
                if number_of(name) > max(newest, self.sink.epoch):
                    self.storage.delete(name)

    def play(self) -> None:
        """Write, read, and compare."""
        for _ in range(EPOCHS):
            self.shop.write()
            self.disturb()
            self.step(self.random.choice([1, 5, 100]))
        while self.step(100):
            pass
        assert self.sink.positions == self.shop.ends()
        self.sink.check()


def seeds() -> list[int]:
    if "TIDEMARK_SEED" in os.environ:
        return [int(os.environ["TIDEMARK_SEED"])]
    return list(range(FIRST_SEED, FIRST_SEED + SEEDS))


@pytest.fixture(autouse=True)
def by_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few records there are, tasks read them."""
    monkeypatch.setattr(driver_module, "FEW_RECORDS", 0)


def test_every_epoch_is_the_loops_answer() -> None:
    happened: Counter[str] = Counter()
    for seed in seeds():
        with memory_folder() as folder:
            run = Run(seed, folder)
            try:
                run.play()
            except Exception as error:
                if "TIDEMARK_SEED" in os.environ:
                    raise
                pytest.fail(
                    f"seed {seed}: {type(error).__name__}: {error}\n"
                    f"TIDEMARK_SEED={seed} pytest tests/property/test_bucket_ranges.py"
                )
            happened += run.happened + run.scheduler.done
    print(dict(happened))
    if "TIDEMARK_SEED" not in os.environ:
        for name in ("crash", "source.unreachable", "spark.late_read", "compacted"):
            assert happened[name], f"{name}: never"


class Quiet:
    """A shop that is followed without faults."""

    def __init__(self, folder: Path, name: str, *, has_bad: bool) -> None:
        self.shop = Shop(Random(5), has_bad=has_bad)
        self.sink = CheckedSink(self.shop)
        self.storage = MemoryStorage(name)
        self.storage.files.content.clear()
        self.folder = folder
        self.driver = self.taken_over("one")

    def taken_over(self, name: str) -> Driver:
        """A driver with executors of its own."""
        scheduler = InProcessScheduler(str(self.folder / name), 2)
        driver = Driver(self.shop.view, self.storage, scheduler, self.sink, buckets=4)
        driver.start()
        return driver

    def step(self) -> bool:
        """Read and step all that there is."""
        planner = MemoryPlanner(self.shop.topics, self.driver.positions)
        batch = self.driver.read(planner, 1000)
        if batch is None:
            return False
        self.driver.step(Batch(dict(batch.positions or {}), stored=batch.stored))
        return True


def test_a_state_is_made_again_without_the_topic() -> None:
    """Buckets are restored from what was stored, though the topic has nothing any more."""
    with memory_folder() as folder:
        quiet = Quiet(folder, "ranges-again", has_bad=False)
        for _ in range(4):
            quiet.shop.write()
            quiet.step()
        read = sum(topic.read for topic in quiet.shop.topics.values())
        for topic in quiet.shop.topics.values():
            topic.starts = list(topic.ends().values())
        quiet.driver = quiet.taken_over("other")
        quiet.shop.write()
        assert quiet.step()
        assert sum(f.replayed for f in quiet.driver.figures) > 0
        again = sum(topic.read for topic in quiet.shop.topics.values())
        assert again - read < read
        # The answer is of all that was ever written.
        quiet.sink.check()


def test_records_that_are_gone_are_named_and_nothing_is_fixed() -> None:
    with memory_folder() as folder:
        quiet = Quiet(folder, "ranges-gone", has_bad=False)
        quiet.shop.write()
        quiet.step()
        before = quiet.storage.names("epochs"), quiet.driver.positions
        quiet.shop.write()
        for topic in quiet.shop.topics.values():
            topic.starts = list(topic.ends().values())
        with pytest.raises(SourceError, match=r"source\.offsets_gone") as refused:
            quiet.step()
        assert refused.value.relation is not None
        assert (quiet.storage.names("epochs"), quiet.driver.positions) == before


def test_a_record_that_stops_its_source_is_the_end_of_an_epoch() -> None:
    with memory_folder() as folder:
        quiet = Quiet(folder, "ranges-bad", has_bad=True)
        planner, steps = None, 0
        while planner is None or quiet.shop.bad(quiet.shop.ends()) < 3:
            quiet.shop.write()
            planner = MemoryPlanner(quiet.shop.topics, {}, is_strict=True)
        with pytest.raises(SourceError, match=r"source\.bad_record"):
            while (batch := quiet.driver.read(planner, 1000)) is not None:
                quiet.driver.step(Batch(dict(batch.positions or {}), stored=batch.stored))
                steps += 1
        assert steps == 1
        # Each partition is read up to its first malformed record.
        for name, partitions in quiet.shop.written.items():
            for p, records in enumerate(partitions):
                values = [value for _, value in records]
                first = values.index(BAD) if BAD in values else len(values)
                assert quiet.sink.positions[name][str(p)] == first


def test_malformed_records_are_in_the_batch() -> None:
    with memory_folder() as folder:
        quiet = Quiet(folder, "ranges-rejected", has_bad=True)
        while quiet.shop.bad(quiet.shop.ends()) < 3:
            quiet.shop.write()
        planner = MemoryPlanner(quiet.shop.topics, {})
        batch = quiet.driver.read(planner, 1000)
        assert batch is not None and batch.rejected is not None
        quiet.driver.step(Batch(dict(batch.positions or {}), stored=batch.stored))
        assert len(batch.rejected) == quiet.shop.bad(quiet.sink.positions)


def test_a_batch_that_was_overtaken_is_refused() -> None:
    with memory_folder() as folder:
        quiet = Quiet(folder, "ranges-late", has_bad=False)
        quiet.shop.write()
        batch = quiet.driver.read(MemoryPlanner(quiet.shop.topics, {}), 1000)
        assert batch is not None
        late = Batch(dict(batch.positions or {}), stored=batch.stored)
        quiet.driver.step(Batch({}))
        with pytest.raises(TidemarkError, match=r"spark\.late_read"):
            quiet.driver.step(late)
        quiet.step()
        quiet.sink.check()
