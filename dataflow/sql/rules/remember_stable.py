"""Expressions whose result may change later are computed once, in a Remember below their reader.

So a row leaves with the values that it arrived with. Results of stable functions are stored for
each row. Results of expressions with a replaceable function are stored for each combination of
arguments, as a whole (a CASE around the call decides whether it is called). Conditions of an inner
join that read both inputs become filters above it; those stored by arguments only if the join also
has keys. In other joins they stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from dataflow.errors import SqlError
from dataflow.expressions.ir import ColumnRef, Expression, InPostgres, children, columns_of
from dataflow.plan.nodes import (
    Aggregate,
    Filter,
    Join,
    Plan,
    Project,
    Remember,
    SemiJoin,
    SetOperation,
    TableFunction,
    Window,
    inputs_of,
)
from dataflow.plan.trees import (
    bottom_up,
    conjunction,
    conjuncts,
    expressions_within,
    map_expressions,
    refs,
    shifted,
)
from dataflow.schema import Field

# An input of a join, and the positions of stored results in it.
Side = tuple[Plan, Callable[[Expression], Expression | None]]


def remember_stable(plan: Plan) -> Plan:
    """Return the plan with every expression that may change in a Remember."""
    return bottom_up(bottom_up(plan, _change), _change_answers)


def _change_answers(plan: Plan) -> Plan:
    """Return the same for expressions stored by arguments."""
    inputs = inputs_of(plan)
    if isinstance(plan, Remember | SetOperation) or not inputs:
        return plan
    if isinstance(plan, Join) and plan.kind == "inner" and plan.left_keys:
        parts = conjuncts(plan.residual)
        above = [p for p in parts if _changes(p)]
        predicate = conjunction(above)
        if predicate is not None:
            rest = conjunction([p for p in parts if p not in above])
            return _change_answers(Filter(_change_answers(replace(plan, residual=rest)), predicate))
    if isinstance(plan, Join | SemiJoin):
        left, left_positions = _answers(plan.left, plan.left_keys)
        right, right_positions = _answers(plan.right, plan.right_keys)
        return _joined(plan, (left, left_positions.get), (right, right_positions.get))
    if len(inputs) != 1:
        return plan
    retained, positions = _answers(inputs[0], _unconditional(plan))
    if not positions:
        return plan
    return _over(plan, retained, lambda e: positions.get(e, e))


def _over(plan: Plan, retained: Plan, change: Callable[[Expression], Expression]) -> Plan:
    """Return the node over an input with additional columns, with its expressions changed."""
    n = len(inputs_of(plan)[0].fields)
    extra = len(retained.fields) - n
    if not extra or not isinstance(plan, Window | TableFunction):
        changed = map_expressions(plan, change, (retained,))
        if changed.fields == plan.fields:
            return changed
        return Project(changed, refs(plan), plan.fields)
    # Its own columns follow those of its input.
    own, wide = refs(plan), replace(plan, fields=(*retained.fields, *plan.fields[n:]))
    if isinstance(wide, TableFunction) and wide.condition is not None:
        wide = replace(wide, condition=_moved(wide.condition, n, extra))
    shown = (*own[:n], *(shifted(r, extra) for r in own[n:]))
    return Project(map_expressions(wide, change, (retained,)), shown, plan.fields)


def _unconditional(plan: Plan) -> Sequence[Expression]:
    """Return the expressions of a node that are computed for every row of its input."""
    found = expressions_within(plan)
    calls = plan.calls if isinstance(plan, Aggregate | Window) else ()
    filtered = {e for call in calls if call.filter is not None for e in call.operands}
    width = len(inputs_of(plan)[0].fields)
    return [e for e in found if e not in filtered and max(columns_of(e), default=0) < width]


def _answers(
    plan: Plan, expressions: Sequence[Expression]
) -> tuple[Plan, dict[Expression, Expression]]:
    """Return the plan with the results of expressions that may change, and their positions."""
    positions: dict[Expression, Expression] = {}
    for e in dict.fromkeys(expressions):
        if _changes(e) and columns_of(e):
            field = Field(f"answer {len(positions)}", e.type)
            positions[e] = ColumnRef(len(plan.fields), e.type, field.name)
            plan = Remember(plan, (e,), (*plan.fields, field), by_arguments=True)
    return plan, positions


def _changes(expression: Expression | None) -> bool:
    if isinstance(expression, InPostgres) and expression.may_change:
        return True
    return expression is not None and any(map(_changes, children(expression)))


def _change(plan: Plan) -> Plan:
    if isinstance(plan, Remember) or not any(map(_stable_in, expressions_within(plan))):
        return plan
    if isinstance(plan, Join) and plan.kind == "inner" and _stable_in(plan.residual):
        parts = conjuncts(plan.residual)
        above = [p for p in parts if _stable_in(p)]
        rest = conjunction([p for p in parts if p not in above])
        predicate = conjunction(above)
        assert predicate is not None
        return _change(Filter(_change(replace(plan, residual=rest)), predicate))
    if isinstance(plan, Join | SemiJoin):
        return _join(plan)
    (below,) = inputs_of(plan)
    stable = _all_stable(expressions_within(plan))
    retained, positions = _remembered(below, stable)
    return _over(plan, retained, lambda e: _replaced(e, positions))


def _join(plan: Join | SemiJoin) -> Plan:
    """Put stable keys, each over one input, into a Remember there."""
    if _stable_in(plan.residual):
        raise SqlError(
            "sql.not_maintained",
            "a stable function in the condition of an outer join or subquery is not maintained",
            hint="compute it in a subquery of FROM, or declare the function IMMUTABLE",
        )
    left, left_positions = _remembered(plan.left, _all_stable(plan.left_keys))
    right, right_positions = _remembered(plan.right, _all_stable(plan.right_keys))
    return _joined(plan, (left, left_positions.get), (right, right_positions.get))


def _joined(plan: Join | SemiJoin, left_side: Side, right_side: Side) -> Plan:
    """Return the join over inputs that may have additional columns, which its keys read."""
    (left, left_stored), (right, right_stored) = left_side, right_side
    if left is plan.left and right is plan.right:
        return plan
    n, width = len(plan.left.fields), len(plan.right.fields)
    left_keys = tuple(_rebuilt(k, left_stored) for k in plan.left_keys)
    right_keys = tuple(_rebuilt(k, right_stored) for k in plan.right_keys)
    extra = len(left.fields) - n
    residual = plan.residual
    if residual is not None and extra:
        residual = _moved(residual, n, extra)
    if isinstance(plan, SemiJoin):
        joined: Plan = SemiJoin(plan.kind, left, right, left_keys, right_keys, residual)
        return joined if not extra else Project(joined, refs(plan), plan.fields)
    fields = (*plan.fields[:n], *_nullable(left, n), *plan.fields[n:], *_nullable(right, width))
    joined = Join(plan.kind, left, right, left_keys, right_keys, residual, fields)
    own = refs(plan)
    shown = (*own[:n], *(shifted(r, extra) for r in own[n:]))
    return Project(joined, shown, plan.fields)


def _nullable(plan: Plan, start: int) -> tuple[Field, ...]:
    return tuple(Field(f.name, f.type) for f in plan.fields[start:])


def _moved(residual: Expression, n: int, extra: int) -> Expression:
    def shifted(expression: Expression) -> Expression | None:
        if not isinstance(expression, ColumnRef) or expression.index < n:
            return None
        return replace(expression, index=expression.index + extra)

    return _rebuilt(residual, shifted)


def _remembered(
    plan: Plan, stable: Sequence[InPostgres]
) -> tuple[Plan, dict[Expression, ColumnRef]]:
    if not stable:
        return plan, {}
    n = len(plan.fields)
    fields = tuple(Field(f"kept {i}", e.type) for i, e in enumerate(stable))
    positions: dict[Expression, ColumnRef] = {
        e: ColumnRef(n + i, e.type, f.name)
        for i, (e, f) in enumerate(zip(stable, fields, strict=True))
    }
    return Remember(plan, tuple(stable), (*plan.fields, *fields)), positions


def _replaced(expression: Expression, positions: dict[Expression, ColumnRef]) -> Expression:
    return _rebuilt(expression, positions.get)


def _rebuilt(expression: Expression, position) -> Expression:
    """Return the expression with each subtree replaced that `position` finds."""
    found = position(expression)
    if found is not None:
        return found
    arguments = children(expression)
    changed = tuple(_rebuilt(a, position) for a in arguments)
    return expression if changed == arguments else replace(expression, arguments=changed)  # type: ignore[call-arg]


def _all_stable(expressions: Sequence[Expression]) -> list[InPostgres]:
    found = [s for e in expressions for s in _stables(e)]
    return list(dict.fromkeys(s for s in found if columns_of(s)))


def _stables(expression: Expression) -> list[InPostgres]:
    if isinstance(expression, InPostgres) and expression.is_stable:
        return [expression]
    return [s for child in children(expression) for s in _stables(child)]


def _stable_in(expression: Expression | None) -> bool:
    return expression is not None and bool(_stables(expression))
