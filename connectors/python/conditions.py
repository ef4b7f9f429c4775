"""What a query requests from a function: the columns that it reads, and conditions on them.

A condition is a tuple of (column, operator, value). It is a hint: a function may return more rows
than requested, never fewer, since the query itself is still applied to the rows.
"""

from __future__ import annotations

import datetime
import operator
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple

from connectors.pushdown import PushdownCondition

_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class Condition(NamedTuple):
    """One condition. operator: =, <>, <, <=, >, >=, in, is null or is not null.

    value: in Python's type of the column (Decimal for numeric), a tuple of values for "in", None
    for the last two.

    >>> c = Condition("age", ">=", 18)
    >>> [c.holds(17), c.holds(18), c.holds(None), c.holds(float("nan"))]
    [False, True, False, True]
    """

    column: str
    operator: str
    value: Any

    def holds(self, value: Any) -> bool:
        """Return True if a row with this value is requested, as PostgreSQL compares.

        NULL satisfies no comparison; NaN equals itself and is greater than all other values.
        """
        if self.operator == "is null":
            return value is None
        if self.operator == "is not null":
            return value is not None
        if value is None:
            return False
        if self.operator == "in":
            return any(_ranked(value) == _ranked(v) for v in self.value)
        return _COMPARE[self.operator](_ranked(value), _ranked(self.value))


@dataclass(frozen=True)
class Requirement:
    """What a query or a view needs of one function.

    Columns are in the order of the table. A requested row satisfies all conditions.
    """

    columns: tuple[str, ...]
    conditions: tuple[Condition, ...] = ()


def _ranked(value: Any) -> Any:
    """Return a sort key: NaN after everything else, and equal to itself."""
    if isinstance(value, float | Decimal):
        return (value != value, 0 if value != value else value)
    return (False, value) if isinstance(value, int) else value


def _time_zone(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text)


# By PostgreSQL's name of a literal's kind; other kinds are not passed to functions.
_READ: Mapping[str, Callable[[str], Any]] = {
    "bool": lambda text: text in ("t", "true"),
    "int": int,
    "decimal": Decimal,
    "float": float,
    "text": str,
    "date": datetime.date.fromisoformat,
    "timestamp": datetime.datetime.fromisoformat,
    "timestamptz": _time_zone,
    "uuid": uuid.UUID,
}


def condition_facts(condition: PushdownCondition) -> dict[str, Any]:
    """Return a condition in the form of `read_condition`."""
    return {
        "column": condition.column,
        "operator": condition.operator,
        "kind": condition.kind,
        "values": condition.values,
    }


def read_condition(facts: Mapping[str, Any]) -> Condition | None:
    """Return the condition of a plan (`pushdown_requirements`).

    None if Python has no such value: infinite dates and years before Christ.

    >>> read_condition({"column": "a", "operator": "in", "kind": "int", "values": ["1", "2"]})
    Condition(column='a', operator='in', value=(1, 2))
    """
    try:
        values = tuple(_READ[facts["kind"]](text) for text in facts["values"])
    except (ValueError, ArithmeticError, KeyError):
        return None
    if facts["operator"] == "in":
        return Condition(facts["column"], "in", values)
    return Condition(facts["column"], facts["operator"], values[0] if values else None)


def agreed(requirements: Sequence[Requirement], columns: Sequence[str]) -> Requirement | None:
    """Return the requirement that covers several; None if there are none.

    It has every column of any of them, in the order of `columns`, and the conditions that all of
    them share.

    >>> one = Requirement(("a", "b"), (Condition("a", "=", 1), Condition("b", ">", 2)))
    >>> agreed([one, Requirement(("a",), (Condition("a", "=", 1),))], ["b", "a", "c"])
    Requirement(columns=('b', 'a'), conditions=(Condition(column='a', operator='=', value=1),))
    """
    if not requirements:
        return None
    requested = {c for required in requirements for c in required.columns}
    shared = [
        c
        for c in requirements[0].conditions
        if all(any(_same(c, other) for other in r.conditions) for r in requirements)
    ]
    return Requirement(tuple(c for c in columns if c in requested), tuple(shared))


def _same(one: Condition, other: Condition) -> bool:
    # 1 and True are equal in Python, and 1.0 and Decimal(1): compare the types too.
    return one == other and repr(one.value) == repr(other.value)
