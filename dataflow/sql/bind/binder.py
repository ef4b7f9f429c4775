"""From PostgreSQL's canonical query to a plan: one small function for each shape of query.

Every block is bound in PostgreSQL's own order: FROM, WHERE, GROUP BY, HAVING, the select list,
DISTINCT. Unsupported constructs are refused here by name. Invariant: nothing is dropped silently
except ORDER BY, which a stored view does not have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlglot import exp

from dataflow.expressions.ir import ColumnRef, Expression
from dataflow.plan.nodes import Plan, SortKey
from dataflow.sql.bind.blocks import apply_conditions, block_atom
from dataflow.sql.bind.grouping import Grouping, find_aggregates
from dataflow.sql.bind.grouping_sets import bind_grouping, group_keys
from dataflow.sql.bind.recursive_entries import bind_recursive, is_recursive
from dataflow.sql.bind.relations import NOTHING, Relations, project
from dataflow.sql.bind.row_clauses import RowClauses, sorting_nodes
from dataflow.sql.bind.row_order_use import may_use_order, preserves_order, uses_order
from dataflow.sql.bind.scalars import Scalars
from dataflow.sql.bind.scope import Context, FromEntry, Scope, entry_of
from dataflow.sql.bind.set_functions import (
    add_set_calls,
    bind_selected,
    holds_sets,
    set_call_of,
)
from dataflow.sql.bind.set_operations import (
    bind_set_operation,
    bind_values,
    distinct_rows,
    values_of,
)
from dataflow.sql.bind.subqueries import BindQuery
from dataflow.sql.bind.window_calls import Windows, find_windows
from dataflow.sql.bind.window_shapes import inside_windows
from dataflow.sql.parse.shapes import bare


class _BindQuery:
    """See subqueries.BindQuery."""

    def __call__(self, context: Context, node: exp.Expr) -> Plan:
        """Return the plan of a query; it may read rows of the enclosing scopes."""
        return _bind(context, node, is_ordered=False).plan

    def ordered(self, context: Context, node: exp.Expr) -> FromEntry:
        """Return the same, with the order of the rows and its sort keys."""
        return _bind(context, node, is_ordered=True)


bind_query = _BindQuery()


def _bind(context: Context, node: exp.Expr, *, is_ordered: bool) -> FromEntry:
    if isinstance(node, exp.Subquery):
        if any(node.args.get(key) for key in ("limit", "offset", "order")):
            clauses = RowClauses(context, node, is_ordered=is_ordered)
            below = _bind(context, node.this, is_ordered=clauses.is_taken_in_order)
            return clauses.applied(below, [])
        return _bind(context, node.this, is_ordered=is_ordered)
    if isinstance(node, exp.Select):
        # VALUES as a term of a set operation is read as SELECT * FROM (VALUES ...).
        node = values_of(node) or node
    known = dict(context.ctes)
    try:
        _bind_ctes(context, node, bind_query)
        if isinstance(node, exp.Select):
            return bind_select(context, node, is_ordered=is_ordered)
        if isinstance(node, exp.SetOperation):
            plan = bind_set_operation(context, node, bind_query)
        elif isinstance(node, exp.Values):
            row = Scope(NOTHING)
            plan = bind_values(context, node, row, block_atom(context, row, bind_query))
        else:
            raise context.refuse("this form of query is not maintained", "write one SELECT")
        return RowClauses(context, node, is_ordered=is_ordered).applied(entry_of(plan), [])
    finally:
        context.ctes = known


def bind_select(context: Context, select: exp.Select, *, is_ordered: bool) -> FromEntry:
    """Bind one block. is_ordered: the order of its rows matters."""
    clauses = RowClauses(context, select, is_ordered=is_ordered)
    takes_order = clauses.is_taken_in_order or uses_order(context, select)
    below = Scope(Relations(context, bind_query, is_ordered=takes_order).bind(select))
    below = bind_where(context, below, select)
    scope = bind_groups(context, below, select, is_ordered=is_ordered)
    nodes, names = selected_of(select)
    width = len(nodes)
    nodes += clauses.hidden(nodes)
    atom, others = block_atom(context, scope, bind_query), sorting_nodes(select, is_used=True)
    windows = Windows(context, scope, atom, select.args.get("windows") or [])
    add_set_calls(context, scope, windows.keys([*nodes, *others]), atom)
    others += inside_windows(select.args.get("windows"))
    windows.bind([*nodes, *(n for n in others if holds_sets(context, n))])
    is_last = _computes_sets_last(context, scope, select, nodes)
    if is_last:
        clauses.take_distinct(scope, Scalars(context, atom), nodes[:width])
    is_kept = scope is below and clauses.is_taken_in_order and preserves_order(select)
    below_order = scope.order if is_kept else ()
    has_ordinality = is_last and bool(clauses.sorts_by_keys or below_order)
    expressions, number = bind_selected(
        context, scope, nodes, others, atom, has_ordinality=has_ordinality
    )
    order = _order_above(below_order, expressions)
    within = _order_above([SortKey(number)] if number is not None else [], expressions)
    names += [f"order {i}" for i in range(len(expressions) - width)]
    plan = bind_distinct(context, project(scope.plan, expressions, names), select)
    star = tuple((name, i) for i, name in enumerate(names[:width]))
    return clauses.applied(FromEntry(plan, (), star, order), selected_of(select)[0], within)


def _computes_sets_last(
    context: Context, scope: Scope, select: exp.Select, nodes: Sequence[exp.Expr]
) -> bool:
    """Return whether sets in the select list are made of the rows that ORDER BY and DISTINCT ON
    leave: no key returns one (make_sort_input_target in planner.c)."""
    distinct, group = select.args.get("distinct"), select.args.get("group")
    if distinct is not None and not distinct.args.get("on"):
        return False
    keys = sorting_nodes(select, is_used=True) + group_keys(group.expressions if group else [])
    keys += inside_windows(select.args.get("windows"))
    keys += find_windows(context, nodes).values()
    is_early = any(holds_sets(context, key) for key in keys)
    return not is_early and any(set_call_of(context, scope, bare(node)) for node in nodes)


def _order_above(order: Sequence[SortKey], expressions: list[Expression]) -> tuple[SortKey, ...]:
    """Return the order of a block's rows by columns of its select list; missing ones are
    appended."""
    found = []
    for key in order:
        if key.expression not in expressions:
            expressions.append(key.expression)
        at = expressions.index(key.expression)
        column = ColumnRef(at, key.expression.type)
        found.append(replace(key, expression=column))
    return tuple(found)


def bind_where(context: Context, scope: Scope, select: exp.Select) -> Scope:
    """Apply WHERE to the scope's plan as filters and semi joins."""
    where = select.args.get("where")
    apply_conditions(context, scope, where.this if where else None, bind_query)
    return scope


def bind_groups(context: Context, scope: Scope, select: exp.Select, *, is_ordered: bool) -> Scope:
    """Return the scope after GROUP BY and HAVING; the same scope if the block has no groups."""
    group, having = select.args.get("group"), select.args.get("having")
    above = [*selected_of(select)[0], *sorting_nodes(select, is_used=is_ordered)]
    above += inside_windows(select.args.get("windows"))
    if having is not None:
        above.append(having.this)
    every = [*above, *sorting_nodes(select, is_used=True)]
    above += [node for node in every if holds_sets(context, node)]
    if group is None and having is None and not find_aggregates(context, scope, every):
        return scope
    atom = block_atom(context, scope, bind_query)
    add_set_calls(context, scope, group_keys(group.expressions if group else []), atom)
    grouped = bind_grouping(context, Grouping(context, scope, atom), group, above)
    condition = having.this if having is not None else None
    apply_conditions(context, grouped, condition, bind_query)
    return grouped


def bind_distinct(context: Context, plan: Plan, select: exp.Select) -> Plan:
    """Return the plan with SELECT DISTINCT applied; DISTINCT ON follows the rows' order."""
    distinct = select.args.get("distinct")
    if distinct is None or distinct.args.get("on"):
        return plan
    return distinct_rows(context, plan, "DISTINCT", "distinct")


def selected_of(select: exp.Select) -> tuple[list[exp.Expr], list[str]]:
    """Return the select list's expressions and their names."""
    nodes, names = [], []
    for node in select.expressions:
        nodes.append(node.this if isinstance(node, exp.Alias) else node)
        names.append(node.alias_or_name if isinstance(node, exp.Alias | exp.Column) else "?column?")
    return nodes, names


def _bind_ctes(context: Context, node: exp.Expr, bind_query: BindQuery) -> None:
    """Bind the WITH list; each entry is inlined at its references.

    Equal parts become one node when the plan is lowered.
    """
    clause = node.args.get("with_")
    if clause is None:
        return
    for cte in clause.expressions:
        entry = None
        if clause.args.get("recursive") and is_recursive(cte):
            known = dict(context.ctes)
            _bind_ctes(context, cte.this, bind_query)
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
