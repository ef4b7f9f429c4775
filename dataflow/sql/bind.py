"""From PostgreSQL's canonical query to a plan: one small function for each shape of query.

Every block is bound in PostgreSQL's own order: FROM, WHERE, GROUP BY, HAVING, the select list,
DISTINCT. What is not maintained is refused here by name; nothing is dropped silently but ORDER BY,
which a stored view does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlglot import exp

from dataflow.expressions.ir import ColumnRef, Expression, Literal, columns_of, remap
from dataflow.schema import Field
from dataflow.sql.aggregates import Grouping, check_key, find_aggregates
from dataflow.sql.marks import Marks
from dataflow.sql.nullability import is_nullable
from dataflow.sql.plan import Distinct, Filter, Plan, Project, UnionAll, Values
from dataflow.sql.relations import Relations, cast_to, column_atom, renamed
from dataflow.sql.scalars import Scalars
from dataflow.sql.scope import Context, GroupScope, NotInScope, Scope
from dataflow.sql.shapes import conjuncts
from dataflow.sql.subqueries import (
    Block,
    Membership,
    Memberships,
    all_of,
    membership_of,
    scalar_subquery,
)
from dataflow.types import SqlType

Atom = Callable[[exp.Expr], ColumnRef | None]
_ROW_CLAUSES = (
    ("limit", "LIMIT", "limit"),
    ("offset", "OFFSET", "offset"),
    ("fetch", "FETCH FIRST", "fetch"),
)


def bind_query(context: Context, node: exp.Expr) -> Plan:
    """The plan of a query without an outer block; NotInScope when it needs one."""
    if isinstance(node, exp.Subquery):
        refuse_row_clauses(context, node)
        return bind_query(context, node.this)
    known = dict(context.ctes)
    try:
        bind_ctes(context, node)
        if isinstance(node, exp.Select):
            return bind_select(context, node)
        if isinstance(node, exp.SetOperation):
            return bind_set_operation(context, node)
        if isinstance(node, exp.Values):
            return bind_values(context, node)
    finally:
        context.ctes = known
    raise context.refuse("this form of query is not maintained", "write one SELECT")


def bind_ctes(context: Context, node: exp.Expr) -> None:
    """Bind the WITH list; each is inlined where it is named."""
    clause = node.args.get("with_")
    if clause is None:
        return
    if clause.args.get("recursive"):
        raise context.refuse(
            "WITH RECURSIVE is not maintained", "unfold the levels that are needed", "recursive"
        )
    for cte in clause.expressions:
        plan = bind_query(context, cte.this)
        alias = cte.args["alias"]
        names = [f.name for f in plan.fields]
        given = [c.name for c in alias.args.get("columns") or []]
        names[: len(given)] = given
        context.ctes[alias.name] = (plan, tuple(names))


def bind_select(context: Context, select: exp.Select) -> Plan:
    """One block without correlation."""
    refuse_row_clauses(context, select)
    scope = bind_where(context, Scope(Relations(context, bind_query).bind(select)), select)
    scope = bind_groups(context, scope, select)
    nodes, names = selected_of(select)
    expressions = Scalars(context, block_atom(context, scope)).bind(nodes)
    plan = project(scope.plan, expressions, names)
    return bind_distinct(context, plan, select)


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
        bind_ctes(context, select)
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
    above = list(selected_of(select)[0])
    if having is not None:
        above.append(having.this)
    if group is None and having is None and not find_aggregates(context, above):
        return scope
    if group is not None:
        refuse_grouping_sets(context, group)
    grouping = Grouping(context, scope, block_atom(context, scope))
    grouped = grouping.bind(group.expressions if group else [], above)
    apply_conditions(context, grouped, having.this if having is not None else None)
    return grouped


def bind_distinct(context: Context, plan: Plan, select: exp.Select) -> Plan:
    """SELECT DISTINCT."""
    distinct = select.args.get("distinct")
    if distinct is None:
        return plan
    if distinct.args.get("on"):
        raise context.refuse(
            "DISTINCT ON is not maintained",
            "join with the maximum of each group",
            "distinct",
            "on",
        )
    return distinct_rows(context, plan, "DISTINCT", "distinct")


def distinct_rows(context: Context, plan: Plan, where: str, word: str) -> Plan:
    """Each row once, when all columns can be compared."""
    for i, f in enumerate(plan.fields):
        check_key(context, ColumnRef(i, f.type, f.name), where, (word,))
    return Distinct(plan)


def bind_set_operation(context: Context, node: exp.SetOperation) -> Plan:
    """UNION and UNION ALL."""
    refuse_row_clauses(context, node)
    if not isinstance(node, exp.Union):
        word = "intersect" if isinstance(node, exp.Intersect) else "except"
        raise context.refuse(
            f"{word.upper()} is not maintained",
            "write EXISTS" if word == "intersect" else "write NOT EXISTS",
            word,
        )
    plans = [bind_query(context, node.this), bind_query(context, node.expression)]
    types = common_types(context, [[f.type for f in p.fields] for p in plans])
    plans = [in_types(p, types, plans[0].fields) for p in plans]
    inputs = tuple(i for p in plans for i in (p.inputs if isinstance(p, UnionAll) else (p,)))
    fields = tuple(
        Field(f.name, t, any(p.fields[i].is_nullable for p in inputs))
        for i, (f, t) in enumerate(zip(plans[0].fields, types, strict=True))
    )
    union = UnionAll(inputs, fields)
    return distinct_rows(context, union, "UNION", "union") if node.args.get("distinct") else union


def bind_values(context: Context, node: exp.Values) -> Plan:
    """Constant rows."""
    rows = [list(t.expressions) if isinstance(t, exp.Tuple) else [t] for t in node.expressions]
    width = len(rows[0])

    def atom(inner: exp.Expr) -> ColumnRef | None:
        if isinstance(inner, exp.Column | exp.Subquery | exp.Query):
            raise context.refuse(
                "VALUES with anything but constants is not maintained",
                "write SELECT ... UNION ALL SELECT ...",
                "values",
            )
        return None

    bound = Scalars(context, atom).bind([cell for row in rows for cell in row])
    cells = [bound[i : i + width] for i in range(0, len(bound), width)]
    types = common_types(context, [[c.type for c in row] for row in cells])
    literals = tuple(
        tuple(constant(context, c, t) for c, t in zip(row, types, strict=True)) for row in cells
    )
    fields = tuple(
        Field(f"column{i + 1}", t, any(row[i].text is None for row in literals))
        for i, t in enumerate(types)
    )
    return Values(literals, fields)


def constant(context: Context, cell: Expression, type: SqlType) -> Literal:
    """A cell of VALUES in its column's type."""
    if isinstance(cell, Literal) and cell.type == type:
        return cell
    if not isinstance(cell, Literal):
        raise context.refuse(
            "VALUES with a row that cannot be computed is not maintained", "correct the constant"
        )
    if cell.text is None:
        return Literal(None, type)
    quoted = cell.text.replace("'", "''")
    (found,) = context.analyzer.constants([f"('{quoted}'::{cell.type.name})::{type.name}"], [type])
    if found is None:
        raise context.refuse("VALUES with a row that cannot be computed", "correct the constant")
    return found


def common_types(context: Context, rows: Sequence[Sequence[SqlType]]) -> list[SqlType]:
    """The column types of a union of rows, as PostgreSQL resolves them."""
    distinct = [list(dict.fromkeys(row[i] for row in rows)) for i in range(len(rows[0]))]
    if all(len(types) == 1 for types in distinct):
        return [types[0] for types in distinct]
    columns, probes = [], []
    for types in distinct:
        names = [f"c{len(columns) + i + 1}" for i in range(len(types))]
        columns += types
        probes.append(f"COALESCE({', '.join(names)})")
    return list(context.analyzer.types(columns, probes))


def in_types(plan: Plan, types: Sequence[SqlType], names: Sequence[Field]) -> Plan:
    """The plan with its columns cast to the given types and named as the first branch's."""
    refs = [ColumnRef(i, f.type, f.name) for i, f in enumerate(plan.fields)]
    expressions = [cast_to(r, t) for r, t in zip(refs, types, strict=True)]
    if expressions == refs:
        return renamed(plan, [f.name for f in names])
    return project(plan, expressions, [f.name for f in names])


def project(plan: Plan, expressions: Sequence[Expression], names: Sequence[str]) -> Plan:
    """The expressions under their names."""
    fields = tuple(
        Field(n, e.type, is_nullable(e, plan.fields))
        for n, e in zip(names, expressions, strict=True)
    )
    return Project(plan, tuple(expressions), fields)


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
        if isinstance(node, exp.Window):
            raise context.refuse(
                "a window function is not maintained",
                "join with an aggregate grouped by the partition",
                "over",
            )
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
    if node.args.get("windows"):
        raise context.refuse("WINDOW is not maintained", "join with an aggregate", "window")
    if node.args.get("order"):
        context.warn("ORDER BY is dropped: a stored view has no order; sort where you read it")


def refuse_grouping_sets(context: Context, group: exp.Group) -> None:
    """GROUPING SETS, CUBE and ROLLUP."""
    kinds = ((exp.GroupingSets, "grouping sets"), (exp.Cube, "cube"), (exp.Rollup, "rollup"))
    for kind, word in kinds:
        if group.find(kind):
            raise context.refuse(
                f"{word.upper()} is not maintained",
                "write one GROUP BY for each set and UNION ALL them",
                *word.split()[:1],
            )
