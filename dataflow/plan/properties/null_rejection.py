"""Which columns cannot be NULL in rows for which a condition is true.

Conservative: it looks only into functions that are NULL whenever an argument is.
"""

from __future__ import annotations

from dataflow.expressions.ir import Call, ColumnRef, Expression

_STRICT = {
    *("+", "-", "*", "/", "%", "^", "||", "=", "<>", "<", ">", "<=", ">=", "not", "cast"),
    *("like", "not like", "ilike", "not ilike", "lower", "upper", "length", "abs", "round"),
    *("floor", "ceil", "date_trunc", "date_bin", "extract", "key form"),
}


def nulls_reach(expression: Expression) -> set[int]:
    """Return the columns whose NULL makes the expression NULL."""
    if isinstance(expression, ColumnRef):
        return {expression.index}
    if not isinstance(expression, Call):
        return set()
    if expression.function == "in":
        return nulls_reach(expression.arguments[0])
    if expression.function not in _STRICT:
        return set()
    return set().union(*map(nulls_reach, expression.arguments))


def rejects_null(condition: Expression | None) -> set[int]:
    """Return the columns that are not NULL where the condition is true; none for no condition."""
    if condition is None:
        return set()
    if isinstance(condition, Call):
        if condition.function == "and":
            return set().union(*map(rejects_null, condition.arguments))
        if condition.function == "or":
            return set.intersection(*map(rejects_null, condition.arguments))
        if condition.function == "is true":
            return rejects_null(condition.arguments[0])
        if condition.function in ("is not null", "is false", "is not unknown"):
            return nulls_reach(condition.arguments[0])
    return nulls_reach(condition)
