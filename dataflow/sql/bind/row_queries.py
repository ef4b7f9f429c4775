"""Queries that read no relation: expressions over columns of the enclosing rows.

PostgreSQL computes such a query as a whole for each row: functions, VALUES and aggregates of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sqlglot import exp

from dataflow.expressions.ir import Expression
from dataflow.sql.bind.scope import Context, NotInScope

# Nodes that may refer to the rows around a query: a column, or an aggregate over them.
NAMING = (exp.Column, exp.Anonymous, exp.Filter, exp.WithinGroup, exp.Dot)


def values_outside(
    query: exp.Query, atom: Callable[[exp.Expr], Expression | None]
) -> Iterator[tuple[exp.Expr, Expression]]:
    """Return the nodes of a query that refer to the rows around it, and their values."""
    waiting: list[exp.Expr] = [query]
    while waiting:
        node = waiting.pop()
        value = None
        columns = list(node.find_all(exp.Column)) if isinstance(node, NAMING) else []
        # A call without a column belongs to the query itself.
        if columns and not any(_is_merged(column, query) for column in columns):
            value = _known(node, atom)
        if value is not None:
            yield node, value
        else:
            waiting.extend(node.iter_expressions())


def _known(node: exp.Expr, atom: Callable[[exp.Expr], Expression | None]) -> Expression | None:
    try:
        return atom(node)
    except NotInScope:
        return None  # A column of one of the query's own functions or VALUES.


def _is_merged(column: exp.Column, query: exp.Query) -> bool:
    """Return whether a column was merged by USING within a query: its name has no relation."""
    node: exp.Expr | None = column
    while not column.table and node is not None and node is not query:
        node = node.parent
        joins = node.find_all(exp.Join) if isinstance(node, exp.Select) else ()
        own = [j for j in joins if j.find_ancestor(exp.Select) is node]
        if any(u.name == column.name for j in own for u in j.args.get("using") or []):
            return True
    return False


def reads_relations(node: exp.Expr) -> bool:
    """Return whether a query names a table, a view or a WITH entry anywhere inside."""
    return any(
        isinstance(table.this, exp.Identifier) and not isinstance(table.parent, exp.Collate)
        for table in node.find_all(exp.Table)
    )


def check_reads_nothing(context: Context, node: exp.Expr) -> None:
    """Refuse a query over relations where only a plain expression is possible."""
    if reads_relations(node):
        raise context.refuse(
            "a subquery in this position is not maintained",
            "join the subquery in FROM, or write it as a conjunct of WHERE",
            "(",
            "select",
        )


def reads_outside(node: exp.Expr) -> bool:
    """Return whether a query names a column that none of its own FROM entries may have."""
    own = {alias.name for alias in node.find_all(exp.TableAlias)}
    return any(c.table not in own for c in node.find_all(exp.Column))
