"""(SELECT e FROM (SELECT ...) e): a subquery whose value is a row of no named type.

Such a row cannot be stored. Its columns are stored, each as a value of the subquery's one row, and
the row is written from them wherever it is used.
"""

from __future__ import annotations

from sqlglot import exp

from dataflow.expressions.ir import Expression
from dataflow.sql.bind.scope import Context
from dataflow.sql.bind.subqueries import Subqueries
from dataflow.sql.bind.whole_rows import marked, names_whole_row, original_names, record
from dataflow.sql.parse.shapes import span_of


def record_of(context: Context, subqueries: Subqueries, node: exp.Expr) -> Expression | None:
    """Return the row of a subquery in parentheses; None if its value is not such a row."""
    query = node.this
    while isinstance(query, exp.Subquery):
        query = query.this
    row = _selected_row(query)
    listed = _columns(context, query, row.table) if row is not None else []
    if row is None or not listed:
        return None
    wide = query.copy()
    wide.set("expressions", [_column(row, name) for name in listed])
    values = subqueries.values(marked(subqueries.bind(wide)))
    names = original_names(context, row.table, listed) or listed
    return record(values[:-1], names, values[-1])


def _selected_row(query: exp.Expr) -> exp.Column | None:
    """Return the relation's row that is the whole select list."""
    if not isinstance(query, exp.Select) or len(query.expressions) != 1:
        return None
    if query.args.get("distinct") or query.args.get("group"):
        return None
    node = query.expressions[0]
    while isinstance(node, exp.Alias | exp.Cast):
        node = node.this
    return node if names_whole_row(node) else None


def _columns(context: Context, query: exp.Expr, alias: str) -> list[str]:
    """Return the columns of an entry of FROM whose row has no named type, by the text; else []."""
    for entry in query.find_all(exp.Table, exp.Subquery, exp.Lateral):
        if entry.alias_or_name != alias or entry.find_ancestor(exp.Select) is not query:
            continue
        names = _part(context, query, entry) if isinstance(entry, exp.Table) else _names(entry.this)
        named = entry.args.get("alias")
        given = [c.name for c in (named.args.get("columns") or [] if named else [])]
        return [*given, *names[len(given) :]] if names else []
    return []


def _part(context: Context, query: exp.Expr, table: exp.Table) -> list[str]:
    """Return the columns of a WITH entry."""
    if table.db:
        return []
    for cte in query.find_all(exp.CTE):
        if cte.alias == table.name:
            given = [c.name for c in cte.args["alias"].args.get("columns") or []]
            return [*given, *_names(cte.this)[len(given) :]]
    known = context.ctes.get(table.name)
    return [name for name, _ in known.star] if known is not None else []


def _names(query: exp.Expr) -> list[str]:
    """Return the names of a query's columns, as far as the text determines them."""
    while isinstance(query, exp.Subquery | exp.SetOperation):
        query = query.this
    if not isinstance(query, exp.Select):
        return []
    return [e.alias_or_name for e in query.expressions]


def _column(row: exp.Column, name: str) -> exp.Column:
    found = exp.Column(this=exp.to_identifier(name, quoted=True), table=row.args["table"].copy())
    found.meta["span"] = span_of(row)
    return found
