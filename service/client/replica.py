"""A view's rows in memory, updated from its epochs.

Invariant: after each applied epoch, the rows are the view as of that epoch, with duplicates. Rows
are equal if PostgreSQL prints them equally (1.0 is not 1.00). Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from service.client.answers import Field
from service.client.epochs import Epoch
from service.client.rows import Row
from service.client.table import Table
from service.client.tabular import Tabular


class Replica(Tabular):
    """The sum of a view's epochs, the first of which is a snapshot.

    number, positions, resume: of the newest epoch. len() and iteration include duplicates.
    """

    def __init__(self) -> None:
        self.number = -1
        self.positions: Mapping[str, str] = {}
        self.resume = ""
        self.fields: tuple[Field, ...] = ()
        self.key: tuple[str, ...] = ()
        self._rows: dict[str, tuple[Row, int]] = {}

    def apply(self, epoch: Epoch) -> None:
        """Apply the next epoch; a snapshot replaces all rows.

        ValueError for an epoch that is not the next one; nothing is applied then.
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
            raise ValueError(f"epoch {epoch.number} removes {lacking[0]}, which does not exist")
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
        """Return the rows by primary key: a value, or a tuple. ValueError for a multiset view."""
        if not self.key:
            raise ValueError("the view has no primary key")
        if len(self.key) == 1:
            return {row[self.key[0]]: row for row, _ in self._rows.values()}
        return {tuple(row[name] for name in self.key): row for row, _ in self._rows.values()}

    def dicts(self) -> list[dict[str, Any]]:
        """Return each row as a dict by column."""
        return [row._asdict() for row in self]

    def _table(self) -> Table:
        return Table(self.fields, list(self))
