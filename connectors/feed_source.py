"""The contract of external sources: Kafka topics, files, and other feeds beside the database.

Each relation of such a source has its own position in the source's own terms: offsets by
partition, or the number of the newest file. Invariant: the snapshot at a position plus all changes
after it are the relation. A position never silently skips a record: an unreadable record is refused
or reported as rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from connectors.outside import texts
from connectors.pushdown import Pushdown, PushdownRequirement
from connectors.source import SourceBatch
from dataflow.changes import Changes
from dataflow.delta import KIND_BYTES, Delta
from dataflow.errors import SourceError, TidemarkError
from dataflow.schema import Relation, RelationName

# The position of one relation, as JSON; only its source understands it.
FeedPosition = Mapping[str, Any]
# Positions by the relation's name within its source.
FeedPositions = Mapping[str, FeedPosition]

REJECTED_COLUMNS = ("source", "relation", "position", "code", "reason", "key", "value")
REJECTED_KINDS = KIND_BYTES * len(REJECTED_COLUMNS)
# PostgreSQL shows a value in twice its bytes, and no text of a gigabyte.
MOST_RAW_BYTES = 64 << 20


def rejected_row(
    name: RelationName,
    position: str,
    code: str,
    reason: str,
    *,
    key: bytes | None,
    value: bytes | None,
) -> tuple[str, str, str, str, str, bytes | None, bytes | None]:
    """Return a row of a rejected Delta (of REJECTED_KINDS): one malformed record of a relation.

    position: where the record is, readable and unique in the relation ("3:1042" for partition 3,
    offset 1042; "2024/a.csv:17" for line 17). code: stable, see docs/ERRORS.md. key, value: the raw
    bytes, or None if the record has none; those of more than MOST_RAW_BYTES are left out.
    """
    found = [None if raw is None or len(raw) > MOST_RAW_BYTES else raw for raw in (key, value)]
    shown = [texts.storable(text) for text in (position, code, reason)]
    return (name.source, name.name, shown[0], shown[1], shown[2], found[0], found[1])


@dataclass(frozen=True)
class DeclaredRelation:
    """A relation as its source's options declare it, before PostgreSQL resolves the types.

    columns: (name, type as in CREATE TABLE), in order. key: column names; a row replaces the
    earlier row of the same key. is_full: changes carry whole old rows. The service turns these into
    Relations with resolved types.
    """

    name: str
    columns: tuple[tuple[str, str], ...]
    key: tuple[str, ...] = ()
    is_append: bool = False
    is_full: bool = False


@dataclass(frozen=True)
class FeedStart:
    """Where reading of a relation starts: its snapshot holds everything up to `position`.

    notes: what the source stores with the state from then on, under its own keys.
    """

    position: FeedPosition
    notes: Mapping[str, bytes] = field(default_factory=dict)


class FeedPart(Protocol):
    """One part of a relation's snapshot; picklable, and readable wherever the source is reachable.

    name: stable for the same part at the same position, so that an interrupted backfill finds its
    finished parts.
    """

    name: str

    def read(self) -> Iterator[Delta]:
        """Yield rows of weight 1 with the requested columns, in chunks of bounded size."""
        ...

    def rejected(self) -> Delta:
        """Return the records that `read` rejected, after it is exhausted: rows of
        REJECTED_KINDS.
        """
        ...


class FeedSnapshot(Protocol):
    """The requested relations, each at its position."""

    def parts(
        self,
        relation: Relation,
        columns: Sequence[int],
        count: int,
        known: Sequence[str] = (),
    ) -> Sequence[FeedPart]:
        """Return about `count` disjoint parts that together hold the relation.

        known: part names of an earlier snapshot at the same position. The snapshot is cut the same
        way again, even if the source no longer has the records.
        """
        ...

    def close(self) -> None:
        """Release what the snapshot holds at the source."""
        ...


class SourceFeed(Protocol):
    """Changes after the positions at which the feed was opened.

    One thread polls. A feed may read ahead in its own threads, within a memory bound.
    """

    def poll(self, max_rows: int, *, until: FeedPositions | None = None) -> SourceBatch | None:
        """Return what has been read, about max_rows rows; None if there is nothing. Never wait.

        until: never pass these positions (during recovery, when the sink is ahead of the state).
        The batch names its source and the positions of its relations after it. A batch may hold
        positions, notes and rejected rows without changes. TemporaryError: the source is
        unreachable; open a new feed from the last batch's positions. SourceError: the feed cannot
        continue; it names the relation if only one is affected.
        """
        ...

    @property
    def lag(self) -> int:
        """About how many records (files) no batch has held yet."""
        ...

    @property
    def skipped(self) -> int:
        """How many malformed records this feed dropped without reporting them
        (`on_error: skip`).
        """
        ...

    @property
    def has_succeeded(self) -> bool:
        """Return True once the source has answered for each relation since the feed was opened.

        It has handed out what it read, or the source has nothing new. So what has ended an earlier
        feed is over, whether or not anything changes at the source.
        """
        ...

    def close(self) -> None:
        """Stop reading and end the threads."""
        ...


def gaps_of(feed: SourceFeed) -> int:
    """Return how often a feed has begun to read again where records may have been lost.

    Only streams, which cannot be read again, have such gaps (attribute `gaps`).
    """
    return int(getattr(feed, "gaps", 0))


def problem_of(feed: SourceFeed) -> TidemarkError | None:
    """Return why a feed holds back some records for too long while it reads on (attribute
    `problem`); None if it does not.
    """
    return getattr(feed, "problem", None)


def reaches_nothing(source: FeedSource) -> bool:
    """Return True for a source whose feed reads nothing outside of this process, and so never
    waits (attribute `reaches_nothing`): the pipeline's thread may call it itself.
    """
    return bool(getattr(source, "reaches_nothing", False))


class RelationAltered(SourceError):
    """A relation has another definition from here on, and rows that did not come as changes.

    Its readers are built again: with its rows as they are now, or its source refuses them.
    """


def undeclared(source: str, relation: Relation) -> SourceError:
    """Return the error of a relation that a source's options no longer have."""
    what = f'relation "{relation.name.name}" of source "{source}" is no longer declared'
    return SourceError("source.bad_option", what, hint="declare it again")


class FeedSource(Protocol):
    """An external source. Nothing is opened before the first use.

    is_replayable: a feed opened again at older positions returns the same changes. If not, the
    state is synced to disk before the sink sees an epoch.
    """

    name: str
    is_replayable: bool

    def relations(self) -> Sequence[Relation]:
        """Return the declared relations."""
        ...

    def check(self) -> None:
        """Reach the source and compare it with the declaration. SourceError, TemporaryError."""
        ...

    def start_position(self, relation: Relation) -> FeedStart:
        """Return the current position of a relation that no view reads yet.

        Its snapshot begins at the configured start.
        """
        ...

    def open_snapshot(
        self, relations: Sequence[Relation], positions: FeedPositions, notes: Mapping[str, bytes]
    ) -> FeedSnapshot:
        """Return the rows of these relations at these positions."""
        ...

    def open_feed(
        self,
        relations: Sequence[Relation],
        positions: FeedPositions,
        notes: Mapping[str, bytes],
        on_ready: Callable[[], None],
    ) -> SourceFeed:
        """Return all changes of these relations after these positions.

        on_ready: called from any thread when `poll` has something again after it had nothing.
        """
        ...

    def decode_again(self, relation: Relation, rows: Delta) -> SourceBatch:
        """Retry rejected rows of one relation; return a batch without positions.

        It holds the changes of the rows that are valid now; `rejected` has their rows at weight -1.
        """
        ...


class StreamClaim(Protocol):
    """Distinguishes a service's own sessions at a source from those of another service."""

    @property
    def stream_application(self) -> str:
        """Return the application name of its sessions."""
        ...

    def may_end(self, application: str) -> bool:
        """Return whether sessions of this name are its own, from before a restart."""
        ...


@dataclass(frozen=True)
class Reader:
    """Who reads a source that retains changes for each of its readers.

    prefix, group: of the service, and of its views. claim: None if it only releases.
    """

    prefix: str
    group: str
    claim: StreamClaim | None = None


class RetainingSource(FeedSource, Protocol):
    """An external source that retains changes for a reader until they are durable there.

    It also chooses the positions of its snapshots: they are ChosenSnapshots, and its feeds are
    RetainingFeeds.
    """

    def read_as(self, reader: Reader) -> None:
        """Set for whom it retains changes, before the first use."""
        ...

    def order_of(self, position: FeedPosition) -> int:
        """Return a number that orders positions: larger ones are later."""
        ...

    def release(self, requested_at: float) -> None:
        """Retain nothing for the reader any more, unless it began to read again since.

        requested_at: of the monotonic clock, in seconds. SourceError source.slot_not_dropped: the
        hint names what is left at the source.
        """
        ...


class RetainingFeed(SourceFeed, Protocol):
    """The feed of a RetainingSource.

    The last_commit of its batches is of the order of `order_of`, 0 of one without transactions.
    """

    def durable(self, position: FeedPosition) -> None:
        """Let the source discard what is before this position; never wait.

        It is on disk here: no later feed begins before it, whichever relations it reads.
        """
        ...


class ChosenSnapshot(FeedSnapshot, Protocol):
    """The requested relations at a position that the source chose, not before the requested ones.

    The feed passes it, also if nothing changes at the source. It cannot be read again once closed.
    """

    position: FeedPosition


def retaining(source: FeedSource) -> RetainingSource | None:
    """Return a source as one that retains changes for its readers; None if it does not."""
    return cast(RetainingSource, source) if hasattr(source, "read_as") else None


class SelectiveSource(FeedSource, Protocol):
    """An external source that reads only what is required of its relations.

    The module of its connector has `pushdown`.
    """

    def require(self, required: Mapping[str, PushdownRequirement]) -> None:
        """Read what is required of these relations, by name, from the next reading on.

        A wider requirement is read at once, also by an open feed. Without any, all is read.
        """
        ...

    def covers(
        self,
        name: str,
        position: FeedPosition,
        note_of: Callable[[str], bytes | None],
        needed: PushdownRequirement,
    ) -> bool:
        """Return True if all that is needed of a relation was read up to this position.

        note_of: returns a note that is stored with it.
        """
        ...


def selective(source: FeedSource) -> SelectiveSource | None:
    """Return a source as one that reads only what is required; None if it is not."""
    return cast(SelectiveSource, source) if hasattr(source, "require") else None


class BoundedSource(FeedSource, Protocol):
    """An external source that can also be read up to an end, and then no further."""

    def first_position(self, relation: Relation) -> FeedStart:
        """Return the position before the first record: all records are changes after it."""
        ...

    def current_end(self, relations: Sequence[Relation]) -> Any:
        """Return where these relations end now, for `read_until`."""
        ...

    def read_until(
        self,
        relations: Sequence[Relation],
        positions: FeedPositions,
        notes: Mapping[str, bytes],
        end: Any,
        max_rows: int,
    ) -> Iterator[SourceBatch]:
        """Yield the changes after these positions up to an end, about max_rows rows a batch.

        Without any, yield nothing. It raises as `SourceFeed.poll` does.
        """
        ...


@dataclass(frozen=True)
class RangeResult:
    """What reading a range has found beside its changes.

    facts: JSON for the planner that cut the range. rejected: rows of REJECTED_KINDS. is_whole: it
    was read to its end; else `facts` say up to where. failure: why the relation ends there.
    """

    facts: Mapping[str, Any]
    rejected: Delta
    is_whole: bool = True
    failure: TidemarkError | None = None


class FeedRange(Protocol):
    """Changes of a relation between two fixed positions; picklable, and readable in any process
    that reaches the source.

    name: for people. size: about how many records.
    """

    @property
    def name(self) -> str:
        """See above."""
        ...

    @property
    def relation(self) -> RelationName:
        """The relation's name."""
        ...

    @property
    def size(self) -> int:
        """See above."""
        ...

    def read(self) -> Iterator[Changes]:
        """Yield the changes in order, in chunks of bounded size. It raises as `SourceFeed.poll`."""
        ...

    def result(self) -> RangeResult:
        """Return what `read` has found beside them, after it is exhausted."""
        ...


class RangePlanner(Protocol):
    """Cuts what is unread into ranges that any process can read, and moves behind them.

    Used by one thread. Changes of one key are in the order of the ranges.
    """

    def has_unread(self) -> bool:
        """Return whether anything is unread; never wait. It raises as `SourceFeed.poll` does."""
        ...

    def cut(self, count: int, max_rows: int) -> Sequence[FeedRange]:
        """Return ranges of about max_rows records together, of `count` sizes that are about equal.

        Nothing, if nothing is unread; never wait. It raises as `SourceFeed.poll` does.
        """
        ...

    def shorten(
        self, ranges: Sequence[FeedRange], results: Sequence[RangeResult]
    ) -> Sequence[FeedRange]:
        """Return what can be read of ranges of which some were not read to their ends.

        A failure is raised by the `cut` after them; at once if nothing can be read before it.
        """
        ...

    def join(self, ranges: Sequence[FeedRange], results: Sequence[RangeResult]) -> SourceBatch:
        """Move behind ranges that were read; return their batch, without the changes.

        TemporaryError: it cannot be done now, and nothing has moved.
        """
        ...

    @property
    def lag(self) -> int:
        """See SourceFeed."""
        ...

    @property
    def skipped(self) -> int:
        """See SourceFeed."""
        ...

    @property
    def has_succeeded(self) -> bool:
        """See SourceFeed."""
        ...

    def close(self) -> None:
        """End the threads."""
        ...


class RangedSource(BoundedSource, Protocol):
    """An external source of which some relations can be read in ranges."""

    def unranged(self, relation: Relation) -> str:
        """Return why a relation cannot be read in ranges, for people; "" if it can."""
        ...

    def open_ranges(
        self,
        relations: Sequence[Relation],
        positions: FeedPositions,
        notes: Mapping[str, bytes],
        on_ready: Callable[[], None],
        end: Any = None,
    ) -> RangePlanner:
        """Return what cuts the changes of these relations after these positions into ranges.

        end: as for `read_until`; None to continue forever.
        """
        ...


BY_EXECUTORS, BY_DRIVER = "executors", "driver"


def read_in_ranges(source: FeedSource) -> RangedSource | None:
    """Return a source as one of which relations can be read in ranges; None if it is not."""
    return cast(RangedSource, source) if hasattr(source, "open_ranges") else None


def reader_of(source: FeedSource, relation: Relation) -> str:
    """Return what reads a relation of a view on Spark: BY_EXECUTORS, or BY_DRIVER with the reason.

    >>> reader_of(object(), None)
    'driver, because only topics and Delta tables are read in ranges'
    """
    ranged = read_in_ranges(source)
    only = "only topics and Delta tables are read in ranges"
    reason = only if ranged is None else ranged.unranged(relation)
    return f"{BY_DRIVER}, because {reason}" if reason else BY_EXECUTORS


class Connector(Protocol):
    """What the module `connectors/<type>/source.py` provides; options are the user's JSON.

    `source_schema.py` beside it describes them (connectors/option_schema.py).
    """

    def declare(self, options: Mapping[str, Any]) -> Sequence[DeclaredRelation]:
        """Return the relations that the options declare, without reaching the source.

        SourceError source.bad_option names an unknown, missing or contradictory option.
        """
        ...

    def make(
        self, name: str, options: Mapping[str, Any], relations: Sequence[Relation]
    ) -> FeedSource:
        """Return the source; its declared relations are in the order of `declare`."""
        ...

    def discover(self, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the options, with proposed columns for each relation that lacks them, from
        samples.
        """
        ...


class StartingConnector(Connector, Protocol):
    """A connector whose relations begin where the options say."""

    def with_start(
        self, options: Mapping[str, Any], relation: str, start: Any
    ) -> Mapping[str, Any]:
        """Return the options with another start of a relation.

        It counts from when no view reads the relation on. SourceError source.bad_option,
        source.no_relation.
        """
        ...


def with_starts(connector: Connector) -> StartingConnector | None:
    """Return a connector as one whose relations have starts; None if they have none."""
    return cast(StartingConnector, connector) if hasattr(connector, "with_start") else None


class SelectiveConnector(Connector, Protocol):
    """A connector of SelectiveSources."""

    def pushdown(self, options: Mapping[str, Any]) -> Mapping[str, Pushdown]:
        """Return what the source makes of requirements, by relation. SourceError,
        TemporaryError."""
        ...
