"""Oracle: the model's own rows, and the answer of a plain loop over them, after each batch; the
same whether a batch is stepped at once or in slices of a few rows."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from connectors.sink import SinkEpoch, SinkTable
from connectors.source import SourceBatch
from dataflow.changes import Changes
from dataflow.delta import Column
from dataflow.errors import ViewError
from dataflow.expressions.evaluator import NoEvaluator
from dataflow.expressions.ir import ColumnRef
from dataflow.plan.nodes import Aggregate, AggregateCall, Join, Plan, Scan, ViewPlan
from dataflow.schema import VIEW_SOURCE, Field, Relation, RelationName
from dataflow.types import INT4, INT8
from service.engine.batch_sizer import BatchSizer
from service.engine.engine import Engine, View, ViewDefinition
from service.engine.replay import Replay
from storage.rocks import RocksStore, StoreBudget

SOURCE = "source"
ID, GROUP, OWNER = Field("id", INT4, False), Field("g", INT4), Field("owner", INT4)
OWNERS = Relation(RelationName(SOURCE, "public", "owners"), 1, (ID, GROUP), (0,))
THINGS = Relation(RelationName(SOURCE, "public", "things"), 2, (ID, OWNER), (0,))
JOINED_FIELDS = (ID, OWNER, Field("owner_id", INT4), GROUP)
COUNT = Field("n", INT8)


def _scan(relation: Relation) -> Scan:
    return Scan(relation, tuple(range(len(relation.fields))), relation.fields)


def _ref(plan: Plan, index: int) -> ColumnRef:
    return ColumnRef(index, plan.fields[index].type, plan.fields[index].name)


def _counts(plan: Plan, column: int) -> Aggregate:
    call = AggregateCall("count", None, False, None, COUNT)
    return Aggregate(plan, (_ref(plan, column),), (call,), (plan.fields[column], COUNT))


def _definition(name: str, root: Plan, key: tuple[int, ...]) -> ViewDefinition:
    table = SinkTable("public", name, root.fields, key)
    return ViewDefinition(name, table, name, ViewPlan(root, key))


things, owners = _scan(THINGS), _scan(OWNERS)
JOIN = Join("inner", things, owners, (_ref(things, 1),), (_ref(owners, 0),), None, JOINED_FIELDS)
JOINED = _definition("joined", JOIN, (0,))
COUNTED = _definition("counted", _counts(things, 1), (0,))
ABOVE = _definition(
    "above",
    _counts(_scan(Relation(RelationName(VIEW_SOURCE, "public", "joined"), 3, JOINED_FIELDS)), 1),
    (0,),
)


class Model:
    """Two tables, random legal changes of them, and what the views must show."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.tables: dict[str, dict[int, int]] = {"owners": {}, "things": {}}

    def changes(self, count: int) -> list[Changes]:
        """Changes in runs of one table."""
        found, left = [], count
        while left > 0:
            size = min(left, self.random.randrange(1, 40))
            relation = self.random.choice((OWNERS, THINGS, THINGS))
            found.append(self._run(relation, size))
            left -= size
        return found

    def _run(self, relation: Relation, size: int) -> Changes:
        rows = self.tables[relation.name.name]
        sent: list[tuple[int, int | None, int | None]] = []
        for _ in range(size):
            if self.random.random() < 0.01:
                rows.clear()
                sent.append((Changes.TRUNCATE, None, None))
                continue
            key = self.random.randrange(60)
            value = self.random.randrange(4 if relation is OWNERS else 60)
            if key not in rows:
                sent.append((Changes.INSERT, key, value))
                rows[key] = value
                continue
            draw, other = self.random.random(), self.random.randrange(60)
            if draw < 0.3:
                sent.append((Changes.DELETE_KEY, key, None))
                del rows[key]
            elif draw < 0.6 and other not in rows:
                sent += [(Changes.OLD_KEY, key, None), (Changes.NEW, other, value)]
                del rows[key]
                rows[other] = value
            else:
                sent.append((Changes.NEW, key, value))
                rows[key] = value
        columns = [Column.of("i", [row[i] for row in sent]) for i in (1, 2)]
        return Changes(relation, np.array([s[0] for s in sent], np.uint8), tuple(columns))

    def views(self) -> list[Counter]:
        owners, things = self.tables["owners"], self.tables["things"]
        joined = [(k, o, o, owners[o]) for k, o in things.items() if o in owners]
        groups = Counter(things.values())
        above = Counter(row[1] for row in joined)
        return [Counter(joined), Counter(groups.items()), Counter(above.items())]


class Shown:
    """An engine and what its epochs have made of the three tables."""

    def __init__(self, folder: Path, epoch_bytes: int, budget: StoreBudget | None) -> None:
        self.store = RocksStore(folder, budget=budget)
        self.engine = Engine(self.store, NoEvaluator(), SOURCE, epoch_bytes)
        for definition in (JOINED, COUNTED, ABOVE):
            self.engine.add(View(definition, self.store, NoEvaluator()))
        self.rows: dict[str, Counter[tuple[Any, ...]]] = {
            n: Counter() for n in ("joined", "counted", "above")
        }

    def step(self, chunks: list[list[Changes]], position: int) -> SinkEpoch:
        rows = sum(len(change) for chunk in chunks for change in chunk)
        batch = SourceBatch(position, chunks[0], 1, rows, later=iter(chunks[1:]))
        epoch = self.engine.step(batch)
        self.engine.commit(epoch, written=position - 2)
        for part in epoch.rows.parts():
            for table, delta in part.deltas:
                for row, weight in delta.rows():
                    self.rows[table.name][row] += weight
        return epoch

    def views(self) -> list[Counter]:
        return [Counter({r: w for r, w in rows.items() if w}) for rows in self.rows.values()]


@pytest.fixture(params=["at once", "in slices"])
def shown(request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shown]:
    if request.param == "in slices":
        monkeypatch.setattr("service.engine.batch_sizer.FIRST_ROWS", 7)
        found = Shown(tmp_path, 2_000, StoreBudget(run_bytes=2_000, ahead_bytes=1_000))
    else:
        found = Shown(tmp_path, 64 << 20, None)
    yield found
    found.store.close()


def test_a_batch_in_slices_adds_up(shown: Shown) -> None:
    model, spilled = Model(1), 0
    for position in range(1, 8):
        epoch = shown.step([model.changes(n) for n in (30, 300, 700)], position)
        spilled += epoch.rows.later is not None
        assert shown.views() == model.views()
    assert (spilled > 2) == (shown.engine._epoch_bytes == 2_000)
    assert shown.engine.position == 7


def test_a_view_that_fails_in_a_later_slice_leaves_nothing(shown: Shown) -> None:
    model = Model(2)
    shown.step([model.changes(200)], 1)
    root = shown.engine.dataflow.views[JOINED.name].root
    assert root.in_chunks_of is not None
    parts, given = root.in_chunks_of, []

    def fail(*deltas, max_rows):
        for part in parts(*deltas, max_rows=max_rows):
            given.append(part)
            if len(given) > 1:
                raise ViewError("view.test", "the second part fails")
            yield part

    root.in_chunks_of = fail
    before = shown.views()
    epoch = shown.step([model.changes(200), model.changes(200)], 2)
    assert [error.relation for error in shown.engine.refused()] == [JOINED.name]
    assert {t.name for part in epoch.rows.parts() for t, _ in part.deltas} == {"counted"}
    assert shown.views() == [before[0], model.views()[1], before[2]]
    for name in (ABOVE.name, JOINED.name):
        shown.engine.remove(name)
    shown.step([model.changes(200)], 3)
    assert shown.views()[1] == model.views()[1]


def test_changes_of_a_view_that_is_being_built_add_up_part_by_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of an owner, or of a truncated table, come as many at a time as there is room."""
    monkeypatch.setattr("service.engine.batch_sizer.FIRST_ROWS", 7)
    model, shown, widest = Model(4), Counter(), 0
    store = RocksStore(tmp_path, budget=StoreBudget(run_bytes=2_000, ahead_bytes=1_000))
    replay = Replay(View(JOINED, store, NoEvaluator()), 6)
    for count in (300, 700, 30, 400):
        for delta in replay.take(model.changes(count)):
            for row, weight in delta.rows():
                shown[row] += weight
                assert shown[row] >= 0
            widest = max(widest, len(delta))
            store.relieve()
        assert +shown == model.views()[0]
    assert 6 < widest <= 24
    store.close()


def test_slices_keep_the_order_and_never_part_an_update() -> None:
    model, batch_sizer = Model(3), BatchSizer(1000)
    changes = model.changes(2_000)
    slices = []
    for found in batch_sizer.slices(changes):
        slices.append(found)
        batch_sizer.learn(found, 500 * sum(map(len, found)))
    # Of a table nothing is known at first, then that each row becomes 500.
    assert sorted({min(sum(map(len, s)), 9) for s in slices})[-1] == 9 and len(slices) > 200
    flat = [change for found in slices for change in found]
    for change in flat:
        follows = change.kinds[:-1] == Changes.OLD_KEY
        assert change.kinds[-1] != Changes.OLD_KEY
        assert (change.kinds[1:][follows] == Changes.NEW).all()
    for relation in (OWNERS, THINGS):
        columns = [
            [c.columns[i] for c in part if c.relation is relation]
            for part in (changes, flat)
            for i in range(2)
        ]
        texts = [Column.concat(c).to_list() for c in columns]
        assert texts[:2] == texts[2:]


def _sizes(
    batch_sizer: BatchSizer, changes: list[Changes], made_of_one: dict[str, int]
) -> list[int]:
    sizes = []
    for found in batch_sizer.slices(changes):
        sizes.append(sum(map(len, found)))
        batch_sizer.learn(found, sum(made_of_one[c.relation.name.name] * len(c) for c in found))
    return sizes


def _rows(relation: Relation, count: int) -> Changes:
    columns = tuple(Column(np.arange(count)) for _ in relation.fields)
    return Changes(relation, np.full(count, Changes.INSERT, np.uint8), columns)


def test_the_batch_size_follows_what_the_rows_of_each_table_become() -> None:
    batch_sizer, quiet, wide = (
        BatchSizer(4_000),
        {"owners": 1, "things": 1},
        {"owners": 1000, "things": 1},
    )
    both = [_rows(THINGS, 900), _rows(OWNERS, 100)]
    assert _sizes(batch_sizer, both, wide) == [64, 256, 580, 64, 8, 8, 8, 8, 4]
    assert _sizes(batch_sizer, both, wide) == [900, *[8] * 12, 4]
    # What was wide may be so again: it comes back step by step.
    found = [_sizes(batch_sizer, both, quiet) for _ in range(5)]
    assert len(found[0]) < 14 and found[-1] == [1000]
    assert _sizes(batch_sizer, both[1:], wide)[0] == 100, "what no row before has shown"
    assert _sizes(batch_sizer, [_rows(OWNERS, 20)], wide) == [20], "a few rows are never cut"


def test_the_batch_size_is_not_slowed_by_what_a_step_makes_whatever_its_rows() -> None:
    """All rows in one partition of 100,000: few steps. Each row a thousand: few rows a step."""
    changes = [Changes(THINGS, np.full(20_000, Changes.INSERT, np.uint8), ())]
    for made, least, most in (
        (lambda rows: 100_000 + rows, 8, 40),
        (lambda r: 1_000 * r, 900, 9e9),
    ):
        batch_sizer, taken = BatchSizer(20_000), []
        for found in batch_sizer.slices(changes):
            taken.append(sum(map(len, found)))
            batch_sizer.learn(found, made(taken[-1]))
        assert sum(taken) == 20_000 and least <= len(taken) <= most
        assert max(taken) <= 20_000
