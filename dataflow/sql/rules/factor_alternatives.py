"""(a AND b) OR (a AND c) becomes a AND (b OR c), so that a join finds the equality a.

Valid in three-valued logic: both forms are true, false or NULL together (distributivity).
"""

from __future__ import annotations

from dataclasses import replace

from dataflow.expressions.ir import Call, Expression
from dataflow.plan.nodes import Filter, Join, Plan, SemiJoin
from dataflow.plan.trees import bottom_up, conjunction, conjuncts
from dataflow.types import BOOL


def factor_alternatives(plan: Plan) -> Plan:
    """Factor common conjuncts out of every OR that is a condition."""
    return bottom_up(plan, _factor)


def _factor(plan: Plan) -> Plan:
    if isinstance(plan, Filter):
        return Filter(plan.input, _factored(plan.predicate))
    if isinstance(plan, Join | SemiJoin) and plan.residual is not None:
        return replace(plan, residual=_factored(plan.residual))
    return plan


def _factored(predicate: Expression) -> Expression:
    parts = [p for c in conjuncts(predicate) for p in _split(c)]
    found = conjunction(parts)
    assert found is not None
    return found


def _split(part: Expression) -> list[Expression]:
    if not isinstance(part, Call) or part.function != "or":
        return [part]
    alternatives = [conjuncts(a) for a in part.arguments]
    common = [c for c in alternatives[0] if all(c in a for a in alternatives[1:])]
    if not common:
        return [part]
    rest = [conjunction([c for c in a if c not in common]) for a in alternatives]
    if any(r is None for r in rest):
        return common
    return [*common, Call("or", tuple(r for r in rest if r is not None), BOOL)]
