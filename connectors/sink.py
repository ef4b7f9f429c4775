"""The contract of sinks: one transaction an epoch, with the position inside.

Invariant: a reader of the sink sees all views at one position, the one that the progress row of the
same transaction names. `write` runs on one thread; `interrupt` and `stage` may be called from
others.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from connectors.view_states import ViewState
from dataflow.errors import TemporaryError, TidemarkError
from dataflow.frozen import caches_hash
from dataflow.schema import VIEW_SOURCE, Field, RelationName

if TYPE_CHECKING:
    from dataflow.delta import Delta


@caches_hash
@dataclass(frozen=True)
class SinkTable:
    """A view's table.

    An empty key makes it a multiset view: a hidden table with multiplicities, and a view over it.
    final: of a view's rows as its readers get them once a window is closed, the column that begins
    the window and its length in microseconds; such rows never go into the table itself.
    """

    schema: str
    name: str
    fields: tuple[Field, ...]
    key: tuple[int, ...]
    final: tuple[int, int] | None = None

    @property
    def title(self) -> str:
        """The readable name: schema.name."""
        return f"{self.schema}.{self.name}"

    @property
    def relation(self) -> RelationName:
        """The name that other views and errors use."""
        return RelationName(VIEW_SOURCE, self.schema, self.name)


@dataclass(frozen=True)
class Progress:
    """Progress of a sink: the newest epoch and each source's position in it.

    The position of the database is a number, that of an external source its relations' positions.
    """

    epoch: int
    positions: Mapping[str, Any]

    def as_stored(self) -> dict[str, Any]:
        """Return the positions as a sink's catalog returns them: in JSON's types."""
        return json.loads(json.dumps(dict(self.positions)))


@dataclass(frozen=True)
class Handover:
    """The progress with which a view begins in another group.

    sink_key: of that group, which has no progress yet. relations: (source, relation) of the
    external ones that the view reads; the group gets a copy of their dead letters.
    """

    sink_key: str
    epoch: int
    positions: Mapping[str, Any]
    relations: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class ViewChange:
    """A change of a view itself that takes effect with an epoch, beside its rows.

    before, table: its table before and after. facts: columns of its row in the catalog.
    is_replaced: another version of its query is visible from now on; error rows of the earlier one
    are removed. status: its new status, unless the view is being dropped; "" changes nothing. ends:
    the id of the requested change that this completes, if any. hands_over: set where the view
    belongs to another group from now on.
    """

    identity: str
    before: SinkTable
    table: SinkTable
    facts: Mapping[str, Any]
    is_replaced: bool = False
    status: str = ""
    ends: str = ""
    hands_over: Handover | None = None


@dataclass
class SinkPart:
    """Part of an epoch: deltas by view and error rows, each consolidated."""

    deltas: list[tuple[SinkTable, Delta]]
    errors: Delta | None = None


class LaterParts(Protocol):
    """The part of an epoch that does not fit in memory; can be iterated repeatedly.

    All rows of one key, and each row of a view, are in at most one part. Parts may be applied in
    any order.
    """

    @property
    def rows(self) -> Mapping[SinkTable, int]:
        """Return the views in the parts, and the known number of rows of each."""
        ...

    def __iter__(self) -> Iterator[SinkPart]: ...

    def close(self) -> None:
        """Release what was only needed for this epoch."""
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
    is_other = np.array([title not in gone for title in errors.columns[0].texts()], np.bool_)
    return errors.filter(is_other) if is_other.any() else None


@dataclass
class SinkRows:
    """The rows of an epoch: deltas by view, error rows and malformed source records.

    Every delta is consolidated. rejected: malformed source records (connectors/feed_source.py): new
    ones, and resolved ones at weight -1. later: more deltas and errors, on disk, without those of
    the views in `left_out`; its rows and keys do not occur in the others.
    """

    deltas: list[tuple[SinkTable, Delta]] = field(default_factory=list)
    errors: Delta | None = None
    rejected: Delta | None = None
    later: LaterParts | None = None
    left_out: frozenset[RelationName] = frozenset()

    def parts(self) -> Iterator[SinkPart]:
        """Yield all deltas and error rows, in parts of bounded size."""
        yield SinkPart(self.deltas, self.errors)
        for part in self.later or ():
            is_other = [(t, d) for t, d in part.deltas if t.relation not in self.left_out]
            yield SinkPart(is_other, errors_without(part.errors, self.left_out))

    def counts(self) -> dict[SinkTable, int]:
        """Return how many rows of each view's table change."""
        return {table: n for table, n in self._counts().items() if table.final is None}

    def count_of(self, table: SinkTable) -> int | None:
        """Return how many rows of a view change, or of its final rows; None if there is none.

        The view counts by its name. Rows in parts on disk may be unknown, and count as 0.
        """
        own = table.relation, table.final
        found = [n for t, n in self._counts().items() if (t.relation, t.final) == own]
        return sum(found) if found else None

    def deltas_of(self, table: SinkTable) -> Iterator[Delta]:
        """Yield the deltas of a view, or of its final rows, part by part."""
        for part in self.parts():
            for found, delta in part.deltas:
                if (found.relation, found.final) == (table.relation, table.final) and len(delta):
                    yield delta

    def final_tables(self) -> list[SinkTable]:
        """Return the views with final rows in this epoch."""
        return [table for table in self._counts() if table.final is not None]

    def _counts(self) -> dict[SinkTable, int]:
        later = {} if self.later is None else self.later.rows
        counts = {t: n for t, n in later.items() if t.relation not in self.left_out}
        for table, delta in self.deltas:
            counts[table] = counts.get(table, 0) + len(delta)
        return counts

    def nbytes(self) -> int:
        """Return about how many bytes the deltas in memory take."""
        total = sum(delta.nbytes() for _, delta in self.deltas)
        return total + sum(d.nbytes() for d in (self.errors, self.rejected) if d is not None)

    def without(self, views: Collection[RelationName]) -> SinkRows:
        """Return the same rows without those of these views."""
        return replace(
            self,
            deltas=[(t, d) for t, d in self.deltas if t.relation not in views],
            errors=errors_without(self.errors, views),
            left_out=self.left_out.union(views),
        )


@dataclass(frozen=True)
class Swap:
    """A staged table that becomes visible.

    token: as passed to `stage`, because a rewound sink may hold other initial rows.
    """

    table: SinkTable
    token: str = ""


@dataclass(frozen=True)
class ViewDdl:
    """The changes of an epoch to whole views: applied in this order, before any rows.

    changes: names, columns of the catalog and statuses. swaps: staged tables that become visible;
    the epoch's deltas may change them (changes after their snapshot). refusals: views that the sink
    cannot accept, reported in its catalog in the same transaction.
    """

    changes: tuple[ViewChange, ...] = ()
    swaps: tuple[Swap, ...] = ()
    refusals: tuple[tuple[SinkTable, TidemarkError], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.changes or self.swaps or self.refusals)

    def tables(self) -> list[SinkTable]:
        """Return the tables that become visible or change."""
        return [*(swap.table for swap in self.swaps), *(c.table for c in self.changes)]

    def without(self, views: Collection[RelationName]) -> ViewDdl:
        """Return the same changes without those of these views; refusals stay."""
        return replace(
            self,
            changes=tuple(c for c in self.changes if c.table.relation not in views),
            swaps=tuple(s for s in self.swaps if s.table.relation not in views),
        )


@dataclass(frozen=True)
class SinkRepair:
    """How one epoch brings a rewound sink to the state (service/pipeline/sink_rewind.py).

    follows: the sink's current epoch. live: identities of the group's views that are live from then
    on; the sink may have lost newer statuses of the others. is_default: the group is the one for
    views that name no group.
    """

    follows: int
    live: frozenset[str]
    group: str
    is_default: bool


@dataclass
class SinkEpoch:
    """The changes of one epoch, and the resulting progress.

    repair: set where this epoch repairs a rewound sink; then it changes the views' tables only.
    """

    progress: Progress
    rows: SinkRows = field(default_factory=SinkRows)
    ddl: ViewDdl = ViewDdl()
    repair: SinkRepair | None = None
    commit_time_us: int = 0

    @property
    def is_non_idempotent(self) -> bool:
        """Return True if the epoch changes more than rows, so that it must not be applied twice."""
        return bool(self.ddl) or self.repair is not None

    def without(self, views: Collection[RelationName]) -> SinkEpoch:
        """Return the same epoch without these views."""
        return replace(self, rows=self.rows.without(views), ddl=self.ddl.without(views))

    def refusing(self, tables: Iterable[SinkTable], error: TidemarkError) -> SinkEpoch:
        """Return the same epoch with these views reported as failed."""
        refusals = (*self.ddl.refusals, *((table, error) for table in tables))
        return replace(self, ddl=replace(self.ddl, refusals=refusals))

    def degrading(self, views: Iterable[tuple[str, SinkTable]], error: TidemarkError) -> SinkEpoch:
        """Return the same epoch with these views reported as to be rebuilt. views: identities and
        tables."""
        facts = {"code": error.code, "detail": error.described, "hint": error.hint}
        status = ViewState.DEGRADED.value
        changes = (ViewChange(i, table, table, facts, status=status) for i, table in views)
        return replace(self, ddl=replace(self.ddl, changes=(*self.ddl.changes, *changes)))

    def refused(self, error: TidemarkError) -> SinkEpoch:
        """Return the same epoch without the view that error.relation names, reported as failed."""
        later = () if self.rows.later is None else self.rows.later.rows
        tables = [*self.ddl.tables(), *(t for t, _ in self.rows.deltas), *later]
        assert error.relation is not None
        # For a view that only has error rows, the epoch does not know the table.
        bare = SinkTable(error.relation.schema, error.relation.name, (), ())
        table = next((t for t in tables if t.relation == error.relation), bare)
        found = self.without({table.relation})
        refusals = (*self.ddl.refusals, (table, error))
        return replace(found, ddl=replace(found.ddl, refusals=refusals))


# The codes of views that the sink refuses for now: they are rebuilt automatically. One lacks its
# initial rows; the table of the other is locked by somebody else.
NOT_STAGED, LOCKED = "sink.not_staged", "sink.locked"
REBUILT = frozenset({NOT_STAGED, LOCKED})


@dataclass(frozen=True)
class TableState:
    """A view's table as it is now.

    error: what somebody has changed of it by hand. has_triggers: users have some on it.
    is_unguarded: an older version made it, and everybody may still write to it.
    """

    relation: RelationName
    error: TidemarkError | None = None
    has_triggers: bool = False
    is_unguarded: bool = False


class SinkChanged(TemporaryError):
    """The sink is not the one that this process opened; only a restart reads its state."""


class SinkPromoted(SinkChanged):
    """A standby of the sink was promoted; it may lack the newest acknowledged epochs."""

    def __init__(self) -> None:
        super().__init__(
            "sink.promoted",
            "a standby of the sink took over",
            hint="no action needed: the service restarts and repairs the sink",
        )


class SinkLagging(SinkChanged):
    """The sink shows less than it acknowledged; only a restart repairs it."""

    def __init__(self, found: int, acknowledged: int) -> None:
        super().__init__(
            "sink.rewound",
            "the sink shows less than it acknowledged",
            detail=f"it is at epoch {found} and had acknowledged epoch {acknowledged}",
            hint="no action needed: its tables are repaired in one transaction",
        )


class Sink(Protocol):
    """A destination of views."""

    def claim(self) -> None:
        """Claim the sink for this service alone, before any other call. SinkError sink.in_use."""
        ...

    def read_progress(self) -> Progress | None:
        """Return the progress of the last committed epoch; None before the first."""
        ...

    def write(self, epoch: SinkEpoch) -> None:
        """Apply an epoch in one transaction; durable on return, in the order of calls.

        A SinkError with a relation concerns that view alone: nothing of the epoch is written, and
        the epoch can be written without that view. SinkBehind: the sink lacks epochs before this
        one. SinkPromoted: it is another server than the claimed one.
        """
        ...

    def interrupt(self) -> None:
        """End a waiting `write` from another thread: it fails, and nothing of it is written."""
        ...

    def stage(self, table: SinkTable, rows: Iterable[Delta], token: str = "") -> int:
        """Write a view's initial rows to a hidden staging table, replacing any; return the row
        count.

        token: tells these rows from others staged for the view. The table becomes the view when an
        epoch names it in `swaps`. May be called from another thread than `write`, on its own
        connection.
        """
        ...

    def is_staged(self, table: SinkTable, token: str) -> bool:
        """Return True if exactly these initial rows of a view are staged."""
        ...

    def drop(self, tables: Sequence[SinkTable]) -> None:
        """Remove the tables and everything that belongs to them."""
        ...
