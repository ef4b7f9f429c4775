"""Which of several nested blocks an aggregate call belongs to.

A call aggregates over the rows of the innermost block whose columns its arguments name (the SQL
standard's rule; parse_agg.c), so a subquery may contain calls of enclosing blocks; so does
GROUPING. Table names in
canonical text are unique across nested blocks, so a name identifies its block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from sqlglot import exp

from dataflow.expressions.ir import OuterRef
from dataflow.sql.bind.scope import Context, GroupScope, Scope
from dataflow.sql.bind.window_shapes import inside_window, window_of
from dataflow.sql.parse.shapes import operands

IsCall = Callable[[exp.Expr], bool]


def is_grouping_call(node: exp.Expr) -> bool:
    """Return whether a node calls GROUPING."""
    return isinstance(node, exp.Anonymous) and node.this == "GROUPING"


def own_calls(
    context: Context, scope: Scope, nodes: Sequence[exp.Expr], is_call: IsCall
) -> list[exp.Expr]:
    """Return the aggregate calls over the scope's rows in nodes, also those inside their
    subqueries."""
    found: list[exp.Expr] = []

    def walk(node: exp.Expr, is_inside: bool) -> None:
        if is_call(node) and window_of(node) is None:
            if _belongs(context, scope, node, is_inside):
                found.append(node)
                return
            if not is_inside:
                return
        is_inside = is_inside or isinstance(node, exp.Query)
        for child in _parts(node, is_inside):
            walk(child, is_inside)

    for node in nodes:
        walk(node, False)
    return found


def own_columns_inside(
    scope: Scope, nodes: Sequence[exp.Expr], is_known: IsCall
) -> Iterator[exp.Column]:
    """Return the scope's columns that subqueries in nodes name, outside expressions already bound
    as a whole."""

    def walk(node: exp.Expr, is_inside: bool) -> Iterator[exp.Column]:
        if is_known(node):
            return
        if is_inside and isinstance(node, exp.Column) and _names(scope, node, True):
            yield node
        is_inside = is_inside or isinstance(node, exp.Query)
        for child in _parts(node, is_inside):
            yield from walk(child, is_inside)

    for node in nodes:
        yield from walk(node, False)


def outer_call(context: Context, node: exp.Expr) -> OuterRef | None:
    """Return the value of a call of an aggregate or of GROUPING of an enclosing block; None for
    any other node."""
    text = context.text_of(node)
    for level, scope in enumerate(reversed(context.enclosing)):
        position = scope.find("", "", text) if isinstance(scope, GroupScope) else None
        if position is not None:
            found = scope.plan.fields[position]
            return OuterRef(level, position, found.type, found.name)
    return None


def _parts(node: exp.Expr, is_inside: bool) -> Iterable[exp.Expr]:
    """Return the direct children of a node; the function before OVER is no aggregate."""
    window = window_of(node)
    if window is not None:
        return inside_window(window)
    return node.iter_expressions() if is_inside else operands(node)


def _belongs(context: Context, scope: Scope, call: exp.Expr, is_inside: bool) -> bool:
    columns = list(call.find_all(exp.Column))
    if any(_names(scope, c, is_inside) for c in columns):
        # One column of a deeper block makes the call that block's.
        return not is_inside or all(
            _names(scope, c, True) or context.is_outside(c) for c in columns
        )
    return not is_inside and not any(map(context.is_outside, columns))


def _names(scope: Scope, column: exp.Column, is_inside: bool) -> bool:
    """Return whether a column belongs to the scope; a merged one of an inner block has no table."""
    if not column.table and is_inside and _is_merged(column):
        return False
    return scope.find(column.table, column.name, "") is not None


def _is_merged(column: exp.Column) -> bool:
    block = column.find_ancestor(exp.Select)
    joins = (block.args.get("joins") or []) if block is not None else []
    return any(u.name == column.name for join in joins for u in join.args.get("using") or [])
