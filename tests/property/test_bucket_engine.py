"""Oracle: a plain loop over the model's rows, after each batch that the sink shows, whatever was
killed between the source and the sink.

An engine whose view is in buckets, without Spark: what is killed is its process, at the failpoints
of the driver, between driver and engine, and between engine and sink.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from connectors.objects.shared_storage import SharedStorage
from connectors.sink import SinkEpoch
from connectors.source import SourceBatch
from connectors.spark.maintained import driver as driver_module
from connectors.spark.maintained.commits import FixedInput
from connectors.spark.maintained.driver import Driver
from connectors.spark.maintained.layout import Layout, MaintainedView, Spread
from connectors.spark.maintained.runtime import storage_below
from connectors.spark.maintained.scheduler import InProcessScheduler
from connectors.spark.maintained.skew import KeyCounts
from connectors.spark.maintained.tasks import STATES
from connectors.spark.result import BackfillResult
from dataflow.changes import Changes
from dataflow.errors import TidemarkError
from dataflow.expressions.evaluator import NoEvaluator
from dataflow.sql.lower.lowering import lower
from service.engine.bucket_engine import BucketEngine
from service.engine.bucket_views import LOST_FILE, BucketParts, BucketViews
from service.engine.definition import View, ViewDefinition
from service.engine.epoch_buffer import EpochBuffer
from service.engine.replay import CatchUp, Replay
from storage.rocks import RocksStore
from tests.harness.buckets import MemoryStorage, backfilled, files_below, random_spread
from tests.harness.tiers import count
from tests.unit.service.test_engine import COUNTED, JOINED, SOURCE, Model

ENGINES = count("TIDEMARK_TEST_BUCKET_ENGINES", 1, 40)
# Seeds of which some moves are cut short by a kill; of another seed none may be.
CUT_SHORT = (0, 1, 2)
POINTS = ("fixed", "computed", "stored", "committed", "stepped", "kept")


class Killed(BaseException):
    """The process ends here."""


class World:
    """A source that sends again, a process that is killed, and a sink that shows epochs once."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        monkeypatch: pytest.MonkeyPatch,
        shared: Path | None = None,
    ) -> None:
        self.shared = shared
        self.random, self._sizes = random.Random(seed), random.Random(seed)
        self.model = Model(seed)
        self._folder = folder
        self.name = f"{folder}-{seed}"
        self._sent: list[list[Changes]] = []
        self._killed_at = ""
        self.kills: Counter[str] = Counter()
        self.imports = 0
        self.rows: Counter[tuple[Any, ...]] = Counter()
        self.epoch = 0
        monkeypatch.setattr(driver_module, "failpoint", self._pass)
        self.open()

    def _pass(self, name: str) -> None:
        # An epoch that moves state is committed elsewhere.
        moved = "spark.state.moved" if self._killed_at == "committed" else None
        if name in (f"spark.epoch.{self._killed_at}", moved):
            raise Killed(name)

    def open(self) -> None:
        """Start the process, and bring the sink to its state."""
        self._store = RocksStore(self._folder / "state")
        self.engine = self._engine()
        assert self.engine.recover(0) == []
        for epoch in self.engine.outbox(self.epoch):
            self._show(epoch)

    def opened(self) -> BucketEngine:
        """The engine of the next process, which has not recovered yet."""
        self._store.close()
        self._store = RocksStore(self._folder / "state")
        return self._engine()

    def _engine(self) -> BucketEngine:
        parts = BucketParts(
            storage=self._storage,
            scheduler=InProcessScheduler(str(self._folder / "caches"), 2),
            evaluator=lambda _: NoEvaluator,
            buckets=3,
            folder=self._folder / "moves",
            held_rows=self._sizes.choice([0, 20, 1000]),
        )
        buckets = BucketViews(self._store, parts)
        return BucketEngine(self._store, NoEvaluator(), SOURCE, buckets=buckets)

    def _storage(self, name: str) -> SharedStorage:
        if self.shared is None:
            return MemoryStorage(f"{self.name}/{name}")
        return storage_below(str(self.shared), name)

    def kill(self) -> None:
        """End the process: what is not committed is gone."""
        self._store.close()
        self.open()

    def close(self) -> None:
        """End all."""
        self._store.close()
        STATES.close()

    def build(self, definition: ViewDefinition) -> None:
        """Make the view of the rows as they are; it replaces the one before."""
        view = View(definition, self._store, NoEvaluator())
        buffered, read = self.engine.gather(), self._sent[: self.engine.position]
        if self.random.random() < 0.5:
            replay: CatchUp = Replay(view, 1000)
        else:
            at = self.random.randint(0, len(read))
            replay = self._imported(view, read[:at], buffered)
            read = read[at:]
        for changes in read:
            for rows in replay.take(changes):
                buffered.add(definition.table, rows)
        for rows in replay.finish():
            buffered.add(definition.table, rows)
        if self.engine.positions.progress is None:
            self.engine.positions.begin(SOURCE, 0)
        if self.engine.views:
            self.engine.renew(view)
            self.rows.clear()
        else:
            self.engine.add(view)
        epoch = self.engine.announce(view, buffered, None, token=None)
        self.engine.commit(epoch, written=0)
        self._show(epoch)

    def catch_up(self, definition: ViewDefinition) -> None:
        """Begin to build a view from what tasks have backfilled, without an end."""
        view, read = View(definition, self._store, NoEvaluator()), self._sent[:2]
        replay = self._imported(view, read, self.engine.gather())
        for changes in self._sent[len(read) :]:
            for _ in [*replay.take(changes), *replay.finish()]:
                pass

    def _imported(
        self, view: View, read: Sequence[Sequence[Changes]], buffered: EpochBuffer
    ) -> CatchUp:
        """The view as tasks have backfilled it; its rows so far are added."""
        definition, self.imports = view.definition, self.imports + 1
        folder = self._folder / f"backfill-{self.imports}"
        store = RocksStore(folder / "state")
        own = View(definition, store, NoEvaluator())
        for changes in read:
            for rows in Replay(own, 1000).take(changes):
                buffered.add(definition.table, rows)
        store.commit()
        columns = {at.relation.name: at.columns for at in own.locations}
        nodes, relations = lower(definition.plan.root), definition.relations()
        kept = MaintainedView("", nodes, definition.scope, relations, columns, NoEvaluator)
        state = backfilled(kept, store, self.random.randint(1, 5), folder)
        store.close()
        result = BackfillResult(list(state.files), [], None, None, 0, state.exchange)
        return self.engine.catch_up(view, result)

    def step(self, killed_at: str = "") -> None:
        """Commit a transaction at the source, and step over all that was not read."""
        if self.random.random() < 0.8:
            self._sent.append(self.model.changes(self.random.randrange(1, 60)))
        else:
            self._sent.append([])
        self._killed_at = killed_at
        try:
            while self.engine.position < len(self._sent):
                self._step(killed_at)
        except Killed:
            self.kills[killed_at] += 1
            self._killed_at = ""
            self.kill()
            while self.engine.position < len(self._sent):
                self._step("")
        self._killed_at = ""

    def _step(self, killed_at: str) -> None:
        position = self.engine.position + 1
        changes = self._sent[position - 1]
        batch = SourceBatch(position, changes, 1, sum(map(len, changes)))
        if self._sizes.random() < 0.4:
            # Perhaps too large for the memory of the driver.
            batch.changes, batch.later = [], iter([[part] for part in changes])
        epoch = self.engine.step(batch)
        assert batch.later is None or next(batch.later, None) is None
        if killed_at == "stepped":
            raise Killed
        assert self.engine.refused() == []
        self.engine.commit(epoch, written=self.epoch)
        if killed_at == "kept":
            raise Killed
        self._show(epoch)

    def _show(self, epoch: SinkEpoch) -> None:
        assert epoch.progress.epoch == self.epoch + 1
        self.epoch += 1
        for part in epoch.rows.parts():
            assert part.errors is None or not len(part.errors)
            for _, delta in part.deltas:
                for row, weight in delta.rows():
                    self.rows[row] += weight
                    assert self.rows[row] >= 0
        self.rows = +self.rows


@pytest.mark.parametrize("seed", range(ENGINES))
def test_an_engine_whose_keys_are_spread_whatever_is_killed(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Epochs that only move state are none of the engine's, wherever they are cut short."""
    draw, moves = random.Random(seed), Counter[str]()

    def spread(_: KeyCounts, layout: Layout) -> Spread:
        return random_spread(layout, draw) if draw.random() < 0.6 else layout.spread

    def noting(driver: Driver, given: FixedInput) -> None:
        moves["begun"] += 1
        moved(driver, given)
        moves["ended"] += 1

    moved = Driver._move
    monkeypatch.setattr(KeyCounts, "spread", spread)
    monkeypatch.setattr(Driver, "_move", noting)
    world = World(tmp_path, seed, monkeypatch)
    try:
        world.build(JOINED)
        for _ in range(16):
            world.step(world.random.choice(("", "fixed", "committed", "kept")))
            assert world.rows == world.model.views()[0]
        assert moves["ended"] > 0, moves
        if seed in CUT_SHORT:
            assert moves["begun"] > moves["ended"] > 4, moves
    finally:
        world.close()


@pytest.mark.parametrize("seed", range(ENGINES))
def test_an_engine_in_buckets_whatever_is_killed(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, seed, monkeypatch)
    try:
        world.build(JOINED)
        for _ in range(12):
            killed_at = world.random.choice(("", *POINTS))
            world.step(killed_at)
            assert world.rows == world.model.views()[0], killed_at
        assert len(world.kills) > 2, world.kills
        # Another query under the same name, and another name: the state before is deleted.
        counted = replace(COUNTED, identity=JOINED.identity, table=replace(COUNTED.table, name="j"))
        world.engine.rename(JOINED.name, counted.table)
        world.engine.commit(world.engine.change_views([]), written=world.epoch)
        world.kill()
        (before,) = {
            name.rsplit("/", 2)[0] for name in files_below(world.name) if "manifest" in name
        }
        world.build(counted)
        assert not any(name.startswith(before) for name in files_below(world.name))
        world.kill()
        for _ in range(6):
            world.step(world.random.choice(("", *POINTS)))
            assert world.rows == world.model.views()[1]
        world.engine.remove(counted.name)
        world.engine.commit(None, written=world.epoch)
        assert files_below(world.name) == []
    finally:
        world.close()


def test_every_chunk_passes_for_views_that_are_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where no view reads it yet: what is not read to its end, no build is given."""
    world = World(tmp_path, 4, monkeypatch)
    passed: list[list[Changes]] = []

    def chunks() -> Iterator[list[Changes]]:
        for part in world.model.changes(30):
            yield [part]
            passed.append([part])

    try:
        world.engine.positions.begin(SOURCE, 0)
        for position in (1, 2):
            before = len(passed)
            world.engine.step(SourceBatch(position, [], 1, 30, later=chunks()))
            assert len(passed) > before
    finally:
        world.close()


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_build_that_does_not_join_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_killed: bool
) -> None:
    """Whether it is given up, or its process is killed while it catches up."""
    world = World(tmp_path, 3, monkeypatch, tmp_path / "shared")
    try:
        world.build(JOINED)
        for _ in range(3):
            world.step()
        before = _folders(tmp_path / "shared")
        other = replace(COUNTED, identity=JOINED.identity, version=2)
        world.catch_up(other)
        assert len(_folders(tmp_path / "shared")) == len(before) + 1
        if is_killed:
            world.kill()
        else:
            world.engine.forget_build(other)
            world.engine.commit(None, written=world.epoch)
        assert _folders(tmp_path / "shared") == before
        world.step()
        assert world.rows == world.model.views()[0]
    finally:
        world.close()


@pytest.mark.parametrize("kind", ["base", "manifest"])
def test_a_state_that_is_lost_leaves_the_engine_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Tasks find that a base is gone, which no start would; it is noted for the next one."""
    world = World(tmp_path, 3, monkeypatch, tmp_path / "shared")
    try:
        world.build(JOINED)
        world.step()
        (scope,) = (tmp_path / "shared").iterdir()
        for path in filter(Path.is_file, scope.glob(f"*/{kind}/**/*")):
            path.unlink()
        # Executors that have the state do not notice.
        STATES.close()
        shutil.rmtree(tmp_path / "caches")
        if kind == "base":
            world.engine = world.opened()
            assert world.engine.recover(world.epoch) == []
            with pytest.raises(TidemarkError, match=r"spark\.state_lost"):
                for _ in range(20):
                    world.step()
            assert (tmp_path / LOST_FILE).exists()
        engine = world.opened()
        (error,) = engine.recover(world.epoch)
        assert (error.code, error.relation) == ("spark.state_lost", JOINED.name)
        assert not engine.views
        assert _folders(tmp_path / "shared") == set()
        # It is built again, beside nothing of before.
        world.engine = engine
        world.build(JOINED)
        world.step()
        assert world.opened().recover(world.epoch) == []
    finally:
        world.close()


def _folders(shared: Path) -> set[tuple[str, ...]]:
    """Of the states that have files."""
    return {p.relative_to(shared).parts[:2] for p in shared.rglob("*") if p.is_file()}
