"""The invariants of a plan, checked after planning and after the rules.

A violation is a bug in the program: the view is not created, so no wrong plan ever runs.
"""

from __future__ import annotations

from collections.abc import Sequence

from dataflow.delta import KIND_INT
from dataflow.errors import InvariantError
from dataflow.expressions.functions import has_kernel
from dataflow.expressions.ir import Call, ColumnRef, Expression, Literal, children
from dataflow.plan.nodes import (
    Aggregate,
    Apply,
    AsOfJoin,
    Filter,
    FinalRows,
    Join,
    LateRows,
    Plan,
    Project,
    Recursive,
    Scan,
    SemiJoin,
    SetOperation,
    Shard,
    TableFunction,
    ThresholdFilter,
    TopK,
    UnionAll,
    Values,
    Watermark,
    Window,
    inputs_of,
)
from dataflow.plan.walk import nodes_of
from dataflow.schema import Field
from dataflow.types import BOOL, SqlType

_KINDS = ("inner", "left", "right", "full")
_ORDER_OPERATORS = ("<", "<=", ">", ">=")
_SEMI_KINDS = ("semi", "anti", "not in")


def check_plan(plan: Plan) -> None:
    """Raise InvariantError for the first violation."""
    for node in nodes_of(plan):
        _check_node(node)


def _check_node(plan: Plan) -> None:
    if isinstance(plan, Scan):
        _check_scan(plan)
    elif isinstance(plan, Values):
        _require(all(len(r) == len(plan.fields) for r in plan.rows), "rows as wide as fields")
        _require(all(isinstance(c, Literal) for r in plan.rows for c in r), "literal rows")
    elif isinstance(plan, Filter):
        _check_condition(plan.predicate, plan.input.fields)
    elif isinstance(plan, ThresholdFilter):
        _check_expression(plan.value, plan.input.fields)
        _require(plan.operator in _ORDER_OPERATORS, f'a threshold operator, not "{plan.operator}"')
        _require(len(plan.threshold.fields) == 1, "one column in a threshold")
        same = plan.value.type.physical == plan.threshold.fields[0].type.physical
        _require(same, "a threshold that orders as the value does")
    elif isinstance(plan, Watermark):
        _require(len(plan.clock.fields) == len(plan.fields) == 1, "one column of a watermark")
        _require(plan.input.fields[:1] == plan.fields, "a watermark of its input's first column")
    elif isinstance(plan, LateRows | FinalRows):
        _check_expression(plan.value, plan.input.fields)
    elif isinstance(plan, Project):
        _check_outputs(plan.expressions, plan.fields, plan.input.fields)
    elif isinstance(plan, Join | SemiJoin):
        _check_join(plan)
    elif isinstance(plan, AsOfJoin):
        _check_as_of_join(plan)
    elif isinstance(plan, Aggregate):
        _check_aggregate(plan)
    elif isinstance(plan, TableFunction):
        _check_table_function(plan)
    elif isinstance(plan, Window):
        _check_window(plan)
    elif isinstance(plan, Apply):
        width = len(plan.fields) - len(inputs_of(plan)[0].fields)
        _require(width >= 0, "at least the fields of the input")
    elif isinstance(plan, TopK):
        _require(plan.offset >= 0 and (plan.limit or 0) >= 0, "no negative LIMIT or OFFSET")
        for key in (*plan.partition, *(k.expression for k in plan.order)):
            _check_expression(key, plan.input.fields)
    elif isinstance(plan, Shard):
        _require(plan.count > 0, "some shards")
    elif isinstance(plan, SetOperation):
        same = [f.type for f in plan.left.fields] == [f.type for f in plan.right.fields]
        _require(same, "equal types on both sides")
    elif isinstance(plan, Recursive):
        for below in inputs_of(plan):
            same = [f.type for f in below.fields] == [f.type for f in plan.fields]
            _require(same, "equal types in a recursion")
    elif isinstance(plan, UnionAll):
        for below in plan.inputs:
            same = [f.type for f in below.fields] == [f.type for f in plan.fields]
            _require(same, "equal types in UNION ALL")


def _check_scan(plan: Scan) -> None:
    known = [plan.relation.fields[i].type for i in plan.columns]
    _require(known == [f.type for f in plan.fields], f"the columns of {plan.relation.name}")


def _check_keys(plan: Join | AsOfJoin | SemiJoin) -> None:
    _require(len(plan.left_keys) == len(plan.right_keys), "as many left keys as right keys")
    for key in plan.left_keys:
        _check_expression(key, plan.left.fields)
    for key in plan.right_keys:
        _check_expression(key, plan.right.fields)


def _check_as_of_join(plan: AsOfJoin) -> None:
    left, right = plan.left.fields, plan.right.fields
    _check_keys(plan)
    _require(plan.kind in ("inner", "left"), f"as-of join kind {plan.kind}")
    _require(plan.operator in _ORDER_OPERATORS, f'an order operator, not "{plan.operator}"')
    _require(len(plan.order) > 0, "an order of the right rows")
    first = plan.order[0]
    _require(first.is_descending == (plan.operator[0] == "<"), "an order towards the left row")
    _check_expression(plan.value, left)
    for key in plan.order:
        _check_expression(key.expression, right)
    same = plan.value.type.physical == first.expression.type.physical
    _require(same and not first.operator, "a value that orders as the right rows do")
    same = [f.type for f in plan.fields] == [f.type for f in left + right]
    _require(same, "a join's fields are its inputs'")


def _check_join(plan: Join | SemiJoin) -> None:
    left, right = plan.left.fields, plan.right.fields
    kinds = _KINDS if isinstance(plan, Join) else _SEMI_KINDS
    _require(plan.kind in kinds, f"join kind {plan.kind}")
    _check_keys(plan)
    if plan.residual is not None:
        _check_condition(plan.residual, left + right)
    if plan.bounds is not None:
        _require(plan.residual is not None, "a residual that bounds follow from")
        of_value, of_ends = (left, right) if plan.bounds.is_left else (right, left)
        for expression, inputs in (
            (plan.bounds.value, of_value),
            (plan.bounds.low, of_ends),
            (plan.bounds.high, of_ends),
        ):
            _check_expression(expression, inputs)
            _require(expression.type.physical == KIND_INT, "bounds of integers")
    if isinstance(plan, Join):
        same = [f.type for f in plan.fields] == [f.type for f in left + right]
        _require(same, "a join's fields are its inputs'")
    if plan.kind == "not in":
        _require(len(plan.left_keys) == 1 and plan.residual is None, "one key in NOT IN")


def _check_aggregate(plan: Aggregate) -> None:
    n = len(plan.groups)
    _check_outputs(plan.groups, plan.fields[:n], plan.input.fields)
    _require(plan.fields[n:] == tuple(c.field for c in plan.calls), "a field for each call")
    for call in plan.calls:
        for operand in call.operands:
            _check_expression(operand, plan.input.fields)
        if call.filter is not None:
            _check_condition(call.filter, plan.input.fields)


def _check_table_function(plan: TableFunction) -> None:
    fields = [f for c in plan.calls for f in c.fields]
    width = len(plan.input.fields) + len(fields) + plan.has_ordinality
    _require(len(plan.fields) == width, "the fields of input, calls and ordinality")
    for call in plan.calls:
        for argument in call.arguments:
            _check_expression(argument, plan.input.fields)
        _require(len(call.fields) == len(call.columns), "a place for each column of a function")
        _require(all(i < call.width for i in call.columns), "columns that a function has")
    if plan.condition is not None:
        _require(plan.is_outer, "a condition only where rows stay without a match")
        _check_condition(plan.condition, plan.fields)


def _check_window(plan: Window) -> None:
    inputs = plan.input.fields
    outputs = [*(f.type for f in inputs), *(c.field.type for c in plan.calls)]
    _require([f.type for f in plan.fields] == outputs, "a field for each input column and call")
    keys = (*plan.partition, *(k.expression for k in plan.order))
    for expression in (*keys, *(a for c in plan.calls for a in c.arguments)):
        _check_expression(expression, inputs)
    for call in plan.calls:
        if call.filter is not None:
            _check_condition(call.filter, inputs)


def _check_outputs(
    expressions: Sequence[Expression], outputs: Sequence[Field], inputs: tuple[Field, ...]
) -> None:
    _require(len(expressions) == len(outputs), "an expression for each field")
    for expression, output in zip(expressions, outputs, strict=True):
        _check_expression(expression, inputs)
        _require(expression.type == output.type, f'the type of "{output.name}"')


def _check_condition(predicate: Expression, inputs: tuple[Field, ...]) -> None:
    _check_expression(predicate, inputs)
    _require(predicate.type == BOOL, "a boolean condition")


def _check_expression(expression: Expression, inputs: tuple[Field, ...]) -> None:
    if isinstance(expression, ColumnRef):
        _require(0 <= expression.index < len(inputs), f"column {expression.index} in the input")
        same: SqlType = inputs[expression.index].type
        _require(same == expression.type, f'the type of column "{inputs[expression.index].name}"')
    for child in children(expression):
        _check_expression(child, inputs)
    if isinstance(expression, Call):
        types = tuple(a.type for a in expression.arguments)
        _require(has_kernel(expression.function, types, expression.type), expression.function)


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise InvariantError("sql.plan", f"a plan is not sound: {what}")
