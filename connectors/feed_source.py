"""The contract of sources beside the database: topics, folders, and whatever else tells changes.

Each relation of such a source has a place of its own: how far it has been read, in the source's
own words (offsets by partition, the number of the newest file). Invariant: rows of the snapshot
at a place and all changes after that place make the relation; a place is never passed over in
silence, what cannot be read is refused or told as rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from connectors.source import SourceBatch
from dataflow.delta import KIND_BYTES, Delta
from dataflow.schema import Relation, RelationName

# Of one relation, as JSON has it; only its source understands it.
Place = Mapping[str, Any]
# By the relation's name within its source.
Places = Mapping[str, Place]

REJECTED_COLUMNS = ("source", "relation", "place", "code", "reason", "key", "value")
REJECTED_KINDS = KIND_BYTES * len(REJECTED_COLUMNS)


def rejected_row(
    name: RelationName,
    place: str,
    code: str,
    reason: str,
    *,
    key: bytes | None,
    value: bytes | None,
) -> tuple[str, str, str, str, str, bytes | None, bytes | None]:
    """A row of a rejected Delta (of REJECTED_KINDS): a record that is not a row of its relation.

    place: where it lies, as people write it and unique in the relation ("3:1042" for partition 3,
    offset 1042; "2024/a.csv:17" for line 17). code: stable, as in docs/ERRORS.md. key, value: the
    raw bytes, None where the record has none.
    """
    return (name.source, name.name, place, code, reason, key, value)


@dataclass(frozen=True)
class DeclaredRelation:
    """A relation as its source's options declare it, before PostgreSQL has understood the types.

    columns: (name, type as in CREATE TABLE) in order. key: names of the columns by which a row
    replaces an earlier one. The service makes Relations of these, with the resolved types.
    """

    name: str
    columns: tuple[tuple[str, str], ...]
    key: tuple[str, ...] = ()
    is_append: bool = False


@dataclass(frozen=True)
class Pin:
    """Where a relation is first read: its snapshot holds everything up to `place`.

    notes: what the source wants to be kept with the state from then on, by its own keys.
    """

    place: Place
    notes: Mapping[str, bytes] = field(default_factory=dict)


class FeedPart(Protocol):
    """A share of a relation's snapshot; picklable, readable wherever the source is reached.

    name: the same for the same share of the same place, so that a backfill that was interrupted
    knows which ones it has.
    """

    name: str

    def read(self) -> Iterator[Delta]:
        """Rows of weight 1 with the asked columns, in chunks of bounded size."""
        ...

    def rejected(self) -> Delta:
        """What `read` left out, once it is through: rows of REJECTED_KINDS."""
        ...


class FeedSnapshot(Protocol):
    """The asked relations, each as of its place."""

    def parts(
        self,
        relation: Relation,
        columns: Sequence[int],
        count: int,
        known: Sequence[str] = (),
    ) -> Sequence[FeedPart]:
        """About `count` disjoint parts that together hold the relation.

        known: names of the parts of an earlier snapshot at the same place. It is cut into the same
        again, also when the source has lost what they were read from.
        """
        ...

    def close(self) -> None:
        """Give back what was held at the source."""
        ...


class SourceFeed(Protocol):
    """Changes after the places it was opened at. One thread polls; reading ahead is the feed's
    own affair, in threads of its own and within a bound of memory."""

    def poll(self, max_rows: int, *, until: Places | None = None) -> SourceBatch | None:
        """What has been read, about max_rows of it; None when there is nothing. Never waits.

        until: never go beyond these places (recovery, where the sink is ahead of the state).
        The batch names its source and its relations' places after it; a batch may hold places,
        notes and rejected rows without changes. TemporaryError when the source is away: open
        a new feed from the last batch's places. SourceError when it cannot go on from here, with
        the relation where it is about one alone.
        """
        ...

    @property
    def lag(self) -> int:
        """About how many records (files) the source has that no batch has held yet."""
        ...

    @property
    def skipped(self) -> int:
        """How many records that are not rows this feed has passed over without telling them
        (`on_error: skip`)."""
        ...

    def close(self) -> None:
        """End reading and its threads."""
        ...


class FeedSource(Protocol):
    """A place that changes come from. Nothing is opened before the first use.

    is_replayable: a feed opened again at older places tells the same changes. If not, the state
    is forced to disk before the sink sees an epoch.
    """

    name: str
    is_replayable: bool

    def relations(self) -> Sequence[Relation]:
        """What can be read, as it was declared."""
        ...

    def check(self) -> None:
        """Reach the source and compare it with what was declared. SourceError, TemporaryError."""
        ...

    def pin(self, relation: Relation) -> Pin:
        """Where a relation that nothing reads yet stands now; its configured start is honoured by
        the snapshot, which begins there."""
        ...

    def open_snapshot(
        self, relations: Sequence[Relation], places: Places, notes: Mapping[str, bytes]
    ) -> FeedSnapshot:
        """The rows of these relations as of these places."""
        ...

    def open_feed(
        self,
        relations: Sequence[Relation],
        places: Places,
        notes: Mapping[str, bytes],
        on_ready: Callable[[], None],
    ) -> SourceFeed:
        """All changes of these relations after these places. on_ready: called from any thread
        when `poll` has something after it had nothing."""
        ...

    def decode_again(self, relation: Relation, rows: Delta) -> SourceBatch:
        """Rejected rows of one relation tried again, as a batch without places: the changes of
        those that are rows now, and `rejected` with their rows at weight -1."""
        ...


class Connector(Protocol):
    """What the module `connectors/<type>/source.py` offers; options are JSON as users gave it."""

    def declare(self, options: Mapping[str, Any]) -> Sequence[DeclaredRelation]:
        """The relations that the options declare; reaches nothing. SourceError source.bad_option
        for what is unknown, missing or contradicts itself, with the option's name."""
        ...

    def make(
        self, name: str, options: Mapping[str, Any], relations: Sequence[Relation]
    ) -> FeedSource:
        """The source, with its declared relations in the order of `declare`."""
        ...

    def discover(self, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """The options with columns proposed for each relation that lacks them, from samples."""
        ...
