"""ARRAY(SELECT ...): all values of a query in one array.

An aggregate over all its rows, recomputed in PostgreSQL for what changed. Where the query leaves
the order open, the values themselves decide, so that the answer depends on the rows alone.
"""

from __future__ import annotations

from sqlglot import exp

from dataflow.expressions.ir import Call, Expression, Literal
from dataflow.schema import Field
from dataflow.sql.plan import AggregateCall
from dataflow.sql.rules.trees import refs
from dataflow.sql.scope import Context
from dataflow.sql.subqueries import Subqueries, rows_of
from dataflow.types import TypeKind

_UNSORTABLE = (TypeKind.OPAQUE, TypeKind.JSON)


def is_array_query(node: exp.Expr) -> bool:
    """Whether a node is ARRAY(query)."""
    is_array = isinstance(node, exp.Anonymous) and node.this == "ARRAY"
    return is_array and len(node.expressions) == 1 and isinstance(node.expressions[0], exp.Query)


def array_of(context: Context, subqueries: Subqueries, node: exp.Expr) -> Expression:
    """The array, {} for no row; the query's sort keys are computed beside its one column."""
    query, order = _with_sort_keys(node.expressions[0])
    right = subqueries.bind(query)
    value, *_ = columns = refs(right)
    (type,) = context.analyzer.types([value.type], ["ARRAY(SELECT c1)"])
    keys = [f"${position + 1} {_direction(part)}" for part, position in order]
    if value.type.kind not in _UNSORTABLE and not keys:
        keys.append("$1")
    keys.append('($1)::text COLLATE "C"')
    if not order:
        context.warn(
            "the order inside ARRAY(SELECT ...) is not given by the query: its values come in "
            "their own order"
        )
    sql = f"array_agg($1 ORDER BY {', '.join(keys)})"
    field = Field("array", type)
    call = AggregateCall("array_agg", None, False, None, field, tuple(columns), sql)
    rows = rows_of(right, [call])
    whole = Call("coalesce", (refs(rows)[0], Literal("{}", type)), type)
    return subqueries.beside(rows, [whole])[0]


def _with_sort_keys(query: exp.Expr) -> tuple[exp.Expr, list[tuple[exp.Ordered, int]]]:
    """The query with its sort keys as further columns, and where each then stands."""
    order = query.args.get("order")
    if order is None:
        return query, []
    parts = list(order.expressions)
    if not isinstance(query, exp.Select):
        # The only column of a set operation is all that it can be sorted by.
        return query, [(part, 0) for part in parts]
    wide = query.copy()
    for part in parts:
        wide.append("expressions", part.this.copy())
    if not any(wide.args.get(key) for key in ("limit", "offset", "fetch", "distinct")):
        wide.set("order", None)
    return wide, [(part, 1 + i) for i, part in enumerate(parts)]


def _direction(part: exp.Ordered) -> str:
    operator = part.meta.get("operator", "")
    way = f"USING {operator}" if operator else "DESC" if part.args.get("desc") else "ASC"
    return f"{way} NULLS {'FIRST' if part.args.get('nulls_first') else 'LAST'}"
