"""Rows as tuples that know their column names, single and in sets.

Invariant: a row's values are in the order of its fields and exactly those of the view (`values`),
whether it comes from a page, a query or a change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar, Self, TypeVar, overload

from service.client.answers import Field
from service.client.table import Table
from service.client.tabular import Tabular, lines_of
from service.client.values import reader_of

T = TypeVar("T")


class Row(tuple[Any, ...]):
    """One row: a tuple of its values with access by name.

    `row.total`, `row["total"]` and `row[1]` are the same; `dict(row)` and `**row` work too. Columns
    named like a tuple's methods ("count", "index") need brackets.

    >>> row = row_type(("region", "count"))(("north", 2))
    >>> row.region, row["count"], dict(row), row == ("north", 2)
    ('north', 2, {'region': 'north', 'count': 2}, True)
    """

    __slots__ = ()
    _fields: ClassVar[tuple[str, ...]] = ()
    _index_of: ClassVar[Mapping[str, int]] = {}

    @overload
    def __getitem__(self, index: slice) -> tuple[Any, ...]: ...
    @overload
    def __getitem__(self, index: Any) -> Any: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, str):
            try:
                index = self._index_of[index]
            except KeyError:
                raise KeyError(f"no column {index!r} among {', '.join(self._fields)}") from None
        return tuple.__getitem__(self, index)

    def __getattr__(self, name: str) -> Any:
        try:
            return tuple.__getitem__(self, self._index_of[name])
        except KeyError:
            message = f"no column {name!r} among {', '.join(self._fields)}"
            raise AttributeError(message, name=name, obj=self) from None

    def __repr__(self) -> str:
        shown = (f"{n}={v!r}" for n, v in zip(self._fields, self, strict=True))
        return f"Row({', '.join(shown)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _row, (self._fields, tuple(self))

    def keys(self) -> tuple[str, ...]:
        """The names of the columns."""
        return self._fields

    def _asdict(self) -> dict[str, Any]:
        return dict(zip(self._fields, self, strict=True))


@cache
def row_type(names: tuple[str, ...]) -> type[Row]:
    """Return the Row class for columns with these names."""
    index_of = {name: index for index, name in reversed(list(enumerate(names)))}
    return type("Row", (Row,), {"__slots__": (), "_fields": names, "_index_of": index_of})


def _row(names: tuple[str, ...], values: tuple[Any, ...]) -> Row:
    return row_type(names)(values)


def read_rows(fields: Sequence[Field], objects: Sequence[dict[str, Any]]) -> list[Row]:
    """Return rows from their JSON objects."""
    names = tuple(f.name for f in fields)
    if not names:
        return [row_type(())() for _ in objects]
    columns = [[row[name] for row in objects] for name in names]
    for index, field in enumerate(fields):
        reader = reader_of(field.type)
        if reader is not None:
            columns[index] = [None if v is None else reader(v) for v in columns[index]]
    return list(map(row_type(names), zip(*columns, strict=True)))


class RowSet(Tabular, Sequence[Row]):
    """Rows with their fields: a sequence of Row, and a table of another package."""

    def __init__(self, fields: Sequence[Field], rows: list[Row]) -> None:
        self.fields: tuple[Field, ...] = tuple(fields)
        self.rows = rows

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        return self.rows[index]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self)} rows: {', '.join(self.columns)}>"

    def __str__(self) -> str:
        """The first rows, one a line, and "..." if there are more."""
        return lines_of(self.rows)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(f.name for f in self.fields)

    def dicts(self) -> list[dict[str, Any]]:
        """Each row as a dict by column."""
        return [row._asdict() for row in self.rows]

    def _table(self) -> Table:
        return Table(self.fields, self.rows)


class Page(RowSet):
    """A page of a view's rows, of one snapshot. epoch, positions: of the snapshot; None and empty
    for a view that was paused before it was live. next: `after` of the next page, None at the
    end."""

    def __init__(self, fields: Sequence[Field], rows: list[Row], answer: Mapping[str, Any]) -> None:
        super().__init__(fields, rows)
        self.next: str | None = answer.get("next")
        self.epoch: int | None = answer.get("epoch")
        self.positions: Mapping[str, str] = answer.get("positions", {})

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> Self:
        """Return the page of REST's response."""
        fields = [Field.of(f) for f in answer["fields"]]
        return cls(fields, read_rows(fields, answer["rows"]), answer)


class DiffPage(Page):
    """A page of what changed between two points of a view's history, by key.

    weights: of each row, -1 where only the first point has it, 1 where only the second one has it;
    more in a multiset view. begin, end: epoch, committed_at and positions of the points.
    """

    def __init__(self, fields: Sequence[Field], rows: list[Row], answer: Mapping[str, Any]) -> None:
        super().__init__(fields, rows, answer)
        self.weights: list[int] = answer["weights"]
        self.begin: Mapping[str, Any] = answer["from"]
        self.end: Mapping[str, Any] = answer["to"]

    def _table(self) -> Table:
        return Table(self.fields, self.rows, self.weights)


class QueryAnswer(RowSet):
    """The answer of a query. has_more: it was cut at the limit. views: epoch and positions of each
    group of views in it. position: of the source's WAL, if the query ran at the source."""

    def __init__(self, fields: Sequence[Field], rows: list[Row], answer: Mapping[str, Any]) -> None:
        super().__init__(fields, rows)
        self.has_more: bool = answer.get("has_more", False)
        self.views: Mapping[str, Mapping[str, Any]] = answer.get("views", {})
        self.position: str | None = answer.get("position")

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> Self:
        """Return the answer of REST's response."""
        fields = [Field.of(f) for f in answer["fields"]]
        return cls(fields, read_rows(fields, answer["rows"]), answer)
