"""Oracle: a plain loop over the model's rows, after each batch that the sink shows, wherever the
view is maintained and however often it has moved.

Engines without Spark and without a service: one shares its tables with other views, one has the
view in buckets, and one is what a view returns to. Each is opened again once it has the view.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from connectors.sink import Progress, SinkEpoch, SinkTable
from connectors.source import SourceBatch
from connectors.spark.maintained.scheduler import InProcessScheduler
from connectors.spark.maintained.tasks import STATES
from dataflow.changes import Changes
from dataflow.errors import TidemarkError
from dataflow.expressions.evaluator import NoEvaluator
from dataflow.plan.nodes import Scan, UnionAll, ViewPlan
from dataflow.schema import Relation, RelationName
from service.engine.bucket_engine import BucketEngine
from service.engine.bucket_views import BucketParts, BucketViews
from service.engine.definition import View, ViewDefinition
from service.engine.departures import Departure, Departures
from service.engine.engine import Engine
from service.engine.handover import carried, epochs_of
from service.factory.handed_state import take_up
from storage.rocks import RocksStore
from storage.store import Store
from tests.harness.buckets import MemoryStorage, files_below
from tests.harness.tiers import count
from tests.unit.service.test_engine import ABOVE, COUNTED, JOINED, SOURCE, Model
from tests.unit.service.test_expiry import FULL, KEYED, Row, Scene, event


def local_engine(store: Store, _: Path) -> Engine:
    return Engine(store, NoEvaluator(), SOURCE, keeps_rows=True)


def bucket_engine(store: Store, folder: Path) -> Engine:
    parts = BucketParts(
        storage=lambda name: MemoryStorage(f"{folder}/{name}"),
        scheduler=InProcessScheduler(str(folder / "caches"), 2),
        evaluator=lambda _: NoEvaluator,
        buckets=3,
        folder=folder / "moves",
    )
    return BucketEngine(store, NoEvaluator(), SOURCE, buckets=BucketViews(store, parts))


class Group:
    """An engine over a store in a folder; `make` returns it."""

    def __init__(self, folder: Path, make: Callable[[Store, Path], Engine]) -> None:
        self.folder, self._make = folder, make
        self.store = RocksStore(folder / "state")
        self.engine = make(self.store, folder)

    def open_again(self) -> None:
        """End the process, and start the next one."""
        self.store.close()
        self.store = RocksStore(self.folder / "state")
        self.engine = self._make(self.store, self.folder)
        assert self.engine.recover(self.engine.epoch) == []

    def step(self, position: int, changes: list[Changes]) -> SinkEpoch:
        """Commit one batch."""
        epoch = self.engine.step(SourceBatch(position, changes, 1, sum(map(len, changes))))
        assert self.engine.refused() == []
        self.engine.commit(epoch, written=self.engine.epoch)
        return epoch

    def give(self, name: RelationName, other: Group) -> None:
        """Give a view away: what `ViewHandovers` and `write_state` do."""
        definition, engine = self.engine.views[name], self.engine
        given = carried(engine.positions, definition, engine.epoch + 1)
        files = other.folder / "files"
        files.mkdir()
        columns = engine.copy_to(name, other.store, files)
        take_up(other.engine, definition, columns, given, NoEvaluator())
        engine.remove(name)
        Departures(self.store).add(Departure(definition, given.progress.epoch, "other"))
        engine.commit(engine.change_views([]), written=engine.epoch, sync=True)
        assert Departures(self.store).identities() == {definition.identity}
        assert other.engine.positions.by_source == engine.positions.by_source
        assert other.engine.epoch == engine.epoch


def built(group: Group, definition: ViewDefinition) -> None:
    """Make a view live over no rows."""
    group.engine.add(View(definition, group.store, NoEvaluator()))
    if group.engine.positions.progress is None:
        group.engine.positions.begin(SOURCE, 0)


def apply(rows: Counter[tuple[Any, ...]], epoch: SinkEpoch, title: str) -> None:
    """Add an epoch to what a view shows."""
    for part in epoch.rows.parts():
        for table, delta in part.deltas:
            for row, weight in delta.rows() if table.name == title else ():
                rows[row] += weight
                assert rows[row] >= 0
    for row in [row for row, n in rows.items() if not n]:
        del rows[row]


@pytest.mark.parametrize("seed", range(count("TIDEMARK_TEST_HANDOVERS", 2, 30)))
def test_a_view_moves_there_and_back(seed: int, tmp_path: Path) -> None:
    pick, model = random.Random(seed), Model(seed)
    home = Group(tmp_path / "home", local_engine)
    moving, staying = (JOINED, COUNTED) if seed % 2 else (COUNTED, JOINED)
    for definition in (staying, moving):
        built(home, definition)
    shown: dict[str, Counter[tuple[Any, ...]]] = {"joined": Counter(), "counted": Counter()}
    groups, at, position = [home], home, 0
    try:
        for round_ in range(6):
            for _ in range(pick.randrange(1, 5)):
                position += 1
                changes = model.changes(pick.randrange(1, 80))
                epoch = home.step(position, changes)
                apply(shown[staying.table.name], epoch, staying.table.name)
                epoch = epoch if at is home else at.step(position, changes)
                apply(shown[moving.table.name], epoch, moving.table.name)
                joined, counted, _ = model.views()
                assert shown == {"joined": joined, "counted": counted}, (seed, round_)
            is_local = at is home or not isinstance(at.engine, BucketEngine)
            make = bucket_engine if is_local else local_engine
            other = Group(tmp_path / f"{round_}", make)
            groups.append(other)
            at.give(moving.name, other)
            assert moving.name not in at.engine.views
            if not is_local:
                # Nothing of it is left in the shared storage.
                assert files_below(str(at.folder)) == []
            if pick.random() < 0.7:
                at.open_again()
            other.open_again()
            at = other
    finally:
        for group in groups:
            group.store.close()
        STATES.close()


@pytest.mark.parametrize("epoch_bytes", [1, 1 << 20], ids=["parts", "whole"])
def test_epochs_that_sinks_lack_go_along(epoch_bytes: int, tmp_path: Path) -> None:
    """Those after the one that all sinks have, with the rows of this view alone."""

    def make(store: Store, _: Path) -> Engine:
        return Engine(store, NoEvaluator(), SOURCE, epoch_bytes, keeps_rows=True)

    model = Model(3)
    group, other = Group(tmp_path / "a", make), Group(tmp_path / "b", local_engine)
    try:
        for definition in (COUNTED, JOINED):
            built(group, definition)
        shown = [Counter[tuple[Any, ...]]()]
        for position in range(1, 7):
            epoch = group.engine.step(SourceBatch(position, model.changes(60), 1, 60))
            group.engine.commit(epoch, written=0)
            shown.append(Counter(model.views()[0]))
            assert (epoch.rows.later is not None) == (epoch_bytes == 1)
        progress = Progress(7, group.engine.positions.by_source)
        given = epochs_of(JOINED.table, group.engine.find_epoch, 2, progress)
        for epoch in given:
            other.engine.retain(epoch)
        other.open_again()
        assert other.engine.find_epoch(2) is None and other.engine.find_epoch(8) is None
        rows = shown[2].copy()
        for number in range(3, 8):
            found, before = other.engine.find_epoch(number), group.engine.find_epoch(number)
            assert found is not None and found.progress == (before or found).progress
            for part in found.rows.parts():
                assert {table.name for table, _ in part.deltas} <= {"joined"}
            apply(rows, found, "joined")
            assert rows == shown[min(number, 6)]
    finally:
        group.store.close()
        other.store.close()


def test_an_export_that_nobody_took(tmp_path: Path) -> None:
    """The driver has run an epoch for it, which the next process finds."""
    model, shown = Model(5), Counter[tuple[Any, ...]]()
    group, other = Group(tmp_path / "a", bucket_engine), Group(tmp_path / "b", local_engine)
    try:
        built(group, JOINED)
        group.engine.commit(None, written=0)
        for position in range(1, 8):
            epoch = group.step(position, model.changes(50))
            apply(shown, epoch, "joined")
            assert shown == model.views()[0]
            if position in (2, 4):
                (files := tmp_path / f"files {position}").mkdir()
                group.engine.copy_to(JOINED.name, other.store, files)
                other.store.drop("")
                other.store.commit()
                if position == 4:
                    group.open_again()
    finally:
        group.store.close()
        other.store.close()
        STATES.close()


def test_rows_that_are_stored_in_parts_are_refused(tmp_path: Path) -> None:
    """A table that lacks a column of the view is no source of its state."""
    group, other = Group(tmp_path / "a", local_engine), Group(tmp_path / "b", local_engine)
    try:
        built(group, JOINED)
        group.step(1, Model(1).changes(30))
        table = group.engine.dataflow.tables.tables[0]
        whole = table.location
        table.location = replace(whole, dead=frozenset({"g", "owner"}))
        with pytest.raises(TidemarkError, match="in parts"):
            group.engine.copy_to(JOINED.name, other.store, tmp_path)
        assert ABOVE.name not in group.engine.views
    finally:
        group.store.close()
        other.store.close()


def test_a_table_with_freed_rows_serves_what_reads_it_alone(tmp_path: Path) -> None:
    """Another part of the view may need the rows, and read them elsewhere."""
    scene, other = Scene(tmp_path / "a"), RocksStore(tmp_path / "b")
    first, second = (Scan(KEYED, (0, c), tuple(KEYED.fields[i] for i in (0, c))) for c in (1, 2))
    plan = UnionAll((first, second), first.fields)
    definition = ViewDefinition(
        "v", SinkTable("public", "v", plan.fields, ()), "", ViewPlan(plan, ())
    )
    try:
        scene.engine.add(View(definition, scene.store, NoEvaluator()))
        scene.rows["v"] = {}
        scene.change((Changes.INSERT, event(1)))
        (table,) = scene.engine.dataflow.tables.tables
        table.state.freed.add(1)
        scene.engine.copy_to(definition.name, other, tmp_path)
        table.scans.popitem()
        with pytest.raises(TidemarkError, match="in parts"):
            scene.engine.copy_to(definition.name, other, tmp_path)
        table.state.freed.clear()
        scene.engine.copy_to(definition.name, other, tmp_path)
    finally:
        scene.store.close()
        other.close()


class Recent(Scene):
    """Events after the clock, in one group after the other: in one process and in buckets."""

    def __init__(self, folder: Path, relation: Relation) -> None:
        super().__init__(folder / "home" / "state", relation)
        self.root, self.moves = folder, 0
        self.group: Group | None = None

    def move(self) -> None:
        """Give the view to the other kind of engine."""
        self.moves += 1
        make = bucket_engine if self.moves % 2 else local_engine
        if self.group is None:
            self.store.close()
            self.group = Group(self.root / "home", local_engine)
        other = Group(self.root / f"{self.moves}", make)
        self.group.give(next(n for n in self.engine.views if n.name == "v"), other)
        self.group.store.close()
        other.open_again()
        self.group, self.store, self.engine = other, other.store, other.engine


@pytest.mark.parametrize("relation", [KEYED, FULL], ids=["keyed", "full"])
@pytest.mark.parametrize("seed", range(count("TIDEMARK_TEST_FREED_HANDOVERS", 2, 20)))
def test_freed_rows_are_not_needed_elsewhere(seed: int, relation: Relation, tmp_path: Path) -> None:
    """Whatever becomes of rows that one process has freed: they change, go and come again."""
    pick, scene = Random(seed), Recent(tmp_path, relation)
    present = {number: event(number) for number in range(1, 401)}
    if seed % 2:
        # What is equal in both is stored under the name of this one.
        scene.create("w", 1, list(present.values()))
    scene.create("v", 1, list(present.values()))
    freed = 0
    try:
        for at in range(150, 1_550, 100):
            scene.tick(at + pick.randrange(100))
            if scene.moves % 2 == 0:
                freed += scene.stored() < len(present)
            for _ in range(pick.randrange(1, 4)):
                scene.change(*_changed(pick, present, scene.at, relation))
                assert scene.ids("v") == sorted(
                    n for n, row in present.items() if row[1] > scene.at
                )
            if pick.random() < 0.7:
                scene.move()
                assert list(scene.engine.views)
        assert freed and scene.moves > 2
    finally:
        scene.store.close()
        STATES.close()


def _changed(
    pick: Random, present: dict[int, Row], at: int, relation: Relation
) -> list[tuple[int, Row]]:
    """Change some rows of a table, old ones too; return how its source reports that."""
    found: list[tuple[int, Row]] = []
    for number in pick.sample(range(1, 600), 40):
        new = event(number, at + pick.randrange(-200, 400), note=b"%d" % pick.randrange(9))
        old = present.pop(number, None)
        is_full = relation is FULL
        if old is None:
            found.append((Changes.INSERT, new))
        elif pick.random() < 0.3:
            found.append((Changes.DELETE, old) if is_full else (Changes.DELETE_KEY, old))
            continue
        else:
            found += [(Changes.OLD, old), (Changes.NEW, new)] if is_full else [(Changes.NEW, new)]
        present[number] = new
    return found
