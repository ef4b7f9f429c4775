"""What reads one table and computes nothing costly is not shared between its readers.

A scan with native filters and projections above it keeps no state: each reader has its own, so
that its filters and its columns go down to the table. Everything else that is read in several
places (a part of a WITH list) stays one node, computed and kept once.
"""

from __future__ import annotations

from dataflow.plan.nodes import Filter, Plan, Project, Scan, Values, fold
from dataflow.plan.trees import in_postgres
from dataflow.plan.walk import copied, with_inputs


def separate_scans(plan: Plan) -> Plan:
    """Equal rows; no two nodes read the same scan."""

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
