"""Which expressions can be NULL, and which columns cannot where a condition is true.

Conservative: "not NULL" only where that is certain, and `rejects_null` looks only into functions
that are NULL whenever an argument is.
"""

from __future__ import annotations

from dataflow.expressions.ir import CHAIN, Call, ColumnRef, Expression, Literal
from dataflow.expressions.time_zones import ADD, INSTANT, SUBTRACT
from dataflow.schema import Field
from dataflow.types import TypeKind

# NULL exactly when an argument is.
_STRICT = {
    *("+", "-", "*", "/", "%", "^", "||", "=", "<>", "<", ">", "<=", ">=", "in", "not in"),
    *("and", "or", "not", "like", "not like", "ilike", "not ilike", "lower", "upper", "length"),
    *("abs", "round", "trunc", "floor", "ceil", "date_trunc", "date_bin", "key form", "make_date"),
    *("left", "right", "repeat", "lpad", "rpad", "replace", "translate", "split_part"),
    *("substr", "substring", "btrim", "ltrim", "rtrim", "initcap", "reverse", "strpos"),
    *("timezone", ADD, SUBTRACT, INSTANT),
}
# NULL whenever an argument is, but perhaps for other arguments too.
_NULL_OF_NULL = {
    *("+", "-", "*", "/", "%", "^", "||", "=", "<>", "<", ">", "<=", ">=", "not", "cast"),
    *("like", "not like", "ilike", "not ilike", "lower", "upper", "length", "abs", "round"),
    *("floor", "ceil", "date_trunc", "date_bin", "extract", "key form", "timezone"),
    *(ADD, SUBTRACT, INSTANT),
}
_NEVER = {
    *("is null", "is not null", "is true", "is not true", "is false", "is not false"),
    *("is unknown", "is not unknown", "is distinct from", "is not distinct from"),
}
_ENDLESS = {"year", "isoyear", "decade", "century", "millennium", "julian", "epoch"}
_DOCUMENTS = (TypeKind.JSON, TypeKind.JSONB, TypeKind.OPAQUE)


def is_nullable(expression: Expression, fields: tuple[Field, ...]) -> bool:
    """Return whether the expression over `fields` may be NULL."""
    if isinstance(expression, ColumnRef):
        return fields[expression.index].is_nullable
    if isinstance(expression, Literal):
        return expression.text is None
    if not isinstance(expression, Call) or expression.function in _NEVER:
        return not isinstance(expression, Call)
    arguments = expression.arguments
    if expression.function == "case":
        results = (*arguments[1:-1:2], arguments[-1])
        return any(is_nullable(a, fields) for a in results)
    if expression.function in ("coalesce", "greatest", "least"):
        return all(is_nullable(a, fields) for a in arguments)
    if expression.function == "cast":
        inner = arguments[0]
        return inner.type.kind in _DOCUMENTS or is_nullable(inner, fields)
    if expression.function == "extract":
        field, inner = arguments
        # Monotonic fields are infinite for an infinite timestamp; all others are NULL.
        is_endless = isinstance(field, Literal) and field.text in _ENDLESS
        return not is_endless or is_nullable(inner, fields)
    if expression.function in _STRICT or expression.function.startswith(CHAIN):
        return any(is_nullable(a, fields) for a in arguments)
    return True


def nulls_reach(expression: Expression) -> set[int]:
    """Return the columns whose NULL makes the expression NULL."""
    if isinstance(expression, ColumnRef):
        return {expression.index}
    if not isinstance(expression, Call):
        return set()
    if expression.function == "in":
        return nulls_reach(expression.arguments[0])
    if expression.function not in _NULL_OF_NULL:
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
