"""Calls in a time zone: what depends on the session's TimeZone names the zone instead.

A query in UTC needs none of this: there timestamp and timestamptz are the same number. In another
zone each call over a timestamptz either becomes calls that name the zone (`time_zones`), or is left
to PostgreSQL, whose session has the zone. Invariant: a native call never depends on a session.
"""

from __future__ import annotations

from dataflow.errors import SqlError
from dataflow.expressions.calendar import CLOCK_FIELDS, DAY_FIELDS
from dataflow.expressions.ir import Call, Expression, Literal
from dataflow.expressions.time_zones import ADD, INSTANT, SUBTRACT
from dataflow.sql.bind.calls import native_call
from dataflow.types import TEXT, TIMESTAMP, TIMESTAMPTZ, UTC, SqlType, TypeKind

_COMPARISONS = {"=", "<>", "<", "<=", ">", ">=", "is distinct from", "is not distinct from"}
# The same in every zone, over values of one type.
_FREE = {
    *("and", "or", "not", "case", "coalesce", "in", "nullif", "greatest", "least", "timezone"),
    *("is null", "is not null", "is true", "is not true", "is false", "is not false"),
    *("is unknown", "is not unknown"),
}
_TIMES = {TypeKind.DATE, TypeKind.TIMESTAMP, TypeKind.TIMESTAMPTZ}
_IN_A_ZONE = {TypeKind.TIMESTAMPTZ, TypeKind.OPAQUE}


def zoned_call(
    zone: str, function: str, arguments: tuple[Expression, ...], type: SqlType
) -> Expression | None:
    """Return the call as PostgreSQL computes it with this TimeZone; None if it is PostgreSQL's."""
    if zone == UTC or not is_zoned((*(a.type for a in arguments), type)):
        return native_call(function, arguments, type)
    name = Literal(zone, TEXT)
    kinds = tuple(a.type.kind for a in arguments)
    if function in _COMPARISONS:
        arguments = tuple(_instant(a, name, kinds) for a in arguments)
        return native_call(function, arguments, type)
    if function in _FREE:
        is_mixed = bool({*kinds} & _TIMES) and len({*kinds} & _TIMES) > 1
        return None if is_mixed else native_call(function, arguments, type)
    if function == "cast":
        return _cast(arguments[0], type, name)
    if function in ("+", "-"):
        return _sum(function, arguments, type, name)
    if function in ("extract", "date_part", "date_trunc"):
        return _calendar(function, arguments, type, name)
    return None


def is_zoned(types: tuple[SqlType, ...]) -> bool:
    """Return whether a call over these types may depend on the time zone."""
    return any(t.kind in _IN_A_ZONE for t in types)


def check_alike(zone: str, left: SqlType, right: SqlType) -> None:
    """Refuse an implicit comparison or conversion that depends on the time zone. SqlError."""
    kinds = {left.kind, right.kind}
    if zone != UTC and TypeKind.TIMESTAMPTZ in kinds and len(kinds) > 1:
        raise SqlError(
            "sql.time_zone",
            f"{left.name} and {right.name} meet here, and what that means depends on the time zone",
            detail=f'options.time_zone is "{zone}"',
            hint=f"write a cast: x::{TIMESTAMPTZ.name}",
        )


def _instant(expression: Expression, zone: Literal, kinds: tuple[TypeKind, ...]) -> Expression:
    """Return what a date or timestamp is compared as beside a timestamptz."""
    kind = expression.type.kind
    if TypeKind.TIMESTAMPTZ not in kinds or kind not in (TypeKind.DATE, TypeKind.TIMESTAMP):
        return expression
    return Call(INSTANT, (expression, zone), TIMESTAMPTZ)


def _local(expression: Expression, zone: Literal) -> Expression:
    return Call("timezone", (zone, expression), TIMESTAMP)


def _cast(value: Expression, type: SqlType, zone: Literal) -> Expression | None:
    source = value.type.kind
    if source is type.kind and (source is TypeKind.TIMESTAMPTZ or value.type.oid == type.oid):
        return native_call("cast", (value,), type)
    if source is TypeKind.TIMESTAMPTZ:
        is_time = type.kind in (TypeKind.DATE, TypeKind.TIMESTAMP, TypeKind.TIME)
        return native_call("cast", (_local(value, zone),), type) if is_time else None
    if type.kind is TypeKind.TIMESTAMPTZ and source in (TypeKind.DATE, TypeKind.TIMESTAMP):
        plain = native_call("cast", (value,), TIMESTAMP)
        assert plain is not None
        return native_call("cast", (Call("timezone", (zone, plain), TIMESTAMPTZ),), type)
    return None


def _sum(
    function: str, arguments: tuple[Expression, ...], type: SqlType, zone: Literal
) -> Expression | None:
    kinds = tuple(a.type.kind for a in arguments)
    if kinds == (TypeKind.TIMESTAMPTZ, TypeKind.TIMESTAMPTZ):
        return native_call(function, arguments, type)
    if kinds == (TypeKind.INTERVAL, TypeKind.TIMESTAMPTZ) and function == "+":
        arguments, kinds = arguments[::-1], kinds[::-1]
    if kinds != (TypeKind.TIMESTAMPTZ, TypeKind.INTERVAL):
        return None
    return Call(ADD if function == "+" else SUBTRACT, (*arguments, zone), type)


def _calendar(
    function: str, arguments: tuple[Expression, ...], type: SqlType, zone: Literal
) -> Expression | None:
    if len(arguments) == 3:
        return native_call(function, arguments, type)
    field, value = arguments
    if function == "date_trunc":
        is_instant = value.type.kind is TypeKind.TIMESTAMPTZ
        return native_call(function, (field, value, zone), type) if is_instant else None
    word = field.text.lower() if isinstance(field, Literal) and field.text else ""
    if word == "epoch":
        return native_call(function, arguments, type)
    if word not in DAY_FIELDS and word not in CLOCK_FIELDS:
        return None
    return native_call(function, (field, _local(value, zone)), type)
