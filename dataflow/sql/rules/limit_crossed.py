"""LIMIT above a cross join: only the first rows of each input matter.

With the other input's row held fixed, the rows of a cross join are in the order of one input alone.
So a row behind n others of its own input is behind n rows of the join. Each input keeps its order's
keys and columns in their places, so ties are broken as they are above. A column computed from both
inputs has no order of one, and WITH TIES has no bound: then the plan stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dataflow.expressions.ir import ColumnRef, Expression, columns_of, remap
from dataflow.plan.nodes import Join, Plan, Project, TopK, fold
from dataflow.plan.properties.one_row import has_at_most_one_row
from dataflow.plan.trees import in_postgres, refs
from dataflow.plan.walk import with_inputs

# Above so many rows of each input the join would be large all the same.
MOST_ROWS = 10_000


def limit_crossed(plan: Plan) -> Plan:
    """Return the plan with such a limit also on the inputs of the join."""
    return fold(plan, lambda node, inputs: _limited(with_inputs(node, inputs)))


def _limited(plan: Plan) -> Plan:
    if not isinstance(plan, TopK) or plan.partition or plan.limit is None or plan.with_ties:
        return plan
    most = plan.limit + plan.offset
    expressions: Sequence[Expression] = refs(plan.input)
    join = plan.input
    if isinstance(join, Project):
        expressions, join = join.expressions, join.input
    if not 0 < most <= MOST_ROWS or not isinstance(join, Join) or not _is_crossed(join):
        return plan
    if not all(isinstance(key.expression, ColumnRef) for key in plan.order):
        return plan
    n = len(join.left.fields)
    sides = [_side(e, n) for e in expressions]
    if None in sides or any(map(in_postgres, expressions)):
        return plan
    left = [i for i, side in enumerate(sides) if side == 0]
    right = [i for i, side in enumerate(sides) if side == 1]
    first = _first_of(plan, join.left, {i: expressions[i] for i in left}, most)
    moved = {i: i - n for i in range(n, len(join.fields))}
    second = _first_of(plan, join.right, {i: remap(expressions[i], moved) for i in right}, most)
    width = len(first.fields)
    crossed = replace(join, left=first, right=second, fields=first.fields + second.fields)
    positions = {i: at for at, i in enumerate(left)}
    positions |= {i: width + at for at, i in enumerate(right)}
    shown = tuple(
        ColumnRef(positions[i], e.type, plan.fields[i].name) if i in positions else e
        for i, e in enumerate(expressions)
    )
    return replace(plan, input=Project(crossed, shown, plan.input.fields))


def _is_crossed(join: Join) -> bool:
    if join.kind != "inner" or join.left_keys or join.residual is not None:
        return False
    # One row multiplies nothing.
    return not (has_at_most_one_row(join.left) or has_at_most_one_row(join.right))


def _side(expression: Expression, n: int) -> int | None:
    """Return the input that an expression reads: 0, 1, -1 for neither, None for both."""
    read = {int(column >= n) for column in columns_of(expression)}
    return None if len(read) > 1 else next(iter(read), -1)


def _first_of(plan: TopK, input: Plan, expressions: dict[int, Expression], most: int) -> Plan:
    """Return the first rows of an input in the columns of `plan` that it alone decides."""
    at = {old: new for new, old in enumerate(expressions)}
    order = tuple(
        replace(key, expression=remap(key.expression, at))
        for key in plan.order
        if isinstance(key.expression, ColumnRef) and key.expression.index in at
    )
    fields = tuple(plan.input.fields[i] for i in expressions)
    projected = Project(input, tuple(expressions.values()), fields)
    return _limited(TopK(projected, (), order, most, 0, False))
