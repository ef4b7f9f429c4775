"""Comparisons of rows with one value that moves become threshold filters.

`ts > (SELECT c.now FROM clock c) - interval '7 days'` is a join with one row, which compares every
row again when that one changes. The rule requires that each condition of such a join has an
expression of the rows on one side and one of the single row on the other, and that nothing above
reads the single row. Then the rows are stored in order instead, on the side of a join that they
come from. It does not apply in the step of a recursion, nor if no table is read for the value: it
never moves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dataflow.expressions.comparison import comparable
from dataflow.expressions.ir import (
    Call,
    ColumnRef,
    Expression,
    Literal,
    columns_of,
    substitute,
)
from dataflow.plan.nodes import (
    Join,
    Plan,
    Project,
    Recursive,
    SemiJoin,
    ThresholdFilter,
    fold,
    inputs_of,
    scans_of,
)
from dataflow.plan.outer_refs import may_fail_often
from dataflow.plan.properties.one_row import has_at_most_one_row, has_one_row
from dataflow.plan.trees import conjuncts, in_postgres, refs, shifted
from dataflow.plan.walk import nodes_of, shared_nodes, with_inputs
from dataflow.schema import Field
from dataflow.sql.rules.prune_columns import wishes
from dataflow.types import TIMESTAMP, SqlType, TypeKind

_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_INTEGERS = {TypeKind.INT2, TypeKind.INT4, TypeKind.INT8}
_STAMPS = {TypeKind.TIMESTAMP, TypeKind.TIMESTAMPTZ}
_FLOATS = {TypeKind.FLOAT4, TypeKind.FLOAT8}
# Types that only PostgreSQL can order, or whose order differs from their stored form.
_WITHOUT_ORDER = {TypeKind.BPCHAR, TypeKind.JSON, TypeKind.JSONB, TypeKind.OPAQUE}


@dataclass(frozen=True)
class _Condition:
    """value operator threshold: over the rows' own columns, and over those of the single row."""

    value: Expression
    operator: str
    threshold: Expression


def find_thresholds(plan: Plan) -> Plan:
    """Threshold filters for all joins that are only comparisons with one row."""
    required: dict[int, set[int]] = {id(node): set() for node in nodes_of(plan)}
    required[id(plan)] = set(range(len(plan.fields)))
    for node in reversed(nodes_of(plan)):
        for below, columns in zip(inputs_of(node), wishes(node, required[id(node)]), strict=True):
            required[id(below)] |= columns
    recursions = [node for node in nodes_of(plan) if isinstance(node, Recursive)]
    within = {id(node) for recursion in recursions for node in nodes_of(recursion.step)}
    shared = shared_nodes(plan)
    # Nodes with several readers, after the rule; they stay referenced, so that an id is one node's.
    kept: dict[int, Plan] = {}

    def visit(node: Plan, inputs: tuple[Plan, ...]) -> Plan:
        over = with_inputs(node, inputs)
        if isinstance(over, Join) and id(node) not in within:
            over = _filtered(over, required[id(node)], kept) or over
        if id(node) in shared:
            kept[id(over)] = over
        return over

    return fold(plan, visit)


def _filtered(plan: Join, required: set[int], kept: Mapping[int, Plan]) -> Plan | None:
    """Return the join as threshold filters, with NULLs for the columns that nothing reads."""
    if plan.kind != "inner" or plan.left_keys or plan.residual is None:
        return None
    n, width = len(plan.left.fields), len(plan.fields)
    for rows, start, single, at in ((plan.left, 0, plan.right, n), (plan.right, n, plan.left, 0)):
        own = range(start, start + len(rows.fields))
        if not required <= set(own) or not _moves(single) or has_at_most_one_row(rows):
            continue
        found = [_condition(part, own, start, at) for part in conjuncts(plan.residual)]
        conditions = [condition for condition in found if condition is not None]
        if len(conditions) < len(found):
            return None
        if not has_one_row(single) and any(may_fail_often(c.value) for c in conditions):
            # Without a row to compare with, no row fails.
            return None
        filtered = _chained(rows, single, conditions, kept)
        columns = refs(filtered)
        nulls = [Literal(None, f.type) for f in plan.fields]
        shown = [columns[i - start] if i in own else nulls[i] for i in range(width)]
        return Project(filtered, tuple(shown), plan.fields)
    return None


def _moves(plan: Plan) -> bool:
    """Return True if the plan has at most one row, and reads tables."""
    return bool(scans_of(plan)) and has_at_most_one_row(plan)


def _chained(
    rows: Plan, single: Plan, conditions: Sequence[_Condition], kept: Mapping[int, Plan]
) -> Plan:
    """Return one filter for each condition, the first one lowest."""
    for condition in conditions:
        rows = _placed(rows, single, condition, kept)
    return rows


def _placed(rows: Plan, single: Plan, condition: _Condition, kept: Mapping[int, Plan]) -> Plan:
    """Return the filter over the rows, or over the side of a join that they come from.

    The join must keep or pair every row of that side. Never below a node with other readers.
    """
    value = condition.value
    columns = columns_of(value)
    if id(rows) in kept:
        return _compared(rows, single, condition)
    if (
        isinstance(rows, Project)
        and isinstance(rows.input, Join)
        and all(isinstance(rows.expressions[i], ColumnRef) for i in columns)
    ):
        below = replace(condition, value=substitute(value, rows.expressions))
        return replace(rows, input=_placed(rows.input, single, below, kept))
    if isinstance(rows, Join):
        n = len(rows.left.fields)
        if max(columns) < n and rows.kind in ("inner", "left"):
            return replace(rows, left=_placed(rows.left, single, condition, kept))
        if min(columns) >= n and rows.kind in ("inner", "right"):
            below = replace(condition, value=shifted(value, -n))
            return replace(rows, right=_placed(rows.right, single, below, kept))
    return _compared(rows, single, condition)


def _compared(rows: Plan, single: Plan, condition: _Condition) -> Plan:
    bound, below = condition.threshold, single
    if may_fail_often(bound):
        # It is an error only while there is a row to compare.
        below = SemiJoin("semi", single, rows, (), (), None)
    threshold = Project(below, (bound,), (Field("threshold", bound.type),))
    value = condition.value
    if not in_postgres(value):
        return ThresholdFilter(rows, threshold, value, condition.operator)
    # Values to remember of a row are computed by a projection.
    own = refs(rows)
    wide = Project(rows, (*own, value), (*rows.fields, Field("value", value.type)))
    filtered = ThresholdFilter(wide, threshold, refs(wide)[-1], condition.operator)
    return Project(filtered, own, rows.fields)


def _condition(part: Expression, own: range, start: int, at: int) -> _Condition | None:
    """Return a comparison of the two sides of a join.

    The rows' columns are `own` and begin at `start`; those of the single row begin at `at`.
    """
    if not isinstance(part, Call) or part.function not in _MIRRORED:
        return None
    a, b = part.arguments
    for value, threshold, operator in ((a, b, part.function), (b, a, _MIRRORED[part.function])):
        mine, others = columns_of(value), columns_of(threshold)
        if mine and others and mine <= set(own) and others.isdisjoint(own):
            sides = _in_one_order(value, threshold)
            if sides is None:
                return None
            return _Condition(shifted(sides[0], -start), operator, shifted(sides[1], -at))
    return None


def _in_one_order(value: Expression, threshold: Expression) -> tuple[Expression, Expression] | None:
    """Return both sides in forms with the same order; None if none are known."""
    a, b = value.type, threshold.type
    if _orders_alike(a, b):
        return value, threshold
    if {a.kind, b.kind} <= {TypeKind.DATE, *_STAMPS}:
        return _as_stamp(value), _as_stamp(threshold)
    return None


def _orders_alike(a: SqlType, b: SqlType) -> bool:
    kinds = {a.kind, b.kind}
    if kinds <= _INTEGERS or kinds <= _STAMPS or kinds <= _FLOATS:
        return True
    if a.kind is not b.kind or a.scale != b.scale or a.kind in _WITHOUT_ORDER:
        return False
    return comparable(a, b, True) is not None


def _as_stamp(expression: Expression) -> Expression:
    is_date = expression.type.kind is TypeKind.DATE
    return Call("key form", (expression,), TIMESTAMP) if is_date else expression
