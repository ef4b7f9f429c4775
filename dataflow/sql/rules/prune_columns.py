"""Columns that nothing above reads are not carried, down to Scan.columns.

Distinct compares whole rows and UNION ALL shares its columns, so both ask of their inputs what
their rows are made of.
"""

from __future__ import annotations

from dataclasses import replace

from dataflow.expressions.ir import ColumnRef, columns_of, remap
from dataflow.schema import Field
from dataflow.sql.plan import (
    Aggregate,
    Filter,
    Join,
    Plan,
    Project,
    Scan,
    SemiJoin,
    UnionAll,
    Values,
    inputs_of,
)
from dataflow.sql.rules.trees import with_inputs


def prune_columns(plan: Plan) -> Plan:
    """The plan with the same output and nothing unused below it."""
    pruned, positions = _prune(plan, set(range(len(plan.fields))))
    if all(positions[i] == i for i in range(len(plan.fields))):
        return pruned
    refs = tuple(ColumnRef(positions[i], f.type, f.name) for i, f in enumerate(plan.fields))
    return Project(pruned, refs, plan.fields)


Positions = dict[int, int]


def _prune(plan: Plan, wanted: set[int]) -> tuple[Plan, Positions]:
    """A plan with at least the wanted columns, and where each of those now stands."""
    if isinstance(plan, Scan):
        kept = sorted(wanted)
        columns = tuple(plan.columns[i] for i in kept)
        return Scan(plan.relation, columns, _pick(plan.fields, kept)), _places(kept)
    if isinstance(plan, Values):
        kept = sorted(wanted)
        rows = tuple(tuple(row[i] for i in kept) for row in plan.rows)
        return Values(rows, _pick(plan.fields, kept)), _places(kept)
    if isinstance(plan, Filter):
        below, at = _prune(plan.input, wanted | columns_of(plan.predicate))
        return Filter(below, remap(plan.predicate, at)), at
    if isinstance(plan, Project):
        kept = sorted(wanted)
        below, at = _prune(plan.input, _all(plan.expressions[i] for i in kept))
        expressions = tuple(remap(plan.expressions[i], at) for i in kept)
        return Project(below, expressions, _pick(plan.fields, kept)), _places(kept)
    if isinstance(plan, Join):
        return _join(plan, wanted)
    if isinstance(plan, SemiJoin):
        return _semi_join(plan, wanted)
    if isinstance(plan, Aggregate):
        return _aggregate(plan, wanted)
    if isinstance(plan, UnionAll):
        return _union(plan, wanted)
    # What compares or numbers whole rows reads all of its inputs' columns.
    whole = [_exact(i, set(range(len(i.fields)))) for i in inputs_of(plan)]
    return with_inputs(plan, whole), {i: i for i in range(len(plan.fields))}


def _exact(plan: Plan, wanted: set[int]) -> Plan:
    """Exactly the wanted columns, in order."""
    kept = sorted(wanted)
    below, at = _prune(plan, wanted)
    if len(below.fields) == len(kept) and [at[i] for i in kept] == list(range(len(kept))):
        return below
    refs = tuple(ColumnRef(at[i], plan.fields[i].type, plan.fields[i].name) for i in kept)
    return Project(below, refs, _pick(plan.fields, kept))


def _join(plan: Join, wanted: set[int]) -> tuple[Plan, Positions]:
    n = len(plan.left.fields)
    needed = wanted | (columns_of(plan.residual) if plan.residual else set())
    left, left_at = _prune(plan.left, {i for i in needed if i < n} | _all(plan.left_keys))
    right, right_at = _prune(plan.right, {i - n for i in needed if i >= n} | _all(plan.right_keys))
    width = len(left.fields)
    at = {**left_at, **{i + n: p + width for i, p in right_at.items()}}
    fields: list[Field] = [*left.fields, *right.fields]
    for old, new in at.items():
        fields[new] = plan.fields[old]
    joined = replace(
        plan,
        left=left,
        right=right,
        left_keys=tuple(remap(k, left_at) for k in plan.left_keys),
        right_keys=tuple(remap(k, right_at) for k in plan.right_keys),
        residual=remap(plan.residual, at) if plan.residual else None,
        fields=tuple(fields),
    )
    return joined, at


def _semi_join(plan: SemiJoin, wanted: set[int]) -> tuple[Plan, Positions]:
    n = len(plan.left.fields)
    residual = columns_of(plan.residual) if plan.residual else set()
    left_wanted = wanted | _all(plan.left_keys) | {i for i in residual if i < n}
    left, left_at = _prune(plan.left, left_wanted)
    right_wanted = _all(plan.right_keys) | {i - n for i in residual if i >= n}
    right, right_at = _prune(plan.right, right_wanted)
    at = {**left_at, **{i + n: p + len(left.fields) for i, p in right_at.items()}}
    joined = replace(
        plan,
        left=left,
        right=right,
        left_keys=tuple(remap(k, left_at) for k in plan.left_keys),
        right_keys=tuple(remap(k, right_at) for k in plan.right_keys),
        residual=remap(plan.residual, at) if plan.residual else None,
    )
    return joined, left_at


def _aggregate(plan: Aggregate, wanted: set[int]) -> tuple[Plan, Positions]:
    """Group expressions stay: they make the groups."""
    n = len(plan.groups)
    kept = [i for i in range(len(plan.fields)) if i < n or i in wanted]
    calls = [plan.calls[i - n] for i in kept if i >= n]
    used = _all(plan.groups)
    for call in calls:
        used |= _all(e for e in (call.argument, call.filter) if e is not None)
    below, at = _prune(plan.input, used)
    remapped = tuple(
        replace(
            c,
            argument=remap(c.argument, at) if c.argument else None,
            filter=remap(c.filter, at) if c.filter else None,
        )
        for c in calls
    )
    groups = tuple(remap(g, at) for g in plan.groups)
    return Aggregate(below, groups, remapped, _pick(plan.fields, kept)), _places(kept)


def _union(plan: UnionAll, wanted: set[int]) -> tuple[Plan, Positions]:
    kept = sorted(wanted)
    inputs = tuple(_exact(i, wanted) for i in plan.inputs)
    return UnionAll(inputs, _pick(plan.fields, kept)), _places(kept)


def _all(expressions) -> set[int]:
    return set().union(*(columns_of(e) for e in expressions))


def _pick(fields: tuple[Field, ...], kept: list[int]) -> tuple[Field, ...]:
    return tuple(fields[i] for i in kept)


def _places(kept: list[int]) -> Positions:
    return {old: new for new, old in enumerate(kept)}
