"""Oracle: the contract of an operator and its declared traits, over random deltas.

Every class of dataflow.operators is stepped beside twins: in two steps, in parts, unconsolidated,
afresh; all must give the same sum. Operators broken by hand show that each breach is found and
told by the operator's name.
TIDEMARK_SEED=<seed> pytest tests/property/test_contract.py
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Any, cast

import numpy as np
import pytest

import dataflow.graph
import dataflow.operators
from dataflow.collect import ErrorRows
from dataflow.delta import Column, Delta
from dataflow.errors import ViewError
from dataflow.expressions.evaluator import NoEvaluator, RowErrors
from dataflow.expressions.ir import Call, ColumnRef, InPostgres
from dataflow.graph import ViewDataflow
from dataflow.operators.base import ErrorCollector, Operator, Traits, types_of
from dataflow.plan.nodes import (
    Distinct,
    Filter,
    Frame,
    FrameBound,
    Plan,
    Project,
    Remember,
    SetCall,
    Shard,
    SortKey,
    TableFunction,
    Window,
    WindowCall,
)
from dataflow.schema import Field
from dataflow.sql.lower.lowering import Node, lower, make_operator
from dataflow.types import BOOL, INT4, INT8
from storage.memory import MemoryStore
from storage.store import Store
from tests.harness.contract import Checked
from tests.harness.oracle import exact
from tests.harness.tiers import count
from tests.property.plans import CASES, SMALL, WIDE, Table
from tests.unit.operators import recursions

SEEDS = count("TIDEMARK_TEST_CONTRACT_SEEDS", 5, 20)
EPOCHS = 8


class Twice:
    """An evaluator that doubles the first argument, and makes two rows of it."""

    def evaluate(self, sql, types, columns, n, result):
        return _moved(columns[0], columns[0].values), RowErrors()

    def evaluate_groups(self, sql, types, columns, groups, results):
        rows = np.repeat(np.arange(len(groups)), 2)
        made = _moved(columns[0].take(rows), np.arange(len(rows)) % 2)
        return groups[rows], (made,), RowErrors()

    def rank(self, type, column):
        raise RuntimeError(f"no evaluator to order {type.name}")


def _moved(column: Column, by: np.ndarray) -> Column:
    """Each value that is not NULL and so much."""
    return Column(np.where(column.mask(), column.values + by, 0), column.valid)


def _column(plan: Plan, index: int) -> ColumnRef:
    return ColumnRef(index, plan.fields[index].type, plan.fields[index].name)


def _doubled(plan: Plan) -> InPostgres:
    return InPostgres("2 * $1", (_column(plan, 0),), INT4, is_stable=True)


def _selected(plan: Plan) -> Plan:
    return Filter(plan, Call("is not null", (_column(plan, 0),), BOOL))


def _remember(plan: Plan, *, by_arguments: bool) -> Plan:
    return Remember(plan, (_doubled(plan),), (*plan.fields, Field("d", INT4)), by_arguments)


def _function(plan: Plan) -> Plan:
    call = SetCall("generate_series($1, $1 + 1)", (_column(plan, 0),), (Field("f", INT4),), 1, (0,))
    return TableFunction(plan, (call,), False, False, (*plan.fields, Field("f", INT4)))


def _window(plan: Plan, function: str, frame: Frame) -> Plan:
    call = WindowCall(function, (_column(plan, 2),), None, frame, "", Field("w", INT8), True)
    order = (SortKey(_column(plan, 1), False, False),)
    return Window(plan, (_column(plan, 0),), order, (call,), (*plan.fields, call.field))


_WHOLE = Frame("rows", FrameBound("unbounded preceding"), FrameBound("unbounded following"))
_RUNNING = Frame("rows", FrameBound("unbounded preceding"), FrameBound("current row"))

MORE: dict[str, Callable[[Random, Plan, Plan, Plan], Plan]] = {
    "shard": lambda r, a, b, w: Shard(w, r.choice([1, 2, 64])),
    "remember": lambda r, a, b, w: _remember(a, by_arguments=False),
    "remember by arguments": lambda r, a, b, w: _remember(a, by_arguments=True),
    "table function": lambda r, a, b, w: _function(a),
    "window": lambda r, a, b, w: _window(a, "sum", _WHOLE),
    "followed window": lambda r, a, b, w: _window(a, r.choice(["sum", "count"]), _RUNNING),
    "recursion": lambda r, a, b, w: r.choice(_RECURSIONS)(),
    "project in PostgreSQL": lambda r, a, b, w: Project(a, (_doubled(a),), (Field("d", INT4),)),
}
# Plans that also end where the graph has circles.
_RECURSIONS = [recursions.reach, recursions.closure, recursions.reach_around, recursions.walks]


def operator_classes() -> set[type]:
    """Every class of dataflow.operators with a step and a plan to be made from."""
    found = set()
    for module in pkgutil.walk_packages(dataflow.operators.__path__, "dataflow.operators."):
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, type) and value.__name__.endswith("Operator"):
                found.add(value)
    return {c for c in found if c is not Operator}


class Wrapping:
    """Makes the checked operators of a dataflow, and keeps them."""

    def __init__(self, broken: Callable[[Operator], Operator] = lambda o: o) -> None:
        self.made: list[Checked] = []
        self._broken = broken

    def __call__(
        self,
        node: Node,
        store: Store,
        scope: str,
        evaluator: Any,
        errors: ErrorCollector,
        *,
        meter: Any,
    ) -> Checked:
        def make(store: Store, evaluator: Any, errors: ErrorCollector) -> Operator:
            made = make_operator(node, store, scope, evaluator, errors, meter=meter)
            return self._broken(made)

        self.made.append(Checked(make, store, evaluator, errors))
        return self.made[-1]


def _tables(random: Random) -> dict[str, Table]:
    kinds = {"a": SMALL, "b": SMALL, "w": WIDE}
    graph = {r.name.name: list(types_of(r.fields)) for r in _GRAPH}
    return {name: Table(name, types, random) for name, types in (kinds | graph).items()}


_GRAPH = (recursions.EDGES, recursions.STARTS, recursions.PRICES)


def _plan(name: str, random: Random, tables: Mapping[str, Table]) -> Plan:
    return (CASES | MORE)[name](random, *(tables[n].scan() for n in "abw"))


def _run(seed: int, name: str, wrapping: Wrapping, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataflow.graph, "make_operator", wrapping)
    random = Random(seed)
    tables = _tables(random)
    plan = _plan(name, random, tables)
    evaluator = Twice() if name in MORE else NoEvaluator()
    flow = ViewDataflow(lower(plan), "v", MemoryStore(), evaluator, ErrorRows())
    flow.seed()
    needed = flow.needed_columns()
    for _ in range(EPOCHS):
        deltas = {}
        for table in tables.values():
            delta = table.change()
            if table.relation.name in needed:
                kept = delta.project(needed[table.relation.name])
                deltas[table.relation.name] = kept.consolidate()
        flow.step(deltas)


def _seeds() -> list[int]:
    given = os.environ.get("TIDEMARK_SEED")
    return [int(given)] if given else list(range(SEEDS))


def test_every_operator_keeps_its_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [*CASES, *MORE]
    made: dict[type, set[str]] = {}
    traits: dict[type, set[Traits]] = {}
    for seed in _seeds():
        for name in names:
            wrapping = Wrapping()
            try:
                _run(seed, name, wrapping, monkeypatch)
            except Exception as error:
                detail = getattr(error, "described", str(error))
                pytest.fail(f"seed {seed}, {name}: {detail}")
            for checked in wrapping.made:
                made.setdefault(checked.kind, set()).update(checked.keeps)
                traits.setdefault(checked.kind, set()).add(checked.traits)
    if "TIDEMARK_SEED" in os.environ:
        return
    others = {c for c in operator_classes() if _depends_on_history(c)}
    assert set(made) == operator_classes() - others, "an operator is not made by any case"
    for kind, kept in made.items():
        assert bool(kept) == any(t.has_state for t in traits[kind]), kind.__name__
    accepting = {
        k.__name__ for k, all in traits.items() if any(t.accepts_unconsolidated for t in all)
    }
    assert accepting == {"FilterOperator", "ProjectOperator", "AggregateOperator"}
    clearing = {k.__name__ for k, all in traits.items() if any(t.clearable for t in all)}
    joins = {"JoinOperator", "OuterJoinOperator", "SemiJoinOperator", "ResidualSemiJoinOperator"}
    assert clearing == joins


def _depends_on_history(kind: Any) -> bool:
    """Whether twins stepped otherwise may differ: see tests/unit/operators/test_lateness.py."""
    traits = getattr(kind, "traits", None)
    return isinstance(traits, Traits) and traits.depends_on_history


# --- operators broken by hand -----------------------------------------------------------------


Change = Callable[[Delta], Delta]


class Broken:
    """An operator of which a test changes traits or output."""

    def __init__(
        self, within: Any, traits: Traits | None, change: Callable[[Delta], Delta]
    ) -> None:
        self._within = within
        self._change = change
        self.traits = traits or within.traits

    def __getattr__(self, name: str) -> Any:
        return getattr(self._within, name)

    def step(self, *inputs: Delta) -> Delta:
        return self._change(self._within.step(*inputs))


def _same(out: Delta) -> Delta:
    return out


def _twice(out: Delta) -> Delta:
    return Delta.concat([out, out])


def _with_zeros(out: Delta) -> Delta:
    return Delta.concat([out, out.weighted(out.weights * 0)])


def _first_of_each(out: Delta) -> Delta:
    """Of equal rows only the first."""
    seen: dict[tuple, int] = {}
    for position, (row, _) in enumerate(out.rows()):
        seen.setdefault(exact(row), position)
    return out.take(np.array(list(seen.values()), np.int64))


class _Forgetful:
    """Gives rows out in every other step only."""

    def __init__(self) -> None:
        self._steps = 0

    def __call__(self, out: Delta) -> Delta:
        self._steps += 1
        return out if self._steps % 2 else out.slice(0, 0)


# One for an operator and all its twins.
_FORGETFUL = _Forgetful()
_AT_FAULT = {
    "distinct": "AggregateOperator",
    "filter": "FilterOperator",
    "project": "ProjectOperator",
    "project in PostgreSQL": "ProjectOperator",
}
BREACHES: dict[str, tuple[str, Traits | None, Callable[[], Change], str]] = {
    "linear with state": (
        "distinct",
        Traits(is_linear=True),
        lambda: _same,
        "is linear and has state",
    ),
    "state that is not declared": (
        "distinct",
        Traits(is_linear=True, has_state=False),
        lambda: _same,
        "has no state, and keeps",
    ),
    "not linear": ("filter", None, _Forgetful, "is not linear"),
    "not incremental": (
        "filter",
        Traits(has_state=True),
        _Forgetful,
        "two steps do not add up to one",
    ),
    "not deterministic": ("filter", None, lambda: _FORGETFUL, "is not deterministic"),
    "a row twice": ("filter", None, lambda: _twice, "the output is not consolidated"),
    "a row of weight zero": ("filter", None, lambda: _with_zeros, "the output is not consolidated"),
    "parts that are not there": (
        "distinct",
        Traits(emits_parts=True),
        lambda: _same,
        "emits_parts",
    ),
    "an evaluator that is asked": (
        "project in PostgreSQL",
        Traits(needs_evaluator=False, has_state=False, may_skip_consolidation=True),
        lambda: _same,
        "asks the evaluator",
    ),
    "rows that are not passed on": (
        "project",
        Traits(passes_rows=True, has_state=False, may_skip_consolidation=True),
        lambda: _same,
        "changes rows",
    ),
    "an input that is not added up": (
        "filter",
        Traits(is_linear=True, has_state=False, passes_rows=True, accepts_unconsolidated=True),
        lambda: _first_of_each,
        "does not add up its input",
    ),
}


@pytest.mark.parametrize("breach", BREACHES)
def test_a_breach_is_reported_by_the_name_of_its_operator(
    breach: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, traits, change, words = BREACHES[breach]

    def broken(operator: Operator) -> Operator:
        is_at_fault = type(operator).__name__ == _AT_FAULT[name]
        return cast(Operator, Broken(operator, traits, change())) if is_at_fault else operator

    with pytest.raises(ViewError) as raised:
        for seed in range(20):
            _run(seed, name, Wrapping(broken), monkeypatch)
    assert raised.value.code == "view.internal_error"
    title = _AT_FAULT[name].removesuffix("Operator").lower()
    assert re.fullmatch(rf'operator "\d+.{title}" .*', raised.value.what)
    assert words in raised.value.detail


class _Lossy(Broken):
    """A join that has lost a row of its left input when all are asked for."""

    def stored_rows(self, side: int) -> Iterator[Delta]:
        for rows in self._within.stored_rows(side):
            yield rows if side else rows.slice(1, len(rows))


def test_an_input_that_is_not_cleared_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def lossy(operator: Operator) -> Operator:
        is_join = type(operator).__name__ == "JoinOperator"
        return cast(Operator, _Lossy(operator, None, _same)) if is_join else operator

    with pytest.raises(ViewError) as raised:
        for seed in range(20):
            _run(seed, "join", Wrapping(lossy), monkeypatch)
    assert "input 0 is not cleared" in raised.value.detail


def test_a_missing_row_is_reported_by_its_operator() -> None:
    """The reader of the operator at fault: it alone knows what it has."""
    random = Random(3)
    table = Table("a", SMALL, random)
    nodes = lower(Distinct(_selected(table.scan())))
    flow = ViewDataflow(nodes, "v", MemoryStore(), NoEvaluator(), ErrorRows())
    (at,) = [i for i, node in enumerate(nodes) if node.name.endswith("filter")]
    flow._operators[at] = cast(Operator, Broken(flow._operators[at], None, Delta.negate))
    rows = Delta.of("iiis", [(1, 1, 1, b"a")], 1)
    with pytest.raises(ViewError) as raised:
        flow.step({table.relation.name: rows.project(flow.needed_columns()[table.relation.name])})
    assert f'operator "{nodes[-1].name}"' in raised.value.detail
    assert "state.negative_weight" in raised.value.detail
