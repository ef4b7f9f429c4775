"""The contract of sources: snapshots, and whole transactions in order, each with its position.

A position is a source's own 64-bit order (PostgreSQL: the LSN of the end of a commit). What a
source hands over is cut at transaction ends only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from dataflow.schema import Relation, RelationName

if TYPE_CHECKING:
    from dataflow.changes import Changes
    from dataflow.delta import Delta

# The database that every service follows; other sources have the names that users gave them.
MAIN_SOURCE = "source"


@dataclass
class SourceBatch:
    """Whole transactions up to and including `position`.

    last_commit: where the newest of the transactions ends, 0 when there is none; `position` may
    lie beyond it, where nothing of ours has happened.
    changes are in order for each relation: all of them, or the first chunk where `later` has
    more, which is decoded as it is read, once. What the chunks up to any one say is a legal
    state of each relation: keys are unique in it, and an update is never torn.
    source: whose they are. Another one than the database has no position but `places`, those of
    all its relations after the batch; `notes` to be kept with the state (None removes one), and
    `rejected` records (see connectors/feed_source.py).
    commit_time_us: microseconds since 1970 at which the newest of the transactions committed at
    the source, 0 when there was none.
    """

    position: int
    changes: list[Changes]
    transactions: int
    rows: int
    commit_time_us: int = 0
    last_commit: int = 0
    later: Iterator[list[Changes]] | None = None
    source: str = MAIN_SOURCE
    places: Mapping[str, Mapping[str, Any]] | None = None
    notes: Mapping[str, bytes | None] = field(default_factory=dict)
    rejected: Delta | None = None

    def chunks(self) -> Iterator[list[Changes]]:
        """All changes, in chunks of bounded size; where there are later ones, only once."""
        if self.changes:
            yield self.changes
        if self.later is not None:
            yield from self.later

    def whole(self) -> list[Changes]:
        """All changes at once, whatever memory they need; then there are no later ones."""
        self.changes = [change for chunk in self.chunks() for change in chunk]
        self.later = None
        return self.changes


class SnapshotPart(Protocol):
    """A share of a relation's snapshot; picklable, readable wherever the source is reached.

    name: the same for the same share, so that a backfill that was interrupted knows which ones
    it has. A part may have `rejected()` besides, as in connectors/feed_source.py.
    """

    @property
    def name(self) -> str:
        """See above."""
        ...

    def read(self) -> Iterator[Delta]:
        """Rows of weight 1 with the asked columns, in chunks of bounded size."""
        ...


class Snapshot(Protocol):
    """All asked relations as of one position."""

    position: int

    def parts(
        self,
        relation: Relation,
        columns: Sequence[int],
        count: int,
        known: Sequence[str] = (),
    ) -> Sequence[SnapshotPart]:
        """About `count` disjoint parts that together hold the relation.

        known: the names of an earlier snapshot's parts, to be cut alike. A part of the same name
        holds the same rows as then, but for those under keys that have changed in between.
        """
        ...

    def part_of_keys(self, relation: Relation, columns: Sequence[int], keys: Delta) -> SnapshotPart:
        """The rows under these keys alone, columns of the relation's key."""
        ...

    def close(self) -> None:
        """Give the snapshot back to the source."""
        ...


class Source(Protocol):
    """A place that changes come from."""

    name: str

    def watch(self, relations: Sequence[RelationName]) -> None:
        """Make sure that changes of these relations are sent, from a position before any snapshot
        that is opened after the return."""
        ...

    def open_snapshot(self) -> Snapshot:
        """A consistent snapshot with its position."""
        ...
