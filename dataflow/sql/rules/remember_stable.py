"""What calls a stable function is computed once for each row, in a Remember below its reader.

So a row goes with the values that it came with. Conditions of a join that read both sides become
filters above it where the join is an inner one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dataflow.errors import SqlError
from dataflow.expressions.ir import ColumnRef, Expression, InPostgres, children, columns_of
from dataflow.schema import Field
from dataflow.sql.plan import Filter, Join, Plan, Project, Remember, SemiJoin, inputs_of
from dataflow.sql.rules.trees import (
    bottom_up,
    conjunction,
    conjuncts,
    expressions_within,
    map_expressions,
    refs,
    shifted,
)


def remember_stable(plan: Plan) -> Plan:
    """The plan with every stable expression in a Remember."""
    return bottom_up(plan, _change)


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
    kept, places = _remembered(below, stable)
    changed = map_expressions(plan, lambda e: _replaced(e, places), (kept,))
    if changed.fields == plan.fields:
        return changed
    return Project(changed, refs(plan), plan.fields)


def _join(plan: Join | SemiJoin) -> Plan:
    """Stable keys, each over one side, in a Remember there."""
    if _stable_in(plan.residual):
        raise SqlError(
            "sql.not_maintained",
            "a stable function in the condition of an outer join or subquery is not maintained",
            hint="compute it in a subquery of FROM, or declare the function IMMUTABLE",
        )
    n, width = len(plan.left.fields), len(plan.right.fields)
    left, left_places = _remembered(plan.left, _all_stable(plan.left_keys))
    right, right_places = _remembered(plan.right, _all_stable(plan.right_keys))
    left_keys = tuple(_replaced(k, left_places) for k in plan.left_keys)
    right_keys = tuple(_replaced(k, right_places) for k in plan.right_keys)
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
    def place(expression: Expression) -> Expression | None:
        if not isinstance(expression, ColumnRef) or expression.index < n:
            return None
        return replace(expression, index=expression.index + extra)

    return _rebuilt(residual, place)


def _remembered(
    plan: Plan, stable: Sequence[InPostgres]
) -> tuple[Plan, dict[Expression, ColumnRef]]:
    if not stable:
        return plan, {}
    n = len(plan.fields)
    fields = tuple(Field(f"kept {i}", e.type) for i, e in enumerate(stable))
    places: dict[Expression, ColumnRef] = {
        e: ColumnRef(n + i, e.type, f.name)
        for i, (e, f) in enumerate(zip(stable, fields, strict=True))
    }
    return Remember(plan, tuple(stable), (*plan.fields, *fields)), places


def _replaced(expression: Expression, places: dict[Expression, ColumnRef]) -> Expression:
    return _rebuilt(expression, places.get)


def _rebuilt(expression: Expression, place) -> Expression:
    """The expression with every subtree that `place` knows replaced by its answer."""
    found = place(expression)
    if found is not None:
        return found
    arguments = children(expression)
    changed = tuple(_rebuilt(a, place) for a in arguments)
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
