"""An outer join becomes an inner join if a filter above removes its padded rows.

A comparison with NULL is never true. So a filter that compares a column of the padded input keeps
only matched rows, and may become a key of the join.
"""

from __future__ import annotations

from dataclasses import replace

from dataflow.expressions.ir import Call, ColumnRef, Expression
from dataflow.plan.nodes import Filter, Join, Plan
from dataflow.plan.trees import bottom_up, conjuncts

_COMPARISONS = frozenset({"=", "<>", "<", ">", "<=", ">=", "like", "not like", "is true"})
# NULL wherever an argument is.
_STRICT = frozenset({"+", "-", "*", "/", "%", "||", "cast", "key form", "lower", "upper", "length"})
_WITHOUT = {("left", 1): "inner", ("right", 0): "inner", ("full", 1): "right", ("full", 0): "left"}


def strengthen_joins(plan: Plan) -> Plan:
    """Return the plan with each filtered outer join strengthened."""
    return bottom_up(plan, _strengthen)


def _strengthen(plan: Plan) -> Plan:
    if not isinstance(plan, Filter) or not isinstance(plan.input, Join):
        return plan
    join = plan.input
    n, width = len(join.left.fields), len(join.fields)
    kind = join.kind
    for side, columns in enumerate((range(n), range(n, width))):
        if any(_rejects(part, columns) for part in conjuncts(plan.predicate)):
            kind = _WITHOUT.get((kind, side), kind)
    if kind == join.kind:
        return plan
    # Nullability of the fields is unchanged, since other nodes depend on it.
    return Filter(replace(join, kind=kind), plan.predicate)


def _rejects(part: Expression, columns: range) -> bool:
    """Return whether a condition is true for no row whose `columns` are all NULL."""
    if not isinstance(part, Call) or part.function not in _COMPARISONS:
        return False
    return any(_is_null(argument, columns) for argument in part.arguments)


def _is_null(expression: Expression, columns: range) -> bool:
    """Return whether an expression is NULL if all of `columns` are."""
    if isinstance(expression, ColumnRef):
        return expression.index in columns
    if not isinstance(expression, Call) or expression.function not in _STRICT:
        return False
    return any(_is_null(argument, columns) for argument in expression.arguments)
