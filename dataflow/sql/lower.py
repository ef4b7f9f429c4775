"""From a plan to the nodes of a dataflow, and from a node to its operator.

Invariant: the same plan gives the same nodes under the same names, since names are what state on
disk is found by. Equal parts of a plan become one node. A node's operator depends on nothing but
its inputs and its store: it runs alike in the pipeline and in a Spark task.
"""

from __future__ import annotations

from dataclasses import dataclass

from dataflow.errors import InvariantError
from dataflow.expressions.evaluator import Evaluator
from dataflow.operators.aggregate import AggregateOperator
from dataflow.operators.base import Context, ErrorCollector, Operator
from dataflow.operators.filter import FilterOperator
from dataflow.operators.join import JoinOperator
from dataflow.operators.not_in import NotInOperator
from dataflow.operators.outer_join import OuterJoinOperator
from dataflow.operators.pairs import plain_columns
from dataflow.operators.project import ProjectOperator
from dataflow.operators.semi_join import ResidualSemiJoinOperator, SemiJoinOperator
from dataflow.operators.single_row import SingleRowOperator
from dataflow.operators.union_all import UnionAllOperator
from dataflow.operators.values import ValuesOperator
from dataflow.sql.plan import (
    Aggregate,
    Filter,
    Join,
    Plan,
    Project,
    SemiJoin,
    SingleRow,
    UnionAll,
    Values,
    inputs_of,
)
from dataflow.sql.prepare import prepare
from storage.store import Store

Exchange = tuple[int, ...] | None


@dataclass(frozen=True)
class Node:
    """One operator of a dataflow.

    name: stable within the view, "03.join". plan: what it computes; keys and arguments are plain
    columns. inputs: positions of earlier nodes. exchange: for each input the columns whose bits
    a distributed run must partition it by; () all rows in one place, None rows may be anywhere.
    """

    name: str
    plan: Plan
    inputs: tuple[int, ...]
    exchange: tuple[Exchange, ...]


def lower(root: Plan) -> tuple[Node, ...]:
    """The nodes of a plan, inputs before what reads them, the view's output last."""
    nodes: list[Node] = []
    place: dict[Plan, int] = {}

    def visit(plan: Plan) -> int:
        if plan in place:
            return place[plan]
        inputs = tuple(visit(child) for child in inputs_of(plan))
        name = f"{len(nodes):02d}.{_title(plan)}"
        nodes.append(Node(name, plan, inputs, _exchange(plan)))
        place[plan] = len(nodes) - 1
        return place[plan]

    visit(prepare(root))
    return tuple(nodes)


def make_operator(
    node: Node, store: Store, scope: str, evaluator: Evaluator, errors: ErrorCollector
) -> Operator:
    """The operator of a node, its state in arrangements named "<scope>/<node>/<role>".

    InvariantError for a scan: its rows come from outside.
    """
    context = Context(node.name, scope, store, evaluator, errors)
    plan = node.plan
    if isinstance(plan, Join):
        return (
            JoinOperator(plan, context)
            if plan.kind == "inner"
            else OuterJoinOperator(plan, context)
        )
    if isinstance(plan, SemiJoin):
        if plan.kind == "not in":
            return NotInOperator(plan, context)
        if plan.residual is None:
            return SemiJoinOperator(plan, context)
        return ResidualSemiJoinOperator(plan, context)
    if isinstance(plan, Filter):
        return FilterOperator(plan, context)
    if isinstance(plan, Project):
        return ProjectOperator(plan, context)
    if isinstance(plan, Aggregate):
        return AggregateOperator(plan, context)
    if isinstance(plan, UnionAll):
        return UnionAllOperator(plan, context)
    if isinstance(plan, SingleRow):
        return SingleRowOperator(plan, context)
    if isinstance(plan, Values):
        return ValuesOperator(plan, context)
    raise InvariantError("plan.operator", f"no operator for a {type(plan).__name__}")


def _title(plan: Plan) -> str:
    if isinstance(plan, Join):
        return "join" if plan.kind == "inner" else f"{plan.kind}_join"
    if isinstance(plan, SemiJoin):
        return "not_in" if plan.kind == "not in" else f"{plan.kind}_join"
    titles = {UnionAll: "union_all", SingleRow: "single_row"}
    return titles.get(type(plan), type(plan).__name__.lower())


def _exchange(plan: Plan) -> tuple[Exchange, ...]:
    if isinstance(plan, SemiJoin) and plan.kind == "not in":
        return ((), ())
    if isinstance(plan, Join | SemiJoin):
        return (plain_columns(plan.left_keys), plain_columns(plan.right_keys))
    if isinstance(plan, Aggregate):
        return (plain_columns(plan.groups),)
    if isinstance(plan, SingleRow):
        return ((),)
    return (None,) * len(inputs_of(plan))
