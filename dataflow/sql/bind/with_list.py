"""The WITH list of a query.

Each entry is bound once and inlined at each reference; equal parts become one node when the plan is
lowered.
"""

from __future__ import annotations

from dataclasses import replace

from sqlglot import exp

from dataflow.sql.bind.recursive_entries import bind_recursive, is_recursive
from dataflow.sql.bind.row_order_use import may_use_order
from dataflow.sql.bind.scope import Context, entry_of
from dataflow.sql.bind.subqueries import BindQuery


def bind_ctes(context: Context, node: exp.Expr, bind_query: BindQuery) -> None:
    """Bind the WITH list; each entry is inlined at its references."""
    clause = node.args.get("with_")
    if clause is None:
        return
    for cte in clause.expressions:
        entry = None
        if clause.args.get("recursive") and is_recursive(cte):
            known = dict(context.ctes)
            bind_ctes(context, cte.this, bind_query)
            plan = bind_recursive(context, cte, bind_query)
            context.ctes = known
            entry = entry_of(plan) if plan is not None else None
        if entry is None and may_use_order(context, node):
            entry = bind_query.ordered(context, cte.this)
        if entry is None:
            entry = entry_of(bind_query(context, cte.this))
        alias = cte.args["alias"]
        given = [c.name for c in alias.args.get("columns") or []]
        star = tuple(
            (given[i] if i < len(given) else name, at) for i, (name, at) in enumerate(entry.star)
        )
        context.ctes[alias.name] = replace(entry, star=star)
