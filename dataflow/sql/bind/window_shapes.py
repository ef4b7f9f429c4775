"""Window calls in the syntax tree: how to find them, and their parts.

Pure functions over sqlglot's tree; nothing here queries the database.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlglot import exp


def window_of(node: exp.Expr) -> exp.Window | None:
    """Return the window call that a node is; None for others."""
    return node if isinstance(node, exp.Window) else None


def call_of(window: exp.Window) -> exp.Expr:
    """Return the function call of a window call, without its schema and FILTER."""
    call = window.this
    while isinstance(call, exp.Dot | exp.Filter):
        call = call.expression if isinstance(call, exp.Dot) else call.this
    return call


def function_of(window: exp.Window) -> str:
    """Return the name of a window call's function, with its schema if it has one."""
    schema = f"{window.this.this.name}." if isinstance(window.this, exp.Dot) else ""
    return schema + call_of(window).name


def arguments_of(window: exp.Window) -> list[exp.Expr]:
    """Return the arguments without VARIADIC; none for *."""
    found = [a for a in call_of(window).expressions if not isinstance(a, exp.Star)]
    return [a.this if isinstance(a, exp.Variadic) else a for a in found]


def condition_of(window: exp.Window) -> exp.Expr | None:
    """Return the condition of FILTER."""
    call = window.this
    while isinstance(call, exp.Dot):
        call = call.expression
    return call.expression.this if isinstance(call, exp.Filter) else None


def inside_window(window: exp.Window) -> Iterator[exp.Expr]:
    """Return the expressions inside a window call, or inside a definition of the WINDOW clause."""
    if not isinstance(window.this, exp.Identifier):
        yield from arguments_of(window)
        condition = condition_of(window)
        if condition is not None:
            yield condition
    yield from window.args.get("partition_by") or []
    order = window.args.get("order")
    yield from (o.this for o in (order.expressions if order else []))


def inside_windows(windows: Sequence[exp.Window] | None) -> list[exp.Expr]:
    """Return the expressions in the definitions of a WINDOW clause."""
    return [node for window in windows or [] for node in inside_window(window)]
