"""Two operands of <, <=, > or >= in forms whose order is one native order.

Rows that are kept in order are compared with values of another input by these forms.
"""

from __future__ import annotations

from dataflow.expressions.comparison import comparable
from dataflow.expressions.ir import Call, Expression
from dataflow.types import TIMESTAMP, SqlType, TypeKind

MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_INTEGERS = {TypeKind.INT2, TypeKind.INT4, TypeKind.INT8}
_STAMPS = {TypeKind.TIMESTAMP, TypeKind.TIMESTAMPTZ}
_FLOATS = {TypeKind.FLOAT4, TypeKind.FLOAT8}
# What only PostgreSQL puts in order, or orders otherwise than its kept form.
_WITHOUT_ORDER = {TypeKind.BPCHAR, TypeKind.JSON, TypeKind.JSONB, TypeKind.OPAQUE}


def in_one_order(value: Expression, threshold: Expression) -> tuple[Expression, Expression] | None:
    """Return both sides in forms that order alike; None where none are known."""
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
