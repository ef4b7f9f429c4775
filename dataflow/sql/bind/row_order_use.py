"""What looks at the order of the rows of its FROM.

PostgreSQL promises no order of an aggregate's input, and says that a sorted subquery usually gives
one (documentation, "Aggregate Functions"): applications rely on it. So the ORDER BY of the only
entry of FROM becomes a part of what reads its rows in order.
"""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from dataflow.sql.bind.aggregate_calls import UNORDERED, aggregate_name
from dataflow.sql.bind.scope import Context

_LIMITS = ("limit", "offset", "fetch")
_ABOVE = ("expressions", "having", "order", "distinct", "windows")


def uses_order(context: Context, query: exp.Expr) -> bool:
    """Whether a block looks at the order of the rows of its FROM."""
    return any(_is_ordered_call(context, node) or _is_unsorted(node) for node in _above(query))


def may_use_order(context: Context, query: exp.Expr) -> bool:
    """Whether a query, or one inside of it, may look at the order of rows."""
    for node in query.walk():
        distinct = node.args.get("distinct")
        is_limited = any(node.args.get(key) for key in _LIMITS)
        is_limited |= isinstance(distinct, exp.Distinct) and bool(distinct.args.get("on"))
        is_array = isinstance(node, exp.Anonymous) and node.this == "ARRAY"
        if is_limited or is_array or _is_unsorted(node) or _is_ordered_call(context, node):
            return True
    return False


def keeps_order(query: exp.Expr) -> bool:
    """Whether a block without groups has its rows in the order in which they come to it."""
    windows = [node for node in _above(query) if isinstance(node, exp.Window)]
    is_sorted = any(w.args.get("order") or w.args.get("partition_by") for w in windows)
    distinct = query.args.get("distinct")
    return not is_sorted and (distinct is None or bool(distinct.args.get("on")))


def _is_unsorted(node: exp.Expr) -> bool:
    """Whether a node is a window call over rows as they come, if no named window sorts them."""
    return isinstance(node, exp.Window) and node.args.get("order") is None


def _above(query: exp.Expr) -> Iterator[exp.Expr]:
    """The nodes of a block above its FROM and WHERE."""
    for name in _ABOVE:
        found = query.args.get(name) or []
        for clause in found if isinstance(found, list) else [found]:
            yield from clause.walk()


def _is_ordered_call(context: Context, node: exp.Expr) -> bool:
    """Whether a node calls an aggregate whose result depends on the order of its rows."""
    if isinstance(node, exp.Filter | exp.WithinGroup):
        return False
    name = aggregate_name(context, node)
    if name is None or name in UNORDERED:
        return False
    call = node.expression if isinstance(node, exp.Dot) else node
    return not (call.expressions and isinstance(call.expressions[0], exp.Distinct))
