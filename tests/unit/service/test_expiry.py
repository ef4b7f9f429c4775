"""Oracle: rows counted by hand, of tables whose rows expire one after another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from connectors.sink import SinkTable
from connectors.source import SourceBatch
from dataflow.changes import Changes
from dataflow.delta import Column, Delta
from dataflow.expiry import FEW_ROWS
from dataflow.expressions.evaluator import NoEvaluator
from dataflow.expressions.ir import Call, ColumnRef, Expression, Literal
from dataflow.plan.nodes import Filter, Plan, Project, Scan, SemiJoin, ThresholdFilter, ViewPlan
from dataflow.schema import Field, Relation, RelationName
from dataflow.types import BOOL, INT4, INTERVAL, TEXT, TIMESTAMPTZ
from service.engine.engine import Engine, View, ViewDefinition
from storage.rocks import RocksStore

AT = Field("at", TIMESTAMPTZ)
FIELDS = (Field("id", INT4, False), AT, Field("until", TIMESTAMPTZ), Field("note", TEXT))
NAME = RelationName("source", "public", "events")
KEYED = Relation(NAME, 7, FIELDS, (0,))
FULL = Relation(NAME, 7, FIELDS, (), is_full=True)
CLOCK = Relation(
    RelationName("clock", "clock", "now"),
    8,
    (Field("id", INT4, False), AT),
    (0,),
    is_single=True,
)
ROWS = 1_000
Row = tuple[Any, ...]


class Scene:
    """An engine whose views show the events of which a time is after the clock."""

    def __init__(self, folder: Path, relation: Relation = KEYED) -> None:
        self.folder, self.relation = folder, relation
        self.store = RocksStore(folder)
        self.engine = Engine(self.store, NoEvaluator(), "source")
        self.at = 0
        self.rows: dict[str, dict[Row, int]] = {}

    def restart(self) -> None:
        self.store.close()
        self.store = RocksStore(self.folder)
        self.engine = Engine(self.store, NoEvaluator(), "source")

    def create(
        self,
        name: str,
        column: int,
        events: list[Row],
        operator: str = ">",
        *,
        identity: str = "",
        behind_us: int = 0,
        condition_id: int | None = None,
    ) -> None:
        """Build a view over these present events, and make it live.

        identity: names its state. behind_us: how far its threshold is behind the clock.
        condition_id: there is a threshold as long as there is an event of this id.
        """
        plan: Plan = Scan(self.relation, (0, column, 3), tuple(FIELDS[c] for c in (0, column, 3)))
        if operator:
            clock = Scan(CLOCK, (1,), (AT,))
            value: Expression = ColumnRef(0, TIMESTAMPTZ)
            if behind_us:
                by = Literal(f"00:00:00.{behind_us:06}", INTERVAL)
                value = Call("-", (value, by), TIMESTAMPTZ)
            single: Plan = clock
            if condition_id is not None:
                is_it = Call("=", (ColumnRef(0, INT4), Literal(str(condition_id), INT4)), BOOL)
                single = SemiJoin("semi", clock, Filter(plan, is_it), (), (), None)
            now = Project(single, (value,), (Field("now", TIMESTAMPTZ),))
            plan = ThresholdFilter(plan, now, ColumnRef(1, TIMESTAMPTZ), operator)
        table = SinkTable("public", name, plan.fields, ())
        definition = ViewDefinition(identity or f"{name}{self.at}", table, "", ViewPlan(plan, ()))
        live = [read for d in self.engine.views.values() for read in d.reads()]
        columns = self.engine.columns_to_keep(definition, live)
        view = View(definition, self.store, NoEvaluator(), columns)
        self.rows[name] = {}
        self._note(name, view.dataflow.seed())
        for relation in definition.relations():
            [home] = [h for h in view.locations if h.relation.name == relation.name]
            rows = [(1, self.at)] if relation is CLOCK else events
            kinds = [relation.fields[c].type.physical for c in home.columns]
            loaded = Delta.of(kinds, [tuple(r[c] for c in home.columns) for r in rows])
            view.tables[relation.name].load(loaded)
            self._note(name, view.step({relation.name: view.needed(relation.name, loaded)}))
        self.engine.add(view)
        self.store.commit()

    def tick(self, at: int) -> None:
        self.at = at
        columns = (Column(np.ones(1, np.int64)), Column(np.array([at])))
        self._step(Changes(CLOCK, np.array([Changes.UPSERT], np.uint8), columns), "clock")

    def change(self, *changes: tuple[int, Row], unsent: bool = False) -> None:
        kinds = np.array([kind for kind, _ in changes], np.uint8)
        columns = tuple(
            Column.of(f.type.physical, [row[i] for _, row in changes]) for i, f in enumerate(FIELDS)
        )
        unchanged = {3: np.ones(len(changes), np.bool_)} if unsent else {}
        self._step(Changes(self.relation, kinds, columns, unchanged), "source")

    def _step(self, changes: Changes, source: str) -> None:
        batch = SourceBatch(self.engine.epoch + 1, [changes], 1, 1, source=source)
        epoch = self.engine.step(batch)
        for table, delta in epoch.rows.deltas:
            self._note(table.name, delta)
        for error in self.engine.refused():
            assert error.relation is not None
            self.rows[error.relation.name] = {(error.code,): 1}
            self.engine.remove(error.relation)
        self.engine.commit(epoch, written=epoch.progress.epoch)

    def _note(self, name: str, delta: Delta) -> None:
        for row, weight in delta.rows():
            self.rows[name][row] = self.rows[name].get(row, 0) + weight
            if not self.rows[name][row]:
                del self.rows[name][row]

    def ids(self, name: str) -> list[int]:
        return sorted(row[0] for row in self.rows[name])

    def stored(self) -> int:
        """How many rows of events all tables have."""
        tables = self.engine.dataflow.tables.tables
        return sum(
            len(rows)
            for table in tables
            if table.location.relation.name == NAME
            for rows in table.state._rows.scan()
        )

    def entries(self) -> int:
        """How many rows, nodes and sums the store has."""
        return sum(self.store.size(name)[0] for name in self.store.names())


def event(number: int, at: int | None = None, until: int | None = None, note: Any = b"-") -> Row:
    return (number, number if at is None else at, 10**6 if until is None else until, note)


EVENTS = [event(i) for i in range(1, ROWS + 1)]


@pytest.mark.parametrize("relation", [KEYED, FULL])
def test_expired_rows_are_freed_and_may_change_later(tmp_path: Path, relation: Relation) -> None:
    scene = Scene(tmp_path, relation)
    scene.create("v", 1, EVENTS)
    for at in (400, 800, 990):
        scene.tick(at)
    assert scene.ids("v") == list(range(991, ROWS + 1))
    assert scene.stored() < 500 and scene.engine.dataflow.tables.tables
    scene.restart()
    scene.tick(996)
    # A freed row is dated again, two are deleted, one is inserted again, and one that stays leaves.
    if relation is KEYED:
        scene.change(
            (Changes.NEW, event(5, 2_000)),
            (Changes.DELETE_KEY, event(6)),
            (Changes.DELETE_KEY, event(7)),
            (Changes.INSERT, event(6, 3_000)),
            (Changes.DELETE_KEY, event(999)),
        )
    else:
        scene.change(
            (Changes.OLD, event(5)),
            (Changes.NEW, event(5, 2_000)),
            (Changes.DELETE, event(6)),
            (Changes.DELETE, event(7)),
            (Changes.INSERT, event(6, 3_000)),
            (Changes.DELETE, event(999)),
        )
    assert scene.ids("v") == [5, 6, 997, 998, 1000]
    scene.tick(2_500)
    assert scene.ids("v") == [6]
    kind = Changes.DELETE_KEY if relation is KEYED else Changes.DELETE
    scene.change((kind, event(5, 2_000)), (kind, event(6, 3_000)))
    assert scene.ids("v") == []


def test_state_is_bounded_by_the_rows_that_wait(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.create("v", 1, [])
    most = 0
    for start in range(1, 12_001, 200):
        scene.change(*((Changes.INSERT, event(i)) for i in range(start, start + 200)))
        scene.tick(start + 150)
        most = max(most, scene.stored())
    assert most < 500
    scene.tick(20_000)
    assert scene.rows["v"] == {} and scene.stored() < 100
    scene.store.commit()


def test_more_changes_of_missing_rows_than_were_freed_are_refused(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.create("v", 1, EVENTS)
    scene.tick(ROWS + 1)
    assert scene.stored() == 0
    for start in range(1, ROWS + 1, 100):
        scene.change(*((Changes.DELETE_KEY, event(i)) for i in range(start, start + 100)))
    assert scene.ids("v") == []
    scene.change((Changes.DELETE_KEY, event(5)))
    assert list(scene.rows["v"]) == [("state.table_mismatch",)]


@pytest.mark.parametrize("operator", [">", "<", ""])
def test_another_reader_has_all_rows(tmp_path: Path, operator: str) -> None:
    """Whether it compares another time, shows what is over, or everything."""
    scene = Scene(tmp_path)
    scene.create("v", 1, EVENTS)
    scene.tick(900)
    assert scene.stored() == 100
    scene.create("w", 2 if operator == ">" else 1, EVENTS, operator)
    expected = {">": ROWS, "<": 899, "": ROWS}[operator]
    assert len(scene.ids("w")) == expected and scene.stored() == ROWS
    scene.change((Changes.DELETE_KEY, event(5)), (Changes.NEW, event(6, 950, 960)))
    assert len(scene.ids("v")) == 101
    assert len(scene.ids("w")) == expected - (2 if operator == "<" else 1)
    scene.tick(970)
    assert scene.ids("v") == list(range(971, ROWS + 1))
    # Rows of the first view are expired, but not of the other one.
    assert scene.stored() == ROWS - 1
    if operator == ">":
        scene.tick(10**6 + 1)
        assert scene.stored() < FEW_ROWS


def test_the_same_view_again_shares_what_is_left(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.create("v", 1, EVENTS)
    scene.tick(900)
    scene.create("w", 1, EVENTS)
    assert scene.ids("w") == scene.ids("v") and scene.stored() == 100
    scene.change((Changes.DELETE_KEY, event(5)), (Changes.NEW, event(6, 2_000)))
    assert scene.ids("w") == scene.ids("v") and 6 in scene.ids("v")


def test_a_view_made_again_has_a_table_of_its_own(tmp_path: Path) -> None:
    """A filter whose rows were freed is dropped; what has its name later is another one."""
    scene = Scene(tmp_path)
    scene.create("w", 2, EVENTS)
    scene.create("v", 1, EVENTS)
    scene.tick(900)
    scene.tick(901)
    assert scene.stored() == ROWS
    scene.engine.remove(scene.engine.views[RelationName("tidemark", "public", "v")].name)
    late = [event(i, until=2_000 if i <= 600 else 10**6) for i in range(ROWS + 1, 2 * ROWS)]
    scene.change(*((Changes.INSERT, row) for row in late))
    scene.tick(10**6 + 1)
    assert scene.stored() == 0
    scene.create("v", 1, [*EVENTS, *late])
    scene.change((Changes.NEW, event(7, 2 * 10**6, 2 * 10**6)), (Changes.DELETE_KEY, event(8)))
    assert scene.ids("v") == scene.ids("w") == [7]


def test_a_filter_of_an_earlier_name_does_not_serve_another_view(tmp_path: Path) -> None:
    """A replaced view's state may have the names of the earlier version's, and keep more rows."""
    scene = Scene(tmp_path)
    events = [event(i, i, i) for i in range(1, ROWS + 1)]
    scene.create("v", 1, events, identity="v", behind_us=100)
    # Of the stored table each of its columns stays in use.
    scene.create("w", 2, events)
    scene.create("x", 1, events)
    scene.tick(900)
    assert scene.stored() == 200
    scene.engine.remove(scene.engine.views[RelationName("tidemark", "public", "v")].name)
    scene.create("v", 1, events, identity="v", behind_us=600)
    assert scene.ids("v") == list(range(301, ROWS + 1))
    scene.change((Changes.DELETE_KEY, event(500)))
    assert scene.ids("v") == [i for i in range(301, ROWS + 1) if i != 500]


def test_a_threshold_that_depends_on_other_rows(tmp_path: Path) -> None:
    """That there are rows to compare is not what its condition asks."""
    scene = Scene(tmp_path)
    scene.create("v", 1, [event(i, i, i) for i in range(1, ROWS + 1)], condition_id=5)
    scene.tick(900)
    assert scene.ids("v") == list(range(901, ROWS + 1))
    scene.change((Changes.DELETE_KEY, event(5)))
    assert scene.ids("v") == []


def test_rows_with_long_texts_stay(tmp_path: Path) -> None:
    """PostgreSQL may leave their texts out of an update."""
    scene = Scene(tmp_path)
    scene.create("v", 1, [event(i, note=b"x" * (100 if i % 2 else 16)) for i in range(1, ROWS + 1)])
    scene.tick(ROWS + 1)
    assert scene.stored() == ROWS // 2
    scene.change((Changes.NEW, event(5, 5_000, note=None)), unsent=True)
    assert list(scene.rows["v"]) == [(5, 5_000, b"x" * 100)]


def test_truncated_tables_begin_again(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.create("v", 1, EVENTS)
    scene.tick(900)
    scene.change((Changes.TRUNCATE, (None,) * 4))
    assert scene.ids("v") == [] and scene.stored() == 0
    scene.change((Changes.INSERT, event(1, 5_000)))
    assert scene.ids("v") == [1]
    scene.change((Changes.DELETE_KEY, event(2)))
    assert list(scene.rows["v"]) == [("state.table_mismatch",)]
