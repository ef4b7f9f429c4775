"""Equalities between the inputs of a join become its keys, in key form.

An equality without a common key form stays in the residual, as does every other condition. An
expression evaluated in PostgreSQL may be a key too: lowering computes it before the join.
"""

from __future__ import annotations

from dataclasses import replace

from dataflow.expressions.ir import Call, Expression, columns_of
from dataflow.expressions.keys import common_key_forms
from dataflow.plan.nodes import Join, Plan, SemiJoin
from dataflow.plan.trees import bottom_up, conjunction, conjuncts, shifted


def find_join_keys(plan: Plan) -> Plan:
    """Find keys for every join that has an equality between its inputs."""
    return bottom_up(plan, _find)


def _find(plan: Plan) -> Plan:
    if not isinstance(plan, Join | SemiJoin) or plan.residual is None or plan.kind == "not in":
        return plan
    n = len(plan.left.fields)
    left, right, rest = list(plan.left_keys), list(plan.right_keys), []
    for part in conjuncts(plan.residual):
        sides = equal_sides(part, n)
        forms = common_key_forms(sides[0], shifted(sides[1], -n)) if sides else None
        if forms is None:
            rest.append(part)
        elif forms not in list(zip(left, right, strict=True)):
            left.append(forms[0])
            right.append(forms[1])
    residual = conjunction(rest)
    return replace(plan, left_keys=tuple(left), right_keys=tuple(right), residual=residual)


def equal_sides(part: Expression, n: int) -> tuple[Expression, Expression] | None:
    """Return the left and right operands of an equality between columns below n and columns from n
    on."""
    if not isinstance(part, Call) or part.function != "=":
        return None
    a, b = part.arguments
    for left, right in ((a, b), (b, a)):
        own, other = columns_of(left), columns_of(right)
        if own and other and max(own) < n <= min(other):
            return left, right
    return None
