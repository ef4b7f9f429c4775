"""From PostgreSQL's canonical query to a plan: one small function for each shape of query.

Every block is bound in PostgreSQL's own order: FROM, WHERE, GROUP BY, HAVING, the select list,
DISTINCT. What is not maintained is refused here by name; nothing is dropped silently but ORDER BY,
which a stored view does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlglot import exp

from dataflow.expressions.ir import ColumnRef, Expression, columns_of, remap
from dataflow.sql.aggregates import Grouping, find_aggregates
from dataflow.sql.grouping_sets import bind_grouping, group_keys
from dataflow.sql.marks import Marks
from dataflow.sql.plan import Filter, Plan
from dataflow.sql.relations import NOTHING, Relations, column_atom, project
from dataflow.sql.row_clauses import RowClauses, refuse_row_clauses, sorting_nodes
from dataflow.sql.scalars import Scalars
from dataflow.sql.scope import Context, GroupScope, NotInScope, Scope
from dataflow.sql.set_functions import add_set_calls, bind_selected
from dataflow.sql.set_operations import bind_set_operation, bind_values, distinct_rows, values_of
from dataflow.sql.shapes import bare, conjuncts
from dataflow.sql.subqueries import (
    Block,
    Membership,
    Memberships,
    all_of,
    membership_of,
    scalar_subquery,
)
from dataflow.sql.window_shapes import inside_windows, window_of
from dataflow.sql.windows import Windows, window_column
from dataflow.sql.with_list import bind_ctes

Atom = Callable[[exp.Expr], ColumnRef | None]


def bind_query(context: Context, node: exp.Expr) -> Plan:
    """The plan of a query without an outer block; NotInScope when it needs one."""
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
            plan = bind_values(context, node, row, block_atom(context, row))
            return bind_limited(context, node, plan)
    finally:
        context.ctes = known
    raise context.refuse("this form of query is not maintained", "write one SELECT")


def bind_select(context: Context, select: exp.Select) -> Plan:
    """One block without correlation."""
    clauses = RowClauses(context, select)
    scope = bind_where(context, Scope(Relations(context, bind_query).bind(select)), select)
    scope = bind_groups(context, scope, select)
    nodes, names = selected_of(select)
    nodes += clauses.hidden(nodes)
    names += [f"order {i}" for i in range(len(nodes) - len(names))]
    windows = select.args.get("windows") or []
    Windows(context, scope, block_atom(context, scope)).bind(nodes, windows)
    atom, others = block_atom(context, scope), sorting_nodes(select, is_used=True)
    expressions = bind_selected(context, scope, nodes, others, atom)
    plan = bind_distinct(context, project(scope.plan, expressions, names), select)
    return clauses.applied(plan, selected_of(select)[0])


def bind_limited(context: Context, node: exp.Expr, plan: Plan) -> Plan:
    """ORDER BY, LIMIT and OFFSET of a query that is no plain block: they name its columns."""
    return RowClauses(context, node).applied(plan, [])


def bind_block(context: Context, select: exp.Select, outer: Scope) -> Block:
    """A correlated block: conditions that name outer columns are handed back."""
    refuse_row_clauses(context, select)
    has_aggregates = find_aggregates(context, [*selected_of(select)[0]])
    if select.args.get("group") or select.args.get("having") or has_aggregates:
        raise context.refuse(
            "a correlated subquery with GROUP BY or aggregates is not maintained",
            "group the subquery by the correlated columns and join it in FROM",
            "exists",
        )
    known = dict(context.ctes)
    try:
        bind_ctes(context, select, bind_query)
        entry = Relations(context, bind_query).bind(select)
        scope = Scope(entry, outer)
        conditions = correlated_where(context, scope, select)
        nodes = [n for n in selected_of(select)[0] if not isinstance(n, exp.Star)]
        selected = Scalars(context, block_atom(context, scope)).bind(nodes)
    finally:
        context.ctes = known
    return Block(scope.plan, conditions, selected)


def correlated_where(context: Context, scope: Scope, select: exp.Select) -> list[Expression]:
    """Filter the block by its own conditions; answer with those over the outer block."""
    where = select.args.get("where")
    offset = scope.offset
    plain, memberships = split_conjuncts(where.this if where else None)
    scalars = Scalars(context, block_atom(context, scope))
    bound = scalars.bind(plain)
    own = [c for c in bound if all(i >= offset for i in columns_of(c))]
    crossing = [c for c in bound if c not in own]
    conditions = [remap(c, {i: i - offset for i in columns_of(c)}) for c in own]
    filter_by(scope, conditions)
    inner = scope.without_outer()
    apply_memberships(context, inner, memberships)
    scope.plan = inner.plan
    return crossing


def bind_where(context: Context, scope: Scope, select: exp.Select) -> Scope:
    """Filters and semi joins of WHERE on the scope's plan."""
    where = select.args.get("where")
    apply_conditions(context, scope, where.this if where else None)
    return scope


def apply_conditions(context: Context, scope: Scope, condition: exp.Expr | None) -> None:
    """Filter by the plain conjuncts, then semi join for the others."""
    plain, memberships = split_conjuncts(condition)
    if plain:
        filter_by(scope, Scalars(context, block_atom(context, scope)).bind(plain))
    apply_memberships(context, scope, memberships)


def apply_memberships(context: Context, scope: Scope, memberships: Sequence[Membership]) -> None:
    """Semi joins for [NOT] EXISTS and [NOT] IN."""
    if not memberships:
        return
    nodes = [n for m in memberships for n in m.left]
    bound = iter(Scalars(context, block_atom(context, scope)).bind(nodes))
    with_sides = [(m, [next(bound) for _ in m.left]) for m in memberships]
    Memberships(context, bind_query, bind_block).apply(scope, with_sides)


def split_conjuncts(node: exp.Expr | None) -> tuple[list[exp.Expr], list[Membership]]:
    """The plain conjuncts of a condition, and those with a subquery to search in."""
    plain, memberships = [], []
    for conjunct in conjuncts(node):
        found = membership_of(conjunct)
        if found is None:
            plain.append(conjunct)
        else:
            memberships.append(found)
    return plain, memberships


def filter_by(scope: Scope, conditions: Sequence[Expression]) -> None:
    """Keep the rows of the scope's plan for which all conditions are true."""
    predicate = all_of(conditions)
    if predicate is not None:
        scope.plan = Filter(scope.plan, predicate)


def bind_groups(context: Context, scope: Scope, select: exp.Select) -> Scope:
    """The scope after GROUP BY and HAVING; the same scope when the block has no groups."""
    group, having = select.args.get("group"), select.args.get("having")
    above = [*selected_of(select)[0], *sorting_nodes(select)]
    above += inside_windows(select.args.get("windows"))
    if having is not None:
        above.append(having.this)
    every = [*above, *sorting_nodes(select, is_used=True)]
    if group is None and having is None and not find_aggregates(context, every):
        return scope
    atom = block_atom(context, scope)
    add_set_calls(context, scope, group_keys(group.expressions if group else []), atom)
    grouped = bind_grouping(context, Grouping(context, scope, atom), group, above)
    apply_conditions(context, grouped, having.this if having is not None else None)
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


def block_atom(context: Context, scope: Scope) -> Atom:
    """What stands for a column in a block: names, groups, aggregate calls, scalar subqueries."""
    names = column_atom(context, scope)

    def atom(node: exp.Expr) -> ColumnRef | None:
        if window_of(node) is not None:
            return window_column(context, scope, node)
        if "span" in node.meta and (found := scope.added(context.text_of(bare(node)))):
            return found
        if isinstance(scope, GroupScope) and "span" in node.meta:
            position = scope.find("", "", context.text_of(node))
            if position is not None:
                found = scope.plan.fields[position]
                return ColumnRef(position + scope.offset, found.type, found.name)
        found = names(node)
        try:
            found = found or scalar_subquery(context, scope, node, bind_query)
        except NotInScope:
            if not isinstance(node, exp.Exists):
                raise
        return found or Marks(context, scope, atom).column(node, bind_query, bind_block)

    return atom
