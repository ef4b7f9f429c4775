"""Window calls as they stand in the tree: where they are, and what they are made of.

Pure functions over sqlglot's tree; nothing here asks the database.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlglot import exp


def window_of(node: exp.Expr) -> exp.Window | None:
    """The window call that a node is; None for others."""
    return node if isinstance(node, exp.Window) else None


def call_of(window: exp.Window) -> exp.Expr:
    """The function call of a window call, without its schema and FILTER."""
    call = window.this
    while isinstance(call, exp.Dot | exp.Filter):
        call = call.expression if isinstance(call, exp.Dot) else call.this
    return call


def function_of(window: exp.Window) -> str:
    """The name of the function of a window call, behind its schema where it has one."""
    schema = f"{window.this.this.name}." if isinstance(window.this, exp.Dot) else ""
    return schema + call_of(window).name


def arguments_of(window: exp.Window) -> list[exp.Expr]:
    """The arguments, bare of VARIADIC; none for *."""
    found = [a for a in call_of(window).expressions if not isinstance(a, exp.Star)]
    return [a.this if isinstance(a, exp.Variadic) else a for a in found]


def condition_of(window: exp.Window) -> exp.Expr | None:
    """The condition of FILTER."""
    call = window.this
    while isinstance(call, exp.Dot):
        call = call.expression
    return call.expression.this if isinstance(call, exp.Filter) else None


def inside_window(window: exp.Window) -> Iterator[exp.Expr]:
    """The expressions that a window call is made of, or a definition of the WINDOW clause."""
    if not isinstance(window.this, exp.Identifier):
        yield from arguments_of(window)
        condition = condition_of(window)
        if condition is not None:
            yield condition
    yield from window.args.get("partition_by") or []
    order = window.args.get("order")
    yield from (o.this for o in (order.expressions if order else []))


def inside_windows(windows: Sequence[exp.Window] | None) -> list[exp.Expr]:
    """The expressions in the definitions of a WINDOW clause."""
    return [node for window in windows or [] for node in inside_window(window)]
