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
    scans_of,
)
from dataflow.plan.outer_refs import may_fail_often
from dataflow.plan.properties.one_row import has_at_most_one_row, has_one_row
from dataflow.plan.trees import conjuncts, in_postgres, refs, shifted
from dataflow.plan.walk import nodes_of, shared_nodes, with_inputs
from dataflow.schema import Field
from dataflow.sql.rules.one_order import MIRRORED, in_one_order
from dataflow.sql.rules.prune_columns import columns_read

_OPPOSITE = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}


@dataclass(frozen=True)
class Condition:
    """A comparison, value operator threshold.

    value: over the rows' own columns; threshold: over those of the single row.
    """

    value: Expression
    operator: str
    threshold: Expression


def find_thresholds(plan: Plan) -> Plan:
    """Threshold filters for all joins that are only comparisons with one row."""
    required = columns_read(plan)
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
        found = [condition_of(part, own, start, at) for part in conjuncts(plan.residual)]
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
    rows: Plan, single: Plan, conditions: Sequence[Condition], kept: Mapping[int, Plan]
) -> Plan:
    """Return one filter for each condition, the first one lowest."""
    for condition in conditions:
        rows = _placed(rows, single, condition, kept)
    return rows


def _placed(rows: Plan, single: Plan, condition: Condition, kept: Mapping[int, Plan]) -> Plan:
    """The filter over the rows, or over the side of a join that they come from, whose every row
    the join keeps or pairs; never below what others read as well."""
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


def _compared(rows: Plan, single: Plan, condition: Condition) -> Plan:
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


def condition_of(part: Expression, own: range, start: int, at: int) -> Condition | None:
    """Return a comparison of the two sides of a join as a condition, None for anything else.

    The rows' columns are `own`, and begin at `start`, those of the single row at `at`.
    """
    if isinstance(part, Call) and part.function == "not":
        found = condition_of(part.arguments[0], own, start, at)
        return found and replace(found, operator=_OPPOSITE[found.operator])
    if not isinstance(part, Call) or part.function not in MIRRORED:
        return None
    a, b = part.arguments
    for value, threshold, operator in ((a, b, part.function), (b, a, MIRRORED[part.function])):
        mine, others = columns_of(value), columns_of(threshold)
        if mine and others and mine <= set(own) and others.isdisjoint(own):
            sides = in_one_order(value, threshold)
            if sides is None:
                return None
            return Condition(shifted(sides[0], -start), operator, shifted(sides[1], -at))
    return None
