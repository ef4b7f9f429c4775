"""EXISTS and IN (query) inside a larger expression: a column that holds their truth value.

The block is left joined with the different keys of the subquery; a match is what makes the mark
true. IN over values that may be NULL has SQL's third value: NULL where there is no match, but a
NULL among the subquery's values, or a NULL beside any value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlglot import exp

from dataflow.expressions.ir import Call, ColumnRef, Expression, Literal
from dataflow.schema import Field
from dataflow.sql.aggregates import check_key
from dataflow.sql.nullability import is_nullable
from dataflow.sql.plan import (
    Aggregate,
    AggregateCall,
    Distinct,
    Join,
    Plan,
    Project,
    SingleRow,
)
from dataflow.sql.rules.find_join_keys import equal_sides
from dataflow.sql.rules.trees import refs, shifted
from dataflow.sql.scalars import Scalars, equality, native_call
from dataflow.sql.scope import Context, NotInScope, Scope, nullable
from dataflow.sql.subqueries import (
    BindBlock,
    BindQuery,
    Block,
    Membership,
    all_of,
    membership_of,
    uncorrelated_block,
)
from dataflow.types import BOOL, INT4, INT8

Atom = Callable[[exp.Expr], ColumnRef | None]


class Marks:
    """Adds mark columns to one block's plan."""

    def __init__(self, context: Context, scope: Scope, atom: Atom) -> None:
        self._context = context
        self._scope = scope
        self._atom = atom

    def column(
        self, node: exp.Expr, bind_query: BindQuery, bind_block: BindBlock
    ) -> ColumnRef | None:
        """The mark of a node that is a membership; None for any other node."""
        membership = None if isinstance(node, exp.Not | exp.Paren) else membership_of(node)
        if membership is None:
            return None
        if self._scope.outer is not None:
            raise self._refuse("inside a correlated subquery")

        def extend(plan: Plan) -> Plan:
            # Binding the left sides may itself extend the scope's plan.
            del plan
            sides = Scalars(self._context, self._atom).bind(membership.left)
            try:
                inner = bind_query(self._context, membership.query)
                block = uncorrelated_block(len(self._scope.plan.fields), inner, sides)
            except NotInScope:
                block = self._correlated(membership, sides, bind_block)
            return self._marked(block, membership, sides)

        return self._scope.add_column(self._context.text_of(node), extend)

    def _correlated(
        self, membership: Membership, sides: Sequence[Expression], bind_block: BindBlock
    ) -> Block:
        query = membership.query.unnest()
        if not isinstance(query, exp.Select):
            raise self._refuse("correlated and not a plain SELECT,")
        try:
            block = bind_block(self._context, query, self._scope)
        except NotInScope as error:
            raise self._refuse("that reaches beyond the next block") from error
        block.conditions += [equality(a, b) for a, b in zip(sides, block.selected, strict=False)]
        return block

    def _marked(self, block: Block, membership: Membership, sides: list[Expression]) -> Plan:
        plan = self._scope.plan
        n = len(plan.fields)
        found = [equal_sides(c, n) for c in block.conditions]
        pairs = [p for p in found if p is not None]
        if len(pairs) < len(found):
            raise self._refuse("with other conditions than equality")
        keys = [shifted(right, -n) for _, right in pairs]
        for key in keys:
            check_key(self._context, key, "a subquery", ())
        fields = tuple(
            Field(f"key{i}", k.type, is_nullable(k, block.plan.fields)) for i, k in enumerate(keys)
        )
        distinct = Distinct(Project(block.plan, tuple(keys), fields))
        flagged = Project(
            distinct, (*refs(distinct), Literal("t", BOOL)), (*fields, Field("found", BOOL, False))
        )
        joined_fields = plan.fields + nullable(flagged.fields)
        conditions = [
            equality(left, ColumnRef(n + i, k.type))
            for i, ((left, _), k) in enumerate(zip(pairs, keys, strict=True))
        ]
        joined: Plan = Join("left", plan, flagged, (), (), all_of(conditions), joined_fields)
        flag = ColumnRef(n + len(keys), BOOL, "found")
        mark = _call("is not null", flag)
        if any(is_nullable(s, plan.fields) for s in sides) or (
            sides and is_nullable(keys[-1], block.plan.fields)
        ):
            joined, mark = self._with_unknown(joined, block, sides, mark)
        if membership.is_negated:
            mark = _call("not", mark)
        kept = tuple(refs(joined)[:n])
        is_unknown = is_nullable(mark, joined.fields)
        return Project(joined, (*kept, mark), (*plan.fields, Field("mark", BOOL, is_unknown)))

    def _with_unknown(
        self, joined: Plan, block: Block, sides: list[Expression], mark: Expression
    ) -> tuple[Plan, Expression]:
        """NULL where a NULL leaves it open whether there is a match."""
        if len(sides) > 1 or len(block.conditions) > 1:
            raise self._refuse("over columns that may be NULL, correlated or of several columns,")
        n = len(self._scope.plan.fields)
        value = shifted(block.selected[0], -n)
        calls = (
            AggregateCall("count", None, False, None, Field("rows", INT8, False)),
            AggregateCall("count", value, False, None, Field("values", INT8, False)),
        )
        counted = SingleRow(Aggregate(block.plan, (), calls, tuple(c.field for c in calls)))
        width = len(joined.fields)
        crossed = Join("inner", joined, counted, (), (), None, joined.fields + counted.fields)
        rows, values = ColumnRef(width, INT8, "rows"), ColumnRef(width + 1, INT8, "values")
        is_open = _call("and", _call("is null", sides[0]), _call(">", rows, Literal("0", INT4)))
        unknown = _call("or", is_open, _call("<", values, rows))
        true, false, null = Literal("t", BOOL), Literal("f", BOOL), Literal(None, BOOL)
        return crossed, _call("case", mark, true, unknown, null, false)

    def _refuse(self, which: str) -> Exception:
        return self._context.refuse(
            f"a subquery {which} inside a larger expression is not maintained",
            "write it as a conjunct of WHERE, or join the subquery in FROM",
            "(",
            "select",
        )


def _call(function: str, *arguments: Expression) -> Expression:
    found = native_call(function, arguments, BOOL)
    return found if found is not None else Call(function, arguments, BOOL)
