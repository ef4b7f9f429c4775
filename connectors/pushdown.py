"""What views need of a source's relation: columns, and conditions that hold for every needed row.

A source may omit other columns and rows. Several views share a relation, so what is read is the
union of their needs. Invariant: a united requirement includes every row and column that any of its
parts needs; where conditions cannot be united exactly, more rows are read.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import Any

# A united "in" with more values is not passed on.
MAX_VALUES = 1_000
_POINTS = ("=", "in")
_LOWER, _UPPER = (">", ">="), ("<", "<=")


@dataclass(frozen=True, order=True)
class PushdownCondition:
    """A comparison of a column with constants, as `dataflow.plan.properties.pushdown_requirements`
    defines it. kind: how values are compared; values: as PostgreSQL prints them.
    """

    column: str
    operator: str
    kind: str
    values: tuple[str, ...]

    @property
    def text(self) -> str:
        """The condition for people.

        >>> PushdownCondition("id", "in", "int", ("1", "2")).text
        "id in ('1', '2')"
        """
        listed = ", ".join(f"'{value}'" for value in self.values)
        if self.operator == "in":
            return f"{self.column} in ({listed})"
        return f"{self.column} {self.operator} {listed}".rstrip()


@dataclass(frozen=True)
class PushdownRequirement:
    """What is needed of one relation: these columns of the rows for which all conditions hold."""

    columns: tuple[str, ...]
    conditions: tuple[PushdownCondition, ...] = ()

    def facts(self) -> dict[str, Any]:
        """Return it as JSON."""
        conditions = [[c.column, c.operator, c.kind, list(c.values)] for c in self.conditions]
        return {"columns": list(self.columns), "conditions": conditions}

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> PushdownRequirement:
        """Return what `facts` returned."""
        conditions = facts["conditions"]
        found = (PushdownCondition(c, o, k, tuple(values)) for c, o, k, values in conditions)
        return cls(tuple(facts["columns"]), tuple(found))


@dataclass(frozen=True)
class Pushdown:
    """What a source makes of the requirements on one of its relations.

    columns, conditions: "" if it reads only those columns, or applies those conditions; else why
    not. excepted: why conditions on these columns are not applied.
    """

    columns: str
    conditions: str
    excepted: Mapping[str, str] = field(default_factory=dict)

    def facts(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "columns": self.columns,
            "conditions": self.conditions,
            "excepted": dict(self.excepted),
        }

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Pushdown:
        """Return what `facts` returned."""
        return cls(facts["columns"], facts["conditions"], facts["excepted"])

    def why_not(self, condition: PushdownCondition) -> str:
        """Return why a condition is not applied at the source; "" if it is."""
        return self.conditions or self.excepted.get(condition.column, "")


def united(requirements: Sequence[PushdownRequirement]) -> PushdownRequirement:
    """Return the requirement that includes all of these, at least one.

    >>> one = PushdownRequirement(("a",), (PushdownCondition("a", "=", "int", ("1",)),))
    >>> two = PushdownRequirement(("b",), (PushdownCondition("a", ">", "int", ("5",)),))
    >>> found = united([one, two])
    >>> found.columns, [c.text for c in found.conditions]
    (('a', 'b'), ["a >= '1'"])
    """
    columns = sorted({c for r in requirements for c in r.columns})
    named = {c.column for r in requirements for c in r.conditions}
    found: list[PushdownCondition] = []
    for column in sorted(named):
        parts = [tuple(c for c in r.conditions if c.column == column) for r in requirements]
        if all(parts):
            found += _united(parts)
    return PushdownRequirement(tuple(columns), tuple(found))


def covers(wide: PushdownRequirement, needed: PushdownRequirement) -> bool:
    """Return True if what is read by `wide` has all that is needed."""
    is_whole = set(wide.columns) >= set(needed.columns)
    return is_whole and all(follows(c, needed.conditions) for c in wide.conditions)


def follows(condition: PushdownCondition, others: Iterable[PushdownCondition]) -> bool:
    """Return True if a condition is known to hold for every row for which all others hold."""
    own = [c for c in others if c.column == condition.column]
    if condition in own:
        return True
    if condition.operator == "is not null":
        return any(c.operator != "is null" for c in own)
    if condition.operator in _POINTS:
        allowed = set(condition.values)
        return any(c.kind == condition.kind and allowed.issuperset(c.values) for c in _points(own))
    bounds = [bound for c in own for bound in _bounds(c) if bound.is_upper == _is_upper(condition)]
    ends = [end for end in _bounds(condition) if condition.operator in (*_LOWER, *_UPPER)]
    return any(bound.is_within(end) for bound in bounds for end in ends)


def _united(parts: Sequence[Sequence[PushdownCondition]]) -> list[PushdownCondition]:
    """Return the conditions on one column that follow from each of the parts."""
    candidates = list(dict.fromkeys(c for part in parts for c in part))
    candidates += _all_points(parts)
    candidates += [
        PushdownCondition(c.column, ">=" if kind is min else "<=", c.kind, (value,))
        for c in _points(candidates)
        for kind in (min, max)
        for value in _end(c, kind)
    ]
    column = parts[0][0].column
    candidates.append(PushdownCondition(column, "is not null", "text", ()))
    found = sorted({c for c in candidates if all(follows(c, part) for part in parts)})
    # Without those that follow from the rest.
    for condition in tuple(found):
        others = [c for c in found if c != condition]
        if follows(condition, others):
            found = others
    return found


def _all_points(parts: Sequence[Sequence[PushdownCondition]]) -> list[PushdownCondition]:
    """Return "in" with the values of all parts, if each of them allows only some."""
    points = [_points(part) for part in parts]
    if not all(points) or len({part[0].kind for part in points}) > 1:
        return []
    values = tuple(sorted({value for part in points for value in part[0].values}))
    if len(values) > MAX_VALUES:
        return []
    first = points[0][0]
    operator = "in" if len(values) > 1 else "="
    return [PushdownCondition(first.column, operator, first.kind, values)]


def _points(conditions: Iterable[PushdownCondition]) -> list[PushdownCondition]:
    return [c for c in conditions if c.operator in _POINTS]


@dataclass(frozen=True)
class _Bound:
    """An end of a range. order: what its value is compared among."""

    order: str
    value: Any
    is_upper: bool
    is_strict: bool

    def is_within(self, other: _Bound) -> bool:
        """Return True if all values within this bound are within the other one."""
        if self.order != other.order:
            return False
        if self.value == other.value:
            return self.is_strict or not other.is_strict
        return self.value < other.value if self.is_upper else self.value > other.value


def _is_upper(condition: PushdownCondition) -> bool:
    return condition.operator in _UPPER


def _bounds(condition: PushdownCondition) -> list[_Bound]:
    """Return the bounds that a condition sets; none if its values have no order known here."""
    order, read = _ORDERS.get(condition.kind, ("", None))
    if read is None or condition.operator not in (*_POINTS, *_LOWER, *_UPPER):
        return []
    try:
        values = [read(text) for text in condition.values]
    except (ValueError, InvalidOperation):
        return []
    if condition.operator in _POINTS:
        bound = partial(_Bound, order, is_strict=False)
        return [bound(min(values), is_upper=False), bound(max(values), is_upper=True)]
    is_strict = condition.operator in (">", "<")
    return [_Bound(order, values[0], _is_upper(condition), is_strict)]


def _end(condition: PushdownCondition, kind: Callable[..., Any]) -> list[str]:
    """Return the least or the largest of a condition's values; [] without an order."""
    _, read = _ORDERS.get(condition.kind, ("", None))
    if read is None or not _bounds(condition):
        return []
    return [kind(condition.values, key=read)]


def _finite(text: str) -> Decimal:
    value = Decimal(text)
    if not value.is_finite():
        raise ValueError(text)
    return value


# Of floats and times no bounds are compared: NaN, infinities and zones have rules of their own.
_ORDERS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "int": ("number", int),
    "decimal": ("number", _finite),
    "date": ("date", datetime.date.fromisoformat),
}
