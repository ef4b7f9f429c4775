"""Conditions and orders on the rows of a view, as Python expressions for REST's parameters.

    col("total") >= 100, col("region").is_in(["north", "south"]), ~col("note").like("x%")

Invariant: values are sent as PostgreSQL's text, and quoted in lists. Names are always quoted, so
that no column is mistaken for a reserved parameter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from service.client.values import text_of


@dataclass(frozen=True)
class Condition:
    """One condition on one column; `~` negates it."""

    column: str
    text: str
    is_not: bool = False

    def __invert__(self) -> Condition:
        return replace(self, is_not=not self.is_not)

    def __bool__(self) -> bool:
        raise TypeError("pass several conditions as a list; all of them must hold")

    @property
    def parameter(self) -> tuple[str, str]:
        """The condition as a query parameter."""
        return quoted(self.column), f"not.{self.text}" if self.is_not else self.text


@dataclass(frozen=True)
class Order:
    """One column of an order."""

    text: str


class Column:
    """A column of a view, in conditions and orders; `col(name)` makes it."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, name: str) -> None:
        self.name = name

    def __eq__(self, value: object) -> Condition:  # type: ignore[override]
        return self.is_null() if value is None else self._compared("eq", value)

    def __ne__(self, value: object) -> Condition:  # type: ignore[override]
        return ~self.is_null() if value is None else self._compared("neq", value)

    def __lt__(self, value: Any) -> Condition:
        return self._compared("lt", value)

    def __le__(self, value: Any) -> Condition:
        return self._compared("lte", value)

    def __gt__(self, value: Any) -> Condition:
        return self._compared("gt", value)

    def __ge__(self, value: Any) -> Condition:
        return self._compared("gte", value)

    def like(self, pattern: str) -> Condition:
        """Match SQL's LIKE pattern."""
        return self._compared("like", pattern)

    def ilike(self, pattern: str) -> Condition:
        """Match the LIKE pattern case-insensitively."""
        return self._compared("ilike", pattern)

    def is_in(self, values: Iterable[Any]) -> Condition:
        """Equal one of the values, none of which is NULL.

        >>> col("a").is_in([1, 'b"']).parameter
        ('"a"', 'in.("1","b\\\\"")')
        """
        texts = (text_of(v).replace("\\", "\\\\").replace('"', '\\"') for v in values)
        return Condition(self.name, "in.(" + ",".join(f'"{text}"' for text in texts) + ")")

    def is_null(self) -> Condition:
        """Be NULL."""
        return Condition(self.name, "is.null")

    def asc(self, *, nulls_first: bool = False) -> Order:
        """Order by ascending values."""
        return Order(f"{quoted(self.name)}.asc.{_nulls(nulls_first)}")

    def desc(self, *, nulls_first: bool = True) -> Order:
        """Order by descending values."""
        return Order(f"{quoted(self.name)}.desc.{_nulls(nulls_first)}")

    def _compared(self, operator: str, value: Any) -> Condition:
        if value is None:
            raise TypeError("comparison with None: use is_null()")
        return Condition(self.name, f"{operator}.{text_of(value)}")


Where = Condition | Sequence[Condition] | Mapping[str, Any]


def col(name: str) -> Column:
    """Return the column of that name (case-sensitive)."""
    return Column(name)


def conditions_of(where: Where | None) -> list[tuple[str, str]]:
    """Return query parameters. A mapping gives the values of columns; a list allows several.

    >>> conditions_of({"region": "north", "note": None})
    [('"region"', 'eq.north'), ('"note"', 'is.null')]
    >>> conditions_of([col("n") > 1, ~(col("n") == 7)])
    [('"n"', 'gt.1'), ('"n"', 'not.eq.7')]
    """
    if where is None:
        return []
    if isinstance(where, Condition):
        return [where.parameter]
    if isinstance(where, Mapping):
        return [_equal(name, value).parameter for name, value in where.items()]
    return [condition.parameter for condition in where]


def order_of(order: str | Order | Sequence[str | Order]) -> str:
    """Return the parameter `order`; texts have REST's form, "total.desc,region".

    >>> order_of(["region", col("total").desc()])
    'region,"total".desc.nullsfirst'
    """
    parts = [order] if isinstance(order, str | Order) else order
    return ",".join(part.text if isinstance(part, Order) else part for part in parts)


def quoted(name: str) -> str:
    """Return a column name in double quotes."""
    return '"' + name.replace('"', '""') + '"'


def _equal(name: str, value: Any) -> Condition:
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return col(name).is_in(value)
    return col(name) == value


def _nulls(first: bool) -> str:
    return "nullsfirst" if first else "nullslast"
