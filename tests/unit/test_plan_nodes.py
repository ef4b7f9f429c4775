"""Oracle: the classes of `dataflow.plan.nodes`: each kind of node has its place in every table.

Whatever is keyed by the kind of a node is asked for each of them, so a kind that one of them lacks
fails here, and not in the request of a user.
"""

from __future__ import annotations

import inspect
from typing import Any, get_args

import pytest

from connectors.spark.maintained.layout import Layout, MaintainedView, reads
from dataflow.expressions.evaluator import NoEvaluator
from dataflow.expressions.ir import Call, ColumnRef, Expression, Literal
from dataflow.plan import nodes
from dataflow.plan.check import check_plan
from dataflow.plan.explain import describe, explain_text, explain_tree, expressions_of, in_postgres
from dataflow.plan.fingerprint import fingerprints, repeatable
from dataflow.plan.nodes import Plan, inputs_of
from dataflow.plan.properties.unique_keys import keys_of
from dataflow.plan.properties.view_key import reason_without_key
from dataflow.plan.walk import copied, with_inputs
from dataflow.schema import Field, Relation, RelationName
from dataflow.sharing import planned_nodes
from dataflow.sql.lower.estimate_queries import queries_of
from dataflow.sql.lower.footprint import Size, effects_of, risks_of, stored_by, width_of
from dataflow.sql.lower.lowering import lower, title_of
from dataflow.types import BOOL, INT4, INT8, TIMESTAMPTZ
from service.engine.encoding.registered import decode, encode

T = Relation(
    RelationName("source", "public", "t"),
    9,
    (Field("id", INT4, False), Field("a", INT4), Field("at", TIMESTAMPTZ)),
    key=(0,),
)
CLOCK = Relation(RelationName("clock", "clock", "now"), 0, (Field("at", TIMESTAMPTZ, False),))
ALL = nodes.Scan(T, (0, 1, 2), T.fields)
TIMES = nodes.Scan(T, (2,), T.fields[2:])
NOW = nodes.Scan(CLOCK, (0,), CLOCK.fields)
KEYS = nodes.Scan(T, (0,), T.fields[:1])
ID, A, AT = (ColumnRef(i, f.type, f.name) for i, f in enumerate(T.fields))
ONE = Literal("1", INT4)
IS_ONE: Expression = Call("=", (A, ONE), BOOL)
COUNT = nodes.AggregateCall("count", None, False, None, Field("n", INT8, False))
NUMBER = nodes.WindowCall(
    "row_number", (), None, nodes.Frame(), "row_number()", Field("n", INT8, False), False
)
ORDER = (nodes.SortKey(ID),)
WATERMARK = nodes.Watermark(TIMES, NOW, 1_000_000, 0, "t.at", TIMES.fields)
SERIES = nodes.SetCall("generate_series(1, $1)", (A,), (Field("n", INT4),), 1, (0,))
LAST_ROUND = nodes.RecursionRef("r", KEYS.fields)
BOTH = (*T.fields, *KEYS.fields)


def step() -> Plan:
    """The rows of the last round that a table has."""
    return nodes.SemiJoin("semi", LAST_ROUND, KEYS, (ID,), (ID,), None)


RECURSIVE = nodes.Recursive("r", KEYS, step(), True, KEYS.fields)


def loop() -> Plan:
    """What lowering makes of a recursion."""
    (found,) = (n.plan for n in lower(RECURSIVE) if isinstance(n.plan, nodes.Loop))
    return found


# A plan whose root is a node of each kind.
SAMPLES: tuple[Plan, ...] = (
    ALL,
    nodes.Values(((ONE,),), (Field("one", INT4, False),)),
    nodes.Filter(ALL, IS_ONE),
    nodes.ThresholdFilter(ALL, NOW, AT, ">"),
    nodes.ThresholdFlag(ALL, NOW, AT, ">"),
    WATERMARK,
    nodes.LateRows(ALL, WATERMARK, AT, (0,), "applied", "t.at"),
    nodes.FinalRows(ALL, (WATERMARK,), AT, 60_000_000),
    nodes.Project(ALL, (A,), (T.fields[1],)),
    nodes.Join("inner", ALL, KEYS, (ID,), (ID,), None, BOTH),
    nodes.AsOfJoin("inner", ALL, KEYS, (), (), ID, "<=", (nodes.SortKey(ID, True),), BOTH),
    nodes.SemiJoin("anti", ALL, KEYS, (ID,), (ID,), None),
    nodes.Aggregate(ALL, (A,), (COUNT,), (T.fields[1], COUNT.field)),
    nodes.RetainedAggregate(
        ALL, (AT,), (COUNT,), (T.fields[2], COUNT.field), (WATERMARK,), 0, 60_000_000, "t.at"
    ),
    nodes.Distinct(ALL),
    nodes.UnionAll((KEYS, KEYS), KEYS.fields),
    nodes.SingleRow(KEYS),
    nodes.TopK(ALL, (A,), ORDER, 3, 0, False),
    nodes.Shard(ALL, 8),
    nodes.Window(ALL, (A,), ORDER, (NUMBER,), (*T.fields, NUMBER.field)),
    nodes.Remember(ALL, (IS_ONE,), (*T.fields, Field("is_one", BOOL))),
    nodes.TableFunction(ALL, (SERIES,), False, False, (*T.fields, *SERIES.fields)),
    nodes.SetOperation("except", False, KEYS, KEYS),
    LAST_ROUND,
    RECURSIVE,
    loop(),
    nodes.Apply("semi", ALL, KEYS, None, T.fields),
)
# Gone after the rules and lowering, but for the body of a loop.
NEVER_LOWERED = (nodes.Apply, nodes.Recursive, nodes.RecursionRef, nodes.Distinct)
LOWERED = [s for s in SAMPLES if not isinstance(s, nodes.Apply | nodes.RecursionRef | nodes.Loop)]


def kind(plan: Plan) -> str:
    return type(plan).__name__


def kinds_in_module() -> set[type]:
    """Every class of the module that has inputs or leaves, and rows: a node of a plan."""
    found = {
        c for _, c in inspect.getmembers(nodes, inspect.isclass) if c.__module__ == nodes.__name__
    }
    parts = {
        *(nodes.AggregateCall, nodes.WindowCall, nodes.SetCall, nodes.SortKey, nodes.Bounds),
        *(nodes.Frame, nodes.FrameBound, nodes.ViewPlan),
    }
    return found - parts


def test_each_kind_has_a_sample_and_is_in_the_union() -> None:
    kinds = kinds_in_module()
    assert {type(sample) for sample in SAMPLES} == kinds == set(get_args(Plan))


@pytest.mark.parametrize("plan", SAMPLES, ids=kind)
def test_each_kind_has_its_text_and_its_walks(plan: Plan) -> None:
    text = describe(plan)
    assert text and text == text.strip()
    assert explain_text(plan).startswith(text)
    tree: dict[str, Any] = explain_tree(plan)
    assert (tree["node"], tree["detail"]) == (kind(plan), text)
    assert len(tree["inputs"]) == len(inputs_of(plan))
    assert title_of(plan)
    for expression in expressions_of(plan):
        assert isinstance(expression, Expression)
    assert in_postgres(plan) == []
    assert copied(plan) == plan and with_inputs(plan, inputs_of(plan)) is plan
    check_plan(plan)
    assert keys_of(plan).present <= set(range(len(plan.fields)))
    assert isinstance(reason_without_key(plan), str)
    assert id(plan) in fingerprints(plan)
    repeatable(plan)
    assert decode(encode(plan)) == plan


@pytest.mark.parametrize("plan", LOWERED, ids=kind)
def test_each_kind_has_its_estimates(plan: Plan) -> None:
    found = lower(plan)
    sizes = [Size(100.0, width_of(node)) for node in found]
    queries = queries_of(found, lambda relation: None)
    assert all(query is not None for query in queries), queries
    assert all(stored.rows >= 0 for stored in stored_by(found, sizes))
    assert set(effects_of(found, sizes)) == {r.name for r in reads(found)}
    risks_of(found, sizes, "")
    assert [node["detail"] for node in planned_nodes(found)] == [describe(n.plan) for n in found]


@pytest.mark.parametrize("plan", LOWERED, ids=kind)
def test_each_kind_has_its_layout_on_spark(plan: Plan) -> None:
    found = lower(plan)
    relations = reads(found)
    columns = {r.name: tuple(range(len(r.fields))) for r in relations}
    layout = Layout(MaintainedView("v", found, "v", relations, columns, NoEvaluator), 4)
    placed = {n for level in layout.levels for stage in level for n in stage.nodes}
    assert placed == set(range(len(found))) or not relations
    assert all(isinstance(text, str) and text for text in layout.single_stages())
    assert layout.specs is not None


def test_all_kinds_are_lowered_by_a_sample() -> None:
    seen = {type(node.plan) for plan in LOWERED for node in lower(plan)}
    assert seen == kinds_in_module() - set(NEVER_LOWERED)
