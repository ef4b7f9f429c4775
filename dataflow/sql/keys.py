"""Unique keys of a plan's output, carried from primary keys and GROUP BY through the operators.

A key is a set of output positions on which no two rows agree; the empty set says "at most one
row". A view gets a primary key only of columns that are never NULL.
"""

from __future__ import annotations

from dataclasses import dataclass

from dataflow.expressions.ir import Call, ColumnRef, Expression
from dataflow.expressions.keys import key_form
from dataflow.sql.plan import (
    Aggregate,
    Distinct,
    Filter,
    Join,
    Plan,
    Project,
    Scan,
    SemiJoin,
    SingleRow,
    Values,
)

Key = frozenset[int]
_MOST_KEYS = 16


@dataclass(frozen=True)
class Keys:
    """The keys of an output; equal: pairs of columns that hold one value in every row."""

    keys: tuple[Key, ...]
    equal: tuple[tuple[int, int], ...] = ()


def view_key(plan: Plan) -> tuple[int, ...]:
    """The smallest key whose columns are never NULL; () when there is none (a bag)."""
    found = []
    for key in keys_of(plan).keys:
        fields = [plan.fields[i] for i in key]
        refs = [ColumnRef(i, plan.fields[i].type) for i in key]
        if key and not any(f.is_nullable for f in fields) and all(map(key_form, refs)):
            found.append(tuple(sorted(key)))
    return min(found, key=lambda k: (len(k), k)) if found else ()


def keys_of(plan: Plan) -> Keys:
    """The keys of a plan's output."""
    if isinstance(plan, Scan):
        return _scan(plan)
    if isinstance(plan, Values):
        return Keys((frozenset(),)) if len(plan.rows) <= 1 else Keys(())
    if isinstance(plan, SingleRow):
        return Keys((frozenset(),))
    if isinstance(plan, Filter):
        return keys_of(plan.input)
    if isinstance(plan, SemiJoin):
        return keys_of(plan.left)
    if isinstance(plan, Project):
        return _project(plan)
    if isinstance(plan, Join):
        return _join(plan)
    if isinstance(plan, Aggregate):
        return _aggregate(plan)
    if isinstance(plan, Distinct):
        below = keys_of(plan.input)
        return Keys(_fewest((*below.keys, frozenset(range(len(plan.fields))))), below.equal)
    return Keys(())


def _scan(plan: Scan) -> Keys:
    key = plan.relation.key
    if not key or not set(key) <= set(plan.columns):
        return Keys(())
    return Keys((frozenset(plan.columns.index(i) for i in key),))


def _project(plan: Project) -> Keys:
    below = keys_of(plan.input)
    places: dict[int, list[int]] = {}
    for i, expression in enumerate(plan.expressions):
        if isinstance(expression, ColumnRef):
            places.setdefault(expression.index, []).append(i)
    for a, b in below.equal:
        for x, y in ((a, b), (b, a)):
            if x not in places and y in places:
                places[x] = places[y]
    keys = [
        frozenset(places[i][0] for i in key) for key in below.keys if all(i in places for i in key)
    ]
    equal = [(places[a][0], places[b][0]) for a, b in below.equal if a in places and b in places]
    return Keys(_fewest(keys), tuple((a, b) for a, b in equal if a != b))


def _join(plan: Join) -> Keys:
    left, right = keys_of(plan.left), keys_of(plan.right)
    n = len(plan.left.fields)
    left_columns = {_column(e) for e in plan.left_keys} - {None}
    right_columns = {_column(e) for e in plan.right_keys} - {None}
    is_left_once = any(key <= right_columns for key in right.keys)
    is_right_once = any(key <= left_columns for key in left.keys)
    right_keys = [frozenset(i + n for i in key) for key in right.keys]
    keys: list[Key] = [a | b for a in left.keys for b in right_keys]
    if is_left_once and plan.kind in ("inner", "left"):
        keys += left.keys
    if is_right_once and plan.kind in ("inner", "right"):
        keys += right_keys
    equal = []
    if plan.kind == "inner":
        equal = [*left.equal, *((a + n, b + n) for a, b in right.equal)]
        for a, b in zip(plan.left_keys, plan.right_keys, strict=True):
            if isinstance(a, ColumnRef) and isinstance(b, ColumnRef) and a.type == b.type:
                equal.append((a.index, b.index + n))
    elif plan.kind == "left":
        equal = list(left.equal)
    return Keys(_fewest(keys), tuple(equal))


def _aggregate(plan: Aggregate) -> Keys:
    groups = frozenset(range(len(plan.groups)))
    places = {e.index: i for i, e in enumerate(plan.groups) if isinstance(e, ColumnRef)}
    keys = [groups]
    for key in keys_of(plan.input).keys:
        if all(i in places for i in key):
            keys.append(frozenset(places[i] for i in key))
    return Keys(_fewest(keys))


def _column(expression: Expression) -> int | None:
    """The column whose value a join key compares, also beneath its key form."""
    if isinstance(expression, ColumnRef):
        return expression.index
    if isinstance(expression, Call) and expression.function in ("key form", "cast"):
        # A cast to a join key's common form keeps different values different.
        return _column(expression.arguments[0])
    return None


def _fewest(keys: list[Key] | tuple[Key, ...]) -> tuple[Key, ...]:
    """The keys that hold no other key, the smallest first."""
    kept: list[Key] = []
    for key in sorted(set(keys), key=lambda k: (len(k), sorted(k))):
        if not any(other <= key for other in kept):
            kept.append(key)
    return tuple(kept[:_MOST_KEYS])
