"""Oracle: small plans whose rows are known by heart, under a clock that only the test moves.

An operator of a test takes as long as it says; what is over the budget leaves nothing behind, and
the other views of the same epoch have their rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from dataflow.changes import Changes
from dataflow.delta import Column, Delta
from dataflow.errors import OverBudgetError, ViewError
from dataflow.expressions.evaluator import NoEvaluator
from dataflow.expressions.ir import ColumnRef
from dataflow.operators.base import Operator, Traits
from dataflow.plan.nodes import Distinct, Join, Plan
from dataflow.schema import Relation
from dataflow.types import INT4
from dataflow.work import BUDGET_CHANGES, WorkBudget, WorkMeter
from service.engine.engine import Engine
from service.engine.replay import Replay
from service.pipeline.postponed_builds import FIRST_S, FORGET_S, MAX_S, PostponedBuilds
from storage.memory import MemoryStore
from tests.unit.operators.recursions import EDGES, STARTS, endless
from tests.unit.service.test_sharing import (
    answers,
    build,
    counted,
    inserts,
    name_of,
    names,
    nodes_of,
    positive,
    scan,
)


@dataclass
class Clock:
    """now: moved by the test; each_s: moves by so much whenever it is read."""

    now: float = 0.0
    each_s: float = 0.0

    def __call__(self) -> float:
        self.now += self.each_s
        return self.now


@dataclass
class Slow:
    """An operator that takes so long for each step."""

    inner: Operator
    clock: Clock
    seconds: float
    traits: Traits = field(init=False)

    def __post_init__(self) -> None:
        self.traits = self.inner.traits

    def step(self, *inputs: Delta) -> Delta:
        self.clock.now += self.seconds
        return self.inner.step(*inputs)


class Scene:
    """An engine whose views may take a second, and make so many rows."""

    def __init__(self, rows: float = 1e9, **plans: Plan) -> None:
        self.clock, self.store = Clock(), MemoryStore()
        self.meter = WorkMeter(WorkBudget(1.0, rows), self.clock)
        self.engine = Engine(self.store, NoEvaluator(), "source", meter=self.meter)
        for name, plan in plans.items():
            self.engine.add(build(self.store, name, plan, self.engine))

    def slow(self, view: str, seconds: float, at: int = -1) -> None:
        """Let a node of a view take so long for each step."""
        node = nodes_of(self.engine, view)[at]
        assert node.operator is not None and node.in_chunks_of is None
        node.operator = Slow(node.operator, self.clock, seconds)

    def over(self) -> list[str]:
        found = self.engine.refused()
        assert all(isinstance(error, OverBudgetError) for error in found), found
        return [error.relation.name for error in found if error.relation is not None]


ONE = inserts((1, 7, 0, b""))


def test_a_view_over_its_budget_leaves_alone() -> None:
    scene = Scene(long=counted(scan(1)), other=counted(scan(2)))
    scene.slow("long", 1.5)
    assert answers(scene.engine, ONE) == {"other": [((0, 1), 1)]}
    (error,) = scene.engine.refused()
    assert (error.code, error.relation) == ("view.over_budget", name_of("long"))
    assert "more than 1.0 s of work, for 1 changed row" in error.detail
    scene.engine.remove(name_of("long"))
    assert not [name for name in names(scene.store) if name.startswith("vlong/0")]
    assert answers(scene.engine, inserts((2, 7, 0, b""))) == {"other": [((0, 1), -1), ((0, 2), 1)]}


def test_what_is_within_it_stays() -> None:
    scene = Scene(long=counted(scan(1)), other=counted(scan(2)))
    scene.slow("long", 0.9)
    for number in range(3):
        assert len(answers(scene.engine, inserts((number, 7, 0, b"")))) == 2
    assert scene.over() == []


def test_the_work_of_all_operators_of_a_view_adds_up_and_shared_work_counts_for_each() -> None:
    common = counted(positive(scan(1)))
    scene = Scene(long=Distinct(common), short=common, other=counted(scan(2)))
    shared = nodes_of(scene.engine, "short")[-1]
    assert len(shared.names) == 2
    scene.slow("short", 0.8)
    scene.slow("long", 0.5)
    assert sorted(answers(scene.engine, ONE)) == ["other", "short"]
    assert scene.over() == ["long"]


def test_a_shared_operator_over_the_budget_takes_every_view_that_has_it() -> None:
    common = counted(positive(scan(1)))
    above = Relation(name_of("one"), 0, common.fields)
    scene = Scene(
        one=common,
        two=Distinct(common),
        other=counted(scan(2)),
        child=Distinct(scan(0, 1, of=above)),
    )
    scene.slow("one", 1.5)
    assert list(answers(scene.engine, ONE)) == ["other"]
    assert scene.over() == ["one", "two"]


def test_a_large_epoch_has_a_larger_budget_however_it_is_cut() -> None:
    scene = Scene(long=counted(scan(1)), other=counted(scan(2)))
    node = nodes_of(scene.engine, "long")[-1]
    assert node.operator is not None
    slow = node.operator = Slow(node.operator, scene.clock, 0.5)
    batch = inserts(*((n, n, 0, b"") for n in range(5 * BUDGET_CHANGES)))
    assert len(answers(scene.engine, batch)) == 2
    assert scene.over() == [] and 1 < scene.clock.now < 5
    slow.seconds = 1.5
    # A truncation is as large as the table was.
    assert len(answers(scene.engine, inserts((0, 0, 0, b""), kind=Changes.TRUNCATE))) == 2
    assert scene.over() == []
    # Two chunks of one row are one epoch of two rows.
    slow.seconds = 0.6
    first, second = inserts((-1, 1, 0, b"")), inserts((-2, 1, 0, b""))
    first.later = iter([second.changes])
    assert list(answers(scene.engine, first)) == ["other"]
    assert scene.over() == ["long"]


def test_who_holds_up_only_its_readers_may_take_any_time() -> None:
    plan = counted(scan(1))
    above = Relation(name_of("long"), 0, plan.fields)
    scene = Scene(long=plan, child=Distinct(scan(0, 1, of=above)))
    scene.slow("long", 100.0)
    assert len(answers(scene.engine, ONE)) == 2
    assert scene.over() == []
    # For the child, the parent is another view.
    scene.slow("child", 100.0)
    assert list(answers(scene.engine, inserts((2, 7, 0, b"")))) == ["long"]
    assert scene.over() == ["child"]
    scene.engine.remove(name_of("child"))
    scene.engine.add(build(scene.store, "other", counted(scan(2)), scene.engine))
    assert list(answers(scene.engine, inserts((3, 7, 0, b"")))) == ["other"]
    assert scene.over() == ["long"]


def pairs() -> Plan:
    """Each row with all rows of the same a."""
    one, keys = scan(0, 1), (ColumnRef(1, INT4),)
    return Join("inner", one, one, keys, keys, None, (*one.fields, *one.fields))


def test_rows_are_counted_where_they_are_made() -> None:
    scene = Scene(rows=50, long=pairs(), other=counted(scan(2)))
    for number in range(20):
        found = answers(scene.engine, inserts((number, 7, 0, b"")))
        assert sorted(found) == ["long", "other"]
    # 2 * 20 + 1 rows for one of the same a, and 5 of them.
    batch = inserts(*((100 + n, 7, 0, b"") for n in range(5)))
    assert list(answers(scene.engine, batch)) == ["other"]
    (error,) = scene.engine.refused()
    assert error.code == "view.over_budget" and "at most 50" in error.detail


def test_a_recursion_is_stopped_in_its_midst() -> None:
    scene = Scene(walk=endless(), other=counted(scan(1)))

    def rows(relation: Relation, *found: tuple) -> Changes:
        columns = tuple(Column.of("i", [row[i] for row in found]) for i in range(len(found[0])))
        kinds = Column.of("i", [Changes.INSERT] * len(found)).values.astype("uint8")
        return Changes(relation, kinds, columns)

    batch = inserts((1, 7, 0, b""))
    batch.changes += [rows(STARTS, (1,)), rows(EDGES, (1, 2), (2, 1))]
    scene.clock.each_s = 0.001
    assert list(answers(scene.engine, batch)) == ["other"]
    assert scene.over() == ["walk"]
    # It looks at the clock a few times a round, so this is within the first hundreds of 10,000.
    assert scene.clock.now < 2.0


def test_to_catch_up_is_limited_too_and_only_where_it_holds_up_others() -> None:
    scene = Scene(other=counted(scan(2)))
    made = build(MemoryStore(), "new", counted(scan(1))).definition

    def replayed(engine: Engine) -> list[Delta]:
        view = engine.open_build(made, engine.columns_to_keep(made, []))
        view.dataflow.seed()
        operators = view.dataflow._operators
        at = max(operators)
        operators[at] = Slow(operators[at], scene.clock, 1.5)
        return list(Replay(view, 1000).take(ONE.changes))

    with pytest.raises(OverBudgetError, match="does more work"):
        replayed(scene.engine)
    alone = Engine(MemoryStore(), NoEvaluator(), "source", meter=scene.meter)
    assert sum(map(len, replayed(alone))) == 1


def test_an_error_of_an_operator_stays_what_it_is() -> None:
    scene = Scene(long=counted(scan(1)), other=counted(scan(2)))
    node = nodes_of(scene.engine, "long")[-1]
    assert node.operator is not None

    @dataclass
    class Fails(Slow):
        def step(self, *inputs: Delta) -> Delta:
            self.clock.now += 5
            raise ViewError("view.test", "it fails, late")

    node.operator = Fails(node.operator, scene.clock, 0)
    answers(scene.engine, ONE)
    assert [error.code for error in scene.engine.refused()] == ["view.test"]
    assert scene.meter.seconds_left() == float("inf")


def test_the_time_that_is_left_is_what_the_view_has_not_spent() -> None:
    scene = Scene()
    with scene.meter.epoch():
        with scene.meter.step(("a",), "v/00.x/"):
            scene.clock.now += 0.25
            assert scene.meter.seconds_left() == pytest.approx(0.75)
        with scene.meter.step(("a", "b"), "v/01.x/"):
            assert scene.meter.seconds_left() == pytest.approx(1.0), "b has spent nothing"
    assert scene.meter.seconds_left() == float("inf")


def test_a_view_is_built_again_after_ever_longer_pauses() -> None:
    clock = Clock()
    postponed = PostponedBuilds(clock)
    why = OverBudgetError("view.over_budget", "too much", detail="1 s", hint="wait")

    def pause() -> float:
        postponed.note("v", why)
        started = clock.now
        while (waits := postponed.why_not("v")) is not None:
            assert (waits.code, waits.hint, waits.is_temporary) == (why.code, why.hint, True)
            clock.now += 1
        return clock.now - started

    pauses = [pause() for _ in range(10)]
    assert pauses[:4] == [0, FIRST_S, 2 * FIRST_S, 4 * FIRST_S]
    assert pauses[-1] == pauses[-2] == MAX_S
    clock.now += FORGET_S + 1
    assert pause() == 0
    assert postponed.why_not("another") is None
    pause()
    postponed.note("v", why)
    postponed.retain(set())
    assert postponed.why_not("v") is None
