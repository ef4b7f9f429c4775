"""Oracle: small plans whose rows are known by heart; what is stored, by the names in the store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from connectors.sink import SinkTable
from connectors.source import SourceBatch
from dataflow.changes import Changes
from dataflow.delta import Column, Delta
from dataflow.errors import InvariantError, TemporaryError, ViewError, internal_error
from dataflow.expressions.evaluator import NoEvaluator
from dataflow.expressions.ir import Call, ColumnRef, InPostgres, Literal
from dataflow.operators.base import Traits
from dataflow.plan.fingerprint import fingerprints, repeatable
from dataflow.plan.nodes import (
    Aggregate,
    AggregateCall,
    Distinct,
    Filter,
    Plan,
    Project,
    Remember,
    Scan,
    ViewPlan,
)
from dataflow.schema import VIEW_SOURCE, Field, Relation, RelationName
from dataflow.shared import LiveNode
from dataflow.types import BOOL, INT4, INT8, TEXT
from service.engine.column_requirements import widened
from service.engine.encoding.registered import encode
from service.engine.engine import Engine, View, ViewDefinition
from service.engine.replay import Replay
from service.runtime.error_reports import Reports
from storage.errors import NegativeWeightError, OutOfSpaceError
from storage.memory import MemoryStore

T = Relation(
    RelationName("s", "public", "t"),
    9,
    (Field("id", INT4, False), Field("a", INT4), Field("b", INT4), Field("c", TEXT)),
    key=(0,),
)


def scan(*columns: int, of: Relation = T) -> Scan:
    return Scan(of, columns, tuple(of.fields[c] for c in columns))


def counted(plan: Plan, name: str = "n") -> Plan:
    """Rows by the first column."""
    field = Field(name, INT8, False)
    call = AggregateCall("count", None, False, None, field)
    first = ColumnRef(0, plan.fields[0].type, plan.fields[0].name)
    return Aggregate(plan, (first,), (call,), (plan.fields[0], field))


def positive(plan: Plan) -> Plan:
    condition = Call(">", (ColumnRef(0, INT4), Literal("0", INT4)), BOOL)
    return Filter(plan, condition)


def definition(name: str, plan: Plan) -> ViewDefinition:
    return ViewDefinition(name, SinkTable("public", name, plan.fields, ()), "", ViewPlan(plan, ()))


def build(store: MemoryStore, name: str, plan: Plan, engine: Engine | None = None) -> View:
    """A view of an empty table, which keeps what others of the engine read too."""
    made = definition(name, plan)
    live = [r for d in engine.views.values() for r in d.reads()] if engine else []
    kept = engine.columns_to_keep(made, live) if engine else None
    view = View(made, store, NoEvaluator(), kept)
    view.dataflow.seed()
    return view


def engine_of(store: MemoryStore, **plans: Plan) -> Engine:
    engine = Engine(store, NoEvaluator(), "source")
    for name, plan in plans.items():
        engine.add(build(store, name, plan, engine))
    return engine


def inserts(*rows: tuple, kind: int = Changes.INSERT) -> SourceBatch:
    columns = tuple(
        Column.of(f.type.physical, [row[i] for row in rows]) for i, f in enumerate(T.fields)
    )
    kinds = Column.of("i", [kind] * len(rows)).values.astype("uint8")
    return SourceBatch(1, [Changes(T, kinds, columns)], 1, len(rows))


def answers(engine: Engine, batch: SourceBatch) -> dict[str, list]:
    return {t.name: sorted(delta.rows()) for t, delta in engine.step(batch).rows.deltas}


def names(store: MemoryStore) -> list[str]:
    return sorted(store.names())


def name_of(view: str) -> RelationName:
    return RelationName(VIEW_SOURCE, "public", view)


class Failing:
    """An operator that cannot continue."""

    traits = Traits()

    def step(self, *inputs: Delta) -> Delta:
        raise ViewError("view.recursion_too_large", "too large")


class Hungry:
    """An operator for which there is not enough memory."""

    traits = Traits()

    def __init__(self, error: Exception) -> None:
        self.error = error

    def step(self, *inputs: Delta) -> Delta:
        raise self.error


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OutOfSpaceError(7 << 20), "view.out_of_memory"),
        (MemoryError(), "view.out_of_memory"),
        (NegativeWeightError("01.top_k/kept", "(7, 5)", -1), "state.negative_weight"),
        (ValueError("of no operator's making"), "view.internal_error"),
        (RecursionError(), "view.internal_error"),
        (InvariantError("plan.window", "no such thing"), "view.internal_error"),
    ],
)
def test_what_an_operator_cannot_do_fails_its_view_by_name(error: Exception, code: str) -> None:
    """No room for it, or state that does not fit what it is told: the others continue."""
    store = MemoryStore()
    engine = engine_of(store, one=counted(scan(1)), two=scan(2))
    nodes_of(engine, "one")[-1].operator = Hungry(error)
    assert answers(engine, inserts((1, 7, 5, b""))) == {"two": [((5,), 1)]}
    [refused] = engine.refused()
    assert (refused.code, refused.relation) == (code, name_of("one"))
    assert "aggregate" in refused.what and refused.hint
    # As one that is being built.
    view = build(store, "three", counted(scan(1)))
    view.dataflow._operators = dict.fromkeys(view.dataflow._operators, Hungry(error))
    with pytest.raises(ViewError, match=code):
        list(Replay(view, 10).take(inserts((1, 7, 5, b"")).changes))


@pytest.mark.parametrize(
    "error", [TemporaryError("source.unreachable", "away"), OSError("disk")], ids=["source", "disk"]
)
def test_what_belongs_to_no_view_continues_unchanged(error: Exception) -> None:
    store = MemoryStore()
    engine = engine_of(store, one=counted(scan(1)))
    nodes_of(engine, "one")[-1].operator = Hungry(error)
    with pytest.raises(type(error)):
        engine.step(inserts((1, 7, 5, b"")))


def test_a_table_that_fails_takes_what_reads_it_and_nothing_else() -> None:
    """Its changes do not fit its rows: a key that is there comes once more as new."""
    store = MemoryStore()
    other = replace(T, name=RelationName("s", "public", "u"), oid=10)
    engine = engine_of(store, one=counted(scan(1)), two=scan(2), three=counted(scan(1, of=other)))
    engine.step(inserts((1, 7, 5, b"")))
    batch = inserts((9, 7, 5, b""), kind=Changes.DELETE_KEY)
    (change,) = batch.changes
    kinds = Column.of("i", [Changes.INSERT]).values.astype("uint8")
    beside = Changes(other, kinds, change.columns)
    batch.changes.append(beside)
    assert answers(engine, batch) == {"three": [((7, 1), 1)]}
    refused = engine.refused()
    assert [error.relation for error in refused] == [name_of("one"), name_of("two")]
    assert {error.code for error in refused} == {"state.table_mismatch"}
    for name in ("one", "two"):
        engine.remove(name_of(name))
    batch.changes[0] = beside
    assert len(engine.views) == 1


def test_a_report_is_written_once_and_reported(tmp_path: Path) -> None:
    reports = Reports(tmp_path, lambda: 12)
    found = internal_error('operator "03.join"', ValueError("out of\nrange"))
    told = reports.reported(found, "public.one")
    (written,) = (tmp_path / "reports").iterdir()
    assert told.detail == f"ValueError: out of range; epoch 12; report: {written}"
    assert "03.join" in told.what and "public.one" in written.read_text()
    assert reports.reported(told, "public.one") is told
    assert len(list((tmp_path / "reports").iterdir())) == 1


def nodes_of(engine: Engine, view: str) -> Sequence[LiveNode]:
    return engine.dataflow.views[name_of(view)].nodes


def test_equal_views_are_stored_once_and_freed_last() -> None:
    store = MemoryStore()
    engine = engine_of(store, one=counted(scan(1)), two=counted(scan(1), "how_many"))
    assert nodes_of(engine, "one") == nodes_of(engine, "two")
    kept = names(store)
    assert all(name.startswith("vone/") for name in kept)
    assert answers(engine, inserts((1, 7, 0, b""))) == {"one": [((7, 1), 1)], "two": [((7, 1), 1)]}
    engine.remove(name_of("one"))
    assert names(store) == kept
    engine = Engine(store, NoEvaluator(), "source")
    assert answers(engine, inserts((2, 7, 0, b""))) == {"two": [((7, 1), -1), ((7, 2), 1)]}
    engine.remove(name_of("two"))
    assert names(store) == []


def test_state_of_before_is_opened_as_if_views_joined_one_by_one() -> None:
    store = MemoryStore()
    for number, name in enumerate(("one", "two")):
        view = build(store, name, counted(scan(1)))
        view.step(view.resolve(inserts((1, 7, 0, b"")).changes))
        store.put(f"view/{number:020d}/{name}", encode(view.definition))
    assert any(name.startswith("vtwo/") for name in names(store))
    engine = Engine(store, NoEvaluator(), "source")
    assert not any(name.startswith("vtwo/") for name in names(store))
    found = answers(engine, inserts((2, 7, 0, b"")))
    assert found == {name: [((7, 1), -1), ((7, 2), 1)] for name in ("one", "two")}
    again = Engine(store, NoEvaluator(), "source")
    assert nodes_of(again, "two")[-1].location == nodes_of(again, "one")[-1].location


def test_a_failure_takes_the_views_that_read_the_node_and_no_others() -> None:
    store = MemoryStore()
    common = counted(positive(scan(1)))
    fields = common.fields
    above = Relation(name_of("one"), 0, fields)
    engine = engine_of(
        store,
        one=common,
        two=Distinct(common),
        other=counted(scan(1)),
        child=Distinct(scan(0, 1, of=above)),
    )
    (shared,) = [
        n for n in nodes_of(engine, "two") if len(n.names) == 2 and "aggr" in str(n.location)
    ]
    shared.operator = Failing()
    for batch in (inserts((1, 7, 0, b"")), inserts((2, 7, 0, b""))):
        assert list(answers(engine, batch)) == ["other"]
        failed = [error.relation for error in engine.refused()]
        assert failed == [name_of("one"), name_of("two")]
    for name in ("child", "one", "two"):
        engine.remove(name_of(name))
    assert answers(engine, inserts((3, 7, 0, b""))) == {"other": [((7, 2), -1), ((7, 3), 1)]}
    assert {name.split("/")[1] for name in names(store)} == {"01.aggregate", "table s.public.t"}


def test_a_table_is_stored_once_with_all_columns_and_forgets_those_that_nobody_reads() -> None:
    store = MemoryStore()
    engine = engine_of(store, one=counted(scan(1)), two=counted(scan(2)))
    (home,) = engine.dataflow.tables.locations
    assert (home.scope, home.columns, home.dead) == ("vtwo", (0, 1, 2), frozenset())
    answers(engine, inserts((1, 7, 8, b"")))
    engine.remove(name_of("two"))
    (home,) = engine.dataflow.tables.locations
    assert home.dead == {"b"}
    engine.add(build(store, "three", counted(scan(2)), engine))
    assert len(engine.dataflow.tables.locations) == 1, "the new table has every column"
    assert engine.dataflow.tables.locations[0].scope == "vthree"


def test_a_build_keeps_no_more_than_it_reads_where_a_live_table_has_that() -> None:
    engine = engine_of(MemoryStore(), one=counted(scan(1)), two=counted(scan(2)))
    read = [read for made in engine.views.values() for read in made.reads()]
    kept = [
        engine.columns_to_keep(definition("new", counted(scan(*columns))), read)[T.name]
        for columns in ((1,), (2, 1), (3,))
    ]
    assert kept == [(0, 1), (0, 1, 2), (0, 1, 2, 3)]


def test_tables_that_cannot_be_one_stay_until_one_has_all_columns() -> None:
    store = MemoryStore()
    engine = Engine(store, NoEvaluator(), "source")
    for name, column in (("one", 1), ("two", 2)):
        engine.add(build(store, name, counted(scan(column))))
    assert [h.columns for h in engine.dataflow.tables.locations] == [(0, 1), (0, 2)]
    engine.add(build(store, "three", counted(scan(3)), engine))
    assert [h.columns for h in engine.dataflow.tables.locations] == [(0, 1, 2, 3)]
    found = answers(engine, inserts((1, 7, 8, b"x")))
    assert found == {"one": [((7, 1), 1)], "two": [((8, 1), 1)], "three": [((b"x", 1), 1)]}


def test_who_knows_the_key_by_another_name_shares_neither_rows_nor_work() -> None:
    """A column that was renamed in between: each finds its rows when all is put together again."""
    store = MemoryStore()
    engine = engine_of(store, old=counted(scan(1)))
    renamed = replace(T, fields=(Field("key", INT4, False), *T.fields[1:]))
    engine.add(build(store, "new", counted(scan(1, of=renamed)), engine))
    name = RelationName(VIEW_SOURCE, "public", "old")
    engine.rename(name, replace(engine.views[name].table, name="other"))
    assert [table.location.relation for table in engine.dataflow.tables.tables] == [T, renamed]


def test_a_view_that_is_built_again_gets_a_scope_that_is_free() -> None:
    store = MemoryStore()
    engine = engine_of(store, one=counted(scan(1)), two=counted(scan(1)))
    first = engine.views[name_of("one")]
    engine.remove(name_of("one"))
    again = engine.in_free_scope(first)
    assert (first.scope, again.scope) == ("vone", "vone.1")
    assert engine.in_free_scope(definition("new", scan(1))).scope == "vnew"


def test_error_rows_go_to_every_view_under_its_own_name_for_the_node() -> None:
    store = MemoryStore()
    ratio = Call("/", (Literal("1", INT4), ColumnRef(0, INT4)), INT4)
    divided = Project(scan(1), (ratio,), (Field("r", INT4),))
    engine = engine_of(store, one=divided, two=Distinct(counted(divided)))
    epoch = engine.step(inserts((1, 0, 0, b"")))
    assert epoch.rows.errors is not None
    found = [(row[0], row[1], row[2], weight) for row, weight in epoch.rows.errors.rows()]
    project = [(b"public." + view, b"01.project", b"22012", 1) for view in (b"one", b"two")]
    assert sorted(found) == project


def test_rows_are_added_up_only_where_it_matters() -> None:
    narrowed = Project(positive(scan(1, 2)), (ColumnRef(1, INT4, "b"),), (T.fields[2],))
    engine = engine_of(MemoryStore(), one=narrowed, two=counted(narrowed))

    def loose(view: str) -> list[bool]:
        return [node.is_unconsolidated for node in nodes_of(engine, view)]

    assert loose("one") == loose("two")[:3] == [True, True, False]
    found = answers(engine, inserts((1, 7, 5, b""), (2, 7, 5, b"")))
    assert found == {"one": [((5,), 2)], "two": [((5, 2), 1)]}
    assert answers(engine, inserts((1, 8, 5, b""), kind=Changes.NEW)) == {}
    engine.remove(name_of("one"))
    # What changes nothing ends at the scan now, since the aggregate takes the rest as it comes.
    assert loose("two") == [False, False, True, False]
    assert answers(engine, inserts((1, 9, 5, b""), kind=Changes.NEW)) == {}
    found = answers(engine, inserts((2, -1, 5, b""), kind=Changes.NEW))
    assert found == {"two": [((5, 1), 1), ((5, 2), -1)]}


def test_what_is_shared_is_reported_with_its_size() -> None:
    common = counted(positive(scan(1)))
    engine = engine_of(MemoryStore(), one=common, two=Distinct(common), other=counted(scan(2)))
    answers(engine, inserts((1, 7, 0, b""), (2, 7, 0, b""), (3, 8, 1, b"")))
    one, two, other = (name_of(n) for n in ("one", "two", "other"))
    parts = [node for node in engine.figures() if node.is_part]
    found = [(p.detail, p.views, p.rows, p.rows_in, p.rows_out) for p in parts]
    assert found == [
        ("rows of public.t (id, a, b)", (one, two, other), 3, 3, 3),
        ("aggregate by (a): count(*)", (one, two), 2, 2, 2),
    ]
    assert all(part.bytes >= 8 * part.rows for part in parts)
    engine.remove(one)
    engine.remove(other)
    assert not [node for node in engine.figures() if node.is_part]


def test_equality_is_of_work_not_of_names() -> None:
    def fingerprint(plan: Plan) -> Plan:
        return fingerprints(plan)[id(plan)]

    newer = replace(T, fields=(T.fields[1], T.fields[0], *T.fields[2:]), row_estimate=50, key=(1,))
    assert fingerprint(counted(scan(1))) == fingerprint(counted(scan(0, of=newer), "other"))
    assert fingerprint(counted(scan(1))) != fingerprint(counted(scan(2)))
    assert fingerprint(scan(1)) != fingerprint(scan(1, of=replace(T, oid=10)))
    assert fingerprint(scan(1)) != fingerprint(scan(1, of=replace(T, is_full=True)))
    assert fingerprint(positive(scan(1))) != fingerprint(scan(1))


def test_what_a_stable_function_said_is_not_shared() -> None:
    said = InPostgres("f($1)", (ColumnRef(0, INT4),), INT4, is_stable=True)
    kept = Remember(scan(1), (said,), (T.fields[1], Field("f", INT4)))
    plan = counted(kept)
    assert repeatable(plan) == {id(kept.input)}
    store = MemoryStore()
    engine = engine_of(store, one=plan, two=plan)
    both = zip(nodes_of(engine, "one"), nodes_of(engine, "two"), strict=True)
    assert [one is two for one, two in both] == [True, False, False, False]


@pytest.mark.parametrize("is_full", [True, False])
def test_widened_takes_what_others_read_of_the_same_table(is_full: bool) -> None:
    own = replace(T, is_full=is_full)
    changed = replace(own, fields=(*own.fields[:3], Field("c", INT4)))
    others = [(own, (0, 2)), (changed, (3,)), (replace(own, is_full=not is_full), (3,))]
    assert widened([(own, (1,))], others) == {T.name: (0, 1, 2)}
