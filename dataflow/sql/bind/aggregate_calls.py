"""One aggregate call: its function, arguments, order and condition, and its SQL text.

A call without a native implementation is recomputed in PostgreSQL from the text made here.
Invariant: where the query leaves an order open, the text completes it by the values themselves, so
that the result depends only on the rows of the group.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from dataflow.errors import SqlError
from dataflow.expressions.ir import ColumnRef, Expression
from dataflow.expressions.keys import key_form
from dataflow.plan.aggregate_functions import aggregate_function
from dataflow.plan.nodes import SortKey
from dataflow.sql.bind.scalars import Scalars
from dataflow.sql.bind.scope import Context, edited
from dataflow.sql.bind.whole_rows import implied_name, is_record, written
from dataflow.sql.parse.canonical_form import SyntaxCall
from dataflow.sql.parse.shapes import span_of
from dataflow.types import TypeKind

_FILTER = re.compile(r"\s+FILTER\s+\(WHERE\s*$")
_JSON_CALLS = ("json_arrayagg", "json_objectagg")


@dataclass(frozen=True)
class CallShape:
    """The parts of a call. node: all of it, FILTER included; call: the function's own node.

    arguments: without DISTINCT, ORDER BY and VARIADIC around them; for WITHIN GROUP the direct
    ones. order: inside the parentheses; within: of WITHIN GROUP, None for a plain aggregate;
    is_descending: its first key.
    """

    node: exp.Expr
    call: exp.Expr
    name: str
    arguments: tuple[exp.Expr, ...]
    order: tuple[exp.Expr, ...]
    within: tuple[exp.Expr, ...] | None
    condition: exp.Expr | None
    is_distinct: bool
    is_descending: bool

    @property
    def operands(self) -> tuple[exp.Expr, ...]:
        """Every value of a row that the call reads, the condition last."""
        condition = () if self.condition is None else (self.condition,)
        return (*self.arguments, *self.order, *(self.within or ()), *condition)


def aggregate_name(context: Context, node: exp.Expr) -> str | None:
    """Return the aggregate function that a node calls, None for any other node."""
    if isinstance(node, exp.Filter | exp.WithinGroup):
        return aggregate_name(context, node.this)
    if isinstance(node, SyntaxCall):
        return node.args["word"] if node.args["word"] in _JSON_CALLS else None
    if isinstance(node, exp.Anonymous):
        return node.name if node.name in context.aggregates else None
    if isinstance(node, exp.Dot) and isinstance(node.expression, exp.Anonymous):
        name = ".".join((node.this.name, node.expression.name))
        return name if name in context.aggregates else None
    return None


def shape_of(context: Context, node: exp.Expr) -> CallShape:
    """Return the parts of an aggregate call."""
    call, condition, within, is_descending = node, None, None, False
    if isinstance(call, exp.Filter):
        condition, call = call.expression.this, call.this
    if isinstance(call, exp.WithinGroup):
        ordered = call.expression.expressions
        within, is_descending = tuple(o.this for o in ordered), bool(ordered[0].args.get("desc"))
        call = call.this
    inner = call.expression if isinstance(call, exp.Dot) else call
    arguments, order, is_distinct = list(inner.expressions), [], False
    if inner.args.get("order") is not None:
        order = list(inner.args["order"].expressions)
    if arguments and isinstance(arguments[-1], exp.Order):
        last = arguments.pop()
        order = list(last.expressions)
        arguments.append(last.this)
    if arguments and isinstance(arguments[0], exp.Distinct):
        arguments, is_distinct = list(arguments[0].expressions), True
    values = [a.this if isinstance(a, exp.Variadic) else a for a in arguments]
    return CallShape(
        node,
        call,
        str(aggregate_name(context, node)),
        tuple(v for v in values if not isinstance(v, exp.Star)),
        tuple(o.this for o in order),
        within,
        condition,
        is_distinct,
        is_descending,
    )


def type_probe(context: Context, scalars: Scalars, shape: CallShape) -> str:
    """Return the text of a call over probed columns for Analyzer.types; direct arguments are NULL
    there.

    They may name only grouped columns, and the probe has no GROUP BY.
    """
    if shape.within is None:
        return scalars.probe(shape.node)
    edits = [
        (*span_of(part), f"(NULL::{bound.type.name})" + implied_name(part, node))
        for node in shape.arguments
        for part, bound in scalars.bound_parts(node)
    ]
    others = shape.operands[len(shape.arguments) :]
    edits += [(*span_of(node), scalars.probe(node)) for node in others]
    return edited(context.text, *span_of(shape.node), edits)


@dataclass
class CallText:
    """PostgreSQL's text of a call over $1, $2 ..., and these arguments; see AggregateCall."""

    sql: str
    arguments: tuple[Expression, ...]
    direct: int
    alike: tuple[int, ...]
    is_order_open: bool
    rows_by: tuple[str, ...]


@dataclass
class CallWriter:
    """Writes the text of one call, its values replaced by arguments.

    order: that of the input rows, which follows the call's own ORDER BY.
    """

    context: Context
    scalars: Scalars
    shape: CallShape
    order: Sequence[SortKey] = ()
    arguments: list[Expression] = field(default_factory=list)

    def write(self) -> CallText:
        """Return the text, ties broken."""
        shape = self.shape
        edits: list[tuple[int, int, str]] = []
        values = shape.arguments if shape.within is not None else ()
        for node in values:
            edits += self._edits(node)
        direct = len(self.arguments)
        for node in (*shape.arguments, *shape.order, *(shape.within or ())):
            edits += self._edits(node)
        compared = shape.within or (shape.arguments if shape.is_distinct else ())
        alike = [self._number(node) for node in compared]
        is_ordered = aggregate_function(shape.name).is_ordered
        is_open = shape.within is None and not shape.is_distinct and is_ordered
        has_offset = shape.name != "json_objectagg"
        if is_open and has_offset:
            edits += self._ties()
        rows_by = self._sorted_by() if is_open and not has_offset else []
        begin, end = self._span()
        return CallText(
            edited(self.context.text, begin, end, edits),
            tuple(self.arguments),
            direct,
            tuple(dict.fromkeys(i for i in alike if i is not None and self._varies(i))),
            is_open and not shape.order and not self.order,
            tuple(rows_by),
        )

    def _span(self) -> tuple[int, int]:
        """Return the span of the call, without FILTER."""
        begin, end = span_of(self.shape.node)
        if self.shape.condition is not None:
            text = self.context.text[begin : span_of(self.shape.condition)[0]]
            found = _FILTER.search(text)
            assert found is not None, f"no FILTER in {text!r}"
            end = begin + found.start()
        return begin, end

    def _edits(self, node: exp.Expr) -> list[tuple[int, int, str]]:
        """Return edits that replace a value by its arguments; constants stay."""
        out = []
        if len(parts := self.scalars.bound_parts(node)) != 1 or parts[0][0] is not node:
            out = self.scalars.row_edits(node)
        for part, expression in parts:
            row = is_record(expression)
            text = written(expression, self._placed) if row else self._placed(expression)
            out.append((*span_of(part), text + implied_name(part, node)))
        return out

    def _placed(self, expression: Expression) -> str:
        if expression not in self.arguments:
            self.arguments.append(expression)
        return f"${self.arguments.index(expression) + 1}"

    def _number(self, node: exp.Expr) -> int | None:
        """Return the position of the argument that is the whole value."""
        parts = self.scalars.bound_parts(node)
        if len(parts) != 1 or is_record(parts[0][1]) or span_of(parts[0][0]) != span_of(node):
            return None
        return self.arguments.index(parts[0][1])

    def _varies(self, position: int) -> bool:
        """Return whether equal values of an argument may differ in their text."""
        argument = self.arguments[position]
        if argument.type.kind is TypeKind.JSON:
            return False
        reference = ColumnRef(0, argument.type)
        return key_form(reference) != reference

    def _ties(self) -> list[tuple[int, int, str]]:
        """Return the order of the rows, then the arguments as the last sort keys, each by its type
        and then by its text."""
        given = {self._text(node) for node in self.shape.order}
        keys = self._sorted_by()
        for node in self.shape.arguments:
            text = self._text(node)
            if not self.scalars.bound_parts(node):
                continue
            if text not in given and self._is_sortable(node):
                keys.append(text)
            number = self._number(node)
            if number is None or self._varies(number) or not self._is_sortable(node):
                keys.append(f'({text})::text COLLATE "C"')
        if not keys:
            return []
        _, end = self._span()
        position = self.shape.call.meta.get("order", end - 1)
        before = ", " if self.shape.order else " ORDER BY "
        return [(position, position, before + ", ".join(keys))]

    def _sorted_by(self) -> list[str]:
        """Return the order of the rows."""
        return [f"{self._placed(key.expression)} {key.direction}" for key in self.order]

    def _text(self, node: exp.Expr) -> str:
        return edited(self.context.text, *span_of(node), self._edits(node))

    def _is_sortable(self, node: exp.Expr) -> bool:
        number = self._number(node)
        if number is not None and self.arguments[number].type.kind is not TypeKind.OPAQUE:
            return self.arguments[number].type.kind is not TypeKind.JSON
        probe = f"array_agg(1 ORDER BY {self.scalars.probe(node)})"
        try:
            self.context.analyzer.types([c.type for c in self.scalars.columns], [probe])
        except SqlError:
            return False
        return True
