"""Subqueries of one block: each becomes an Apply over the block's plan, or a semi join of it.

A subquery is bound inside the block's scope, so that it may read the block's row; the rules remove
the Apply. Its value in an expression is a column of the Apply, or a call over its columns.
Invariant: it fails where PostgreSQL fails: lazily, for that row only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from sqlglot import exp

from dataflow.expressions.ir import Call, ColumnRef, Expression, Literal
from dataflow.expressions.keys import common_key_forms
from dataflow.plan.aggregate_functions import LEAST
from dataflow.plan.nodes import Aggregate, AggregateCall, Apply, Plan, Project, SemiJoin
from dataflow.plan.outer_refs import moved
from dataflow.plan.properties.nullability import is_nullable
from dataflow.plan.properties.one_row import has_at_most_one_row, has_one_row
from dataflow.plan.trees import refs
from dataflow.schema import Field
from dataflow.sql.bind.calls import equality
from dataflow.sql.bind.scalars import Scalars, operands
from dataflow.sql.bind.scope import Context, FromEntry, Scope
from dataflow.sql.parse.canonical_form import Operation, Quantified
from dataflow.sql.parse.shapes import bare
from dataflow.types import BOOL, INT8

Atom = Callable[[exp.Expr], Expression | None]


class BindQuery(Protocol):
    """Binds a query that may read rows of the enclosing scopes."""

    def __call__(self, context: Context, node: exp.Expr) -> Plan:
        """Return its plan: rows without an order."""
        ...

    def ordered(self, context: Context, node: exp.Expr) -> FromEntry:
        """Return its rows with the order that it defines, if any; columns of the plan after the
        visible ones are the sort keys."""
        ...


@dataclass(frozen=True)
class Membership:
    """[NOT] EXISTS (query), with no left side and no word, or [NOT] left word ANY | ALL (query)."""

    query: exp.Expr
    left: tuple[exp.Expr, ...]
    word: str
    is_all: bool
    is_negated: bool

    @property
    def is_semi_join(self) -> bool:
        """Whether a conjunct of this form is a semi or anti join."""
        return self.word in ("", "=") and not self.is_all


def membership_of(node: exp.Expr) -> Membership | None:
    """Return the membership test that a node is, None for any other node."""
    inner, negated = bare(node), False
    while isinstance(inner, exp.Not):
        inner, negated = bare(inner.this), not negated
    if isinstance(inner, exp.Exists):
        return Membership(inner.this, (), "", False, negated)
    if isinstance(inner, exp.In) and inner.args.get("query"):
        return Membership(inner.args["query"], _sides(inner.this), "=", False, negated)
    if not isinstance(inner, Operation) or not isinstance(inner.args["right"], Quantified):
        return None
    quantified, word = inner.args["right"], inner.args["word"]
    query = bare(quantified.this)
    if not isinstance(query, exp.Query) or inner.args.get("left") is None:
        return None
    is_all, sides = quantified.args["word"] == "all", _sides(inner.args["left"])
    if is_all and word == "<>":
        return Membership(query, sides, "=", False, not negated)
    return Membership(query, sides, word, is_all, negated)


def _sides(node: exp.Expr) -> tuple[exp.Expr, ...]:
    inner = bare(node)
    if isinstance(inner, exp.Tuple):
        return tuple(inner.expressions)
    if isinstance(inner, exp.Anonymous) and inner.this == "ROW":
        return tuple(inner.expressions)
    return (node,)


class Subqueries:
    """Binds the subqueries of one block."""

    def __init__(self, context: Context, scope: Scope, atom: Atom, bind_query: BindQuery) -> None:
        self._context = context
        self._scope = scope
        self._atom = atom
        self._bind_query = bind_query

    @property
    def scope(self) -> Scope:
        """The block's scope."""
        return self._scope

    def bind(self, query: exp.Expr) -> Plan:
        """Bind a query that may read the block's row: the right side of an Apply."""
        with self._context.inside(self._scope):
            return self._bind_query(self._context, query)

    def bind_ordered(self, query: exp.Expr) -> FromEntry:
        """Like `bind`, with the order of the query's rows."""
        with self._context.inside(self._scope):
            return self._bind_query.ordered(self._context, query)

    def sides(self, membership: Membership) -> list[Expression]:
        """Return the left operands as columns of the block's plan."""
        bound = Scalars(self._context, self._atom).bind(membership.left)
        return [self._scope.kept(e) for e in bound]

    def require_alike(self, left: Sequence[Expression], right: Sequence[Expression]) -> None:
        """Refuse a comparison with a subquery that depends on the time zone. SqlError."""
        self._context.require_alike([e.type for e in left], [e.type for e in right])

    def join(self, membership: Membership) -> bool:
        """Apply a conjunct as a semi join; return False, with no effect, if it must be a value."""
        sides = self.sides(membership)
        right = self.bind(membership.query)
        left = self._scope.plan
        n = len(left.fields)
        columns = [ColumnRef(n + i, f.type, f.name) for i, f in enumerate(right.fields)]
        pairs = list(zip(sides, columns, strict=False)) if sides else []
        self.require_alike(sides, columns)
        residual = all_of([equality(a, b) for a, b in pairs])
        has_null = any(is_nullable(e, left.fields + right.fields) for p in pairs for e in p)
        is_correlated = 0 in self._context.levels.of(right)
        if not membership.is_negated or not has_null:
            kind = "anti" if membership.is_negated else "semi"
            self._scope.plan = semi_applied(self._context, kind, left, right, residual)
            return True
        if len(pairs) > 1 and not is_correlated:
            return False
        forms = common_key_forms(sides[0], ColumnRef(0, columns[0].type, columns[0].name))
        if len(pairs) == 1 and not is_correlated and forms is not None:
            inner = moved(right, -1)
            self._scope.plan = SemiJoin("not in", left, inner, (forms[0],), (forms[1],), None)
            return True
        assert residual is not None
        maybe = Call("is not false", (residual,), BOOL)
        self._scope.plan = semi_applied(self._context, "anti", left, right, maybe)
        return True

    def exists(self, query: exp.Expr) -> Expression:
        """Return whether a query has a row."""
        return self.has_rows(self.bind(query))

    def has_rows(self, right: Plan) -> Expression:
        """Return whether the right side of an Apply has a row."""
        rows = rows_of(right, [count_of(None)])
        (found,) = self.beside(rows, [is_more(rows, 0, 0)])
        return found

    def beside(self, rows: Aggregate, expressions: Sequence[Expression]) -> list[ColumnRef]:
        """Add expressions over aggregates of all rows of a right side to each row.

        They are computed before the join: a count changes more often than a condition on it.
        """
        fields = tuple(Field("value", e.type, is_nullable(e, rows.fields)) for e in expressions)
        start = self._scope.apply("inner", Project(rows, tuple(expressions), fields))
        return [self._scope.column(start + i) for i in range(len(expressions))]

    def row(self, query: exp.Expr) -> list[Expression]:
        """Return the columns of a scalar subquery: NULLs without a row, an error with two."""
        return self.values(self.bind(query))

    def values(self, right: Plan) -> list[Expression]:
        """Return the same for the right side of an Apply."""
        width = len(right.fields)
        if has_at_most_one_row(right):
            start = self._scope.apply("inner" if has_one_row(right) else "left", right)
            return [self._scope.column(start + i) for i in range(width)]
        calls = [
            AggregateCall(LEAST, ColumnRef(i, f.type, f.name), False, None, Field(f.name, f.type))
            for i, f in enumerate(right.fields)
        ]
        rows = rows_of(right, [*calls, count_of(None)])
        *values, is_many = self.beside(rows, [*refs(rows)[:width], is_more(rows, width, 1)])
        return [Call("only row", (v, is_many), v.type) for v in values]


def rows_of(right: Plan, calls: Sequence[AggregateCall]) -> Aggregate:
    """Aggregates over all rows of a right side."""
    return Aggregate(right, (), tuple(calls), tuple(c.field for c in calls))


def is_more(rows: Aggregate, position: int, number: int) -> Expression:
    """Return whether the count at a position is above a number."""
    count = refs(rows)[position]
    return Call(">", (count, Literal(str(number), INT8)), BOOL)


def semi_applied(
    context: Context, kind: str, left: Plan, right: Plan, residual: Expression | None
) -> Plan:
    """Return a semi or anti Apply; a plain semi join if right reads none of the left rows."""
    if 0 in context.levels.of(right):
        return Apply(kind, left, right, residual, left.fields)
    return SemiJoin(kind, left, moved(right, -1), (), (), residual)


def count_of(argument: Expression | None, condition: Expression | None = None) -> AggregateCall:
    """Return count(argument) or count(*), over the rows where the condition is true."""
    name = "rows" if argument is None else "values"
    return AggregateCall("count", argument, False, condition, Field(name, INT8, False))


def all_of(conditions: Sequence[Expression]) -> Expression | None:
    """Return the conjunction, None for no condition."""
    if not conditions:
        return None
    return conditions[0] if len(conditions) == 1 else Call("and", tuple(conditions), BOOL)


def is_subquery(node: exp.Expr) -> bool:
    """Return whether a node is a scalar subquery."""
    return isinstance(node, exp.Subquery) and (
        isinstance(node.this, exp.Query | exp.Values) or is_subquery(node.this)
    )


def subquery_nodes(node: exp.Expr) -> Iterator[exp.Expr]:
    """Return the outermost nodes in an expression that are the value of a subquery."""
    is_plain = isinstance(node, exp.Not | exp.Paren)
    is_value = is_subquery(node) or membership_of(node) or is_row_comparison(node)
    if not is_plain and (is_value or is_array_query(node)):
        yield node
        return
    for child in operands(node):
        yield from subquery_nodes(child)


def is_array_query(node: exp.Expr) -> bool:
    """Return whether a node is ARRAY(query)."""
    is_array = isinstance(node, exp.Anonymous) and node.this == "ARRAY"
    return is_array and len(node.expressions) == 1 and isinstance(node.expressions[0], exp.Query)


def is_row_comparison(node: exp.Expr) -> bool:
    """Return (a, b) = (SELECT x, y ...)."""
    if not isinstance(node, Operation) or node.args.get("left") is None:
        return False
    left = bare(node.args["left"])
    is_row = isinstance(left, exp.Tuple) or (isinstance(left, exp.Anonymous) and left.this == "ROW")
    return is_row and is_subquery(bare(node.args["right"]))


def true_if(condition: Expression, unknown: Expression, *, otherwise: str) -> Expression:
    """Return the opposite of `otherwise` if the condition is true; else NULL if `unknown`; else
    `otherwise`."""
    first = Literal("f" if otherwise == "t" else "t", BOOL)
    null, last = Literal(None, BOOL), Literal(otherwise, BOOL)
    return Call("case", (condition, first, unknown, null, last), BOOL)
