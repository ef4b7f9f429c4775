"""The last row up to a value of the left row: an Apply of one row becomes an as-of join.

`(SELECT price FROM b WHERE b.key = a.key AND b.ts <= a.ts ORDER BY b.ts DESC LIMIT 1)` reads the
left row in equalities and in one comparison of the value that it is ordered by. Such a right side
needs no left row to be put in order. A second comparison may bound the value from the other end
(at most so old): if the row found fails it, so do all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from dataflow.expressions.frame import NUMERIC_KINDS
from dataflow.expressions.ir import (
    Call,
    ColumnRef,
    Expression,
    Literal,
    columns_of,
    remap,
    substitute,
)
from dataflow.expressions.keys import common_key_forms
from dataflow.plan.nodes import AsOfJoin, Filter, Plan, Project, SortKey, TopK
from dataflow.plan.outer_refs import (
    OWN,
    Levels,
    OwnReads,
    may_fail_often,
    own_columns,
    placed,
)
from dataflow.plan.trees import can_substitute, conjunction, conjuncts, in_postgres, refs
from dataflow.schema import Field
from dataflow.sql.rules.one_order import MIRRORED, in_one_order
from dataflow.sql.rules.pull_conditions import Pulled, outer_key, pull_conditions
from dataflow.types import BOOL, TypeKind

_DIRECTED = {"<": True, "<=": True, ">": False, ">=": False}
# Casts that put no value before a smaller one.
_WIDENED = {TypeKind.INT2, TypeKind.INT4, TypeKind.INT8, TypeKind.FIXED, TypeKind.DECIMAL}
_NUMBERS = {*_WIDENED, TypeKind.FLOAT4, TypeKind.FLOAT8}


def find_as_of(kind: str, left: Plan, right: Plan, residual: Expression | None) -> Plan | None:
    """Return an inner or left Apply as an as-of join; None if it is not one.

    The right side reads the left row as OuterRefs of level OWN.
    """
    top = _top(right)
    if kind not in ("inner", "left") or top is None:
        return None
    if Levels().of(right) != {OWN}:
        return None
    pulled = pull_conditions(top.input, OwnReads())
    if pulled is None:
        return None
    found = _Parts.of(top, pulled)
    if found is None:
        return None
    outputs, tests = _above(right, top)
    if kind == "left" and any(map(_may_fail, [*tests, *conjuncts(residual)])):
        # For a padded row they would be computed, too.
        return None
    return _Build(kind, left, found).plan(outputs, tests, residual)


def _may_fail(condition: Expression) -> bool:
    """Return whether a condition may fail other than by overflow."""
    if isinstance(condition, Call) and condition.function in (*MIRRORED, "=", "<>"):
        return any(map(may_fail_often, condition.arguments))
    return may_fail_often(condition)


def _top(right: Plan) -> TopK | None:
    """Return the LIMIT 1 below projections and filters."""
    while isinstance(right, Project | Filter):
        right = right.input
    if not isinstance(right, TopK) or right.limit != 1 or right.offset or right.with_ties:
        return None
    return right if right.order and not right.partition else None


def _above(right: Plan, top: TopK) -> tuple[tuple[Expression, ...], list[Expression]]:
    """Return (the right side's columns, its conditions), both over the row found."""
    if right is top:
        return refs(top), []
    assert isinstance(right, Project | Filter)
    outputs, tests = _above(right.input, top)
    if isinstance(right, Project):
        return tuple(substitute(e, outputs) for e in right.expressions), tests
    return outputs, [*tests, *(substitute(c, outputs) for c in conjuncts(right.predicate))]


@dataclass
class _Parts:
    """What a right side consists of.

    outputs: the columns of the row found, over the base and the left row. keys: (operand over the
    left row, over the base) of each equality. value, threshold: the base's value and the left
    row's in one order. tests: conditions that the row found must meet, too.
    """

    base: Plan
    outputs: tuple[Expression, ...]
    order: list[SortKey]
    keys: list[tuple[Expression, Expression]] = field(default_factory=list)
    value: Expression | None = None
    threshold: Expression | None = None
    operator: str = ""
    tests: list[Expression] = field(default_factory=list)

    @staticmethod
    def of(top: TopK, pulled: Pulled) -> _Parts | None:
        order = [replace(k, expression=substitute(k.expression, pulled.outputs)) for k in top.order]
        if any(own_columns(k.expression) or may_fail_often(k.expression) for k in order):
            return None
        if order[0].operator:
            return None
        parts = _Parts(pulled.base, pulled.outputs, order)
        if not all(parts._take(condition) for condition in pulled.conditions):
            return None
        return parts if parts.value is not None else None

    def _take(self, condition: Expression) -> bool:
        """Take a condition in; return False if an as-of join does not have it."""
        if _may_fail(condition):
            return False
        sides = outer_key(condition)
        if sides is not None:
            forms = common_key_forms(*sides)
            if forms is not None:
                self.keys.append(forms)
            return forms is not None
        compared = _compared(condition)
        if compared is None:
            return False
        own, operator, threshold = compared
        first = self.order[0]
        if not _follows(own, first.expression):
            return False
        if first.is_descending != _DIRECTED[operator]:
            self.tests.append(condition)
            return True
        forms = in_one_order(own, threshold) or _as_numbers(own, threshold)
        if forms is None or self.value is not None:
            return False
        (self.value, self.threshold), self.operator = forms, operator
        return True


def _compared(condition: Expression) -> tuple[Expression, str, Expression] | None:
    """Return (over the base, operator, over the left row) of a comparison of these two."""
    if not isinstance(condition, Call) or condition.function not in MIRRORED:
        return None
    a, b = condition.arguments
    for own, operator, other in ((a, condition.function, b), (b, MIRRORED[condition.function], a)):
        if not own_columns(own) and columns_of(own):
            is_outer = own_columns(other) and not columns_of(other)
            return (own, operator, other) if is_outer else None
    return None


def _as_numbers(a: Expression, b: Expression) -> tuple[Expression, Expression] | None:
    """Return two numerics in a common form."""
    return common_key_forms(a, b) if {a.type.kind, b.type.kind} <= NUMERIC_KINDS else None


def _follows(value: Expression, ordered: Expression) -> bool:
    """Return whether the order of one expression is also an order of the other's values."""
    if value == ordered:
        return True
    if not isinstance(value, Call) or value.function != "cast":
        return False
    (inner,) = value.arguments
    is_wider = inner.type.kind in _WIDENED and value.type.kind in _NUMBERS
    return is_wider and value.type.typmod < 0 and _follows(inner, ordered)


class _Build:
    """An as-of join and what is computed of its rows."""

    def __init__(self, kind: str, left: Plan, parts: _Parts) -> None:
        assert parts.threshold is not None
        self._kind = kind
        self._parts = parts
        self._own = refs(left)
        self._fields = left.fields
        keys = [placed(e, 0) for e in (*(outer for outer, _ in parts.keys), parts.threshold)]
        if any(map(in_postgres, keys)):
            # What has to be remembered of a row is computed by a projection.
            fields = tuple(Field(f"value {i}", e.type) for i, e in enumerate(keys))
            left = Project(left, (*self._own, *keys), (*left.fields, *fields))
            keys = list(refs(left)[len(self._own) :])
        self._left = left
        self._keys = keys
        # The right input's columns: those that the row found shows come first, and break ties.
        self._shown: list[Expression] = [e for e in parts.outputs if isinstance(e, ColumnRef)]

    def plan(
        self,
        outputs: Sequence[Expression],
        tests: Sequence[Expression],
        residual: Expression | None,
    ) -> Plan | None:
        """Return the rows of the Apply; None if PostgreSQL would have to read computed columns.

        outputs and tests: over the columns of the row found.
        """
        parts, width = self._parts, len(self._left.fields)
        right_keys = tuple(self._column(e) for _, e in parts.keys)
        order = self._order()
        row = (*self._own, *map(self._over_row, parts.outputs))
        above = [placed(e, len(self._own)) for e in (*outputs, *tests)]
        if not all(can_substitute(e, row) for e in above):
            return None
        made = [substitute(e, row) for e in above]
        shown, conditions = made[: len(outputs)], made[len(outputs) :]
        conditions += map(self._over_row, parts.tests)
        if residual is not None:
            if not can_substitute(residual, (*self._own, *shown)):
                return None
            conditions += conjuncts(substitute(residual, (*self._own, *shown)))
        is_plain = all(isinstance(e, ColumnRef) and e.index >= width for e in shown)
        if self._kind == "left" and not is_plain:
            flag = self._column(Literal("t", BOOL))
            conditions.insert(0, replace(flag, index=flag.index + width))
        return self._output(self._joined(right_keys, order), shown, conditions)

    def _order(self) -> tuple[SortKey, ...]:
        parts = self._parts
        assert parts.value is not None
        order = [replace(k, expression=self._column(k.expression)) for k in parts.order]
        value = self._column(parts.value)
        if value != order[0].expression:
            order.insert(0, replace(order[0], expression=value))
        return tuple(order)

    def _joined(self, right_keys: tuple[Expression, ...], order: tuple[SortKey, ...]) -> AsOfJoin:
        base, left = self._parts.base, self._left
        fields = tuple(
            base.fields[e.index] if isinstance(e, ColumnRef) else Field(f"value {i}", e.type)
            for i, e in enumerate(self._shown)
        )
        right = Project(base, tuple(self._shown), fields)
        if self._kind == "left":
            fields = tuple(Field(f.name, f.type) for f in fields)
        return AsOfJoin(
            self._kind,
            left,
            right,
            tuple(self._keys[:-1]),
            right_keys,
            self._keys[-1],
            self._parts.operator,
            order,
            left.fields + fields,
        )

    def _column(self, expression: Expression) -> ColumnRef:
        """Return the column of the right input that has this expression over the base."""
        if expression not in self._shown:
            self._shown.append(expression)
        name = expression.name if isinstance(expression, ColumnRef) else "value"
        return ColumnRef(self._shown.index(expression), expression.type, name)

    def _over_row(self, expression: Expression) -> Expression:
        """Return an expression over the base and the left row, over the joined row instead."""
        base, width = refs(self._parts.base), len(self._left.fields)
        places = {i: self._column(base[i]).index + width for i in columns_of(expression)}
        return placed(remap(expression, places), 0)

    def _output(
        self, joined: AsOfJoin, shown: Sequence[Expression], conditions: Sequence[Expression]
    ) -> Plan:
        holds = conjunction(conditions)
        rows: Plan = joined
        if self._kind == "inner" and holds is not None:
            rows = Filter(joined, holds)
        elif holds is not None:
            shown = [Call("case", (holds, e, Literal(None, e.type)), e.type) for e in shown]
        fields = tuple(
            Field(e.name if isinstance(e, ColumnRef) else "value", e.type) for e in shown
        )
        return Project(rows, (*self._own, *shown), (*self._fields, *fields))
