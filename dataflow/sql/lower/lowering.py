"""From a plan to the nodes of a dataflow, and from a node to its operator.

Invariant: the same plan gives the same nodes under the same names, since names identify the state
on disk. Equal parts of a plan become one node. A node's operator depends only on its inputs and its
store: it runs the same in the pipeline and in a Spark task.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from dataflow.errors import InvariantError
from dataflow.expressions.evaluator import Evaluator
from dataflow.expressions.ir import columns_of
from dataflow.operators.aggregates.aggregate import AggregateOperator
from dataflow.operators.aggregates.set_operation import SetOperationOperator
from dataflow.operators.base import Context, ErrorCollector, Operator, kinds_of
from dataflow.operators.filter import FilterOperator
from dataflow.operators.groups import plain_columns
from dataflow.operators.joins.as_of_join import AsOfJoinOperator
from dataflow.operators.joins.join import JoinOperator
from dataflow.operators.joins.not_in import NotInOperator
from dataflow.operators.joins.outer_join import OuterJoinOperator
from dataflow.operators.joins.semi_join import ResidualSemiJoinOperator, SemiJoinOperator
from dataflow.operators.lateness.final_rows import FinalRowsOperator
from dataflow.operators.lateness.late_rows import LateRowsOperator
from dataflow.operators.lateness.retained_aggregate import RetainedAggregateOperator
from dataflow.operators.lateness.watermark import WatermarkOperator
from dataflow.operators.ordered.threshold_filter import ThresholdFilterOperator
from dataflow.operators.ordered.threshold_flag import ThresholdFlagOperator
from dataflow.operators.ordered.top_k import TopKOperator
from dataflow.operators.project import ProjectOperator
from dataflow.operators.recursion.loop_body import Body, Part
from dataflow.operators.recursion.recursive import RecursiveOperator
from dataflow.operators.shard import ShardOperator
from dataflow.operators.single_row import SingleRowOperator
from dataflow.operators.table_function import TableFunctionOperator
from dataflow.operators.tables.remember import RememberOperator
from dataflow.operators.tables.remember_answers import RememberAnswersOperator
from dataflow.operators.union_all import UnionAllOperator
from dataflow.operators.values import ValuesOperator
from dataflow.operators.windows.window import WindowOperator
from dataflow.operators.windows.window_follow import IncrementalWindowOperator
from dataflow.operators.windows.window_reach import is_followed
from dataflow.plan.nodes import (
    Aggregate,
    AsOfJoin,
    Filter,
    FinalRows,
    Join,
    LateRows,
    Loop,
    Plan,
    Project,
    RecursionRef,
    Remember,
    RetainedAggregate,
    SemiJoin,
    SetOperation,
    Shard,
    SingleRow,
    TableFunction,
    ThresholdFilter,
    ThresholdFlag,
    TopK,
    UnionAll,
    Values,
    Watermark,
    Window,
    fold,
    inputs_of,
)
from dataflow.plan.walk import with_equal_parts_shared
from dataflow.sql.lower.key_columns import prepare
from dataflow.work import UNLIMITED, WorkMeter
from storage.store import Store

Exchange = tuple[int, ...] | None


@dataclass(frozen=True)
class Node:
    """One operator of a dataflow.

    name: stable within the view, "03.join". plan: what it computes; keys and arguments are plain
    columns. inputs: positions of earlier nodes. exchange: for each input the columns whose bits a
    distributed run must partition it by; (): all rows in one partition; None: any partitioning.
    """

    name: str
    plan: Plan
    inputs: tuple[int, ...]
    exchange: tuple[Exchange, ...]


def lower(root: Plan) -> tuple[Node, ...]:
    """Return the nodes of a plan, inputs before their readers, the view's output last."""
    return _nodes(prepare(root))


def _nodes(prepared: Plan) -> tuple[Node, ...]:
    nodes: list[Node] = []

    def visit(plan: Plan, inputs: tuple[int, ...]) -> int:
        name = f"{len(nodes):02d}.{title_of(plan)}"
        nodes.append(Node(name, plan, inputs, _exchange(plan)))
        return len(nodes) - 1

    fold(with_equal_parts_shared(prepared), visit)
    return tuple(nodes)


def make_operator(
    node: Node,
    store: Store,
    scope: str,
    evaluator: Evaluator,
    errors: ErrorCollector,
    *,
    meter: WorkMeter = UNLIMITED,
) -> Operator:
    """Return the operator of a node, its state in arrangements named "<scope>/<node>/<role>".

    Raise InvariantError for a scan: its rows come from outside.
    """
    return _operator(node, Context(node.name, scope, store, evaluator, errors, meter))


def _operator(node: Node, context: Context) -> Operator:
    make = _OPERATORS.get(type(node.plan))
    if make is None:
        raise InvariantError("plan.operator", f"no operator for a {type(node.plan).__name__}")
    return make(node.plan, context)


def _join(plan: Join, context: Context) -> Operator:
    if plan.kind == "inner":
        return JoinOperator(plan, context)
    return OuterJoinOperator(plan, context)


def _semi_join(plan: SemiJoin, context: Context) -> Operator:
    if plan.kind == "not in":
        return NotInOperator(plan, context)
    if plan.residual is None:
        return SemiJoinOperator(plan, context)
    return ResidualSemiJoinOperator(plan, context)


def _loop(plan: Loop, context: Context) -> Operator:
    parts = []
    for node in _nodes(plan.body):
        leaf = node.plan.name if isinstance(node.plan, RecursionRef) else ""
        within = replace(context, name=f"{context.name}/{node.name}")
        operator = None if leaf else _operator(node, within)
        parts.append(Part(leaf, operator, node.inputs, kinds_of(node.plan.fields)))
    return RecursiveOperator(plan, context, Body(parts))


def _window(plan: Window, context: Context) -> Operator:
    make = IncrementalWindowOperator if is_followed(plan) else WindowOperator
    return make(plan, context)


def _remember(plan: Remember, context: Context) -> Operator:
    operator = RememberAnswersOperator if plan.by_arguments else RememberOperator
    return operator(plan, context)


_OPERATORS: dict[type, Callable[..., Operator]] = {
    Join: _join,
    AsOfJoin: AsOfJoinOperator,
    SemiJoin: _semi_join,
    SetOperation: SetOperationOperator,
    Filter: FilterOperator,
    ThresholdFilter: ThresholdFilterOperator,
    ThresholdFlag: ThresholdFlagOperator,
    Watermark: WatermarkOperator,
    LateRows: LateRowsOperator,
    FinalRows: FinalRowsOperator,
    RetainedAggregate: RetainedAggregateOperator,
    Project: ProjectOperator,
    Aggregate: AggregateOperator,
    UnionAll: UnionAllOperator,
    SingleRow: SingleRowOperator,
    TopK: TopKOperator,
    Shard: ShardOperator,
    Remember: _remember,
    Values: ValuesOperator,
    Loop: _loop,
    TableFunction: TableFunctionOperator,
    Window: _window,
}
_TITLES = {
    UnionAll: "union_all",
    AsOfJoin: "as_of_join",
    SingleRow: "single_row",
    ThresholdFilter: "threshold_filter",
    ThresholdFlag: "threshold_flag",
    LateRows: "late_rows",
    FinalRows: "final_rows",
    RetainedAggregate: "retained_aggregate",
    TopK: "top_k",
    Loop: "recursive",
    TableFunction: "table_function",
}


def title_of(plan: Plan) -> str:
    """Return one word for what a node does."""
    if isinstance(plan, Join):
        return "join" if plan.kind == "inner" else f"{plan.kind}_join"
    if isinstance(plan, SemiJoin):
        return "not_in" if plan.kind == "not in" else f"{plan.kind}_join"
    if isinstance(plan, SetOperation):
        return plan.kind
    return _TITLES.get(type(plan), type(plan).__name__.lower())


# Nodes whose rows, or one of whose inputs, must be in one partition.
_IN_ONE_PARTITION = (
    SingleRow,
    ThresholdFilter,
    Watermark,
    LateRows,
    FinalRows,
    RetainedAggregate,
    Loop,
)


def _exchange(plan: Plan) -> tuple[Exchange, ...]:
    if isinstance(plan, SemiJoin) and plan.kind == "not in":
        return ((), ())
    if isinstance(plan, Join | AsOfJoin | SemiJoin):
        return (plain_columns(plan.left_keys), plain_columns(plan.right_keys))
    if isinstance(plan, _IN_ONE_PARTITION):
        return ((),) * len(inputs_of(plan))
    if isinstance(plan, Aggregate):
        return (plain_columns(plan.groups),)
    if isinstance(plan, SetOperation):
        return (tuple(range(plan.compared or 0)),) * 2
    if isinstance(plan, TopK | Window):
        return (plain_columns(plan.partition),)
    if isinstance(plan, Remember) and plan.by_arguments:
        return (tuple(sorted(columns_of(plan.expressions[0]))),)
    return (None,) * len(inputs_of(plan))
