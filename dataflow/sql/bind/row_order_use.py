"""Which constructs depend on the order of the rows of FROM.

PostgreSQL promises no order of an aggregate's input, but documents that a sorted subquery usually
gives one ("Aggregate Functions"), and applications rely on it. So constructs that depend on the
order include the ORDER BY of the only entry of FROM.
"""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from dataflow.plan.aggregate_functions import aggregate_function
from dataflow.sql.bind.aggregate_calls import aggregate_name
from dataflow.sql.bind.scope import Context

_LIMITS = ("limit", "offset", "fetch")
_ABOVE = ("expressions", "having", "order", "distinct", "windows")


def uses_order(context: Context, query: exp.Expr) -> bool:
    """Return whether a block depends on the order of the rows of its FROM."""
    return any(_is_ordered_call(context, node) or _is_unsorted(node) for node in _above(query))


def may_use_order(context: Context, query: exp.Expr) -> bool:
    """Return whether a query, or a query inside it, may depend on the order of rows."""
    for node in query.walk():
        distinct = node.args.get("distinct")
        is_limited = any(node.args.get(key) for key in _LIMITS)
        is_limited |= isinstance(distinct, exp.Distinct) and bool(distinct.args.get("on"))
        is_array = isinstance(node, exp.Anonymous) and node.this == "ARRAY"
        if is_limited or is_array or _is_unsorted(node) or _is_ordered_call(context, node):
            return True
    return False


def preserves_order(query: exp.Expr) -> bool:
    """Return whether a block without groups preserves the order of its input."""
    windows = [node for node in _above(query) if isinstance(node, exp.Window)]
    is_sorted = any(w.args.get("order") or w.args.get("partition_by") for w in windows)
    distinct = query.args.get("distinct")
    return not is_sorted and (distinct is None or bool(distinct.args.get("on")))


def _is_unsorted(node: exp.Expr) -> bool:
    """Return whether a node is a window call over unsorted rows."""
    return isinstance(node, exp.Window) and node.args.get("order") is None


def _above(query: exp.Expr) -> Iterator[exp.Expr]:
    """Return the nodes of a block above its FROM and WHERE."""
    for name in _ABOVE:
        found = query.args.get(name) or []
        for clause in found if isinstance(found, list) else [found]:
            yield from clause.walk()


def _is_ordered_call(context: Context, node: exp.Expr) -> bool:
    """Return whether a node calls an aggregate whose result depends on the order of its rows."""
    if isinstance(node, exp.Filter | exp.WithinGroup):
        return False
    name = aggregate_name(context, node)
    if name is None or not aggregate_function(name).is_ordered:
        return False
    call = node.expression if isinstance(node, exp.Dot) else node
    return not (call.expressions and isinstance(call.expressions[0], exp.Distinct))
