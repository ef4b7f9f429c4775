"""What is computed of a single row alone is computed below the join that adds it to every row.

`CURRENT_DATE` beside every order is a join with the one row of a clock. Above that join the date of
each row would be computed again whenever the clock moves; below it, the join sees another value
once a day. Not where several read the join.
"""

from __future__ import annotations

from collections.abc import Sequence

from dataflow.expressions.ir import (
    Call,
    ColumnRef,
    Expression,
    InPostgres,
    children,
    columns_of,
)
from dataflow.plan.nodes import Join, Plan, Project, SemiJoin, fold, scans_of
from dataflow.plan.outer_refs import may_fail_often
from dataflow.plan.properties.nullability import is_nullable
from dataflow.plan.properties.one_row import has_one_row
from dataflow.plan.walk import shared_nodes, with_inputs
from dataflow.schema import Field


def compute_single(plan: Plan) -> Plan:
    """Return the plan with values of single rows computed on these rows."""
    shared = shared_nodes(plan)

    def visit(node: Plan, inputs: tuple[Plan, ...]) -> Plan:
        over = with_inputs(node, inputs)
        is_own = isinstance(node, Project) and id(node.input) not in shared
        if is_own and isinstance(over, Project) and isinstance(over.input, Join):
            return _computed(over, over.input) or over
        return over

    return fold(plan, visit)


def _computed(plan: Project, join: Join) -> Project | None:
    if join.kind != "inner" or join.left_keys:
        return None
    n = len(join.left.fields)
    for single, others, start in ((join.right, join.left, n), (join.left, join.right, 0)):
        if not (scans_of(single) and has_one_row(single)):
            continue
        own = range(start, start + len(single.fields))
        read = [*plan.expressions, *([] if join.residual is None else [join.residual])]
        found: list[Expression] = []
        for expression in read:
            _gather(expression, own, found)
        if not any(children(e) for e in found):
            return None
        return _below(plan, join, (single, others, own), found)
    return None


def _gather(expression: Expression, own: range, found: list[Expression]) -> None:
    """Collect the largest parts of an expression over columns in `own` alone, each once."""
    columns = columns_of(expression)
    if columns and columns <= set(own):
        if expression not in found:
            found.append(expression)
        return
    for child in children(expression):
        _gather(child, own, found)


def _below(
    plan: Project, join: Join, sides: tuple[Plan, Plan, range], found: Sequence[Expression]
) -> Project:
    """Return the projection over a join whose single row has the values that were found."""
    single, others, own = sides
    start, before = own.start, len(own)
    local = [_moved(e, {i: i - start for i in own}, {}) for e in found]
    # It is an error only while there is a row beside it.
    fails = any(may_fail_often(e) for e in local)
    rows = SemiJoin("semi", single, others, (), (), None) if fails else single
    fields = tuple(Field("value", e.type, is_nullable(e, single.fields)) for e in local)
    below = Project(rows, tuple(local), fields)
    width = len(join.fields)
    at = {i: i if i < start else i - before + len(found) for i in range(width) if i not in own}
    new = {
        e: ColumnRef(start + i, e.type, getattr(e, "name", "value")) for i, e in enumerate(found)
    }
    sides_now = (others, below) if join.right is single else (below, others)
    residual = None if join.residual is None else _moved(join.residual, at, new)
    joined = Join("inner", *sides_now, (), (), residual, sides_now[0].fields + sides_now[1].fields)
    return Project(joined, tuple(_moved(e, at, new) for e in plan.expressions), plan.fields)


def _moved(
    expression: Expression, at: dict[int, int], new: dict[Expression, ColumnRef]
) -> Expression:
    """Return the expression with found parts as their columns, and others where they are now."""
    if expression in new:
        return new[expression]
    if isinstance(expression, ColumnRef):
        return ColumnRef(at[expression.index], expression.type, expression.name)
    if isinstance(expression, Call):
        arguments = tuple(_moved(a, at, new) for a in expression.arguments)
        return Call(expression.function, arguments, expression.type)
    if isinstance(expression, InPostgres):
        arguments = tuple(_moved(a, at, new) for a in expression.arguments)
        stable, may_change = expression.is_stable, expression.may_change
        return InPostgres(expression.sql, arguments, expression.type, stable, may_change)
    return expression
