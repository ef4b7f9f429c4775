"""Aggregates of all rows in two phases, for state in buckets: `min`, `max` and `count(DISTINCT x)`.

Without GROUP BY an aggregate is in one bucket. The extremes of 64 shards, and the distinct values,
are spread over all, and the one bucket gets only what changes among those. Other calls beside them
become an aggregate of their own: each has one row, and these are joined. Not part of `rewrite`: in
one process it would only cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dataflow.expressions.ir import ColumnRef, Expression
from dataflow.plan.nodes import (
    Aggregate,
    AggregateCall,
    Distinct,
    Join,
    Plan,
    Project,
    Recursive,
    Shard,
    fold,
)
from dataflow.plan.outer_refs import may_fail
from dataflow.plan.walk import with_inputs
from dataflow.schema import Field
from dataflow.sql.rules.split_top_k import SHARDS, below_projects
from dataflow.types import INT8

_EXTREMES = ("min", "max")


def split_aggregates(plan: Plan) -> Plan:
    """Return the plan with every such aggregate of all rows in two phases."""
    return fold(plan, _split)


def gets_few_rows(plan: Plan) -> bool:
    """Return whether a node gets only the extremes of each shard, or rows of such aggregates."""
    if isinstance(plan, Join):
        return _has_one_row(plan.left) and _has_one_row(plan.right)
    if type(plan) is not Aggregate or plan.groups:
        return False
    first = below_projects(plan.input)
    return isinstance(first, Aggregate) and isinstance(below_projects(first.input), Shard)


def _has_one_row(plan: Plan) -> bool:
    plan = below_projects(plan)
    if isinstance(plan, Join):
        return _has_one_row(plan.left) and _has_one_row(plan.right)
    return type(plan) is Aggregate and not plan.groups


def _split(plan: Plan, inputs: tuple[Plan, ...]) -> Plan:
    if isinstance(plan, Recursive):
        # It is in one bucket, whatever is in it.
        return plan
    plan = with_inputs(plan, inputs)
    if type(plan) is not Aggregate or plan.groups or not plan.calls:
        return plan
    parts = _parts(plan)
    if not any(kind for kind, _ in parts):
        return plan
    whole, order = _part(plan, *parts[0]), list(parts[0][1])
    for kind, numbers in parts[1:]:
        part = _part(plan, kind, numbers)
        whole = Join("inner", whole, part, (), (), None, whole.fields + part.fields)
        order += numbers
    if order == sorted(order):
        return whole
    columns = [ColumnRef(order.index(n), f.type, f.name) for n, f in enumerate(plan.fields)]
    return Project(whole, tuple(columns), plan.fields)


def _parts(plan: Aggregate) -> list[tuple[str, list[int]]]:
    """Return the numbers of the calls by how they are split; "" for not at all."""
    found: dict[tuple[str, Expression | None], list[int]] = {}
    for number, call in enumerate(plan.calls):
        key: tuple[str, Expression | None] = ("", None)
        if not call.sql and call.function in _EXTREMES:
            key = ("shards", None)
        elif not call.sql and call.function == "count" and call.is_distinct and not call.filter:
            key = ("values", call.argument)
        found.setdefault(key, []).append(number)
    if len(found) > 1 and not all(map(_cannot_fail, plan.calls)):
        # A row for which one call fails is none of any call.
        return [("", list(range(len(plan.calls))))]
    return [(kind, numbers) for (kind, _), numbers in found.items()]


def _cannot_fail(call: AggregateCall) -> bool:
    read = (call.argument, call.filter, *call.arguments)
    return not call.sql and not any(one is not None and may_fail(one) for one in read)


def _part(plan: Aggregate, kind: str, numbers: Sequence[int]) -> Plan:
    calls = tuple(plan.calls[n] for n in numbers)
    fields = tuple(call.field for call in calls)
    if kind == "shards":
        sharded = Shard(plan.input, SHARDS)
        last = sharded.fields[-1]
        number = ColumnRef(len(sharded.fields) - 1, INT8, last.name)
        first = Aggregate(sharded, (number,), calls, (last, *fields))
        again = [_over(call, 1 + at) for at, call in enumerate(calls)]
        return Aggregate(first, (), tuple(again), fields)
    if kind == "values":
        argument = calls[0].argument
        assert argument is not None
        value = Field("value", argument.type)
        first = Distinct(Project(plan.input, (argument,), (value,)))
        again = [replace(_over(call, 0), argument=ColumnRef(0, value.type)) for call in calls]
        return Aggregate(first, (), tuple(again), fields)
    return replace(plan, calls=calls, fields=fields)


def _over(call: AggregateCall, column: int) -> AggregateCall:
    """Return the call over a column of the first phase."""
    argument = ColumnRef(column, call.field.type, call.field.name)
    return replace(call, argument=argument, is_distinct=False, filter=None)
