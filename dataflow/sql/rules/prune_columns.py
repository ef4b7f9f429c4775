"""Remove columns that nothing above reads, down to Scan.columns.

Distinct compares whole rows, so its input keeps all columns; UNION ALL gives all inputs the same
columns. A join stores its inputs' rows, so they are narrowed to the columns that it reads. A shared
node stays shared: it has the columns that any reader needs, and each reader projects its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from dataflow.expressions.ir import ColumnRef, Expression, columns_of, remap
from dataflow.plan.nodes import (
    Aggregate,
    AsOfJoin,
    Filter,
    Join,
    Plan,
    Project,
    Scan,
    SemiJoin,
    SetCall,
    TableFunction,
    ThresholdFilter,
    ThresholdFlag,
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
    """Return the plan with the same output and no unused columns below it."""
    required = columns_read(plan)
    shared = shared_nodes(plan)

    def visit(node: Plan, inputs: tuple[Pruned, ...]) -> Pruned:
        mine = required[id(node)]
        # Drop columns that only a filter or a join below reads.
        is_keeper = isinstance(node, Join | AsOfJoin | SemiJoin | ThresholdFilter)
        narrowed = [
            _narrowed(found, columns) if is_keeper or id(below) in shared else found
            for below, found, columns in zip(
                inputs_of(node), inputs, required_of_inputs(node, mine), strict=True
            )
        ]
        return _rebuilt(node, sorted(mine), narrowed)

    return _exact(fold(plan, visit), plan.fields, range(len(plan.fields)))


def columns_read(plan: Plan) -> dict[int, set[int]]:
    """Return by the id of each node the columns that its readers need, for the root all."""
    required: dict[int, set[int]] = {id(node): set() for node in nodes_of(plan)}
    required[id(plan)] = set(range(len(plan.fields)))
    for node in reversed(nodes_of(plan)):
        for below, columns in zip(
            inputs_of(node), required_of_inputs(node, required[id(node)]), strict=True
        ):
            required[id(below)] |= columns
    return required


def required_of_inputs(plan: Plan, required: set[int]) -> list[set[int]]:
    """Return for each input the columns that it must have, so that the plan has the required
    ones."""
    if isinstance(plan, Filter):
        return [required | columns_of(plan.predicate)]
    if isinstance(plan, ThresholdFilter):
        n = len(plan.input.fields)
        return [{i for i in required if i < n} | columns_of(plan.value), {0}]
    if isinstance(plan, Project):
        return [_all(plan.expressions[i] for i in required)]
    if isinstance(plan, Join | SemiJoin):
        n = len(plan.left.fields)
        needed = columns_of(plan.residual) if plan.residual else set()
        if isinstance(plan, Join):
            needed = needed | required
        left = {i for i in needed if i < n} | _all(plan.left_keys)
        right = {i - n for i in needed if i >= n} | _all(plan.right_keys)
        return [left if isinstance(plan, Join) else left | required, right]
    if isinstance(plan, AsOfJoin):
        n = len(plan.left.fields)
        left = {i for i in required if i < n} | _all((*plan.left_keys, plan.value))
        if not is_total(plan):
            return [left, set(range(len(plan.right.fields)))]
        right = {i - n for i in required if i >= n}
        return [left, right | _all((*plan.right_keys, *(k.expression for k in plan.order)))]
    if isinstance(plan, Aggregate):
        n = len(plan.groups)
        calls = [plan.calls[i - n] for i in required if i >= n]
        parts = [e for c in calls for e in c.operands]
        return [_all([*plan.groups, *parts])]
    if isinstance(plan, UnionAll):
        return [required for _ in plan.inputs]
    if isinstance(plan, TableFunction):
        condition = columns_of(plan.condition) if plan.condition else set()
        arguments = _all(a for c in plan.calls for a in c.arguments)
        n = len(plan.input.fields)
        return [{i for i in required | condition if i < n} | arguments]
    if isinstance(plan, Window):
        n = len(plan.input.fields)
        calls = [plan.calls[i - n] for i in required if i >= n]
        keys = (*plan.partition, *(k.expression for k in plan.order)) if calls else ()
        own = {i for i in required if i < n}
        return [own | _all([*keys, *(e for c in calls for e in c.operands)])]
    if isinstance(plan, TopK) and is_total(plan):
        return [required | _all((*plan.partition, *(k.expression for k in plan.order)))]
    # Nodes that compare or number whole rows read all columns of their inputs.
    return [set(range(len(i.fields))) for i in inputs_of(plan)]


def _rebuilt(plan: Plan, retained: list[int], inputs: list[Pruned]) -> Pruned:
    """Return the plan with at least the required columns, and their new positions."""
    if isinstance(plan, Scan):
        columns = tuple(plan.columns[i] for i in retained)
        return Scan(plan.relation, columns, _pick(plan.fields, retained)), _positions_of(retained)
    if isinstance(plan, Values):
        rows = tuple(tuple(row[i] for i in retained) for row in plan.rows)
        return Values(rows, _pick(plan.fields, retained)), _positions_of(retained)
    if isinstance(plan, Filter):
        below, at = inputs[0]
        return Filter(below, remap(plan.predicate, at)), at
    if isinstance(plan, ThresholdFilter):
        below, at = inputs[0]
        threshold = _exact(inputs[1], plan.threshold.fields, [0])
        made = replace(plan, input=below, threshold=threshold, value=remap(plan.value, at))
        if isinstance(plan, ThresholdFlag):
            at = {**at, len(plan.input.fields): len(below.fields)}
        return made, at
    if isinstance(plan, Project):
        below, at = inputs[0]
        expressions = tuple(remap(plan.expressions[i], at) for i in retained)
        return Project(below, expressions, _pick(plan.fields, retained)), _positions_of(retained)
    if isinstance(plan, Join | SemiJoin):
        return _join(plan, inputs[0], inputs[1])
    if isinstance(plan, AsOfJoin):
        return _as_of_join(plan, inputs[0], inputs[1])
    if isinstance(plan, Aggregate):
        return _aggregate(plan, retained, inputs[0])
    if isinstance(plan, UnionAll):
        same = tuple(
            _exact(found, below.fields, retained)
            for found, below in zip(inputs, plan.inputs, strict=True)
        )
        return UnionAll(same, _pick(plan.fields, retained)), _positions_of(retained)
    if isinstance(plan, TableFunction):
        return _table_function(plan, set(retained), inputs[0])
    if isinstance(plan, Window):
        return _window(plan, retained, inputs[0])
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


def _narrowed(found: Pruned, required: set[int]) -> Pruned:
    """Return a node projected to the required columns."""
    below, at = found
    if len(required) == len(below.fields):
        return found
    retained = sorted(required)
    refs = tuple(
        ColumnRef(at[i], below.fields[at[i]].type, below.fields[at[i]].name) for i in retained
    )
    fields = tuple(below.fields[at[i]] for i in retained)
    return Project(below, refs, fields), _positions_of(retained)


def _exact(found: Pruned, fields: tuple[Field, ...], retained: Iterable[int]) -> Plan:
    """Return exactly the required columns of a plan that had these fields, in order."""
    below, at = found
    retained = list(retained)
    if len(below.fields) == len(retained) and [at[i] for i in retained] == list(
        range(len(retained))
    ):
        return below
    refs = tuple(ColumnRef(at[i], fields[i].type, fields[i].name) for i in retained)
    return Project(below, refs, _pick(fields, retained))


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
        # They follow from the residual (find_intervals).
        bounds=None,
    )
    if not isinstance(plan, Join) or not isinstance(joined, Join):
        return joined, left[1]
    return replace(joined, fields=_joined_fields(plan, at, left, right)), at


def _as_of_join(plan: AsOfJoin, left: Pruned, right: Pruned) -> Pruned:
    n, width = len(plan.left.fields), len(left[0].fields)
    at = {**left[1], **{i + n: p + width for i, p in right[1].items()}}
    joined = replace(
        plan,
        left=left[0],
        right=right[0],
        left_keys=tuple(remap(k, left[1]) for k in plan.left_keys),
        right_keys=tuple(remap(k, right[1]) for k in plan.right_keys),
        value=remap(plan.value, left[1]),
        order=tuple(replace(k, expression=remap(k.expression, right[1])) for k in plan.order),
        fields=_joined_fields(plan, at, left, right),
    )
    return joined, at


def _joined_fields(
    plan: Join | AsOfJoin, at: Positions, left: Pruned, right: Pruned
) -> tuple[Field, ...]:
    fields: list[Field] = [*left[0].fields, *right[0].fields]
    for old, new in at.items():
        fields[new] = plan.fields[old]
    return tuple(fields)


def _aggregate(plan: Aggregate, required: list[int], found: Pruned) -> Pruned:
    """Keep all group expressions: they define the groups."""
    n = len(plan.groups)
    retained = [*range(n), *(i for i in required if i >= n)]
    below, at = found
    remapped = tuple(plan.calls[i - n].over(lambda e: remap(e, at)) for i in retained[n:])
    groups = tuple(remap(g, at) for g in plan.groups)
    return Aggregate(below, groups, remapped, _pick(plan.fields, retained)), _positions_of(retained)


def _table_function(plan: TableFunction, required: set[int], input: Pruned) -> Pruned:
    """Keep every call, since the longest determines the rows, but only those of its columns that
    are read."""
    required = required | (columns_of(plan.condition) if plan.condition else set())
    position = len(plan.input.fields)
    below, at = input[0], dict(input[1])
    next_position = len(below.fields)
    calls: list[SetCall] = []
    fields = list(below.fields)
    for old, new in at.items():
        fields[new] = plan.fields[old]
    for call in plan.calls:
        retained = [i for i in range(len(call.fields)) if position + i in required]
        at |= {position + i: next_position + j for j, i in enumerate(retained)}
        calls.append(
            replace(
                call,
                arguments=tuple(remap(a, at) for a in call.arguments),
                fields=_pick(call.fields, retained),
                columns=tuple(call.columns[i] for i in retained),
            )
        )
        fields += [plan.fields[position + i] for i in retained]
        position, next_position = position + len(call.fields), next_position + len(retained)
    has_ordinality = plan.has_ordinality and position in required
    if has_ordinality:
        at[position] = next_position
        fields.append(plan.fields[position])
    condition = remap(plan.condition, at) if plan.condition else None
    pruned = replace(plan, input=below, calls=tuple(calls), has_ordinality=has_ordinality)
    return replace(pruned, condition=condition, fields=tuple(fields)), at


def _window(plan: Window, required: list[int], found: Pruned) -> Pruned:
    """Remove calls that nothing reads, and the node with its last call."""
    n = len(plan.input.fields)
    retained = [i for i in required if i >= n]
    below, at = found
    if not retained:
        return below, at
    calls = tuple(plan.calls[i - n].over(lambda e: remap(e, at)) for i in retained)
    pruned = Window(
        below,
        tuple(remap(e, at) for e in plan.partition),
        tuple(replace(k, expression=remap(k.expression, at)) for k in plan.order),
        calls,
        below.fields + tuple(c.field for c in calls),
    )
    width = len(below.fields)
    return pruned, {**at, **{old: width + i for i, old in enumerate(retained)}}


def _all(expressions: Iterable[Expression]) -> set[int]:
    return set().union(*(columns_of(e) for e in expressions))


def _pick(fields: tuple[Field, ...], retained: list[int]) -> tuple[Field, ...]:
    return tuple(fields[i] for i in retained)


def _positions_of(retained: list[int]) -> Positions:
    return {old: new for new, old in enumerate(retained)}
