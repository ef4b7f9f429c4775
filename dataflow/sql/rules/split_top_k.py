"""LIMIT in two phases, for state in buckets: the first rows of each shard, and the first of those.

A row of the answer is among the first ones of its own shard, whatever the shards are, so the answer
stays the same. The one bucket of the second phase then has a bounded number of rows, and gets no
changes of the others. Not part of `rewrite`: in one process it would only cost.
"""

from __future__ import annotations

from dataclasses import replace

from dataflow.expressions.ir import ColumnRef
from dataflow.plan.nodes import Plan, Project, Recursive, Shard, TopK, fold
from dataflow.plan.walk import with_inputs
from dataflow.types import INT8

# As many buckets can share the first phase.
SHARDS = 64
# Beyond so many rows of each shard the second phase would have too many.
MOST_ROWS = 10_000


def split_top_k(plan: Plan) -> Plan:
    """Return the plan with every LIMIT of all rows in two phases."""
    return fold(plan, _split)


def is_second_phase(plan: Plan) -> bool:
    """Return whether a node gets only the first rows of each shard."""
    if not isinstance(plan, TopK) or plan.partition:
        return False
    first = below_projects(plan.input)
    return isinstance(first, TopK) and isinstance(below_projects(first.input), Shard)


def below_projects(plan: Plan) -> Plan:
    """Return the first node that is no projection."""
    return below_projects(plan.input) if isinstance(plan, Project) else plan


def _split(plan: Plan, inputs: tuple[Plan, ...]) -> Plan:
    if isinstance(plan, Recursive):
        # It is in one bucket, whatever is in it.
        return plan
    plan = with_inputs(plan, inputs)
    if not isinstance(plan, TopK) or plan.partition or plan.limit is None:
        return plan
    most = plan.limit + plan.offset
    if not 0 < most <= MOST_ROWS:
        return plan
    sharded = Shard(plan.input, SHARDS)
    number = ColumnRef(len(plan.fields), INT8, sharded.fields[-1].name)
    first = replace(plan, input=sharded, partition=(number,), limit=most, offset=0)
    columns = tuple(ColumnRef(i, f.type, f.name) for i, f in enumerate(plan.fields))
    return replace(plan, input=Project(first, columns, plan.fields))
