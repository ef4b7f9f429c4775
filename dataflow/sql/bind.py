"""From PostgreSQL's canonical query to a plan: one small function for each shape of query.

Every block is bound in PostgreSQL's own order: FROM, WHERE, GROUP BY, HAVING, the select list,
DISTINCT. What is not maintained is refused here by name; nothing is dropped silently but ORDER BY,
which a stored view does not have.
"""

from __future__ import annotations

from sqlglot import exp

from dataflow.sql.aggregates import Grouping, find_aggregates
from dataflow.sql.blocks import apply_conditions, block_atom
from dataflow.sql.grouping_sets import bind_grouping, group_keys
from dataflow.sql.plan import Plan
from dataflow.sql.relations import NOTHING, Relations, project
from dataflow.sql.row_clauses import RowClauses, sorting_nodes
from dataflow.sql.scope import Context, Scope
from dataflow.sql.set_functions import add_set_calls, bind_selected
from dataflow.sql.set_operations import bind_set_operation, bind_values, distinct_rows, values_of
from dataflow.sql.window_shapes import inside_windows
from dataflow.sql.windows import Windows
from dataflow.sql.with_list import bind_ctes


def bind_query(context: Context, node: exp.Expr) -> Plan:
    """The plan of a query; it may read the rows of the scopes around it as outer references."""
    if isinstance(node, exp.Subquery):
        if any(node.args.get(key) for key in ("limit", "offset", "order")):
            return bind_limited(context, node, bind_query(context, node.this))
        return bind_query(context, node.this)
    if isinstance(node, exp.Select):
        # VALUES as a term of a set operation is read as SELECT * FROM (VALUES ...).
        node = values_of(node) or node
    known = dict(context.ctes)
    try:
        bind_ctes(context, node, bind_query)
        if isinstance(node, exp.Select):
            return bind_select(context, node)
        if isinstance(node, exp.SetOperation):
            plan = bind_set_operation(context, node, bind_query)
            return bind_limited(context, node, plan)
        if isinstance(node, exp.Values):
            row = Scope(NOTHING)
            plan = bind_values(context, node, row, block_atom(context, row, bind_query))
            return bind_limited(context, node, plan)
    finally:
        context.ctes = known
    raise context.refuse("this form of query is not maintained", "write one SELECT")


def bind_select(context: Context, select: exp.Select) -> Plan:
    """One block."""
    clauses = RowClauses(context, select)
    scope = bind_where(context, Scope(Relations(context, bind_query).bind(select)), select)
    scope = bind_groups(context, scope, select)
    nodes, names = selected_of(select)
    nodes += clauses.hidden(nodes)
    names += [f"order {i}" for i in range(len(nodes) - len(names))]
    atom, others = block_atom(context, scope, bind_query), sorting_nodes(select, is_used=True)
    Windows(context, scope, atom).bind(nodes, select.args.get("windows") or [])
    expressions = bind_selected(context, scope, nodes, others, atom)
    plan = bind_distinct(context, project(scope.plan, expressions, names), select)
    return clauses.applied(plan, selected_of(select)[0])


def bind_limited(context: Context, node: exp.Expr, plan: Plan) -> Plan:
    """ORDER BY, LIMIT and OFFSET of a query that is no plain block: they name its columns."""
    return RowClauses(context, node).applied(plan, [])


def bind_where(context: Context, scope: Scope, select: exp.Select) -> Scope:
    """Filters and semi joins of WHERE on the scope's plan."""
    where = select.args.get("where")
    apply_conditions(context, scope, where.this if where else None, bind_query)
    return scope


def bind_groups(context: Context, scope: Scope, select: exp.Select) -> Scope:
    """The scope after GROUP BY and HAVING; the same scope when the block has no groups."""
    group, having = select.args.get("group"), select.args.get("having")
    above = [*selected_of(select)[0], *sorting_nodes(select)]
    above += inside_windows(select.args.get("windows"))
    if having is not None:
        above.append(having.this)
    every = [*above, *sorting_nodes(select, is_used=True)]
    if group is None and having is None and not find_aggregates(context, scope, every):
        return scope
    atom = block_atom(context, scope, bind_query)
    add_set_calls(context, scope, group_keys(group.expressions if group else []), atom)
    grouped = bind_grouping(context, Grouping(context, scope, atom), group, above)
    condition = having.this if having is not None else None
    apply_conditions(context, grouped, condition, bind_query)
    return grouped


def bind_distinct(context: Context, plan: Plan, select: exp.Select) -> Plan:
    """SELECT DISTINCT."""
    distinct = select.args.get("distinct")
    if distinct is None or distinct.args.get("on"):
        return plan
    return distinct_rows(context, plan, "DISTINCT", "distinct")


def selected_of(select: exp.Select) -> tuple[list[exp.Expr], list[str]]:
    """The select list's expressions and their names."""
    nodes, names = [], []
    for node in select.expressions:
        nodes.append(node.this if isinstance(node, exp.Alias) else node)
        names.append(node.alias_or_name if isinstance(node, exp.Alias | exp.Column) else "?column?")
    return nodes, names
