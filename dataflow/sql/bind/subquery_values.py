"""Values of subqueries inside expressions, in SQL's three-valued logic.

IN is split into two tests, so that joins can use its equality: whether there is a match, and
whether a NULL makes that unknown. Order comparisons with all values of a subquery need only the
least or greatest one. For anything else, true and unknown comparisons are counted. ARRAY(query) is
an aggregate over all its rows, recomputed in PostgreSQL after a change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlglot import exp

from dataflow.expressions.functions import has_kernel
from dataflow.expressions.ir import Call, ColumnRef, Expression, InPostgres, Literal
from dataflow.plan.nodes import Aggregate, AggregateCall, Filter, Plan, UnionAll
from dataflow.plan.outer_refs import inward
from dataflow.plan.properties.nullability import is_nullable
from dataflow.plan.trees import refs
from dataflow.schema import Field
from dataflow.sql.bind.calls import equality, native_call
from dataflow.sql.bind.record_queries import record_of
from dataflow.sql.bind.row_queries import reads_relations
from dataflow.sql.bind.scope import Context
from dataflow.sql.bind.subqueries import (
    Membership,
    Subqueries,
    all_of,
    count_of,
    is_array_query,
    is_more,
    is_row_comparison,
    is_subquery,
    membership_of,
    rows_of,
    true_if,
)
from dataflow.sql.parse.shapes import OPERATORS, bare
from dataflow.types import BOOL, TypeKind

# An order of these is the order of their extremes; NULLs aside, x < ANY (q) is x < max(q).
_EXTREMES = {"<": ("max", "min"), "<=": ("max", "min"), ">": ("min", "max"), ">=": ("min", "max")}
_UNSORTABLE = (TypeKind.OPAQUE, TypeKind.JSON)


@dataclass(frozen=True)
class _Compared:
    """Left operands, as columns of the block, and the query whose rows they are compared with."""

    sides: list[Expression]
    right: Plan
    membership: Membership


def subquery_value(
    context: Context, subqueries: Subqueries, node: exp.Expr, bind: Callable
) -> Expression | None:
    """Return the value of a node with a subquery; None for any other node.

    bind: the block's plain expressions. A subquery that reads no relation is one too: PostgreSQL
    computes it row by row.
    """
    if isinstance(node, exp.Not | exp.Paren):
        return None
    scope = subqueries.scope
    if is_subquery(node):
        if not reads_relations(node):
            return None
        value = lambda: record_of(context, subqueries, node) or subqueries.row(node.this)[0]  # noqa: E731
        return scope.once(context.text_of(node), value)
    if is_array_query(node):
        if not reads_relations(node):
            return None
        return scope.once(context.text_of(node), lambda: _array_of(context, subqueries, node))
    if is_row_comparison(node) and reads_relations(node.args["right"]):
        make = lambda: _row_comparison(subqueries, node, bind)  # noqa: E731
        return scope.once(context.text_of(node), make)
    membership = membership_of(node)
    if membership is None or not reads_relations(membership.query):
        return None
    return scope.once(context.text_of(node), lambda: mark(subqueries, membership))


def mark(subqueries: Subqueries, membership: Membership) -> Expression:
    """Return the truth value of a membership, as an expression over the block's extended plan."""
    if not membership.word:
        found = subqueries.exists(membership.query)
    else:
        sides = subqueries.sides(membership)
        compared = _Compared(sides, subqueries.bind(membership.query), membership)
        subqueries.require_alike(sides, refs(compared.right))
        found = _comparison(subqueries, compared)
    return Call("not", (found,), BOOL) if membership.is_negated else found


def _comparison(subqueries: Subqueries, compared: _Compared) -> Expression:
    if compared.membership.is_semi_join:
        return _equal_to_any(subqueries, compared)
    if len(compared.sides) == 1 and _has_extremes(compared):
        return _by_extreme(subqueries, compared)
    return _counted(subqueries, compared)


def _equal_to_any(subqueries: Subqueries, compared: _Compared) -> Expression:
    """Return whether some row equals the operands; NULL if none does, but one may."""
    right, sides = compared.right, compared.sides
    inner = [inward(s) for s in sides]
    pairs = list(zip(inner, refs(right), strict=False))
    equal = [equality(a, b) for a, b in pairs]
    found = subqueries.has_rows(Filter(right, _all(equal)))
    fields = subqueries.scope.plan.fields
    nullable_sides = [is_nullable(s, fields) for s in sides]
    nullable_columns = [f.is_nullable for f in right.fields[: len(sides)]]
    if not any(nullable_sides) and not any(nullable_columns):
        return found
    if len(sides) == 1:
        value = refs(right)[0]
        rows = rows_of(right, [count_of(None), count_of(value)])
        has_row, has_null = subqueries.beside(rows, [is_more(rows, 0, 0), _has_null(rows, 0)])
        return true_if(found, _is_open(sides[0], has_row, has_null), otherwise="f")
    # Rows with a NULL are compared with all left rows, the others only with left rows that have a
    # NULL.
    maybe = _call("is not false", _all(equal))
    null_row = _any([_is_null(b) for _, b in pairs])
    null_sides = _any([_is_null(a) for a in inner])
    parts = (
        Filter(Filter(right, null_row), maybe),
        Filter(Filter(right, _call("not", null_row)), _and(null_sides, maybe)),
    )
    return true_if(found, subqueries.has_rows(UnionAll(parts, right.fields)), otherwise="f")


def _has_extremes(compared: _Compared) -> bool:
    """Return whether the native min and max decide the comparison."""
    type = compared.right.fields[0].type
    word, types = compared.membership.word, (compared.sides[0].type, type)
    is_native = has_kernel(word, types, BOOL) and has_kernel("<", (type, type), BOOL)
    return word in _EXTREMES and is_native and type.kind is not TypeKind.BPCHAR


def _by_extreme(subqueries: Subqueries, compared: _Compared) -> Expression:
    word, is_all = compared.membership.word, compared.membership.is_all
    side, value = compared.sides[0], refs(compared.right)[0]
    function = _EXTREMES[word][is_all]
    field = Field(function, value.type)
    extreme = AggregateCall(function, value, False, None, field)
    rows = rows_of(compared.right, [extreme, count_of(None), count_of(value)])
    bound, has_row, has_null = subqueries.beside(
        rows, [refs(rows)[0], is_more(rows, 1, 0), _has_null(rows, 1)]
    )
    decided, unknown = _call(word, side, bound), _is_open(side, has_row, has_null)
    if is_all:
        return true_if(_call("not", decided), unknown, otherwise="t")
    return true_if(decided, unknown, otherwise="f")


def _counted(subqueries: Subqueries, compared: _Compared) -> Expression:
    """Return any comparison, by the number of rows that decide it and of those that make it
    unknown."""
    is_all, right = compared.membership.is_all, compared.right
    inner = [inward(s) for s in compared.sides]
    test = compare(compared.membership.word, inner, refs(right))
    decisive = _call("not", test) if is_all else test
    calls = [count_of(None, decisive), count_of(None, _call("is null", test))]
    rows = rows_of(right, calls)
    decided, unknown = subqueries.beside(rows, [is_more(rows, 0, 0), is_more(rows, 1, 0)])
    return true_if(decided, unknown, otherwise="t" if is_all else "f")


def _has_null(rows: Aggregate, position: int) -> Expression:
    """Return whether fewer values than rows were counted, from a position on."""
    count, values = refs(rows)[position : position + 2]
    return _call("<", values, count)


def _is_open(side: Expression, has_row: Expression, has_null: Expression) -> Expression:
    """Return whether a NULL in either operand makes a comparison unknown."""
    return Call("or", (_and(_is_null(side), has_row), has_null), BOOL)


def compare(word: str, left: Sequence[Expression], right: Sequence[Expression]) -> Expression:
    """Return `left word right` for values or whole rows; word: the operator as written."""
    if len(left) > 1:
        pairs = list(zip(left, right, strict=False))
        if word == "=":
            return _all([equality(a, b) for a, b in pairs])
        if word == "<>":
            return _any([_call("not", equality(a, b)) for a, b in pairs])
        n = len(left)
        rows = [", ".join(f"${i + 1}" for i in range(at, at + n)) for at in (0, n)]
        sql = f"(ROW({rows[0]}) {word} ROW({rows[1]}))"
        return InPostgres(sql, (*left, *right[:n]), BOOL)
    a, b = left[0], right[0]
    if word == "=":
        return equality(a, b)
    is_padded = TypeKind.BPCHAR in (a.type.kind, b.type.kind) and a.type.kind != b.type.kind
    function = OPERATORS.get(word)
    found = None if function is None or is_padded else native_call(function, (a, b), BOOL)
    return found if found is not None else InPostgres(f"($1 {word} $2)", (a, b), BOOL)


def _row_comparison(subqueries: Subqueries, node: exp.Expr, bind: Callable) -> Expression:
    sides = bind(list(bare(node.args["left"]).expressions))
    values = subqueries.row(bare(node.args["right"]).this)
    subqueries.require_alike(sides, values)
    return compare(node.args["word"], sides, values)


def _is_null(value: Expression) -> Expression:
    """Return whether a value is NULL; a row counts as NULL if its columns are."""
    if has_kernel("is null", (value.type,), BOOL):
        return _call("is null", value)
    return InPostgres("(num_nulls($1) = 1)", (value,), BOOL)


def _call(function: str, *arguments: Expression) -> Expression:
    return Call(function, arguments, BOOL)


def _and(*parts: Expression) -> Expression:
    return Call("and", parts, BOOL)


def _all(parts: list[Expression]) -> Expression:
    found = all_of(parts)
    assert found is not None
    return found


def _any(parts: list[Expression]) -> Expression:
    return parts[0] if len(parts) == 1 else Call("or", tuple(parts), BOOL)


def _array_of(context: Context, subqueries: Subqueries, node: exp.Expr) -> Expression:
    """Return the array, {} for no row; the query's sort keys are computed beside its one column.

    Where the query leaves the order open, the values decide: the result depends only on the rows.
    """
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
