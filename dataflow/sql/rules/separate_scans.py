"""Give each reader its own copy of cheap plans over one table.

A scan with native filters and projections has no state: each reader gets its own, so that its
filters and columns can be pushed down to the table. Every other shared plan (a WITH entry) stays
one node, computed and stored once.
"""

from __future__ import annotations

from dataflow.plan.nodes import Filter, Plan, Project, Scan, Values, fold
from dataflow.plan.trees import in_postgres
from dataflow.plan.walk import copied, with_inputs


def separate_scans(plan: Plan) -> Plan:
    """Return a plan with equal rows, in which no two nodes read the same scan."""

    def visit(node: Plan, inputs: tuple[Plan, ...]) -> Plan:
        return with_inputs(node, [_own(i) for i in inputs])

    return fold(plan, visit)


def _own(plan: Plan) -> Plan:
    return copied(plan) if _is_cheap(plan) else plan


def _is_cheap(plan: Plan) -> bool:
    if isinstance(plan, Filter):
        return not in_postgres(plan.predicate) and _is_cheap(plan.input)
    if isinstance(plan, Project):
        return not any(map(in_postgres, plan.expressions)) and _is_cheap(plan.input)
    return isinstance(plan, Scan | Values)
