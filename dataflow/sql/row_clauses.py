"""LIMIT, OFFSET, FETCH, ORDER BY and locks of a query: what follows its rows.

ORDER BY alone is dropped: a stored view has no order.
"""

from __future__ import annotations

from sqlglot import exp

from dataflow.sql.scope import Context

_ROW_CLAUSES = (
    ("limit", "LIMIT", "limit"),
    ("offset", "OFFSET", "offset"),
    ("fetch", "FETCH FIRST", "fetch"),
)


def refuse_row_clauses(context: Context, node: exp.Expr) -> None:
    """LIMIT and its kin are refused; ORDER BY alone is dropped."""
    for key, name, word in _ROW_CLAUSES:
        if node.args.get(key):
            raise context.refuse(
                f"{name} is not maintained",
                "keep all rows in the view, and limit the query that reads it",
                word,
            )
    if node.args.get("locks"):
        raise context.refuse("FOR UPDATE is not maintained", "leave it out", "for")
    if node.args.get("order"):
        context.warn("ORDER BY is dropped: a stored view has no order; sort where you read it")
