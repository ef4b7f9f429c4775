"""UNION, INTERSECT, EXCEPT, VALUES and DISTINCT.

Rows of several queries get common types, as PostgreSQL resolves them. Rows are equal as groups are,
so each column needs a key form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlglot import exp

from dataflow.expressions.ir import ColumnRef, Expression, Literal
from dataflow.plan.nodes import Distinct, Plan, SetOperation, UnionAll, Values
from dataflow.plan.properties.nullability import is_nullable
from dataflow.schema import Field
from dataflow.sql.bind.grouping import check_key
from dataflow.sql.bind.relations import cast_to, project, renamed
from dataflow.sql.bind.scalars import Scalars
from dataflow.sql.bind.scope import Context, Scope
from dataflow.sql.bind.subqueries import BindQuery
from dataflow.types import SqlType


def bind_set_operation(context: Context, node: exp.SetOperation, bind_query: BindQuery) -> Plan:
    """Bind UNION, INTERSECT and EXCEPT, with and without ALL."""
    plans = [bind_query(context, n) for n in (node.this, node.expression)]
    types = common_types(context, [[f.type for f in p.fields] for p in plans])
    plans = [in_types(p, types, plans[0].fields) for p in plans]
    is_all = not node.args.get("distinct")
    if not isinstance(node, exp.Union):
        kind = "intersect" if isinstance(node, exp.Intersect) else "except"
        found = SetOperation(kind, is_all, plans[0], plans[1])
        _check_comparable(context, found, kind.upper(), kind)
        return found
    inputs = tuple(i for p in plans for i in (p.inputs if isinstance(p, UnionAll) else (p,)))
    fields = tuple(
        Field(f.name, t, any(p.fields[i].is_nullable for p in inputs))
        for i, (f, t) in enumerate(zip(plans[0].fields, types, strict=True))
    )
    union = UnionAll(inputs, fields)
    return union if is_all else distinct_rows(context, union, "UNION", "union")


def bind_values(
    context: Context, node: exp.Values, scope: Scope, atom: Callable[[exp.Expr], Expression | None]
) -> Plan:
    """Bind rows of expressions: constants, or expressions over the scope's one row.

    The scope is that of a FROM without entries; `atom` knows its subqueries.
    """
    rows = [list(t.expressions) if isinstance(t, exp.Tuple) else [t] for t in node.expressions]
    width = len(rows[0])
    bound = Scalars(context, atom).bind([cell for row in rows for cell in row])
    cells = [bound[i : i + width] for i in range(0, len(bound), width)]
    types = common_types(context, [[c.type for c in row] for row in cells])
    typed = [tuple(_cell(context, c, t) for c, t in zip(row, types, strict=True)) for row in cells]
    names = [f"column{i + 1}" for i in range(width)]
    if all(isinstance(c, Literal) for row in typed for c in row):
        fields = tuple(
            Field(name, t, any(is_nullable(row[i], ()) for row in typed))
            for i, (name, t) in enumerate(zip(names, types, strict=True))
        )
        return Values(tuple(typed), fields)
    branches = tuple(project(scope.plan, row, names) for row in typed)
    if len(branches) == 1:
        return branches[0]
    fields = tuple(
        Field(name, t, any(b.fields[i].is_nullable for b in branches))
        for i, (name, t) in enumerate(zip(names, types, strict=True))
    )
    return UnionAll(branches, fields)


def values_of(select: exp.Select) -> exp.Values | None:
    """Return the VALUES that a parsed SELECT without a select list represents."""
    clause = select.args.get("from_")
    is_star = [type(e) for e in select.expressions] == [exp.Star]
    if not is_star or clause is None or "span" in select.expressions[0].meta:
        return None
    if not isinstance(clause.this, exp.Values):
        return None
    for key in ("with_", "order", "limit", "offset", "locks"):
        if select.args.get(key):
            clause.this.set(key, select.args[key])
    return clause.this


def _cell(context: Context, cell: Expression, type: SqlType) -> Expression:
    """Return a cell of VALUES in its column's type; a failing constant becomes a failing row."""
    if isinstance(cell, Literal):
        return constant(context, cell, type) or cast_to(cell, type)
    return cast_to(cell, type)


def constant(context: Context, cell: Literal, type: SqlType) -> Literal | None:
    """Return a constant in its column's type; None if PostgreSQL cannot compute it."""
    if cell.type == type:
        return cell
    if cell.text is None:
        return Literal(None, type)
    quoted = cell.text.replace("'", "''")
    (found,) = context.analyzer.constants([f"('{quoted}'::{cell.type.name})::{type.name}"], [type])
    return found


def common_types(context: Context, rows: Sequence[Sequence[SqlType]]) -> list[SqlType]:
    """Return the column types of a union of rows, as PostgreSQL resolves them."""
    distinct = [list(dict.fromkeys(row[i] for row in rows)) for i in range(len(rows[0]))]
    if all(len(types) == 1 for types in distinct):
        return [types[0] for types in distinct]
    columns, probes = [], []
    for types in distinct:
        context.require_alike(types, types[1:])
        names = [f"c{len(columns) + i + 1}" for i in range(len(types))]
        columns += types
        probes.append(f"COALESCE({', '.join(names)})")
    return list(context.analyzer.types(columns, probes))


def in_types(plan: Plan, types: Sequence[SqlType], names: Sequence[Field]) -> Plan:
    """Return the plan with its columns cast to the given types and named as the first branch's."""
    refs = [ColumnRef(i, f.type, f.name) for i, f in enumerate(plan.fields)]
    expressions = [cast_to(r, t) for r, t in zip(refs, types, strict=True)]
    if expressions == refs:
        return renamed(plan, [f.name for f in names])
    return project(plan, expressions, [f.name for f in names])


def distinct_rows(context: Context, plan: Plan, where: str, word: str) -> Plan:
    """Return each row once; refuse columns that cannot be compared."""
    _check_comparable(context, plan, where, word)
    return Distinct(plan)


def _check_comparable(context: Context, plan: Plan, where: str, word: str) -> None:
    for i, f in enumerate(plan.fields):
        check_key(context, ColumnRef(i, f.type, f.name), where, (word,))
