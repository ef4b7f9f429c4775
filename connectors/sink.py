"""The contract of sinks: one transaction an epoch, with the position inside.

Invariant: a reader of the sink sees all views as of one position, the one that the progress in
the same transaction names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from dataflow.errors import TemporaryError, TidemarkError
from dataflow.frozen import caches_hash
from dataflow.schema import VIEW_SOURCE, Field, RelationName

if TYPE_CHECKING:
    from dataflow.delta import Delta


@caches_hash
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
    """How far a sink is: the newest epoch and each source's position in it.

    The database's is a number, that of another source the places of its relations.
    """

    epoch: int
    positions: Mapping[str, Any]


@dataclass(frozen=True)
class ViewChange:
    """What becomes of a view with an epoch beside its rows.

    before, table: its table as it was and as it is from now on. facts: columns of its row in the
    catalog. is_renewed: another version of its query answers from now on, and error rows of the
    earlier one go. status: its new status, unless it is being dropped; "" leaves it as it is.
    ends: the id of the change that was asked for and is done with this, if any.
    """

    identity: str
    before: SinkTable
    table: SinkTable
    facts: Mapping[str, Any]
    is_renewed: bool = False
    status: str = ""
    ends: str = ""


@dataclass(frozen=True)
class Return:
    """How a rewound sink is brought to an epoch at once (service/pipeline/sink_rewind.py).

    follows: the epoch that it is at. live: identities of the group's views that are live from then
    on, whatever it says of others: what it was told since may be lost too. is_default: the group is
    that of views without any.
    """

    follows: int
    live: frozenset[str]
    group: str
    is_default: bool


@dataclass
class SinkPart:
    """Deltas by view and error rows, each consolidated: a share of an epoch."""

    deltas: list[tuple[SinkTable, Delta]]
    errors: Delta | None = None


class LaterParts(Protocol):
    """What of an epoch is too much for memory; may be gone through again and again.

    A row of a view is in one part at most, and so are all rows of one key: the parts may be
    applied in any order.
    """

    @property
    def rows(self) -> Mapping[SinkTable, int]:
        """The views in them, and how many rows of each as far as it is known."""
        ...

    def __iter__(self) -> Iterator[SinkPart]: ...

    def close(self) -> None:
        """Give back what is not to be kept."""
        ...


def errors_by_view(errors: Delta) -> dict[str, Delta]:
    """Return error rows by the title of their view."""
    titles = np.array(errors.columns[0].texts(), object)
    return {str(title): errors.filter(titles == title) for title in dict.fromkeys(titles)}


def errors_without(errors: Delta | None, views: Collection[RelationName]) -> Delta | None:
    """Return error rows without those of these views; None for none."""
    if errors is None or not views:
        return errors
    gone = {f"{view.schema}.{view.name}" for view in views}
    kept = np.array([title not in gone for title in errors.columns[0].texts()], np.bool_)
    return errors.filter(kept) if kept.any() else None


@dataclass
class SinkEpoch:
    """What one epoch changes: deltas by view, error rows, and the progress it leads to.

    Every delta is consolidated. errors: rows of (view, operator, sqlstate, message, source row).
    swaps: staged tables that become visible first, in the same transaction; deltas may then
    change them (what happened since their snapshot). refusals: views that the sink cannot take,
    told in its catalog in the same transaction. rejected: records of sources that are not rows
    (connectors/feed_source.py), new ones and, at weight -1, settled ones. later: more deltas and
    errors, on disk, without those of the views `left_out`; rows and keys in them are not among the
    others. changes: of views as a whole, made before all else. returns: where this one brings a
    sink that was set back; then it is for the views' tables alone. tokens: as given to `stage`, of
    the views in swaps: a sink that was set back may have other first rows.
    """

    progress: Progress
    deltas: list[tuple[SinkTable, Delta]]
    errors: Delta | None = None
    commit_time_us: int = 0
    swaps: tuple[SinkTable, ...] = ()
    refusals: tuple[tuple[SinkTable, TidemarkError], ...] = ()
    later: LaterParts | None = None
    left_out: frozenset[RelationName] = frozenset()
    rejected: Delta | None = None
    changes: tuple[ViewChange, ...] = ()
    returns: Return | None = None
    tokens: Mapping[RelationName, str] = field(default_factory=dict)

    @property
    def is_turn(self) -> bool:
        """Whether it changes more than rows, which may not be done a second time."""
        return bool(self.swaps or self.changes or self.refusals) or self.returns is not None

    def parts(self) -> Iterator[SinkPart]:
        """All deltas and error rows, a bounded part at a time."""
        yield SinkPart(self.deltas, self.errors)
        for part in self.later or ():
            kept = [(t, d) for t, d in part.deltas if t.relation not in self.left_out]
            yield SinkPart(kept, errors_without(part.errors, self.left_out))

    def row_counts(self) -> dict[SinkTable, int]:
        """How many rows of each view change."""
        later = {} if self.later is None else self.later.rows
        counts = {t: n for t, n in later.items() if t.relation not in self.left_out}
        for table, delta in self.deltas:
            counts[table] = counts.get(table, 0) + len(delta)
        return counts

    def nbytes(self) -> int:
        """About what the deltas in memory take."""
        held = sum(delta.nbytes() for _, delta in self.deltas)
        return held + sum(d.nbytes() for d in (self.errors, self.rejected) if d is not None)

    def without(self, views: Collection[RelationName]) -> SinkEpoch:
        """The same epoch with nothing of these views in it."""
        deltas = [(t, d) for t, d in self.deltas if t.relation not in views]
        errors = errors_without(self.errors, views)
        swaps = tuple(t for t in self.swaps if t.relation not in views)
        changes = tuple(c for c in self.changes if c.table.relation not in views)
        left_out = self.left_out.union(views)
        told = {"swaps": swaps, "changes": changes, "left_out": left_out}
        return replace(self, deltas=deltas, errors=errors, **told)

    def refused(self, error: TidemarkError) -> SinkEpoch:
        """The same epoch without the view that error.relation names, which it tells as failed."""
        later = () if self.later is None else self.later.rows
        changed = (c.table for c in self.changes)
        tables = [*self.swaps, *changed, *(t for t, _ in self.deltas), *later]
        assert error.relation is not None
        # Of a view that has error rows alone the epoch does not know the table.
        bare = SinkTable(error.relation.schema, error.relation.name, (), ())
        table = next((t for t in tables if t.relation == error.relation), bare)
        refusals = (*self.refusals, (table, error))
        return replace(self.without({table.relation}), refusals=refusals)


# The code of a view that only lacks its first rows: it is built anew by itself.
NOT_STAGED = "sink.not_staged"


class SinkChanged(TemporaryError):
    """The sink is not the one that the process has known: only another start sees what it has."""


class SinkPromoted(SinkChanged):
    """A standby of the sink took over: it may lack the newest of what had been acknowledged."""

    def __init__(self) -> None:
        super().__init__(
            "sink.promoted",
            "a standby of the sink took over",
            hint="nothing: it is looked at anew, and brought back to where the sink was",
        )


class SinkLagging(SinkChanged):
    """The sink shows less than it had acknowledged: only another start brings it back."""

    def __init__(self, found: int, acknowledged: int) -> None:
        super().__init__(
            "sink.behind",
            "the sink shows less than it had acknowledged",
            detail=f"it is at epoch {found}, and had been at {acknowledged}",
            hint="nothing: its tables are brought back to where they were, in one transaction",
        )


class Sink(Protocol):
    """A place that views are kept in."""

    def claim(self) -> None:
        """Take the sink for this service alone, before anything else. SinkError sink.in_use."""
        ...

    def read_progress(self) -> Progress | None:
        """What the last committed epoch said; None before the first."""
        ...

    def write(self, epoch: SinkEpoch) -> None:
        """Apply in one transaction, durable on return in the order of calls.

        A SinkError with a relation is about that view alone: nothing of the epoch is written, and
        without that view it can be. SinkBehind: the sink lacks epochs before this one.
        SinkPromoted: it is another server since it was claimed.
        """
        ...

    def interrupt(self) -> None:
        """End a `write` that waits, from another thread: it fails, and nothing of it is written."""
        ...

    def stage(self, table: SinkTable, rows: Iterable[Delta], token: str = "") -> int:
        """Fill a hidden staging table with a view's first rows; committed, replaced if there.

        token: tells them from others that were staged for the view. It becomes the view when an
        epoch names it in `swaps`. Returns the rows written. May be called from another thread than
        `write`, on a connection of its own.
        """
        ...

    def is_staged(self, table: SinkTable, token: str) -> bool:
        """Whether just these first rows of a view wait to become visible."""
        ...

    def drop(self, tables: Sequence[SinkTable]) -> None:
        """Remove the tables and everything that belongs to them."""
        ...
