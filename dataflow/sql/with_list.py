"""The WITH list of a query.

Each part is bound once and inlined where it is named; equal parts become one node when the plan
is lowered.
"""

from __future__ import annotations

from sqlglot import exp

from dataflow.sql.recursion import bind_recursive, is_recursive
from dataflow.sql.scope import Context
from dataflow.sql.subqueries import BindQuery


def bind_ctes(context: Context, node: exp.Expr, bind_query: BindQuery) -> None:
    """Bind the WITH list; each is inlined where it is named."""
    clause = node.args.get("with_")
    if clause is None:
        return
    for cte in clause.expressions:
        plan = None
        if clause.args.get("recursive") and is_recursive(cte):
            known = dict(context.ctes)
            bind_ctes(context, cte.this, bind_query)
            plan = bind_recursive(context, cte, bind_query)
            context.ctes = known
        if plan is None:
            plan = bind_query(context, cte.this)
        alias = cte.args["alias"]
        names = [f.name for f in plan.fields]
        given = [c.name for c in alias.args.get("columns") or []]
        names[: len(given)] = given
        context.ctes[alias.name] = (plan, tuple(names))
