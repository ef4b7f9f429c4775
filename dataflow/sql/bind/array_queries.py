"""ARRAY(SELECT ...): all values of a query in one array.

An aggregate over all its rows, recomputed in PostgreSQL after a change. Where the query leaves the
order open, the values decide, so that the result depends only on the rows.
"""

from __future__ import annotations

from sqlglot import exp

from dataflow.expressions.ir import Call, ColumnRef, Expression, Literal
from dataflow.plan.nodes import AggregateCall
from dataflow.plan.trees import refs
from dataflow.schema import Field
from dataflow.sql.bind.scope import Context
from dataflow.sql.bind.subqueries import Subqueries, rows_of
from dataflow.types import TypeKind

_UNSORTABLE = (TypeKind.OPAQUE, TypeKind.JSON)


def is_array_query(node: exp.Expr) -> bool:
    """Return whether a node is ARRAY(query)."""
    is_array = isinstance(node, exp.Anonymous) and node.this == "ARRAY"
    return is_array and len(node.expressions) == 1 and isinstance(node.expressions[0], exp.Query)


def array_of(context: Context, subqueries: Subqueries, node: exp.Expr) -> Expression:
    """Return the array, {} for no row; the query's sort keys are computed beside its one column."""
    entry = subqueries.bind_ordered(node.expressions[0])
    right, order = entry.plan, entry.order
    value, *_ = columns = refs(right)
    (type,) = context.analyzer.types([value.type], ["ARRAY(SELECT c1)"])
    at = [key.expression.index for key in order if isinstance(key.expression, ColumnRef)]
    keys = [f"${i + 1} {key.direction}" for i, key in zip(at, order, strict=True)]
    if value.type.kind not in _UNSORTABLE and not keys:
        keys.append("$1")
    keys.append('($1)::text COLLATE "C"')
    if not order:
        context.warn(
            "the order inside ARRAY(SELECT ...) is not defined by the query: the values are sorted"
        )
    sql = f"array_agg($1 ORDER BY {', '.join(keys)})"
    field = Field("array", type)
    call = AggregateCall("array_agg", None, False, None, field, tuple(columns), sql)
    rows = rows_of(right, [call])
    whole = Call("coalesce", (refs(rows)[0], Literal("{}", type)), type)
    return subqueries.beside(rows, [whole])[0]
