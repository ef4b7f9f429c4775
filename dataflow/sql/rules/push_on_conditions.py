"""Conditions of an outer join's ON that read only one input filter that input first.

Only the input that may be padded: a LEFT JOIN's right-only conditions restrict the matches, its
left-only ones must not remove rows.
"""

from __future__ import annotations

from dataclasses import replace

from dataflow.expressions.ir import columns_of
from dataflow.plan.nodes import Filter, Join, Plan, SemiJoin
from dataflow.plan.trees import bottom_up, conjunction, conjuncts, shifted


def push_on_conditions(plan: Plan) -> Plan:
    """Push one-sided ON conditions into the padded input, those of semi joins into the right
    input."""
    return bottom_up(plan, _push)


def _push(plan: Plan) -> Plan:
    if isinstance(plan, SemiJoin):
        return _into_right(plan) if plan.kind != "not in" else plan
    if not isinstance(plan, Join):
        return plan
    if plan.kind == "left":
        return _into_right(plan)
    if plan.kind == "right":
        n = len(plan.left.fields)
        parts = conjuncts(plan.residual)
        mine = [p for p in parts if columns_of(p) and max(columns_of(p)) < n]
        predicate = conjunction(mine)
        if predicate is None:
            return plan
        rest = conjunction([p for p in parts if p not in mine])
        return replace(plan, left=Filter(plan.left, predicate), residual=rest)
    return plan


def _into_right(plan: Join | SemiJoin) -> Plan:
    n = len(plan.left.fields)
    parts = conjuncts(plan.residual)
    mine = [p for p in parts if columns_of(p) and min(columns_of(p)) >= n]
    predicate = conjunction([shifted(p, -n) for p in mine])
    if predicate is None:
        return plan
    rest = conjunction([p for p in parts if p not in mine])
    return replace(plan, right=Filter(plan.right, predicate), residual=rest)
