"""The columns of a plan whose values follow a clock, instead of changing at some moments.

`now() - placed` has another value at each moment, for every row; `placed < now()` changes once, and
CURRENT_DATE once a day. Of the first kind are values that are computed of a clock's column by
anything but a comparison, a date, or date_trunc to a day or longer.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from dataflow.expressions.ir import (
    Call,
    ColumnRef,
    Expression,
    InPostgres,
    Literal,
    children,
    columns_of,
)
from dataflow.plan.nodes import (
    Aggregate,
    Distinct,
    Filter,
    Join,
    Plan,
    Project,
    Remember,
    Scan,
    SemiJoin,
    Shard,
    SingleRow,
    ThresholdFilter,
    TopK,
    UnionAll,
    Window,
    fold,
)
from dataflow.types import TypeKind

_AT = "at"
_DAYS = {"day", "week", "month", "quarter", "year", "decade", "century", "millennium"}


def following_columns(plan: Plan, clocks: Collection[str]) -> frozenset[int]:
    """Return the output columns that follow a clock. clocks: names of sources that are clocks."""

    def visit(node: Plan, inputs: tuple[frozenset[int], ...]) -> frozenset[int]:
        if isinstance(node, Scan):
            is_clock = node.relation.name.source in clocks
            return frozenset(
                i
                for i, column in enumerate(node.columns)
                if is_clock and node.relation.fields[column].name == _AT
            )
        if not any(inputs):
            return frozenset()
        return _following(node, inputs)

    return fold(plan, visit)


def _following(node: Plan, inputs: Sequence[frozenset[int]]) -> frozenset[int]:
    width = len(node.fields)
    below = inputs[0]
    if isinstance(node, Project):
        return _computed(node.expressions, below)
    if isinstance(node, Remember):
        own = len(node.input.fields)
        return below | {own + i for i in _computed(node.expressions, below)}
    if isinstance(node, Filter | ThresholdFilter | SemiJoin):
        return below
    if isinstance(node, Shard):
        return below | {width - 1} if below else below
    if isinstance(node, Join):
        return below | {len(node.left.fields) + i for i in inputs[1]}
    if isinstance(node, TopK):
        ordered = (k.expression for k in node.order)
        return frozenset(range(width)) if _computed([*ordered], below) else below
    if isinstance(node, Aggregate):
        groups = _computed(node.groups, below)
        if groups:
            return frozenset(range(width))
        calls = [[c.argument, *c.arguments] for c in node.calls]
        values = [[e for e in call if e is not None] for call in calls]
        return frozenset(
            len(node.groups) + i for i, call in enumerate(values) if _computed(call, below)
        )
    if isinstance(node, Window):
        keys = [*node.partition, *(k.expression for k in node.order)]
        own = len(node.input.fields)
        calls = range(len(node.calls))
        follows = bool(_computed(keys, below))
        return below | {
            own + i for i in calls if follows or _computed(node.calls[i].arguments, below)
        }
    if isinstance(node, Distinct | SingleRow | UnionAll):
        return frozenset().union(*inputs)
    return frozenset(range(width))


def _computed(expressions: Sequence[Expression], below: frozenset[int]) -> frozenset[int]:
    return frozenset(i for i, e in enumerate(expressions) if _follows(e, below))


def _follows(expression: Expression, below: frozenset[int]) -> bool:
    """Return whether a value follows a clock, given the input columns that do."""
    if isinstance(expression, ColumnRef):
        return expression.index in below
    if not (columns_of(expression) & below):
        return False
    if expression.type.kind in (TypeKind.BOOL, TypeKind.DATE):
        return False
    if isinstance(expression, InPostgres):
        return True
    if isinstance(expression, Call) and expression.function == "date_trunc":
        unit = expression.arguments[0]
        if isinstance(unit, Literal) and (unit.text or "").lower() in _DAYS:
            return False
    if isinstance(expression, Call) and expression.function == "case":
        # Conditions change at some moments, whatever they compare.
        branches = [*expression.arguments[1::2], *expression.arguments[-1:]]
        return any(_follows(e, below) for e in branches)
    return any(_follows(e, below) for e in children(expression))
