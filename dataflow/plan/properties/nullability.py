"""Whether an expression can be NULL, conservatively: False only where that is certain."""

from __future__ import annotations

from dataflow.expressions.ir import CHAIN, Call, ColumnRef, Expression, Literal
from dataflow.schema import Field
from dataflow.types import TypeKind

# NULL exactly when an argument is.
_STRICT = {
    *("+", "-", "*", "/", "%", "^", "||", "=", "<>", "<", ">", "<=", ">=", "in", "not in"),
    *("and", "or", "not", "like", "not like", "ilike", "not ilike", "lower", "upper", "length"),
    *("abs", "round", "trunc", "floor", "ceil", "date_trunc", "date_bin", "key form", "make_date"),
    *("left", "right", "repeat", "lpad", "rpad", "replace", "translate", "split_part"),
    *("substr", "substring", "btrim", "ltrim", "rtrim", "initcap", "reverse", "strpos"),
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
