"""Resolution of names and subqueries inside one block: the atoms of its expressions, its
conditions.

FROM, WHERE, GROUP BY, HAVING and the select list all use these two.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from dataflow.expressions.ir import Expression
from dataflow.plan.nodes import Filter
from dataflow.sql.bind.call_levels import is_grouping_call, outer_call
from dataflow.sql.bind.grouping import aggregate_name
from dataflow.sql.bind.row_queries import reads_outside, reads_relations
from dataflow.sql.bind.scalars import Atom, Scalars
from dataflow.sql.bind.scope import Context, GroupScope, NotInScope, Scope
from dataflow.sql.bind.subqueries import BindQuery, Membership, Subqueries, all_of, membership_of
from dataflow.sql.bind.subquery_values import mark, subquery_value
from dataflow.sql.bind.whole_rows import named_row, names_whole_row
from dataflow.sql.bind.window_calls import window_column
from dataflow.sql.bind.window_shapes import window_of
from dataflow.sql.parse.shapes import bare, conjuncts


def column_atom(context: Context, scope: Scope) -> Atom:
    """Return an atom that resolves names in a scope and its enclosing scopes, nothing else."""

    def atom(node: exp.Expr) -> Expression | None:
        if not isinstance(node, exp.Column):
            return None
        if names_whole_row(node):
            return named_row(context, scope, node)
        text = context.text_of(node)
        position = scope.find(node.table, node.name, text)
        if position is not None:
            return scope.column(position)
        outside = context.outside(node, text)
        if outside is None:
            raise NotInScope(text)
        return outside

    return atom


def block_atom(context: Context, scope: Scope, bind_query: BindQuery) -> Atom:
    """Return the atom of a block: names, groups, aggregate calls, subqueries."""
    names = column_atom(context, scope)

    def atom(node: exp.Expr) -> Expression | None:
        if window_of(node) is not None:
            return window_column(context, scope, node)
        if "span" in node.meta and (added := scope.added(context.text_of(bare(node)))):
            return added
        if isinstance(scope, GroupScope) and "span" in node.meta:
            position = scope.find("", "", context.text_of(node))
            if position is not None:
                return scope.column(position)
        found = names(node)
        if found is None and (aggregate_name(context, node) or is_grouping_call(node)):
            found = outer_call(context, node)
        if found is None:
            found = subquery_value(context, subqueries, node, Scalars(context, atom).bind)
        return found

    subqueries = Subqueries(context, scope, atom, bind_query)
    return atom


def apply_conditions(
    context: Context, scope: Scope, condition: exp.Expr | None, bind_query: BindQuery
) -> None:
    """Filter by the plain conjuncts, then semi join, then filter by conjuncts with subqueries."""
    plain: list[exp.Expr] = []
    memberships: list[Membership] = []
    others: list[exp.Expr] = []
    for conjunct in conjuncts(condition):
        membership = membership_of(conjunct)
        is_known = scope.added(context.text_of(bare(conjunct))) is not None
        if membership is not None and _is_joined(membership) and not is_known:
            memberships.append(membership)
        else:
            (others if conjunct.find(exp.Query) else plain).append(conjunct)
    atom = block_atom(context, scope, bind_query)
    if plain:
        filter_by(scope, Scalars(context, atom).bind(plain))
    subqueries = Subqueries(context, scope, atom, bind_query)
    marks = [mark(subqueries, m) for m in memberships if not subqueries.join(m)]
    if others or marks:
        filter_by(scope, [*marks, *Scalars(context, atom).bind(others)])


def _is_joined(membership: Membership) -> bool:
    """Return whether a conjunct may be a semi join: not if PostgreSQL computes it for each row."""
    if not membership.is_semi_join:
        return False
    is_row = any(names_whole_row(bare(side)) for side in membership.left)
    return reads_relations(membership.query) or not (is_row or reads_outside(membership.query))


def filter_by(scope: Scope, conditions: Sequence[Expression]) -> None:
    """Keep the rows of the scope's plan for which all conditions are true."""
    predicate = all_of(conditions)
    if predicate is not None:
        scope.plan = Filter(scope.plan, predicate)
