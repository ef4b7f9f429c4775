"""Calls of functions and operators: native where a kernel computes them for exactly their types.

Equalities that are implicit in the text (IN, USING) are built here, by PostgreSQL's rules for
types.
"""

from __future__ import annotations

from dataclasses import replace

from dataflow.expressions.arithmetic import FLOAT_KINDS, INT_RANGES
from dataflow.expressions.frame import NUMERIC_KINDS
from dataflow.expressions.functions import has_kernel
from dataflow.expressions.ir import Call, Expression, InPostgres, Literal
from dataflow.expressions.keys import key_form
from dataflow.types import BOOL, FLOAT8, TEXT, SqlType, TypeKind, sql_type

VARCHAR_OID = 1043
_NUMBERS = frozenset((*FLOAT_KINDS, *NUMERIC_KINDS, *INT_RANGES))


def native_call(
    function: str, arguments: tuple[Expression, ...], type: SqlType
) -> Expression | None:
    """Return the Call, if a kernel computes it for exactly these types."""
    if any(a.type.is_bytewise and a.type.collation for a in arguments):
        # An explicit COLLATE "C" on one side is the collation of the whole operation.
        arguments = tuple(_bytewise(a) for a in arguments)
    if has_kernel(function, tuple(a.type for a in arguments), type):
        return Call(function, arguments, type)
    return None


def as_text(expression: Expression) -> Expression:
    """Return a char(n) value as the text that text functions receive."""
    if expression.type.kind != TypeKind.BPCHAR:
        return expression
    type = replace(TEXT, is_bytewise=expression.type.is_bytewise)
    return Call("cast", (expression,), replace(type, collation=expression.type.collation))


def equality(left: Expression, right: Expression) -> Expression:
    """Return left = right where the operator is implicit: IN (subquery), USING."""
    if {left.type.kind, right.type.kind} == {TypeKind.BPCHAR, TypeKind.TEXT}:
        is_padded = VARCHAR_OID in (left.type.oid, right.type.oid)
        left, right = (_as_padded(e) if is_padded else as_text(e) for e in (left, right))
    found = native_call("=", (left, right), BOOL) or hashed_equality(left, right)
    if found is None and {left.type.kind, right.type.kind} <= _NUMBERS:
        # Of these pairs one is a float: PostgreSQL prefers double precision.
        found = native_call("=", (_as_double(left), _as_double(right)), BOOL)
    return found if found is not None else InPostgres("($1 = $2)", (left, right), BOOL)


def hashed_equality(left: Expression, right: Expression) -> Expression | None:
    """Return left = right by the hashes of a type whose equality only PostgreSQL can decide."""
    a, b = left.type, right.type
    if not a.hashing or (a.hashing, a.collation) != (b.hashing, b.collation):
        return None
    forms = key_form(left), key_form(right)
    if forms[0] is None or forms[1] is None:
        return None
    return native_call("=", (forms[0], forms[1]), BOOL)


def _as_double(expression: Expression) -> Expression:
    found = native_call("cast", (expression,), FLOAT8)
    return expression if found is None else found


def _as_padded(expression: Expression) -> Expression:
    """Compare varchar with char(n) as char(n): trailing blanks count on neither side."""
    if expression.type.kind == TypeKind.BPCHAR:
        return expression
    own = expression.type
    type = sql_type("bpchar", 1042, is_bytewise=own.is_bytewise, collation=own.collation)
    found = native_call("cast", (expression,), type)
    return found if found is not None else InPostgres("($1)::bpchar", (expression,), type)


def _bytewise(expression: Expression) -> Expression:
    if isinstance(expression, Literal) and expression.type.kind == TypeKind.TEXT:
        return replace(expression, type=replace(expression.type, is_bytewise=True))
    return expression
