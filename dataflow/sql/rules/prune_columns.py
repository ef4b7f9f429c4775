"""Columns that nothing above reads are not carried, down to Scan.columns.

Distinct compares whole rows and UNION ALL shares its columns, so both ask of their inputs what
their rows are made of. A join keeps its inputs' rows: they are narrowed to what it reads. A node
that several read stays one node: it has the columns that any of them wants, and each reader takes
its own from it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from dataflow.expressions.ir import ColumnRef, Expression, columns_of, remap
from dataflow.plan.nodes import (
    Aggregate,
    Filter,
    Join,
    Plan,
    Project,
    Scan,
    SemiJoin,
    SetCall,
    TableFunction,
    ThresholdFilter,
    TopK,
    UnionAll,
    Values,
    Window,
    fold,
    inputs_of,
)
from dataflow.plan.properties.unique_keys import is_total
from dataflow.plan.walk import nodes_of, shared_nodes, with_inputs
from dataflow.schema import Field

Positions = dict[int, int]
Pruned = tuple[Plan, Positions]


def prune_columns(plan: Plan) -> Plan:
    """The plan with the same output and nothing unused below it."""
    wanted: dict[int, set[int]] = {id(node): set() for node in nodes_of(plan)}
    wanted[id(plan)] = set(range(len(plan.fields)))
    for node in reversed(nodes_of(plan)):
        for below, columns in zip(inputs_of(node), wishes(node, wanted[id(node)]), strict=True):
            wanted[id(below)] |= columns
    shared = shared_nodes(plan)

    def visit(node: Plan, inputs: tuple[Pruned, ...]) -> Pruned:
        mine = wanted[id(node)]
        # What only a filter or a join below has read is not to be kept.
        is_keeper = isinstance(node, Join | SemiJoin | ThresholdFilter)
        narrowed = [
            _narrowed(found, columns) if is_keeper or id(below) in shared else found
            for below, found, columns in zip(
                inputs_of(node), inputs, wishes(node, mine), strict=True
            )
        ]
        return _rebuilt(node, sorted(mine), narrowed)

    return _exact(fold(plan, visit), plan.fields, range(len(plan.fields)))


def wishes(plan: Plan, wanted: set[int]) -> list[set[int]]:
    """For each input the columns that it must have, so that the plan has the wanted ones."""
    if isinstance(plan, Filter):
        return [wanted | columns_of(plan.predicate)]
    if isinstance(plan, ThresholdFilter):
        return [wanted | columns_of(plan.value), {0}]
    if isinstance(plan, Project):
        return [_all(plan.expressions[i] for i in wanted)]
    if isinstance(plan, Join | SemiJoin):
        n = len(plan.left.fields)
        needed = columns_of(plan.residual) if plan.residual else set()
        if isinstance(plan, Join):
            needed = needed | wanted
        left = {i for i in needed if i < n} | _all(plan.left_keys)
        right = {i - n for i in needed if i >= n} | _all(plan.right_keys)
        return [left if isinstance(plan, Join) else left | wanted, right]
    if isinstance(plan, Aggregate):
        n = len(plan.groups)
        calls = [plan.calls[i - n] for i in wanted if i >= n]
        parts = [e for c in calls for e in c.operands]
        return [_all([*plan.groups, *parts])]
    if isinstance(plan, UnionAll):
        return [wanted for _ in plan.inputs]
    if isinstance(plan, TableFunction):
        condition = columns_of(plan.condition) if plan.condition else set()
        arguments = _all(a for c in plan.calls for a in c.arguments)
        n = len(plan.input.fields)
        return [{i for i in wanted | condition if i < n} | arguments]
    if isinstance(plan, Window):
        n = len(plan.input.fields)
        calls = [plan.calls[i - n] for i in wanted if i >= n]
        keys = (*plan.partition, *(k.expression for k in plan.order)) if calls else ()
        own = {i for i in wanted if i < n}
        return [own | _all([*keys, *(e for c in calls for e in c.operands)])]
    if isinstance(plan, TopK) and is_total(plan):
        return [wanted | _all((*plan.partition, *(k.expression for k in plan.order)))]
    # What compares or numbers whole rows reads all of its inputs' columns.
    return [set(range(len(i.fields))) for i in inputs_of(plan)]


def _rebuilt(plan: Plan, kept: list[int], inputs: list[Pruned]) -> Pruned:
    """The plan with at least the kept columns, and where each of those now stands."""
    if isinstance(plan, Scan):
        columns = tuple(plan.columns[i] for i in kept)
        return Scan(plan.relation, columns, _pick(plan.fields, kept)), _places(kept)
    if isinstance(plan, Values):
        rows = tuple(tuple(row[i] for i in kept) for row in plan.rows)
        return Values(rows, _pick(plan.fields, kept)), _places(kept)
    if isinstance(plan, Filter):
        below, at = inputs[0]
        return Filter(below, remap(plan.predicate, at)), at
    if isinstance(plan, ThresholdFilter):
        below, at = inputs[0]
        threshold = _exact(inputs[1], plan.threshold.fields, [0])
        return replace(plan, input=below, threshold=threshold, value=remap(plan.value, at)), at
    if isinstance(plan, Project):
        below, at = inputs[0]
        expressions = tuple(remap(plan.expressions[i], at) for i in kept)
        return Project(below, expressions, _pick(plan.fields, kept)), _places(kept)
    if isinstance(plan, Join | SemiJoin):
        return _join(plan, inputs[0], inputs[1])
    if isinstance(plan, Aggregate):
        return _aggregate(plan, kept, inputs[0])
    if isinstance(plan, UnionAll):
        same = tuple(
            _exact(found, below.fields, kept)
            for found, below in zip(inputs, plan.inputs, strict=True)
        )
        return UnionAll(same, _pick(plan.fields, kept)), _places(kept)
    if isinstance(plan, TableFunction):
        return _table_function(plan, set(kept), inputs[0])
    if isinstance(plan, Window):
        return _window(plan, kept, inputs[0])
    if isinstance(plan, TopK) and is_total(plan):
        below, at = inputs[0]
        order = tuple(replace(k, expression=remap(k.expression, at)) for k in plan.order)
        partition = tuple(remap(e, at) for e in plan.partition)
        return replace(plan, input=below, partition=partition, order=order), at
    whole = [
        _exact(found, below.fields, range(len(below.fields)))
        for found, below in zip(inputs, inputs_of(plan), strict=True)
    ]
    return with_inputs(plan, whole), {i: i for i in range(len(plan.fields))}


def _narrowed(found: Pruned, wanted: set[int]) -> Pruned:
    """No more of a node than the wanted columns."""
    below, at = found
    if len(wanted) == len(below.fields):
        return found
    kept = sorted(wanted)
    refs = tuple(ColumnRef(at[i], below.fields[at[i]].type, below.fields[at[i]].name) for i in kept)
    fields = tuple(below.fields[at[i]] for i in kept)
    return Project(below, refs, fields), _places(kept)


def _exact(found: Pruned, fields: tuple[Field, ...], kept: Iterable[int]) -> Plan:
    """Exactly the kept columns of a plan that had these fields, in order."""
    below, at = found
    kept = list(kept)
    if len(below.fields) == len(kept) and [at[i] for i in kept] == list(range(len(kept))):
        return below
    refs = tuple(ColumnRef(at[i], fields[i].type, fields[i].name) for i in kept)
    return Project(below, refs, _pick(fields, kept))


def _join(plan: Join | SemiJoin, left: Pruned, right: Pruned) -> Pruned:
    n = len(plan.left.fields)
    width = len(left[0].fields)
    at = {**left[1], **{i + n: p + width for i, p in right[1].items()}}
    joined = replace(
        plan,
        left=left[0],
        right=right[0],
        left_keys=tuple(remap(k, left[1]) for k in plan.left_keys),
        right_keys=tuple(remap(k, right[1]) for k in plan.right_keys),
        residual=remap(plan.residual, at) if plan.residual else None,
    )
    if not isinstance(plan, Join) or not isinstance(joined, Join):
        return joined, left[1]
    fields: list[Field] = [*left[0].fields, *right[0].fields]
    for old, new in at.items():
        fields[new] = plan.fields[old]
    return replace(joined, fields=tuple(fields)), at


def _aggregate(plan: Aggregate, wanted: list[int], found: Pruned) -> Pruned:
    """Group expressions stay: they make the groups."""
    n = len(plan.groups)
    kept = [*range(n), *(i for i in wanted if i >= n)]
    below, at = found
    remapped = tuple(plan.calls[i - n].over(lambda e: remap(e, at)) for i in kept[n:])
    groups = tuple(remap(g, at) for g in plan.groups)
    return Aggregate(below, groups, remapped, _pick(plan.fields, kept)), _places(kept)


def _table_function(plan: TableFunction, wanted: set[int], input: Pruned) -> Pruned:
    """Every call stays, since the longest makes the rows; of its columns those that are read."""
    wanted = wanted | (columns_of(plan.condition) if plan.condition else set())
    position = len(plan.input.fields)
    below, at = input[0], dict(input[1])
    next_position = len(below.fields)
    calls: list[SetCall] = []
    fields = list(below.fields)
    for old, new in at.items():
        fields[new] = plan.fields[old]
    for call in plan.calls:
        kept = [i for i in range(len(call.fields)) if position + i in wanted]
        at |= {position + i: next_position + j for j, i in enumerate(kept)}
        calls.append(
            replace(
                call,
                arguments=tuple(remap(a, at) for a in call.arguments),
                fields=_pick(call.fields, kept),
                columns=tuple(call.columns[i] for i in kept),
            )
        )
        fields += [plan.fields[position + i] for i in kept]
        position, next_position = position + len(call.fields), next_position + len(kept)
    has_ordinality = plan.has_ordinality and position in wanted
    if has_ordinality:
        at[position] = next_position
        fields.append(plan.fields[position])
    condition = remap(plan.condition, at) if plan.condition else None
    pruned = replace(plan, input=below, calls=tuple(calls), has_ordinality=has_ordinality)
    return replace(pruned, condition=condition, fields=tuple(fields)), at


def _window(plan: Window, wanted: list[int], found: Pruned) -> Pruned:
    """Calls that nothing reads are left out, and the node with its last call."""
    n = len(plan.input.fields)
    kept = [i for i in wanted if i >= n]
    below, at = found
    if not kept:
        return below, at
    calls = tuple(plan.calls[i - n].over(lambda e: remap(e, at)) for i in kept)
    pruned = Window(
        below,
        tuple(remap(e, at) for e in plan.partition),
        tuple(replace(k, expression=remap(k.expression, at)) for k in plan.order),
        calls,
        below.fields + tuple(c.field for c in calls),
    )
    width = len(below.fields)
    return pruned, {**at, **{old: width + i for i, old in enumerate(kept)}}


def _all(expressions: Iterable[Expression]) -> set[int]:
    return set().union(*(columns_of(e) for e in expressions))


def _pick(fields: tuple[Field, ...], kept: list[int]) -> tuple[Field, ...]:
    return tuple(fields[i] for i in kept)


def _places(kept: list[int]) -> Positions:
    return {old: new for new, old in enumerate(kept)}
