"""GROUP BY, aggregate calls, and what is written over them.

Below stands an Aggregate with the group expressions and each different call once; above, a name is
one of its columns. PostgreSQL lets a block select columns that a grouped primary key determines:
they join the group expressions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlglot import exp

from dataflow.errors import SqlError
from dataflow.expressions.ir import ColumnRef, Expression
from dataflow.expressions.keys import key_form
from dataflow.schema import Field
from dataflow.sql.nullability import is_nullable
from dataflow.sql.parse import SyntaxCall
from dataflow.sql.plan import Aggregate, AggregateCall
from dataflow.sql.scalars import Scalars, operands
from dataflow.sql.scope import Context, GroupScope, Scope
from dataflow.sql.shapes import bare
from dataflow.types import SqlType, TypeKind

_FUNCTIONS = {
    "count": "count",
    "sum": "sum",
    "avg": "avg",
    "min": "min",
    "max": "max",
    "bool_and": "bool_and",
    "bool_or": "bool_or",
    "every": "bool_and",
}
_SUMMED = {
    TypeKind.INT2,
    TypeKind.INT4,
    TypeKind.INT8,
    TypeKind.FLOAT4,
    TypeKind.FLOAT8,
    TypeKind.FIXED,
    TypeKind.DECIMAL,
    TypeKind.INTERVAL,
}


def aggregate_name(context: Context, node: exp.Expr) -> str | None:
    """The aggregate function that a node calls, None for any other node."""
    if isinstance(node, exp.Filter | exp.WithinGroup):
        return aggregate_name(context, node.this)
    if isinstance(node, exp.Anonymous):
        return node.name if node.name in context.aggregates else None
    if isinstance(node, exp.Dot):
        name = context.text_of(node).split("(")[0].replace('"', "")
        return name if name in context.aggregates else None
    return None


def find_aggregates(context: Context, nodes: Sequence[exp.Expr]) -> dict[str, exp.Expr]:
    """The aggregate calls in nodes by their text; those of subqueries are not the block's."""
    found: dict[str, exp.Expr] = {}

    def walk(node: exp.Expr) -> None:
        if aggregate_name(context, node):
            found.setdefault(context.text_of(node), node)
        elif not isinstance(node, exp.Query | exp.Subquery):
            for child in operands(node):
                walk(child)

    for node in nodes:
        walk(node)
    return found


class Grouping:
    """Builds one block's Aggregate and the scope above it."""

    def __init__(self, context: Context, scope: Scope, atom: Callable) -> None:
        self._context = context
        self._scope = scope
        self._scalars = Scalars(context, atom)

    def bind(self, groups: Sequence[exp.Expr], above: Sequence[exp.Expr]) -> GroupScope:
        """Group by `groups` for the expressions `above` (select list, HAVING)."""
        calls = find_aggregates(self._context, above)
        keys = {self._context.text_of(bare(g)): bare(g) for g in groups}
        for column in self._determined(keys, calls, above):
            keys.setdefault(self._context.text_of(column), column)
        parts = [part for node in calls.values() for part in self._parts(node)]
        bound = self._scalars.bind([*keys.values(), *parts])
        group_expressions = bound[: len(keys)]
        self._check_keys(group_expressions, "GROUP BY", ("group", "by"))
        by_node = dict(zip((id(p) for p in parts), bound[len(keys) :], strict=True))
        fields = self._scope.plan.fields
        outputs = [
            Field(_name(e, n), e.type, is_nullable(e, fields))
            for e, n in zip(group_expressions, keys.values(), strict=True)
        ]
        made = self._calls(list(calls.values()), by_node)
        outputs += [c.field for c in made]
        plan = Aggregate(self._scope.plan, tuple(group_expressions), tuple(made), tuple(outputs))
        positions = {text: i for i, text in enumerate((*keys, *calls))}
        columns = {e.index: i for i, e in enumerate(group_expressions) if isinstance(e, ColumnRef)}
        return GroupScope(plan, positions, self._scope, columns)

    def _determined(
        self, keys: dict[str, exp.Expr], calls: dict[str, exp.Expr], above: Sequence[exp.Expr]
    ) -> list[exp.Expr]:
        """Columns above that are neither grouped nor aggregated: a grouped key determines them."""
        found: list[exp.Expr] = []

        def walk(node: exp.Expr) -> None:
            if isinstance(node, exp.Query | exp.Subquery):
                return
            if "span" in node.meta and self._context.text_of(node) in {**keys, **calls}:
                return
            if isinstance(node, exp.Column):
                found.append(node)
            for child in operands(node):
                walk(child)

        for node in above:
            walk(node)
        return found

    def _calls(self, nodes: list[exp.Expr], by_node: dict[int, Expression]) -> list[AggregateCall]:
        if not nodes:
            return []
        self._scalars.prepare([part for node in nodes for part in self._parts(node)])
        types = self._context.analyzer.types(
            [c.type for c in self._scalars.columns], [self._scalars.probe(n) for n in nodes]
        )
        return [self._call(n, t, by_node) for n, t in zip(nodes, types, strict=True)]

    def _parts(self, node: exp.Expr) -> list[exp.Expr]:
        """Argument and filter of a call, refusing what is not maintained."""
        call, condition = (node, None)
        if isinstance(node, exp.Filter):
            call, condition = node.this, node.expression.this
        name = aggregate_name(self._context, call)
        is_plain = isinstance(call, exp.Anonymous) and len(call.expressions) == 1
        if name not in _FUNCTIONS or not is_plain:
            raise self._refuse_call(name or "")
        argument = call.expressions[0]
        if isinstance(argument, exp.Distinct):
            if len(argument.expressions) != 1:
                raise self._refuse_call(name)
            argument = argument.expressions[0]
        if isinstance(argument, exp.Order):
            # min(x ORDER BY y) and the like: the order does not matter to these functions.
            raise self._refuse_call(f"{name} with ORDER BY", name)
        parts = [] if isinstance(argument, exp.Star) else [argument]
        return parts + ([condition] if condition is not None else [])

    def _refuse_call(self, what: str, name: str = "") -> SqlError:
        name = name or what
        return self._context.refuse(
            f"the aggregate {what} is not maintained",
            "maintained are " + ", ".join(_FUNCTIONS),
            *name.split(".")[-1:],
        )

    def _call(self, node: exp.Expr, type: SqlType, by_node: dict[int, Expression]) -> AggregateCall:
        parts = [by_node[id(p)] for p in self._parts(node)]
        has_filter = isinstance(node, exp.Filter)
        condition = parts.pop() if has_filter else None
        argument = parts[0] if parts else None
        call = node.this if has_filter else node
        name = str(aggregate_name(self._context, call))
        function = _FUNCTIONS[name]
        is_distinct = isinstance(call.expressions[0], exp.Distinct) and function in (
            "count",
            "sum",
            "avg",
        )
        if is_distinct and argument is not None:
            self._check_keys([argument], f"{name}(DISTINCT)", (name, "(", "distinct"))
        if function in ("sum", "avg") and argument and argument.type.kind not in _SUMMED:
            raise self._refuse_call(f"{name}({argument.type.name})", name)
        field = Field(name, type, function != "count")
        return AggregateCall(function, argument, is_distinct, condition, field)

    def _check_keys(
        self, expressions: Sequence[Expression], where: str, words: tuple[str, ...]
    ) -> None:
        for expression in expressions:
            check_key(self._context, expression, where, words)


KEY_HINT = (
    "cast it to text or another type whose equality is that of its text, "
    'text under a collation by COLLATE "C"'
)


def check_key(context: Context, expression: Expression, where: str, words: tuple[str, ...]) -> None:
    """Refuse a type whose equal values cannot be told from its bytes."""
    if key_form(expression) is None:
        raise context.refuse(
            f"{shown_type(expression)} is not maintained in {where}", KEY_HINT, *words
        )


def shown_type(expression: Expression) -> str:
    """The type of an expression as refusals name it, with the column if it is one."""
    type = expression.type
    collate = "" if type.is_deterministic else f" COLLATE {type.collation}"
    column = f' of column "{expression.name}"' if isinstance(expression, ColumnRef) else ""
    return f"the type {type.name}{collate}{column}"


def _name(expression: Expression, node: exp.Expr) -> str:
    if isinstance(expression, ColumnRef):
        return expression.name
    if isinstance(node, exp.Anonymous):
        return node.name.lower()
    return node.args["word"] if isinstance(node, SyntaxCall) else "expression"
