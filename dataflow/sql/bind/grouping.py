"""GROUP BY, aggregate calls, and the expressions over them.

The Aggregate has the group expressions and each distinct call once; above it, a name is one of its
columns. PostgreSQL lets a block select columns that a grouped primary key determines: they are
added to the group expressions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlglot import exp

from dataflow.errors import SqlError
from dataflow.expressions.ir import ColumnRef, Expression, Literal
from dataflow.expressions.keys import key_form
from dataflow.plan.aggregate_functions import LEAST, aggregate_function
from dataflow.plan.nodes import Aggregate, AggregateCall
from dataflow.plan.properties.nullability import is_nullable
from dataflow.schema import Field
from dataflow.sql.bind.aggregate_calls import (
    CallShape,
    CallWriter,
    aggregate_name,
    shape_of,
    type_probe,
)
from dataflow.sql.bind.call_levels import is_grouping_call, own_calls, own_columns_inside
from dataflow.sql.bind.scalars import Scalars
from dataflow.sql.bind.scope import Context, GroupScope, Scope
from dataflow.sql.bind.whole_rows import names_whole_row
from dataflow.sql.bind.window_shapes import inside_window, window_of
from dataflow.sql.parse.canonical_form import SyntaxCall
from dataflow.sql.parse.shapes import bare, operands
from dataflow.types import SqlType, TypeKind

_OPEN = "is not defined by the query: the values are sorted"
_BORROWED = (
    "is that of the sorted subquery, which PostgreSQL need not preserve here: "
    "write ORDER BY inside the aggregate"
)


def find_aggregates(
    context: Context, scope: Scope, nodes: Sequence[exp.Expr]
) -> dict[str, exp.Expr]:
    """Return the aggregate calls over the scope's rows by their text, those in subqueries
    included."""
    calls = own_calls(context, scope, nodes, lambda n: aggregate_name(context, n) is not None)
    found: dict[str, exp.Expr] = {}
    for call in calls:
        found.setdefault(context.text_of(call), call)
    return found


class Grouping:
    """Builds one block's Aggregate and the scope above it."""

    def __init__(self, context: Context, scope: Scope, atom: Callable) -> None:
        self._context = context
        self._scope = scope
        self._scalars = Scalars(context, atom)
        # Whether PostgreSQL may sort the rows itself.
        self._is_resorted = False

    @property
    def scope(self) -> Scope:
        """The scope below the groups."""
        return self._scope

    def bind(self, groups: Sequence[exp.Expr], above: Sequence[exp.Expr]) -> GroupScope:
        """Group by `groups` for the expressions `above` (select list, HAVING)."""
        calls = find_aggregates(self._context, self._scope, above)
        shapes = [shape_of(self._context, node) for node in calls.values()]
        keys = {self._context.text_of(bare(g)): bare(g) for g in groups}
        for column in self._determined(keys, calls, above):
            keys.setdefault(self._context.text_of(column), column)
        self._scalars.learn([*keys.values(), *(o for shape in shapes for o in shape.operands)])
        group_expressions = self._scalars.bind(list(keys.values()))
        self._is_resorted = bool(keys) or any(s.order or s.is_distinct for s in shapes)
        self._check_keys(group_expressions, "GROUP BY", ("group", "by"))
        fields = self._scope.plan.fields
        outputs = [
            Field(_name(e, n), e.type, is_nullable(e, fields))
            for e, n in zip(group_expressions, keys.values(), strict=True)
        ]
        made = self._calls(shapes)
        outputs += [c.field for c in made]
        plan = Aggregate(self._scope.plan, tuple(group_expressions), tuple(made), tuple(outputs))
        positions = {text: i for i, text in enumerate((*keys, *calls))}
        columns = {e.index: i for i, e in enumerate(group_expressions) if isinstance(e, ColumnRef)}
        return GroupScope(plan, positions, self._scope, columns)

    def _determined(
        self, keys: dict[str, exp.Expr], calls: dict[str, exp.Expr], above: Sequence[exp.Expr]
    ) -> list[exp.Expr]:
        """Return columns above that are neither grouped nor aggregated: a grouped key determines
        them.

        A grouped column may be written differently: PostgreSQL 18 names the relation in some
        positions.
        """
        found: list[exp.Expr] = []
        grouped = self._grouped(keys)

        def walk(node: exp.Expr) -> None:
            if isinstance(node, exp.Query | exp.Subquery) or is_grouping_call(node):
                return
            if "span" in node.meta and self._context.text_of(node) in {**keys, **calls}:
                return
            window = window_of(node)
            if window is not None:
                for part in inside_window(window):
                    walk(part)
                return
            # A column of an enclosing block is a constant here.
            if names_whole_row(node) and self._scope.shown(node.table):
                found.append(node)
            elif isinstance(node, exp.Column):
                position = self._scope.find(node.table, node.name, "")
                if position is not None and position not in grouped:
                    found.append(node)
            for child in operands(node):
                walk(child)

        for node in above:
            walk(node)
        return found + self._determined_inside(keys, calls, above)

    def _grouped(self, keys: dict[str, exp.Expr]) -> set[int | None]:
        """Return the positions of the input's columns that are keys."""
        columns = [key for key in keys.values() if isinstance(key, exp.Column)]
        return {self._scope.find(column.table, column.name, "") for column in columns}

    def _determined_inside(
        self, keys: dict[str, exp.Expr], calls: dict[str, exp.Expr], above: Sequence[exp.Expr]
    ) -> list[exp.Expr]:
        """Return the same for columns that subqueries name, which may write a grouped column
        differently."""
        texts = {*keys, *calls}
        is_known = lambda n: (  # noqa: E731
            is_grouping_call(n) or ("span" in n.meta and self._context.text_of(n) in texts)
        )
        grouped = self._grouped(keys)
        found: dict[int | None, exp.Expr] = {}
        for column in own_columns_inside(self._scope, above, is_known):
            position = self._scope.find(column.table, column.name, "")
            if position not in grouped:
                found.setdefault(position, column)
        return list(found.values())

    def _calls(self, shapes: Sequence[CallShape]) -> list[AggregateCall]:
        if not shapes:
            return []
        analyzer, columns = self._context.analyzer, [c.type for c in self._scalars.columns]
        probes = [type_probe(self._context, self._scalars, shape) for shape in shapes]
        try:
            types = analyzer.types(columns, probes)
        except SqlError as error:
            names = [shape.name for shape in shapes]
            raise self._context.refuse(
                f"an aggregate's result has no named type: {', '.join(names)}",
                "cast the rows to a named type, or aggregate their columns one by one",
                names[0].split(".")[-1],
            ) from error
        return [self._call(s, t) for s, t in zip(shapes, types, strict=True)]

    def _call(self, shape: CallShape, type: SqlType) -> AggregateCall:
        field = Field(shape.name.split(".")[-1], type, shape.name != "count")
        found = self._native(shape, field)
        if found is None:
            order = self._scope.order
            written = CallWriter(self._context, self._scalars, shape, order).write()
            if written.is_order_open:
                self._warn_of_order(shape, _OPEN)
            elif order and self._is_resorted and not shape.order:
                self._warn_of_order(shape, _BORROWED)
            condition = self._bound(shape.condition)
            found = AggregateCall(
                shape.name,
                None,
                shape.is_distinct,
                condition,
                field,
                written.arguments,
                written.sql,
                written.direct,
                written.alike,
                rows_by=written.rows_by,
            )
        return found

    def _native(self, shape: CallShape, field: Field) -> AggregateCall | None:
        """Return the natively maintained call, None if there is none."""
        known = aggregate_function(shape.name)
        function = known.kept_as or shape.name
        if known.keeps == "order":
            return self._percentile(shape, field)
        if not known.is_maintained or shape.within is not None:
            return None
        if isinstance(shape.call, SyntaxCall):
            return None
        if function == LEAST and (shape.order or self._scope.order):
            return None
        if any(isinstance(a, exp.Variadic) for a in shape.call.expressions):
            return None
        # An order has no effect, but its keys may fail; plain columns cannot.
        if any(not isinstance(self._bound(o), ColumnRef) for o in shape.order):
            return None
        arguments = [self._bound(a) for a in shape.arguments]
        if any(a is None for a in arguments):
            return None
        bound = [a for a in arguments if a is not None]
        if known.kinds is not None and any(a.type.kind not in known.kinds for a in bound):
            return None
        is_distinct = shape.is_distinct and not known.is_idempotent
        condition = self._bound(shape.condition)
        if known.keeps == "pair moments":
            if is_distinct:
                return None
            return AggregateCall(function, None, False, condition, field, tuple(bound))
        if len(bound) > 1 or (is_distinct and any(key_form(a) is None for a in bound)):
            return None
        if function == LEAST:
            self._context.warn(
                f"{self._context.text_of(shape.node)} is the least of its values by text"
            )
        argument = bound[0] if bound else None
        return AggregateCall(function, argument, is_distinct, condition, field)

    def _percentile(self, shape: CallShape, field: Field) -> AggregateCall | None:
        """Return one constant percentile, if equal values print alike."""
        fraction = self._bound(shape.arguments[0])
        value = self._bound(shape.within[0]) if shape.within else None
        if not isinstance(fraction, Literal) or fraction.type.kind is not TypeKind.FLOAT8:
            return None
        is_inside = fraction.text is not None and 0 <= float(fraction.text) <= 1
        if value is None or not is_inside:
            return None
        kind = value.type.kind
        if shape.name == "percentile_cont" and kind is not TypeKind.FLOAT8:
            return None
        reference = ColumnRef(0, value.type)
        is_native = kind is not TypeKind.OPAQUE and key_form(reference) == reference
        if not is_native and kind not in (TypeKind.FLOAT4, TypeKind.FLOAT8):
            return None
        return AggregateCall(
            shape.name,
            value,
            False,
            self._bound(shape.condition),
            field,
            fraction=float(fraction.text or 0),
            is_descending=shape.is_descending,
        )

    def _bound(self, node: exp.Expr | None) -> Expression | None:
        return None if node is None else self._scalars.bound(node)

    def _warn_of_order(self, shape: CallShape, what: str) -> None:
        text = " ".join(self._context.text_of(shape.node).split())
        self._context.warn(f"the order inside {text} {what}")

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
    """Refuse a type whose equality cannot be decided by key forms."""
    if key_form(expression) is None:
        raise context.refuse(
            f"{shown_type(expression)} is not maintained in {where}", KEY_HINT, *words
        )


def shown_type(expression: Expression) -> str:
    """Return the type of an expression for messages, with the column if it is one."""
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
