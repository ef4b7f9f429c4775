"""UNION and its kin, VALUES, and DISTINCT.

Rows of several queries meet under common types, as PostgreSQL resolves them; rows are equal as
groups are, so each column needs a key form.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from dataflow.expressions.ir import ColumnRef, Expression, Literal
from dataflow.schema import Field
from dataflow.sql.aggregates import check_key
from dataflow.sql.plan import Distinct, Plan, UnionAll, Values
from dataflow.sql.relations import cast_to, project, renamed
from dataflow.sql.row_clauses import refuse_row_clauses
from dataflow.sql.scalars import Scalars
from dataflow.sql.scope import Context
from dataflow.sql.subqueries import BindQuery
from dataflow.types import SqlType


def bind_set_operation(context: Context, node: exp.SetOperation, bind_query: BindQuery) -> Plan:
    """UNION and UNION ALL."""
    refuse_row_clauses(context, node)
    if not isinstance(node, exp.Union):
        word = "intersect" if isinstance(node, exp.Intersect) else "except"
        raise context.refuse(
            f"{word.upper()} is not maintained",
            "write EXISTS" if word == "intersect" else "write NOT EXISTS",
            word,
        )
    plans = [bind_query(context, n) for n in (node.this, node.expression)]
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


def distinct_rows(context: Context, plan: Plan, where: str, word: str) -> Plan:
    """Each row once, when all columns can be compared."""
    for i, f in enumerate(plan.fields):
        check_key(context, ColumnRef(i, f.type, f.name), where, (word,))
    return Distinct(plan)
