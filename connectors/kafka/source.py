"""Topics of a Kafka cluster as a source, as the service's processes see it.

The client's library (librdkafka) trusts the brokers: it ends its process on some answers. So each
use of it is in a child process of its own, and this module never loads it. The source itself is
`topic_source.py`. Invariant: whatever a broker sends, it is an error of this one source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from connectors.apart.child_process import ENDED, Child
from connectors.feed_source import (
    DeclaredRelation,
    FeedPart,
    FeedPositions,
    FeedSnapshot,
    FeedSource,
    FeedStart,
    RangePlanner,
    SourceFeed,
)
from connectors.kafka.client_process import memory_mb, prepare, use_of
from connectors.kafka.options import UPSERT, KafkaOptions, read_options, unranged
from connectors.kafka.ranges_apart import PlannerApart
from connectors.kafka.relation_checks import check_relations, read_until
from connectors.kafka.rows import open_format
from connectors.source import SourceBatch
from dataflow.delta import Delta
from dataflow.errors import SourceError, TidemarkError
from dataflow.schema import Relation

# Of a call that reads records again.
READ_AGAIN_S = 600.0


def declare(options: Mapping[str, Any]) -> Sequence[DeclaredRelation]:
    """See Connector: a relation for each entry of `topics`."""
    return [topic.declared() for topic in read_options(options).topics]


def with_start(options: Mapping[str, Any], relation: str, start: Any) -> Mapping[str, Any]:
    """See StartingConnector."""
    topics = options["topics"]
    if relation not in topics:
        raise SourceError(
            "source.no_relation",
            f'the source has no relation "{relation}"',
            hint=f"it has: {', '.join(topics)}",
        )
    changed = {**options, "topics": {**topics, relation: {**topics[relation], "start": start}}}
    read_options(changed)
    return changed


def make(name: str, options: Mapping[str, Any], relations: Sequence[Relation]) -> FeedSource:
    """See Connector."""
    return SourceApart(name, options, relations)


def discover(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """See Connector and connectors/kafka/discover.py."""
    read_options(options, needs_columns=False)
    with Child(use_of("source", "discover", options), "connectors.kafka.in_child:discoverer") as it:
        return it.call("discover", options, within_s=READ_AGAIN_S)


class SourceApart:
    """A RangedSource; each call of the cluster is in a child."""

    def __init__(
        self, name: str, options: Mapping[str, Any], relations: Sequence[Relation]
    ) -> None:
        self.name = name
        self.is_replayable = False
        self._given = options
        self._options = read_options(options)
        self._relations = tuple(relations)
        check_relations(self._options, relations, open_format)
        prepare()

    def relations(self) -> Sequence[Relation]:
        """See FeedSource."""
        return self._relations

    def check(self) -> None:
        """See FeedSource."""
        self._once("check")

    def start_position(self, relation: Relation) -> FeedStart:
        """See FeedSource."""
        return self._once("start_position", relation)

    def first_position(self, relation: Relation) -> FeedStart:
        """See BoundedSource."""
        return self._once("first_position", relation)

    def current_end(self, relations: Sequence[Relation]) -> dict[str, Any]:
        """See BoundedSource."""
        return self._once("current_end", relations)

    def decode_again(self, relation: Relation, rows: Delta) -> SourceBatch:
        """See FeedSource."""
        return self._once("decode_again", relation, rows)

    def read_until(
        self,
        relations: Sequence[Relation],
        positions: FeedPositions,
        notes: Mapping[str, bytes],
        end: Mapping[str, Any],
        max_rows: int,
    ) -> Iterator[SourceBatch]:
        """See BoundedSource."""
        own = {relation.name.name: end[relation.name.name] for relation in relations}

        def open_feed(on_ready: Callable[[], None]) -> SourceFeed:
            return self.open_feed(relations, positions, notes, on_ready)

        return read_until(open_feed, positions, own, max_rows)

    def unranged(self, relation: Relation) -> str:
        """See RangedSource."""
        return unranged(self._options, self._options.topic_of(relation.name.name))

    def open_ranges(
        self,
        relations: Sequence[Relation],
        positions: FeedPositions,
        notes: Mapping[str, bytes],
        on_ready: Callable[[], None],
        end: FeedPositions | None = None,
    ) -> RangePlanner:
        """See RangedSource."""
        own = (self.name, self._given, self._relations)
        return PlannerApart(
            Child(
                use_of("source", self.name, self._options),
                "connectors.kafka.in_child:planner",
                *(own, relations, (positions, notes), end),
                on_event=lambda event, value: self._note(event, value, on_ready),
            ),
            self.name,
            self._options,
        )

    def open_snapshot(
        self, relations: Sequence[Relation], positions: FeedPositions, notes: Mapping[str, bytes]
    ) -> FeedSnapshot:
        """See FeedSource."""

        def parts(relation: Relation, *cut: Any) -> list[Any]:
            return self._once("parts", (positions, notes), relation, *cut)

        return _Snapshot(self.name, self._options, parts)

    def open_feed(
        self,
        relations: Sequence[Relation],
        positions: FeedPositions,
        notes: Mapping[str, bytes],
        on_ready: Callable[[], None],
    ) -> SourceFeed:
        """See FeedSource."""
        own = (self.name, self._given, self._relations)
        state = (positions, notes)

        def begin() -> Child:
            return Child(
                use_of("source", self.name, self._options),
                "connectors.kafka.in_child:feed",
                *(own, relations, state),
                on_event=lambda event, value: self._note(event, value, on_ready),
            )

        return FeedApart(begin)

    def _once(self, method: str, *arguments: Any) -> Any:
        own = (self.name, self._given, self._relations)
        use = use_of("source", self.name, self._options)
        with Child(use, "connectors.kafka.in_child:source", *own) as child:
            found, is_replayable = child.call(method, *arguments, within_s=READ_AGAIN_S)
        self.is_replayable |= is_replayable
        return found

    def _note(self, event: str, value: Any, on_ready: Callable[[], None]) -> None:
        if event == "replayable":
            self.is_replayable = bool(value)
        elif event in ("ready", ENDED):
            on_ready()


class FeedApart:
    """A SourceFeed. begin: starts its child, at the first poll."""

    def __init__(self, begin: Callable[[], Child]) -> None:
        self._begin = begin
        self._child: Child | None = None
        self.lag = self.skipped = 0
        self.has_succeeded = False
        self.problem: TidemarkError | None = None

    def poll(self, max_rows: int, *, until: FeedPositions | None = None) -> SourceBatch | None:
        """See SourceFeed."""
        if self._child is None:
            self._child = self._begin()
        batch, figures = self._child.call("poll", max_rows, until)
        self.lag, self.skipped, self.has_succeeded, self.problem = figures
        return batch

    def close(self) -> None:
        """See SourceFeed."""
        child, self._child = self._child, None
        if child is not None:
            child.close()


@dataclass
class PartApart:
    """A FeedPart, read by a child wherever it is unpickled. payload: what the child reads."""

    name: str
    source: str
    options: KafkaOptions
    memory_mb: int
    payload: bytes = field(repr=False)
    _rejected: Delta | None = field(default=None, repr=False)

    def read(self) -> Iterator[Delta]:
        """See FeedPart."""
        use = use_of("source", self.source, self.options, self.memory_mb)
        with Child(use, "connectors.kafka.in_child:part", self.payload) as child:
            yield from child.each("read")
            self._rejected = child.call("rejected")

    def rejected(self) -> Delta:
        """See FeedPart."""
        assert self._rejected is not None
        return self._rejected


class _Snapshot:
    """A FeedSnapshot. parts: returns name, offsets and payload of each."""

    def __init__(self, source: str, options: KafkaOptions, parts: Callable[..., list[Any]]) -> None:
        self._source = source
        self._options = options
        self._parts = parts

    def parts(
        self,
        relation: Relation,
        columns: Sequence[int],
        count: int,
        known: Sequence[str] = (),
    ) -> Sequence[FeedPart]:
        """See FeedSnapshot."""
        # One that keeps the last row of each key needs memory for the keys.
        keeps = self._options.topic_of(relation.name.name).mode == UPSERT
        return [
            PartApart(
                name,
                self._source,
                self._options,
                memory_mb(self._options, offsets if keeps else 0),
                payload,
            )
            for name, offsets, payload in self._parts(relation, columns, count, known)
        ]

    def close(self) -> None:
        """Do nothing: the snapshot holds nothing."""
