"""The contract of sources: snapshots, and whole transactions in order, each with its position.

A position is a source's own 64-bit order (PostgreSQL: the LSN of the end of a commit). Invariant:
batches end at transaction ends only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from dataflow.schema import Relation, RelationName

if TYPE_CHECKING:
    from dataflow.changes import Changes
    from dataflow.delta import Delta

# The database that every service reads; users name the other sources.
MAIN_SOURCE = "source"


@dataclass(frozen=True)
class StoredInput:
    """Changes that are stored where the tasks of one view read them, cut for its buckets.

    epoch, buckets: what they were stored for, and nothing else may use them. parts: (file, bytes
    [start, stop] of it by bucket), in the order of the changes.
    """

    epoch: int
    buckets: int
    parts: tuple[tuple[str, Mapping[str, Sequence[int]]], ...]


@dataclass
class SourceBatch:
    """Whole transactions up to and including `position`.

    last_commit: the end of the newest transaction, 0 if there is none; `position` may lie beyond it
    if no published table changed there. changes are in order for each relation: all of them, or the
    first chunk if `later` has more. `later` is decoded while it is read, and only once. The chunks
    up to any one leave each relation in a legal state: keys are unique, and no update is torn.
    source: the source's name. An external source has no position but `positions`, the positions of
    all its relations after the batch, and last_commit only if it chooses its snapshots' positions;
    `notes` to store with the state (None removes one), and `rejected` records (see
    connectors/feed_source.py). commit_time_us: microseconds since 1970 at which the newest
    transaction committed at the source, 0 if there was none. stored: changes that are not in the
    batch, because tasks of the one view that reads them have stored them.
    """

    position: int
    changes: list[Changes]
    transactions: int
    rows: int
    commit_time_us: int = 0
    last_commit: int = 0
    later: Iterator[list[Changes]] | None = None
    source: str = MAIN_SOURCE
    positions: Mapping[str, Mapping[str, Any]] | None = None
    notes: Mapping[str, bytes | None] = field(default_factory=dict)
    rejected: Delta | None = None
    stored: StoredInput | None = None

    def chunks(self) -> Iterator[list[Changes]]:
        """Yield all changes in chunks of bounded size; only once if there are later ones."""
        if self.changes:
            yield self.changes
        if self.later is not None:
            yield from self.later

    def whole(self) -> list[Changes]:
        """Return all changes at once, whatever memory they need; later ones are consumed."""
        self.changes = [change for chunk in self.chunks() for change in chunk]
        self.later = None
        return self.changes


class SnapshotPart(Protocol):
    """One part of a relation's snapshot; picklable, and readable wherever the source is reachable.

    name: stable for the same part, so that an interrupted backfill finds its finished parts. A part
    may also have `rejected()`, as in connectors/feed_source.py.
    """

    @property
    def name(self) -> str:
        """See above."""
        ...

    def read(self) -> Iterator[Delta]:
        """Yield rows of weight 1 with the requested columns, in chunks of bounded size."""
        ...


class Snapshot(Protocol):
    """All requested relations at one position."""

    position: int

    def parts(
        self,
        relation: Relation,
        columns: Sequence[int],
        count: int,
        known: Sequence[str] = (),
    ) -> Sequence[SnapshotPart]:
        """Return about `count` disjoint parts that together hold the relation.

        known: part names of an earlier snapshot, to be cut alike. A part of the same name holds the
        same rows as before, except under keys that changed in between.
        """
        ...

    def part_of_keys(self, relation: Relation, columns: Sequence[int], keys: Delta) -> SnapshotPart:
        """Return the rows under these keys only; `keys` has the columns of the relation's key."""
        ...

    def close(self) -> None:
        """Release the snapshot at the source."""
        ...


class Source(Protocol):
    """A source of changes."""

    name: str

    def watch(self, relations: Sequence[RelationName]) -> None:
        """Make the source send changes of these relations.

        They start before any snapshot that is opened after the return.
        """
        ...

    def open_snapshot(self) -> Snapshot:
        """Return a consistent snapshot with its position."""
        ...
