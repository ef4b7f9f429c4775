"""What the planner knows of window functions: which look at frames, ties, NULLs.

Names are as the canonical text has them: without a schema a function is PostgreSQL's own.
"""

from __future__ import annotations

from dataflow.sql.plan import WindowCall

NUMBERING = frozenset({"row_number", "rank", "dense_rank", "percent_rank", "cume_dist", "ntile"})
SHIFTING = frozenset({"lag", "lead"})
PICKING = frozenset({"first_value", "last_value", "nth_value"})
# These do not look at the frame, whatever is written.
UNFRAMED = NUMBERING | SHIFTING
NEVER_NULL = (NUMBERING - {"ntile"}) | {"count"}
# Their value over a set of rows does not depend on the order of the rows.
_UNORDERED = frozenset({"count", "sum", "avg", "min", "max", "bool_and", "bool_or", "every"})
_BY_PEERS = frozenset({"rank", "dense_rank", "percent_rank", "cume_dist"})


def depends_on_ties(call: WindowCall) -> bool:
    """Whether the value may depend on the order of rows that ORDER BY cannot tell apart."""
    if call.function in _BY_PEERS:
        return False
    if call.function not in _UNORDERED:
        return True
    frame = call.frame
    is_whole = frame.start.kind == "unbounded preceding" and frame.end.kind == "unbounded following"
    return frame.mode == "rows" and not is_whole
