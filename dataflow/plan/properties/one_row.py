"""Whether a plan has one row, or one at most, whatever its tables hold.

For the right side of an Apply the property holds for each left row: an outer reference is a
constant there. Conservative: True only if certain.
"""

from __future__ import annotations

from dataflow.expressions.arithmetic import INT_RANGES
from dataflow.expressions.ir import Call, ColumnRef, Expression, columns_of
from dataflow.plan.nodes import Aggregate, Filter, Plan, Project, Scan, TopK, Values
from dataflow.plan.properties.unique_keys import keys_of
from dataflow.plan.trees import conjuncts
from dataflow.types import SqlType


def has_one_row(plan: Plan) -> bool:
    """Return whether the plan always has exactly one row."""
    if isinstance(plan, Scan):
        return plan.relation.is_single
    if isinstance(plan, Values):
        return len(plan.rows) == 1
    if isinstance(plan, Aggregate):
        return not plan.groups
    return isinstance(plan, Project) and has_one_row(plan.input)


def has_at_most_one_row(plan: Plan) -> bool:
    """Return whether the plan never has two rows."""
    if isinstance(plan, Project):
        return has_at_most_one_row(plan.input)
    if isinstance(plan, TopK) and not plan.partition and plan.limit is not None:
        return (plan.limit <= 1 and not plan.with_ties) or has_at_most_one_row(plan.input)
    if isinstance(plan, Filter):
        return has_at_most_one_row(plan.input) or _is_key_given(plan)
    return has_one_row(plan) or any(not key for key in keys_of(plan).keys)


def _is_key_given(plan: Filter) -> bool:
    """Return whether each column of a key equals an expression without columns."""
    given = set()
    for part in conjuncts(plan.predicate):
        if isinstance(part, Call) and part.function == "=":
            a, b = part.arguments
            for column, value in ((a, b), (b, a)):
                if isinstance(column, ColumnRef) and _is_one_value(column.type, value):
                    given.add(column.index)
    found = keys_of(plan.input)
    known = found.closure(frozenset(given))
    return any(key <= known for key in found.keys)


def _is_one_value(type: SqlType, value: Expression) -> bool:
    """Return whether values of the type that are equal to `value` are equal to each other."""
    kinds = {type.kind, value.type.kind}
    return not columns_of(value) and (len(kinds) == 1 or kinds <= set(INT_RANGES))
