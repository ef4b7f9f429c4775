"""Remove every Apply: an equivalent plan without outer references.

Inner ones first. A right side of one row, the last one up to a left row's value, becomes an as-of
join. If only conditions read the left row, the Apply becomes a join. If conditions
equate inner columns to outer ones, everything is grouped by those. Otherwise the right side is
evaluated for all distinct left rows at once, and joined back. Rows are distinct by text: an
expression may distinguish values that are equal by `=`, such as 1.5 and 1.50.
"""

from __future__ import annotations

from dataclasses import replace

from dataflow.expressions.ir import (
    Call,
    ColumnRef,
    Expression,
    Literal,
    substitute,
)
from dataflow.expressions.keys import key_form
from dataflow.plan.nodes import (
    Aggregate,
    Apply,
    Distinct,
    Filter,
    Join,
    Plan,
    Project,
    SemiJoin,
    TableFunction,
    TopK,
    UnionAll,
    inputs_of,
    scans_of,
)
from dataflow.plan.outer_refs import OwnReads, may_fail, moved, own_columns, placed
from dataflow.plan.properties.one_row import has_one_row
from dataflow.plan.trees import (
    bottom_up,
    conjunction,
    conjuncts,
    map_expressions,
    refs,
    shifted,
)
from dataflow.schema import Field
from dataflow.sql.rules.carry import (
    CannotCarry,
    CarryKeys,
    CarryRows,
    without_not_in,
)
from dataflow.sql.rules.empty_groups import over_empty
from dataflow.sql.rules.find_as_of import find_as_of
from dataflow.sql.rules.pull_conditions import Pulled, is_unit, pull_conditions
from dataflow.types import BOOL, TEXT

_SEMI = ("semi", "anti")


def decorrelate(plan: Plan) -> Plan:
    """Return the plan without Apply."""
    return bottom_up(plan, _without_apply)


def _without_apply(plan: Plan) -> Plan:
    if not isinstance(plan, Apply):
        return plan
    solved = _Applies().solve(plan.kind, plan.left, moved(plan.right, -1), plan.residual)
    if solved.fields != plan.fields:
        return Project(solved, refs(plan), plan.fields)
    return solved


class _Applies:
    """Removes one Apply, and those that it is split into."""

    def __init__(self) -> None:
        self._reads = OwnReads()

    def solve(self, kind: str, left: Plan, right: Plan, residual: Expression | None) -> Plan:
        """Return the Apply's rows; the right side reads the left row as OuterRefs of level OWN."""
        if not self._reads(right):
            return _joined(kind, left, right, residual)
        as_of = find_as_of(kind, left, right, residual)
        if as_of is not None:
            return as_of
        if kind == "inner":
            return _filtered(self._beside(left, right), residual)
        if kind in _SEMI and residual is None:
            right = _as_existing(right)
        pulled = pull_conditions(right, self._reads)
        if pulled is not None:
            return _by_conditions(kind, left, pulled, residual)
        if kind == "left" and _top_of_one_row(right) is not None:
            return self._one_row(left, right, residual)
        return self._carried(kind, left, right, residual)

    def _beside(self, left: Plan, right: Plan) -> Plan:
        """Return each left row joined with its right rows: an inner Apply.

        Projections, filters and joins apply directly to the left rows.
        """
        n = len(left.fields)
        if not self._reads(right):
            return _joined("inner", left, right, None)
        if isinstance(right, Project) and _computes_over_totals(right):
            return self._aggregated(left, right.input, right)
        if isinstance(right, Project):
            below = self._beside(left, right.input)
            own = tuple(ColumnRef(i, f.type, f.name) for i, f in enumerate(left.fields))
            added = (placed(e, n) for e in right.expressions)
            return Project(below, (*own, *added), left.fields + right.fields)
        if isinstance(right, Filter):
            return Filter(self._beside(left, right.input), placed(right.predicate, n))
        if isinstance(right, TableFunction):
            below = self._beside(left, right.input)
            over = map_expressions(right, lambda e: placed(e, n), (below,))
            return replace(over, fields=left.fields + right.fields)
        if isinstance(right, Join) and right.kind in ("inner", "left") and not right.left_keys:
            below = self._beside(left, right.left)
            residual = placed(right.residual, n) if right.residual is not None else None
            return self.solve(right.kind, below, right.right, residual)
        if isinstance(right, SemiJoin):
            return self._beside_semi(left, right)
        if isinstance(right, UnionAll) and not scans_of(right):
            inputs = tuple(self._beside(left, i) for i in right.inputs)
            return UnionAll(inputs, left.fields + right.fields)
        if isinstance(right, Aggregate) and not right.groups:
            return self._aggregated(left, right, right)
        return self._carried("inner", left, right, None)

    def _beside_semi(self, left: Plan, right: SemiJoin) -> Plan:
        below, n = self._beside(left, right.left), len(left.fields)
        if right.kind == "not in" and self._reads(right.right):
            right = without_not_in(right)
        if right.left_keys:
            keys = tuple(placed(k, n) for k in right.left_keys)
            residual = placed(right.residual, n) if right.residual is not None else None
            return replace(right, left=below, left_keys=keys, residual=residual)
        residual = placed(right.residual, n) if right.residual is not None else None
        return self.solve(right.kind, below, right.right, residual)

    def _aggregated(self, left: Plan, plan: Plan, right: Plan) -> Plan:
        """Return aggregates of all rows, grouped by the columns equated to the left row's.

        right: the aggregate, or expressions over it.
        """
        assert isinstance(plan, Aggregate)
        carrier = CarryKeys(self._reads)
        try:
            below = carrier.carry(plan.input)
            local = carrier.local_node(plan, below)
        except CannotCarry:
            return self._carried("inner", left, right, None)
        assert isinstance(local, Aggregate)
        keys = carrier.keys(len(plan.input.fields))
        grouped = replace(local, groups=keys, fields=(*carrier.fields, *plan.fields))
        outputs = right.expressions if isinstance(right, Project) else refs(plan)
        reported = [shifted(e, len(keys)) for e in outputs]
        joined, values = over_empty(left, grouped, [placed(e, 0) for e in carrier.outer], reported)
        own = refs(joined)[: len(left.fields)]
        return Project(joined, (*own, *values), left.fields + right.fields)

    def _one_row(self, left: Plan, right: Plan, residual: Expression | None) -> Plan:
        """Return a left Apply of one row that conditions may remove: its columns are then NULL."""
        top = _top_of_one_row(right)
        assert top is not None
        n, below = len(left.fields), self._beside(left, top)
        outputs, conditions = _above(right, top)
        shown = tuple(placed(e, n) for e in outputs)
        own = refs(below)[:n]
        tests = [placed(c, n) for c in conditions]
        if residual is not None:
            tests.append(substitute(residual, (*own, *shown)))
        holds = conjunction(tests)
        if holds is not None:
            shown = tuple(_only_if(holds, e) for e in shown)
        fields = left.fields + tuple(Field(f.name, f.type) for f in right.fields)
        return Project(below, (*own, *shown), fields)

    def _carried(self, kind: str, left: Plan, right: Plan, residual: Expression | None) -> Plan:
        """Evaluate the right side for many left rows at once, and join it back to them."""
        keyed = CarryKeys(self._reads)
        try:
            carried = keyed.carry(right)
            left_keys = tuple(placed(e, 0) for e in keyed.outer)
            right_keys = keyed.keys(len(right.fields))
        except CannotCarry:
            rows, values, left_keys = _different_rows(left, self._reads.columns(right))
            carrier = CarryRows(rows, values, self._reads)
            carried = carrier.carry(right)
            right_keys = carrier.keys(len(right.fields))
        if kind in _SEMI:
            return SemiJoin(kind, left, carried, left_keys, right_keys, residual)
        n, m = len(left.fields), len(right.fields)
        shown = carried.fields
        if kind == "left":
            shown = tuple(Field(f.name, f.type) for f in shown)
        joined = Join(kind, left, carried, left_keys, right_keys, residual, left.fields + shown)
        return Project(joined, refs(joined)[: n + m], joined.fields[: n + m])


def _computes_over_totals(plan: Project) -> bool:
    """Return whether the plan computes expressions over aggregates of all rows that cannot fail for
    any group."""
    below = plan.input
    return (
        isinstance(below, Aggregate)
        and not below.groups
        and not any(own_columns(e) or may_fail(e) for e in plan.expressions)
    )


def _different_rows(
    left: Plan, columns: list[int]
) -> tuple[Plan, dict[int, Expression], tuple[Expression, ...]]:
    """Return the distinct rows of some columns of left.

    Also each column as an expression over them, and the expressions over left that distinguish
    them.
    """
    source, positions = _source(left, columns)
    keys: list[Expression] = []
    own: list[Expression] = []
    values: dict[int, Expression] = {}
    fields = []
    for at, (index, position) in enumerate(zip(columns, positions, strict=True)):
        field = left.fields[index]
        column = ColumnRef(index, field.type, field.name)
        below = replace(column, index=position)
        if not field.is_nullable and key_form(column) == column:
            keys.append(column)
            own.append(below)
            values[index] = ColumnRef(at, field.type, field.name)
        else:
            keys.append(Call("identity", (column,), TEXT))
            own.append(Call("identity", (below,), TEXT))
            values[index] = Call("value of", (ColumnRef(at, TEXT, field.name),), field.type)
        fields.append(Field(f"outer {field.name}", keys[-1].type, False))
    return Distinct(Project(source, tuple(own), tuple(fields))), values, tuple(keys)


def _source(plan: Plan, columns: list[int]) -> tuple[Plan, list[int]]:
    """Return an input plan that has the same distinct rows of these columns, and their
    positions."""
    while True:
        if isinstance(plan, Project):
            expressions = [plan.expressions[i] for i in columns]
            found = [e.index for e in expressions if isinstance(e, ColumnRef)]
            if len(found) < len(columns):
                return plan, columns
            plan, columns = plan.input, found
        elif isinstance(plan, Join) and max(columns) < len(plan.left.fields):
            is_cross = plan.kind == "inner" and plan.residual is None and not plan.left_keys
            if plan.kind != "left" and not (is_cross and has_one_row(plan.right)):
                return plan, columns
            plan = plan.left
        else:
            return plan, columns


def _joined(kind: str, left: Plan, right: Plan, residual: Expression | None) -> Plan:
    """Return a join; the left plan if the right side is one row without columns."""
    if kind in _SEMI:
        if not is_unit(right):
            return SemiJoin(kind, left, right, (), (), residual)
        holds = residual if residual is not None else Literal("t", BOOL)
        return Filter(left, holds if kind == "semi" else Call("is not true", (holds,), BOOL))
    if is_unit(right):
        return left if kind == "left" else _filtered(left, residual)
    shown = right.fields
    if kind == "left":
        shown = tuple(Field(f.name, f.type) for f in shown)
    return Join(kind, left, right, (), (), residual, left.fields + shown)


def _filtered(plan: Plan, predicate: Expression | None) -> Plan:
    return plan if predicate is None else Filter(plan, predicate)


def _by_conditions(kind: str, left: Plan, pulled: Pulled, residual: Expression | None) -> Plan:
    """Return a left, semi or anti Apply as a join on the pulled conditions."""
    n = len(left.fields)
    own = tuple(ColumnRef(i, f.type, f.name) for i, f in enumerate(left.fields))
    outputs = tuple(placed(e, n) for e in pulled.outputs)
    parts = [placed(c, n) for c in pulled.conditions]
    if residual is not None:
        parts += conjuncts(substitute(residual, (*own, *outputs)))
    on = conjunction(parts)
    if kind in _SEMI:
        return _joined(kind, left, pulled.base, on)
    base = pulled.base
    if is_unit(base):
        found = on if on is not None else Literal("t", BOOL)
        joined: Plan = left
    elif all(isinstance(e, ColumnRef) for e in pulled.outputs):
        found = None
        joined = _joined("left", left, base, on)
    else:
        # A computed column of an unmatched left row is NULL, whatever its expression gives for
        # NULLs.
        flag = Field("found", BOOL, False)
        base = Project(base, (*refs(base), Literal("t", BOOL)), (*base.fields, flag))
        joined = _joined("left", left, base, on)
        found = ColumnRef(len(joined.fields) - 1, BOOL, "found")
    shown = tuple(
        e if found is None or _is_plain(e, n, base) else _only_if(found, e) for e in outputs
    )
    fields = tuple(Field(_name(e), e.type) for e in outputs)
    return Project(joined, (*own, *shown), (*left.fields, *fields))


def _is_plain(expression: Expression, n: int, base: Plan) -> bool:
    """Return whether it is a column of the padded input."""
    return isinstance(expression, ColumnRef) and n <= expression.index < n + len(base.fields)


def _name(expression: Expression) -> str:
    return expression.name if isinstance(expression, ColumnRef) else "value"


def _only_if(condition: Expression, value: Expression) -> Expression:
    return Call("case", (condition, value, Literal(None, value.type)), value.type)


def _as_existing(right: Plan) -> Plan:
    """Return a cheaper right side that has rows exactly when the given one has."""
    while _preserves_existence(right):
        (right,) = inputs_of(right)
    return right


def _preserves_existence(plan: Plan) -> bool:
    if isinstance(plan, TopK):
        return plan.offset == 0 and plan.limit != 0
    return isinstance(plan, Project | Distinct) or (
        isinstance(plan, Aggregate) and bool(plan.groups)
    )


def _top_of_one_row(right: Plan) -> Plan | None:
    """Return the aggregate of all rows below filters and projections, which always has one row."""
    while isinstance(right, Project | Filter):
        right = right.input
    return right if isinstance(right, Aggregate) and not right.groups else None


def _above(right: Plan, top: Plan) -> tuple[tuple[Expression, ...], list[Expression]]:
    """Return (the right side's columns, its conditions), both over `top`."""
    if right is top:
        return refs(top), []
    (below,) = inputs_of(right)
    outputs, conditions = _above(below, top)
    if isinstance(right, Project):
        return tuple(substitute(e, outputs) for e in right.expressions), conditions
    assert isinstance(right, Filter)
    return outputs, [*conditions, substitute(right.predicate, outputs)]
