"""The origin of a plan's column: the table's column that it is, unchanged."""

from __future__ import annotations

from dataflow.expressions.ir import ColumnRef, Expression
from dataflow.plan.nodes import (
    AsOfJoin,
    Filter,
    Join,
    Plan,
    Project,
    Remember,
    Scan,
    SemiJoin,
    ThresholdFilter,
    TopK,
)
from dataflow.types import SqlType, TypeKind

_BPCHAR_OID = 1042


def table_column(plan: Plan, expression: Expression) -> SqlType | None:
    """Return the type of the table's column that a plan's column is (or NULL); None for no
    table."""
    if not isinstance(expression, ColumnRef):
        return None
    index = expression.index
    if isinstance(plan, Scan):
        return plan.fields[index].type
    if isinstance(plan, Project):
        return table_column(plan.input, plan.expressions[index])
    if isinstance(plan, Join | AsOfJoin):
        left = len(plan.left.fields)
        side, at = (plan.left, index) if index < left else (plan.right, index - left)
        return table_column(side, ColumnRef(at, expression.type))
    if isinstance(plan, SemiJoin):
        return table_column(plan.left, expression)
    if isinstance(plan, Remember) and index >= len(plan.input.fields):
        return None
    if isinstance(plan, Filter | Remember | ThresholdFilter | TopK):
        return table_column(plan.input, expression)
    return None


def is_padded(plan: Plan, expression: Expression) -> bool:
    """Return whether all values of a char(n) have n characters, so that equal ones are equal bytes.

    True for a table's column; not necessarily for the result of a function.
    """
    type = table_column(plan, expression)
    if type is None or type.kind is not TypeKind.BPCHAR:
        return False
    return type.oid == _BPCHAR_OID and type.typmod >= 0
