"""Key forms: the values that grouping, DISTINCT and joins compare instead of the original ones.

PostgreSQL's `=` says equal exactly when the bits of the key forms are equal, so that rows may be
hashed and compared as bytes: 1.50 = 1.5, -0.0 = 0.0, 'a ' = 'a' in char(n), 24 hours = 1 day. Text
is compared by its bytes, which is right for every deterministic collation. Where only PostgreSQL
can decide equality (a nondeterministic collation, ranges, arrays of numbers, citext), its own hash
of the value is the key form.
"""

from __future__ import annotations

from dataflow.expressions.arithmetic import FLOAT_KINDS, INT_RANGES
from dataflow.expressions.frame import NUMERIC_KINDS
from dataflow.expressions.ir import Call, Expression, InPostgres
from dataflow.expressions.number_casts import limits
from dataflow.expressions.stamps import STAMPS
from dataflow.types import (
    ARRAY_HASH,
    FIXED_DIGITS,
    FLOAT8,
    NUMERIC,
    TEXT,
    TIMESTAMP,
    SqlType,
    TypeKind,
    fixed,
)

_IDENTICAL = frozenset(
    {
        TypeKind.BOOL,
        *INT_RANGES,
        TypeKind.FIXED,
        TypeKind.TEXT,
        TypeKind.DATE,
        TypeKind.TIME,
        *STAMPS,
        TypeKind.UUID,
        TypeKind.BYTEA,
    }
)
_CALLED = frozenset({*FLOAT_KINDS, TypeKind.DECIMAL, TypeKind.BPCHAR, TypeKind.JSONB})
_STAMP_KINDS = frozenset({TypeKind.DATE, *STAMPS})
_SEEDS = (0x7469_6465, 0x6D61_726B)
_INT_DIGITS = {TypeKind.INT2: 5, TypeKind.INT4: 10, TypeKind.INT8: 19}


def key_form(expression: Expression) -> Expression | None:
    """Return the expression whose bits are equal exactly when PostgreSQL's `=` says equal.

    None where no such form exists: the type has no `=`, or one that its text does not determine.
    NULL stays NULL.
    """
    type = expression.type
    if not type.is_deterministic:
        return _hashed(expression)
    if type.kind in _IDENTICAL or type.is_text_equal:
        return expression
    if type.kind in _CALLED:
        return Call("key form", (expression,), type)
    if type.kind is TypeKind.INTERVAL:
        return Call("key form", (expression,), NUMERIC)
    return _hashed(expression)


def _hashed(expression: Expression) -> Expression | None:
    """Return 128 bits of the type's own hash, from two seeds; rows are distinguished by as many
    bits."""
    type = expression.type
    function = type.hashing
    if not function:
        return None
    parts = " || ' ' || ".join(f"to_hex({function}($1, {seed}))" for seed in _SEEDS)
    if function == ARRAY_HASH:
        # An array's hash ignores its bounds; its `=` does not.
        parts += " || ' ' || COALESCE(array_dims($1), '')"
    if type.null_paths:
        parts += f" || ' ' || {_nulls(type)}"
    return InPostgres(f"({parts})", (expression,), TEXT)


def _nulls(type: SqlType) -> str:
    """Return SQL for a text of which rows in $1 are NULL: those hash as rows of NULLs do."""
    of = "x" if type.hashing == ARRAY_HASH else "$1"
    digits = ", ".join(
        f"(({of}){path} IS NOT DISTINCT FROM NULL)::integer" for path in type.null_paths
    )
    if type.hashing != ARRAY_HASH:
        return f"concat({digits})"
    elements = "(SELECT unnest($1) AS x OFFSET 0) AS elements"
    return f"COALESCE((SELECT string_agg(concat({digits}), ',') FROM {elements}), '')"


def common_key_forms(left: Expression, right: Expression) -> tuple[Expression, Expression] | None:
    """Return key forms that are equal across two types exactly when PostgreSQL's `=` says equal.

    None where the types are not comparable, or have no common form.
    """
    a, b = left.type, right.type
    kinds = {a.kind, b.kind}
    if kinds <= NUMERIC_KINDS | set(INT_RANGES):
        return _numbers(left, right)
    if kinds <= NUMERIC_KINDS | set(INT_RANGES) | set(FLOAT_KINDS):
        return _floats(left), _floats(right)
    if kinds <= _STAMP_KINDS:
        if TypeKind.DATE in kinds and len(kinds) > 1:
            return _stamps(left), _stamps(right)
        return left, right
    if kinds == {TypeKind.TEXT, TypeKind.BPCHAR} or a.oid == b.oid or len(kinds) == 1:
        if kinds == {TypeKind.OPAQUE} and a.oid != b.oid:
            return None
        forms = key_form(left), key_form(right)
        return None if forms[0] is None or forms[1] is None else (forms[0], forms[1])
    return None


def _numbers(left: Expression, right: Expression) -> tuple[Expression, Expression]:
    a, b = left.type, right.type
    if a.kind in INT_RANGES and b.kind in INT_RANGES:
        return left, right
    if a.kind is b.kind is TypeKind.FIXED and a.scale == b.scale:
        return left, right
    scale = max(a.scale, b.scale)
    if _digits_at(a, scale) <= FIXED_DIGITS and _digits_at(b, scale) <= FIXED_DIGITS:
        return _at_scale(left, scale), _at_scale(right, scale)
    return Call("key form", (left,), NUMERIC), Call("key form", (right,), NUMERIC)


def _digits_at(type: SqlType, scale: int) -> int:
    """Return digits that any value of the type may have at a scale, beyond FIXED_DIGITS if
    unknown."""
    if type.kind in _INT_DIGITS:
        return _INT_DIGITS[type.kind] + scale
    limit = limits(type)
    if type.kind is not TypeKind.FIXED or limit is None:
        return FIXED_DIGITS + 1
    return limit[0] - limit[1] + scale


def _at_scale(expression: Expression, scale: int) -> Expression:
    if expression.type.kind is TypeKind.FIXED and expression.type.scale == scale:
        return expression
    return Call("cast", (expression,), fixed(FIXED_DIGITS, scale))


def _floats(expression: Expression) -> Expression:
    """Compare numbers with floats as double precision."""
    if expression.type.kind not in FLOAT_KINDS:
        expression = Call("cast", (expression,), FLOAT8)
    return Call("key form", (expression,), FLOAT8)


def _stamps(expression: Expression) -> Expression:
    if expression.type.kind is not TypeKind.DATE:
        return expression
    return Call("key form", (expression,), TIMESTAMP)
