"""Oracle: for each plan, by hand, whether TRUNCATE can be answered without the table's rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from connectors.sink import SinkTable
from connectors.source import SourceBatch
from dataflow.changes import Changes
from dataflow.delta import Column, Delta
from dataflow.errors import InvariantError, TidemarkError
from dataflow.expressions.evaluator import NoEvaluator
from dataflow.expressions.ir import Call, ColumnRef, Expression, InPostgres, Literal
from dataflow.live_tables import TableLocation
from dataflow.plan.nodes import (
    Aggregate,
    AggregateCall,
    Bounds,
    Distinct,
    Filter,
    Join,
    Plan,
    Project,
    Scan,
    SemiJoin,
    UnionAll,
    ViewPlan,
)
from dataflow.schema import VIEW_SOURCE, Field, Relation, RelationName
from dataflow.types import BOOL, INT4, INT8
from service.engine.encoding.registered import decode, encode
from service.engine.engine import BYTES_A_ROW, Engine, View, ViewDefinition
from service.factory.service_factory import ServiceFactory
from service.runtime.settings import Settings
from storage.memory import MemoryStore
from storage.rocks import RocksStore, StoreBudget
from storage.store import Store

ID, A, B = Field("id", INT4, False), Field("a", INT4), Field("b", INT4)


def relation(name: str, number: int, **how: object) -> Relation:
    return replace(Relation(RelationName("s", "public", name), number, (ID, A, B), (0,)), **how)


T = relation("t", 1, is_full=True)
U = relation("u", 2, is_full=True)
KEYLESS = relation("t", 1, key=())
KEYED = relation("t", 1)


def scan(of: Relation, *columns: int) -> Scan:
    found = columns or (0, 1, 2)
    return Scan(of, found, tuple(of.fields[c] for c in found))


def ref(plan: Plan, column: int) -> ColumnRef:
    return ColumnRef(column, plan.fields[column].type, plan.fields[column].name)


def positive(plan: Plan, column: int = 2) -> Plan:
    return Filter(plan, Call(">", (ref(plan, column), Literal("0", INT4)), BOOL))


def divided(plan: Plan) -> Expression:
    return Call("/", (ref(plan, 1), ref(plan, 2)), INT4)


def projected(plan: Plan, *more: Expression) -> Plan:
    fields = (*plan.fields, *(Field(f"more{i}", e.type) for i, e in enumerate(more)))
    return Project(plan, (*(ref(plan, i) for i in range(len(plan.fields))), *more), fields)


def joined(left: Plan, right: Plan, kind: str = "inner", on: int = 1, **how: object) -> Plan:
    fields = left.fields + right.fields
    keys = (ref(left, on),), (ref(right, on),)
    return replace(Join(kind, left, right, *keys, None, fields), **how)


def semi(left: Plan, right: Plan, kind: str = "semi", on: int = 1) -> Plan:
    return SemiJoin(kind, left, right, (ref(left, on),), (ref(right, on),), None)


def related(left: Plan, right: Plan, kind: str) -> Plan:
    """A semi or anti join with a residual."""
    columns = ref(left, 2), ColumnRef(len(left.fields) + 2, INT4, "b")
    return replace(semi(left, right, kind), residual=Call("<", columns, BOOL))


def counted(plan: Plan) -> Plan:
    call = AggregateCall("count", None, False, None, Field("n", INT8))
    return Aggregate(plan, (ref(plan, 1),), (call,), (plan.fields[1], call.field))


def definition(name: str, plan: Plan) -> ViewDefinition:
    return ViewDefinition(name, SinkTable("public", name, plan.fields, ()), "", ViewPlan(plan, ()))


def engine_of(store: Store, *, keeps_rows: bool = False, **plans: Plan) -> Engine:
    engine = Engine(store, NoEvaluator(), "source", keeps_rows=keeps_rows)
    for name, plan in plans.items():
        add(engine, name, plan)
    return engine


def add(engine: Engine, name: str, plan: Plan) -> None:
    """A view over tables without rows."""
    view = View(definition(name, plan), engine.store, NoEvaluator())
    view.dataflow.seed()
    engine.add(view)


def name_of(view: str) -> RelationName:
    return RelationName(VIEW_SOURCE, "public", view)


def stored(engine: Engine) -> str:
    """The names of the relations whose rows are stored; the store has those and no others."""
    found = [
        at for at in engine.dataflow.tables.locations if at.is_stored and not at.relation.is_append
    ]
    named = {name for name in engine.store.names() if "/table " in name}
    assert named == {f"{at.prefix}rows" for at in found}
    return "".join(sorted(at.relation.name.name for at in found))


u, t = scan(U), scan(T)
_IN_POSTGRES = InPostgres("f($1)", (ref(t, 1),), INT4, is_stable=True)
_LESS = Call("<=", (ref(t, 1), ColumnRef(4, INT4, "a")), BOOL)
_BOUNDS = Bounds(ref(t, 1), ref(u, 1), ref(u, 2), is_left=True)
CASES: dict[str, tuple[Plan, str]] = {
    "both inputs of a join": (joined(t, u), ""),
    "below filters and projections": (joined(projected(positive(t)), positive(u)), ""),
    "of a join with a residual that may fail": (
        joined(t, u, residual=Call(">", (divided(t), ref(t, 1)), BOOL)),
        "",
    ),
    "both inputs of one join": (joined(t, positive(t)), ""),
    "the same input twice": (joined(t, t), ""),
    "of a cross join": (joined(t, u, left_keys=(), right_keys=()), ""),
    "below an aggregate of a join": (counted(joined(t, u)), ""),
    "of a join of a join": (joined(joined(t, u), scan(T, 0, 1)), ""),
    "a filter that may fail": (joined(Filter(t, Call(">", (divided(t), ref(t, 1)), BOOL)), u), "t"),
    "a projection that may fail": (joined(u, projected(t, divided(t))), "t"),
    "what PostgreSQL computes": (joined(projected(t, _IN_POSTGRES), u), "t"),
    "the view itself": (t, "t"),
    "a selection of the view": (positive(t), "t"),
    "an aggregate": (joined(counted(t), u), "t"),
    "a union": (joined(UnionAll((t, u), t.fields), scan(U, 0, 1)), "tu"),
    "distinct rows": (joined(Distinct(t), u), "t"),
    "of a join and of a union": (UnionAll((joined(t, u), joined(t, t)), joined(t, u).fields), ""),
    "a join, and what it reads as well": (
        UnionAll((scan(T, 1), Project(joined(t, u), (ref(t, 1),), (A,))), (A,)),
        "t",
    ),
    "preserved, its key may be NULL": (joined(t, u, "left"), "t"),
    "preserved, its key is not NULL": (joined(t, u, "left", on=0), ""),
    "preserved on the right": (joined(t, u, "right"), "u"),
    "preserved on both sides": (joined(t, u, "full"), "tu"),
    "preserved on both sides, not NULL": (joined(t, u, "full", on=0), ""),
    "a semi join": (semi(t, u), ""),
    "an anti join": (semi(t, u, "anti"), "t"),
    "an anti join, not NULL": (semi(t, u, "anti", on=0), ""),
    "a semi join with a residual": (related(t, u, "semi"), ""),
    "an anti join with a residual": (related(t, u, "anti"), "t"),
    "not in": (semi(t, u, "not in"), "tu"),
    "an interval join": (
        joined(t, u, left_keys=(), right_keys=(), residual=_LESS, bounds=_BOUNDS),
        "tu",
    ),
    "a table without key": (joined(scan(KEYLESS), u), ""),
    "rows by key": (joined(scan(KEYED), u), "t"),
    "rows that only come": (joined(scan(replace(T, is_append=True)), u), ""),
    "a clock": (joined(scan(replace(T, is_single=True)), u), "t"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_stored_of_tables(case: str) -> None:
    plan, expected = CASES[case]
    store = MemoryStore()
    engine = engine_of(store, v=plan)
    found = "".join(
        at.relation.name.name for at in engine.dataflow.tables.locations if at.is_stored
    )
    if case == "rows that only come":
        # They have no state anyway.
        found = found.replace("t", "")
    else:
        assert found == stored(engine)
    assert "".join(sorted(found)) == expected
    # The same after a restart; all of them where a view may move to a cluster.
    again = Engine(store, NoEvaluator(), "source")
    assert again.dataflow.tables.locations == engine.dataflow.tables.locations
    kept = engine_of(MemoryStore(), keeps_rows=True, v=plan)
    assert all(at.is_stored for at in kept.dataflow.tables.locations)
    engine.remove(name_of("v"))
    assert store.names() == [] and engine.dataflow.tables.locations == []


# --- views that come and go ---------------------------------------------------------------------


def change(of: Relation, *rows: tuple[int, int, int | None, int | None]) -> Changes:
    """Changes of (kind, id, a, b)."""
    columns = tuple(Column.of("i", [row[i] for row in rows]) for i in (1, 2, 3))
    return Changes(of, np.array([row[0] for row in rows], np.uint8), columns)


def step(engine: Engine, *changes: Changes) -> dict[str, list]:
    epoch = engine.step(SourceBatch(engine.epoch + 1, list(changes), 1, 1))
    engine.commit(epoch, written=engine.epoch)
    return {table.name: sorted(delta.rows(), key=repr) for table, delta in epoch.rows.deltas}


EMPTY = (Changes.TRUNCATE, 0, None, None)


def insert(number: int, a: int, b: int) -> tuple[int, int, int, int]:
    return (Changes.INSERT, number, a, b)


def test_a_view_that_needs_the_rows_brings_them_for_all() -> None:
    """And takes them along when it goes."""
    engine = engine_of(MemoryStore(), one=joined(t, u))
    assert stored(engine) == ""
    add(engine, "two", positive(t))
    assert stored(engine) == "t"
    row = (1, 7, 5)
    assert step(engine, change(T, insert(*row)), change(U, insert(2, 7, 1))) == {
        "one": [((*row, 2, 7, 1), 1)],
        "two": [(row, 1)],
    }
    assert step(engine, change(T, EMPTY)) == {
        "one": [((*row, 2, 7, 1), -1)],
        "two": [(row, -1)],
    }
    step(engine, change(T, insert(*row)))
    engine.remove(name_of("two"))
    assert stored(engine) == ""
    assert step(engine, change(T, EMPTY)) == {"one": [((*row, 2, 7, 1), -1)]}


def test_a_scan_of_other_columns_does_without_the_rows_of_another() -> None:
    engine = engine_of(MemoryStore(), one=joined(t, u), two=scan(T, 0, 1))
    assert stored(engine) == "t"
    stored_one, other = sorted(engine.dataflow.tables.locations[:2], key=lambda at: at.is_stored)
    assert (stored_one.columns, other.columns) == ((0, 1, 2), (0, 1))
    step(engine, change(T, insert(1, 7, 5)), change(U, insert(2, 7, 1)))
    again = Engine(engine.store, NoEvaluator(), "source")
    assert again.dataflow.tables.locations == engine.dataflow.tables.locations
    assert step(again, change(T, EMPTY)) == {
        "one": [((1, 7, 5, 2, 7, 1), -1)],
        "two": [((1, 7), -1)],
    }


def test_both_inputs_of_one_join_are_emptied_in_one_epoch() -> None:
    """Before and after other rows; rows before the last truncation are gone too."""
    engine = engine_of(MemoryStore(), one=joined(t, u), two=joined(t, positive(t)))
    step(engine, change(T, insert(1, 7, 5), insert(2, 7, 0)), change(U, insert(3, 7, 1)))
    rows = (insert(4, 7, 1), EMPTY, insert(5, 7, 2), EMPTY, insert(6, 7, 3))
    found = step(engine, change(T, *rows), change(U, EMPTY, insert(8, 7, 8)))
    assert found["one"] == [
        ((1, 7, 5, 3, 7, 1), -1),
        ((2, 7, 0, 3, 7, 1), -1),
        ((6, 7, 3, 8, 7, 8), 1),
    ]
    assert found["two"] == [
        ((1, 7, 5, 1, 7, 5), -1),
        ((2, 7, 0, 1, 7, 5), -1),
        ((6, 7, 3, 6, 7, 3), 1),
    ]
    assert step(engine, change(T, EMPTY), change(U, EMPTY)) == {
        "one": [((6, 7, 3, 8, 7, 8), -1)],
        "two": [((6, 7, 3, 6, 7, 3), -1)],
    }
    assert step(engine, change(T, EMPTY), change(U, EMPTY)) == {}


def test_a_table_that_came_by_key_and_comes_whole_now() -> None:
    """Views of before find old rows by key; a view of today does without them."""
    engine = engine_of(MemoryStore(), old=joined(scan(KEYED), u), new=joined(t, u))
    assert stored(engine) == "t"
    step(engine, change(T, insert(1, 7, 5)), change(U, insert(2, 7, 1), insert(3, 8, 1)))
    moved = change(T, (Changes.OLD, 1, 7, 5), (Changes.NEW, 4, 8, 6))
    expected = [((1, 7, 5, 2, 7, 1), -1), ((4, 8, 6, 3, 8, 1), 1)]
    assert step(engine, moved) == {"old": expected, "new": expected}
    expected = [((4, 8, 6, 3, 8, 1), -1), ((9, 8, 9, 3, 8, 1), 1)]
    found = step(engine, change(T, EMPTY, insert(9, 8, 9)))
    assert found == {"old": expected, "new": expected}


@pytest.mark.parametrize("kind", ["inner", "right"])
def test_a_large_table_is_emptied_in_steps_of_bounded_size(tmp_path: Path, kind: str) -> None:
    """Each of its rows is joined with ten others."""
    store = RocksStore(tmp_path, budget=StoreBudget(run_bytes=4_000, ahead_bytes=1_000))
    engine = Engine(store, NoEvaluator(), "source", 150 * BYTES_A_ROW)
    add(engine, "one", counted(joined(t, u, kind)))
    join = next(n for n in engine.dataflow.views[name_of("one")].nodes if isinstance(n.plan, Join))
    step(engine, change(U, *(insert(number, 7, 1) for number in range(10))))
    for start in range(0, 1_000, 500):
        step(engine, change(T, *(insert(number, 7, 5) for number in range(start, start + 500))))
    taken, made, parts = [], [], join.in_chunks_of
    assert parts is not None

    def noting(*inputs: Delta, max_rows: int) -> Iterator[Delta]:
        taken.append(max(map(len, inputs)))
        for part in parts(*inputs, max_rows=max_rows):
            made.append(len(part))
            yield part

    join.in_chunks_of = noting
    found = step(engine, change(T, EMPTY))
    assert ((7, 10_000), -1) in found["one"]
    assert sum(taken) == 1_000 and max(taken) <= 16 and max(made) <= 300
    assert step(engine, change(T, EMPTY)) == {}
    assert store.size(f"{join.prefix}left")[0] == 0
    store.close()


def test_the_removal_of_a_row_that_is_not_there_is_refused_by_a_join() -> None:
    engine = engine_of(MemoryStore(), one=joined(t, u))
    step(engine, change(T, insert(1, 7, 5)))
    engine.step(SourceBatch(2, [change(T, (Changes.DELETE, 1, 7, 6))], 1, 1))
    (refused,) = engine.refused()
    assert refused.code == "state.negative_weight" and "join" in refused.what


def test_changes_without_old_rows_are_refused_by_the_table() -> None:
    engine = engine_of(MemoryStore(), one=joined(t, u))
    engine.step(SourceBatch(1, [change(T, (Changes.NEW, 1, 7, 6))], 1, 1))
    (refused,) = engine.refused()
    assert refused.code == "state.table_mismatch"


def test_a_join_that_fails_while_it_is_emptied_takes_its_views_and_no_others() -> None:
    engine = engine_of(MemoryStore(), one=joined(t, u), two=joined(t, positive(u)))
    step(engine, change(T, insert(1, 7, 5)), change(U, insert(2, 7, 1)))
    node = engine.dataflow.views[name_of("one")].root

    class Broken:
        traits = node.operator.traits

        def stored_rows(self, side: int):
            raise ValueError("it has none")

        def step(self, *inputs):
            raise AssertionError("it is not stepped any more")

    node.operator, node.in_chunks_of = Broken(), None
    epoch = engine.step(SourceBatch(2, [change(T, EMPTY)], 1, 1))
    assert {table.name for table, _ in epoch.rows.deltas} == {"two"}
    (refused,) = engine.refused()
    assert (refused.code, refused.relation) == ("view.internal_error", name_of("one"))


# --- states ---------------------------------------------------------------------------------------


def test_rows_of_an_earlier_version_are_dropped_when_its_state_is_opened() -> None:
    store = MemoryStore()
    before = engine_of(store, keeps_rows=True, one=joined(t, u))
    step(before, change(T, insert(1, 7, 5)), change(U, insert(2, 7, 1)))
    assert stored(before) == "tu"
    engine = Engine(store, NoEvaluator(), "source")
    assert stored(engine) == ""
    assert step(engine, change(T, EMPTY)) == {"one": [((1, 7, 5, 2, 7, 1), -1)]}


def test_a_location_of_an_earlier_version_is_of_stored_rows() -> None:
    location = TableLocation("v", T, (0,))
    assert location.is_stored and decode(encode(location)) == location
    without = replace(location, is_stored=False)
    assert decode(encode(without)) == without


def test_a_view_without_rows_is_not_copied(tmp_path: Path) -> None:
    """It is, once it was rebuilt where rows are stored."""
    store, other = MemoryStore(), MemoryStore()
    engine = engine_of(store, one=joined(t, u), two=joined(t, u, on=0))
    engine = Engine(store, NoEvaluator(), "source", keeps_rows=True)
    with pytest.raises(TidemarkError) as refused:
        engine.copy_to(name_of("one"), other, tmp_path)
    assert refused.value.code == "view.rows_not_stored"
    rebuilt = replace(definition("one", joined(t, u)), rebuilt=1)
    view = View(rebuilt, store, NoEvaluator())
    view.dataflow.seed()
    engine.renew(view)
    assert stored(engine) == "tu"
    engine.copy_to(name_of("one"), MemoryStore(), tmp_path)
    step(engine, change(T, insert(1, 7, 5)), change(U, insert(1, 7, 1)))
    row = (1, 7, 5, 1, 7, 1)
    assert step(engine, change(T, EMPTY)) == {"one": [(row, -1)], "two": [(row, -1)]}


@pytest.mark.parametrize(("master", "expected"), [("", ""), ("local[2]", "tu")])
def test_a_service_with_a_cluster_stores_the_rows(
    tmp_path: Path, master: str, expected: str
) -> None:
    """A view could move to the cluster, with its tables' rows."""
    settings = Settings.load(source="dbname=none", state=tmp_path, spark=master)
    factory = ServiceFactory(settings)
    engine = factory.new_engine(MemoryStore(), NoEvaluator(), "source", while_waiting=lambda: None)
    add(engine, "one", joined(t, u))
    assert stored(engine) == expected


def test_a_table_that_is_needed_and_missing_is_an_error() -> None:
    engine = engine_of(MemoryStore(), one=joined(t, u))
    engine.dataflow.tables.read(99, scan(KEYED))
    engine.dataflow.tables.add(TableLocation("w", T, (0,)))
    with pytest.raises(InvariantError, match="no rows"):
        engine.dataflow.tables.assign_scans()
