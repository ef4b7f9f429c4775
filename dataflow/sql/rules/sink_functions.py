"""Run set-returning functions of one input of a cross join before the join.

FROM a, b, unnest(a.tags) AS t WHERE t = b.tag would cross a with b first; below the join, the
condition on the function's column can become a join key.
"""

from __future__ import annotations

from dataclasses import replace

from dataflow.expressions.ir import ColumnRef, columns_of, remap
from dataflow.plan.nodes import Join, Plan, Project, TableFunction
from dataflow.plan.trees import bottom_up
from dataflow.plan.walk import nodes_of


def sink_functions(plan: Plan) -> Plan:
    """Move every set-returning function below the cross joins that it does not depend on."""
    if not any(isinstance(node, TableFunction) for node in nodes_of(plan)):
        return plan
    return bottom_up(plan, lambda node: _sunk(node) or node)


def _sunk(plan: Plan) -> Plan | None:
    """Return the function below a cross join, and below joins over it; None if there is none."""
    join = plan.input if isinstance(plan, TableFunction) else None
    if not isinstance(plan, TableFunction) or not isinstance(join, Join):
        return None
    if join.kind != "inner" or join.left_keys:
        return None
    width, n = len(join.fields), len(join.left.fields)
    read = set().union(*(columns_of(a) for c in plan.calls for a in c.arguments))
    read |= columns_of(plan.condition) if plan.condition is not None else set()
    read = {i for i in read if i < width}
    if not read:
        return None
    if max(read) < n:
        side, other, start = join.left, join.right, 0
    elif min(read) >= n:
        side, other, start = join.right, join.left, n
    else:
        return None
    below = len(side.fields)
    # The new position of each column of the plan.
    at = {start + i: i for i in range(below)}
    at |= {width + i: below + i for i in range(len(plan.fields) - width)}
    calls = tuple(
        replace(c, arguments=tuple(remap(a, at) for a in c.arguments)) for c in plan.calls
    )
    condition = remap(plan.condition, at) if plan.condition is not None else None
    fields = side.fields + plan.fields[width:]
    here = replace(plan, input=side, calls=calls, condition=condition, fields=fields)
    sunk = _sunk(here)
    if sunk is None and join.residual is not None:
        return None
    at |= {
        i: len(fields) + position
        for position, i in enumerate(i for i in range(width) if i not in at)
    }
    residual = remap(join.residual, at) if join.residual is not None else None
    joined = Join("inner", sunk or here, other, (), (), residual, fields + other.fields)
    refs = tuple(ColumnRef(at[i], f.type, f.name) for i, f in enumerate(plan.fields))
    return Project(joined, refs, plan.fields)
