"""Subqueries: conjuncts with EXISTS and IN become semi joins, scalar ones a crossed single row.

A correlated subquery is taken apart: the conditions that name the outer block become keys and
residual of the semi join, the rest stays inside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlglot import exp

from dataflow.expressions.ir import Call, ColumnRef, Expression, Literal, columns_of, remap
from dataflow.expressions.keys import common_key_forms
from dataflow.schema import Field
from dataflow.sql.nullability import is_nullable
from dataflow.sql.parse import Operation, Quantified
from dataflow.sql.plan import Aggregate, AggregateCall, Plan, Project, SemiJoin, SingleRow
from dataflow.sql.scalars import equality
from dataflow.sql.scope import Context, NotInScope, Scope
from dataflow.sql.shapes import bare
from dataflow.types import BOOL, INT8

BindQuery = Callable[[Context, exp.Expr], Plan]
BindBlock = Callable[[Context, exp.Select, Scope], "Block"]


@dataclass
class Block:
    """A correlated block: its own plan, the conditions over (outer, own) and its select list."""

    plan: Plan
    conditions: list[Expression]
    selected: list[Expression]


@dataclass(frozen=True)
class Membership:
    """A conjunct with a subquery: [NOT] EXISTS (query), or left [NOT] IN (query)."""

    query: exp.Expr
    left: tuple[exp.Expr, ...]
    is_negated: bool


def membership_of(node: exp.Expr) -> Membership | None:
    """The conjunct as a membership, None when it is a plain condition."""
    inner, negated = bare(node), False
    while isinstance(inner, exp.Not):
        inner, negated = bare(inner.this), not negated
    if isinstance(inner, exp.Exists):
        return Membership(inner.this, (), negated)
    if isinstance(inner, exp.In) and inner.args.get("query"):
        return Membership(inner.args["query"], _sides(inner.this), negated)
    if isinstance(inner, Operation) and isinstance(inner.args["right"], Quantified):
        quantified = inner.args["right"]
        pair = (inner.args["word"], quantified.args["word"])
        if isinstance(bare(quantified.this), exp.Query) and pair in (("=", "any"), ("<>", "all")):
            is_all = pair[1] == "all"
            sides = _sides(inner.args["left"])
            return Membership(bare(quantified.this), sides, negated != is_all)
    return None


def _sides(node: exp.Expr) -> tuple[exp.Expr, ...]:
    inner = bare(node)
    if isinstance(inner, exp.Tuple):
        return tuple(inner.expressions)
    if isinstance(inner, exp.Anonymous) and inner.this == "ROW":
        return tuple(inner.expressions)
    return (node,)


class Memberships:
    """Turns the memberships among a block's conjuncts into semi joins on the block's plan."""

    def __init__(self, context: Context, bind_query: BindQuery, bind_block: BindBlock) -> None:
        self._context = context
        self._bind_query = bind_query
        self._bind_block = bind_block

    def apply(
        self, scope: Scope, memberships: Sequence[tuple[Membership, list[Expression]]]
    ) -> None:
        """Add a semi join for each; the expressions are the bound left sides."""
        for membership, left in memberships:
            try:
                plan = self._bind_query(self._context, membership.query)
            except NotInScope:
                scope.plan = self._correlated(scope, membership, left)
            else:
                scope.plan = self._uncorrelated(scope.plan, plan, membership, left)

    def _uncorrelated(
        self, left: Plan, right: Plan, membership: Membership, sides: list[Expression]
    ) -> Plan:
        block = uncorrelated_block(len(left.fields), right, sides)
        return self._semi_join(left, block, membership, sides)

    def _correlated(self, scope: Scope, membership: Membership, sides: list[Expression]) -> Plan:
        query = membership.query.unnest()
        if not isinstance(query, exp.Select):
            raise self._correlation("a correlated subquery that is not a plain SELECT", "select")
        try:
            block = self._bind_block(self._context, query, scope)
        except NotInScope as error:
            raise self._correlation("a subquery that reaches beyond the next block") from error
        block.conditions += [equality(a, b) for a, b in zip(sides, block.selected, strict=False)]
        return self._semi_join(scope.plan, block, membership, sides)

    def _semi_join(
        self, left: Plan, block: Block, membership: Membership, sides: list[Expression]
    ) -> Plan:
        n = len(left.fields)
        if not membership.is_negated:
            return semi_join("semi", left, block.plan, block.conditions)
        selected = block.selected if sides else []
        fields = left.fields + block.plan.fields
        if not any(is_nullable(e, fields) for e in (*sides, *selected)):
            return semi_join("anti", left, block.plan, block.conditions)
        if len(sides) > 1 or len(block.conditions) > 1:
            raise self._context.refuse(
                "NOT IN over columns that may be NULL is maintained for one column "
                "without correlation",
                "write NOT EXISTS, or declare the columns NOT NULL",
                "not",
                "in",
            )
        left_key, right_key = sides[0], remap_right(block.selected[0], n)
        forms = common_key_forms(left_key, right_key)
        if forms is None:
            raise self._context.refuse(
                f"NOT IN between {left_key.type.name} and {right_key.type.name} is not maintained",
                "cast both sides to one type, or write NOT EXISTS",
                "not",
                "in",
            )
        return SemiJoin("not in", left, block.plan, (forms[0],), (forms[1],), None)

    def _correlation(self, what: str, *words: str) -> Exception:
        return self._context.refuse(
            f"{what} is not maintained",
            "name the outer columns in WHERE conditions of the subquery only, "
            "or join the subquery in FROM",
            *(words or ("exists",)),
        )


def uncorrelated_block(offset: int, plan: Plan, sides: Sequence[Expression]) -> Block:
    """A whole query compared with the left sides; its columns begin at `offset`."""
    columns = [ColumnRef(offset + i, f.type, f.name) for i, f in enumerate(plan.fields)]
    conditions = [equality(a, b) for a, b in zip(sides, columns, strict=False)]
    return Block(plan, conditions, list(columns))


def semi_join(kind: str, left: Plan, right: Plan, conditions: Sequence[Expression]) -> Plan:
    """Semi or anti join on conditions over (left, right); rules make keys of them."""
    residual = all_of(conditions)
    return SemiJoin(kind, left, right, (), (), residual)


def all_of(conditions: Sequence[Expression]) -> Expression | None:
    """The conjunction, None for no condition."""
    if not conditions:
        return None
    return conditions[0] if len(conditions) == 1 else Call("and", tuple(conditions), BOOL)


def remap_right(expression: Expression, offset: int) -> Expression:
    """An expression over the right side of a join as one over the right input alone."""
    return remap(expression, {i: i - offset for i in columns_of(expression)})


def scalar_subquery(
    context: Context, scope: Scope, node: exp.Expr, bind_query: BindQuery
) -> ColumnRef | None:
    """The column of a scalar subquery or EXISTS without correlation; None for other nodes.

    NotInScope for a correlated EXISTS.
    """
    is_exists = isinstance(node, exp.Exists)
    if not is_exists and not (isinstance(node, exp.Subquery) and _is_query(node)):
        return None

    def make() -> Plan:
        try:
            plan = bind_query(context, node.this)
        except NotInScope as error:
            if is_exists:
                raise
            raise context.refuse(
                "a correlated scalar subquery is not maintained",
                "group the subquery by the outer columns and join it in FROM",
                "(",
                "select",
            ) from error
        return _exists_row(plan) if is_exists else SingleRow(plan)

    return scope.add_single_row(context.text_of(node), make)


def _is_query(node: exp.Expr) -> bool:
    return isinstance(node.this, exp.Query) or (
        isinstance(node.this, exp.Subquery) and _is_query(node.this)
    )


def _exists_row(plan: Plan) -> Plan:
    """One row with one boolean: whether the plan has rows."""
    count = Field("count", INT8, False)
    counted = Aggregate(plan, (), (AggregateCall("count", None, False, None, count),), (count,))
    more = equality(ColumnRef(0, INT8, "count"), Literal("0", INT8))
    found = Call("not", (more,), BOOL)
    return SingleRow(Project(counted, (found,), (Field("exists", BOOL, False),)))
