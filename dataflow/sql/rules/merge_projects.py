"""Adjacent projections become one; an identity projection is removed.

Not if that computes an expression twice, for one reader or for two, or passes PostgreSQL anything
but columns.
"""

from __future__ import annotations

from dataclasses import replace

from dataflow.expressions.ir import children, columns_of, substitute
from dataflow.plan.nodes import Aggregate, Plan, Project, fold
from dataflow.plan.trees import can_substitute, refs
from dataflow.plan.walk import shared_nodes, with_inputs


def merge_projects(plan: Plan) -> Plan:
    """Merge projections; the root keeps its fields."""
    shared = shared_nodes(plan)
    # The shared nodes that compute something, as rewritten by the rule.
    retained: dict[int, Plan] = {}

    def visit(node: Plan, inputs: tuple[Plan, ...]) -> Plan:
        merged = _merge(with_inputs(node, inputs), retained)
        if id(node) in shared and isinstance(merged, Project) and _computes(merged):
            retained[id(merged)] = merged
        return merged

    merged = fold(plan, visit)
    if merged.fields != plan.fields:
        return Project(merged, refs(merged), plan.fields)
    return merged


def _computes(plan: Project) -> bool:
    return any(children(e) for e in plan.expressions)


def _merge(plan: Plan, retained: dict[int, Plan]) -> Plan:
    if isinstance(plan, Aggregate) and isinstance(plan.input, Project):
        return _merge_aggregate(plan, plan.input)
    if not isinstance(plan, Project):
        return plan
    below = plan.input
    if isinstance(below, Project) and id(below) not in retained and _all_fit(plan, below):
        expressions = tuple(substitute(e, below.expressions) for e in plan.expressions)
        return _merge(Project(below.input, expressions, plan.fields), retained)
    if plan.expressions == refs(below) and plan.fields == below.fields:
        return below
    return plan


def _all_fit(plan: Project, below: Project) -> bool:
    # Together they must not compute an expression of the lower projection twice.
    uses: dict[int, int] = {}
    for expression in plan.expressions:
        if not can_substitute(expression, below.expressions):
            return False
        for i, inner in enumerate(below.expressions):
            if i in columns_of(expression) and children(inner):
                uses[i] = uses.get(i, 0) + 1
    return all(n == 1 for n in uses.values())


def _merge_aggregate(plan: Aggregate, below: Project) -> Plan:
    """Group and call expressions read through a projection of plain columns."""
    if _computes(below):
        return plan
    calls = tuple(c.over(lambda e: substitute(e, below.expressions)) for c in plan.calls)
    groups = tuple(substitute(g, below.expressions) for g in plan.groups)
    return replace(plan, input=below.input, groups=groups, calls=calls)
