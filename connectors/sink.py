"""The contract of sinks: one transaction an epoch, with the position inside.

Invariant: a reader of the sink sees all views as of one position, the one that the progress in
the same transaction names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from dataflow.delta import Delta
from dataflow.errors import TidemarkError
from dataflow.schema import VIEW_SOURCE, Field, RelationName


@dataclass(frozen=True)
class SinkTable:
    """A view's table.

    key () makes it a bag: a hidden table with multiplicities, and a view over it.
    """

    schema: str
    name: str
    fields: tuple[Field, ...]
    key: tuple[int, ...]

    @property
    def title(self) -> str:
        """schema.name, for people."""
        return f"{self.schema}.{self.name}"

    @property
    def relation(self) -> RelationName:
        """What other views, and errors, call it."""
        return RelationName(VIEW_SOURCE, self.schema, self.name)


@dataclass(frozen=True)
class Progress:
    """How far a sink is: the newest epoch and each source's position in it."""

    epoch: int
    positions: Mapping[str, int]


@dataclass
class SinkEpoch:
    """What one epoch changes: deltas by view, error rows, and the progress it leads to.

    Every delta is consolidated. errors: rows of (view, operator, sqlstate, message, source row).
    swaps: staged tables that become visible first, in the same transaction; deltas may then
    change them (what happened since their snapshot). refusals: views that the sink cannot take,
    told in its catalog in the same transaction.
    """

    progress: Progress
    deltas: list[tuple[SinkTable, Delta]]
    errors: Delta | None = None
    commit_time_us: int = 0
    swaps: tuple[SinkTable, ...] = ()
    refusals: tuple[tuple[SinkTable, TidemarkError], ...] = ()

    def without(self, views: Collection[RelationName]) -> SinkEpoch:
        """The same epoch with nothing of these views in it."""
        deltas = [(t, d) for t, d in self.deltas if t.relation not in views]
        swaps = tuple(t for t in self.swaps if t.relation not in views)
        return replace(self, deltas=deltas, swaps=swaps)

    def refused(self, error: TidemarkError) -> SinkEpoch:
        """The same epoch without the view that error.relation names, which it tells as failed."""
        tables = [*self.swaps, *(t for t, _ in self.deltas)]
        table = next(t for t in tables if t.relation == error.relation)
        refusals = (*self.refusals, (table, error))
        return replace(self.without({table.relation}), refusals=refusals)


class Sink(Protocol):
    """A place that views are kept in."""

    def read_progress(self) -> Progress | None:
        """What the last committed epoch said; None before the first."""
        ...

    def write(self, epoch: SinkEpoch) -> None:
        """Apply in one transaction, durable on return in the order of calls.

        A SinkError with a relation is about that view alone: nothing of the epoch is written, and
        without that view it can be.
        """
        ...

    def stage(self, table: SinkTable, rows: Iterable[Delta]) -> int:
        """Fill a hidden staging table with a view's first rows; committed, replaced if there.

        It becomes the view when an epoch names it in `swaps`. Returns the rows written. May be
        called from another thread than `write`, on a connection of its own.
        """
        ...

    def drop(self, tables: Sequence[SinkTable]) -> None:
        """Remove the tables and everything that belongs to them."""
        ...
