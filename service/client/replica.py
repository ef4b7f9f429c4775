"""A view's rows in memory, kept up to date from its epochs.

Invariant: after each epoch that was applied the rows are the view as of that epoch, each as often
as it is there; rows are told apart as PostgreSQL prints them (1.0 is not 1.00).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from service.client.answers import Field
from service.client.epochs import Epoch
from service.client.rows import Row, RowSet

if TYPE_CHECKING:
    import pyarrow


class Replica:
    """The fold of a view's epochs, the first of which is a snapshot.

    number, positions, resume: of the newest epoch. len() and iteration count a row as often as
    the view does.
    """

    def __init__(self) -> None:
        self.number = -1
        self.positions: Mapping[str, str] = {}
        self.resume = ""
        self.fields: tuple[Field, ...] = ()
        self.key: tuple[str, ...] = ()
        self._rows: dict[str, tuple[Row, int]] = {}

    def apply(self, epoch: Epoch) -> None:
        """Take in the next epoch; a snapshot takes the place of all rows.

        ValueError for changes that are not the next ones: nothing is taken in then.
        """
        if not epoch.is_snapshot and epoch.number <= self.number:
            raise ValueError(f"epoch {epoch.number} comes after {self.number}")
        rows = {} if epoch.is_snapshot else self._rows
        changed: dict[str, tuple[Row, int]] = {}
        for identity, (row, weight) in zip(epoch.identities, epoch, strict=True):
            previous = changed.get(identity) or rows.get(identity)
            changed[identity] = (row, (previous[1] if previous else 0) + weight)
        lacking = [row for row, count in changed.values() if count < 0]
        if lacking:
            raise ValueError(f"epoch {epoch.number} takes away {lacking[0]}, which is not there")
        for identity, (row, count) in changed.items():
            if count:
                rows[identity] = (row, count)
            else:
                rows.pop(identity, None)
        self._rows = rows
        self.number, self.positions, self.resume = epoch.number, epoch.positions, epoch.resume
        self.fields, self.key = epoch.fields, epoch.key

    def __len__(self) -> int:
        return sum(count for _, count in self._rows.values())

    def __iter__(self) -> Iterator[Row]:
        for row, count in self._rows.values():
            for _ in range(count):
                yield row

    def __repr__(self) -> str:
        return f"<Replica of {len(self)} rows at epoch {self.number}>"

    def by_key(self) -> dict[Any, Row]:
        """The rows by their primary key: its value, or a tuple of several. ValueError for a bag."""
        if not self.key:
            raise ValueError("the view has no primary key")
        if len(self.key) == 1:
            return {row[self.key[0]]: row for row, _ in self._rows.values()}
        return {tuple(row[name] for name in self.key): row for row, _ in self._rows.values()}

    def dicts(self) -> list[dict[str, Any]]:
        """Each row as a dict by column."""
        return [row._asdict() for row in self]

    def to_arrow(self, types: Mapping[str, pyarrow.DataType] | None = None) -> pyarrow.Table:
        """The rows as an Arrow table, as `RowSet.to_arrow` makes it."""
        return RowSet(self.fields, list(self)).to_arrow(types)
