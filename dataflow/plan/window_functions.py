"""Properties of window functions: which depend on frames, ties, NULLs.

Names are those of the canonical text: without a schema a function is built in.
"""

from __future__ import annotations

from dataflow.plan.nodes import WindowCall
from dataflow.types import SqlType, TypeKind

NUMBERING = frozenset({"row_number", "rank", "dense_rank", "percent_rank", "cume_dist", "ntile"})
SHIFTING = frozenset({"lag", "lead"})
PICKING = frozenset({"first_value", "last_value", "nth_value"})
# These ignore the frame.
UNFRAMED = NUMBERING | SHIFTING
# They return, or count, an argument of a row unchanged.
IN_ROWS = UNFRAMED | PICKING | {"count"}
NEVER_NULL = (NUMBERING - {"ntile"}) | {"count"}
# Their value over a set of rows does not depend on the order of the rows.
_UNORDERED = frozenset({"count", "sum", "avg", "min", "max", "bool_and", "bool_or", "every"})
_VERDICTS = ("bool_and", "bool_or", "every")
_SUMMED = frozenset(
    {
        *(TypeKind.INT2, TypeKind.INT4, TypeKind.INT8, TypeKind.FLOAT4, TypeKind.FLOAT8),
        *(TypeKind.FIXED, TypeKind.DECIMAL),
    }
)
_ORDERED = _SUMMED | {
    *(TypeKind.DATE, TypeKind.TIME, TypeKind.TIMESTAMP, TypeKind.TIMESTAMPTZ, TypeKind.INTERVAL)
}
_BY_PEERS = frozenset({"rank", "dense_rank", "percent_rank", "cume_dist"})


def depends_on_ties(call: WindowCall) -> bool:
    """Return whether the value may depend on the order of rows that tie in ORDER BY."""
    if call.function in _BY_PEERS:
        return False
    if call.function not in _UNORDERED:
        return True
    frame = call.frame
    is_whole = frame.start.kind == "unbounded preceding" and frame.end.kind == "unbounded following"
    return frame.mode == "rows" and not is_whole


def is_native(call: WindowCall) -> bool:
    """Return whether there is a kernel; otherwise PostgreSQL computes the call."""
    if call.function in IN_ROWS:
        return True
    if len(call.arguments) != 1:
        return False
    type = call.arguments[0].type
    if call.function in _VERDICTS:
        return type.kind is TypeKind.BOOL
    if call.function in ("min", "max"):
        return _has_order(type)
    return call.function in ("sum", "avg") and type.kind in _SUMMED


def _has_order(type: SqlType) -> bool:
    return type.kind in _ORDERED or (type.kind is TypeKind.TEXT and type.is_bytewise)
