"""Topics of a Kafka cluster as a source, in the process of the client: see `source.py`.

The position of a relation is {"topic": the topic's id, "next": next offset by partition}.
Partitions that were not seen yet are missing from it; they are read from offset 0. Invariant:
nothing between two positions is skipped silently. Unreadable records are refused by name or
reported as rejected.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from connectors.feed_source import (
    FeedPositions,
    FeedSnapshot,
    FeedStart,
    RangePlanner,
    SourceFeed,
)
from connectors.kafka.client import Client
from connectors.kafka.dedup_state import DEDUP_NOTE, UNSEEN
from connectors.kafka.feed import FeedEvents, FeedState, KafkaFeed
from connectors.kafka.leader_epochs import epochs_note
from connectors.kafka.options import (
    APPEND,
    EARLIEST,
    LATEST,
    OFFSETS,
    KafkaOptions,
    Start,
    TopicOptions,
    unranged,
)
from connectors.kafka.ranges import KafkaRanges
from connectors.kafka.relation_checks import check_relations, read_until
from connectors.kafka.retry import decode_again
from connectors.kafka.rows import OpenFormat, RowReader, open_format
from connectors.kafka.snapshot import KafkaSnapshot
from connectors.kafka.start_offsets import START_NOTE
from connectors.kafka.topics import Topic, Topics, missing, offsets_gone
from connectors.kafka.transaction_buffer import newest_transactions, start_note
from connectors.source import SourceBatch
from dataflow.delta import Delta
from dataflow.errors import SourceError
from dataflow.schema import Relation


class KafkaSource:
    """A FeedSource. relations: those that the options declare. opened: makes the formats."""

    def __init__(
        self,
        name: str,
        options: KafkaOptions,
        relations: Sequence[Relation],
        opened: OpenFormat = open_format,
    ) -> None:
        self.name = name
        # Compaction removes records that were read already, so they may not come a second time; the
        # topics' cleanup policy is known when the cluster is first reached.
        self.is_replayable = False
        self._options = options
        self._relations = tuple(relations)
        self._opened = opened
        self._client = Client(options.connection, "source", name)
        check_relations(options, relations, opened)

    def relations(self) -> Sequence[Relation]:
        """See FeedSource."""
        return self._relations

    def check(self) -> None:
        """See FeedSource: check that every topic exists and can be described."""
        topics = Topics(self._client)
        found = self._described(topics, self._relations)
        for relation in self._relations:
            topic = found[self._topic(relation).topic]
            topics.ends(topic.name, range(topic.partitions))
            dead = self._topic(relation).dead_letter_topic
            if dead is not None and dead not in topics.describe([dead]):
                raise SourceError(
                    "source.dead_letter_topic",
                    f'dead letter topic "{dead}" does not exist',
                    hint="create it; Tidemark does not",
                )
        marks = self._options.transactions
        if marks is not None and marks not in topics.describe([marks]):
            raise missing(marks)
        self._learn(topics)

    def start_position(self, relation: Relation) -> FeedStart:
        """See FeedSource: the position after the last committed record of each partition."""
        topics = Topics(self._client)
        options = self._topic(relation)
        topic = self._described(topics, [relation])[options.topic]
        numbers = range(topic.partitions)
        tips = topics.tips(topic.name, numbers)
        ends = {p: end for p, (end, _) in tips.items()}
        begins = topics.begins(topic.name, numbers)
        starts = self._starts(topics, topic, options.start, begins, ends)
        self._learn(topics)
        note = json.dumps(_position(topic.id, starts)).encode()
        terms = {p: tip for p, tip in tips.items() if tip[1] >= 0}
        notes = {f"{START_NOTE}{relation.name.name}": note}
        notes |= epochs_note(terms, relation.name.name, _position(topic.id, ends))
        if options.is_debezium:
            notes[f"{DEDUP_NOTE}{relation.name.name}"] = UNSEEN
            if self._options.transactions is not None:
                own = self._client, self._rows(relation)
                cut = newest_transactions(*own, topic.id, begins, ends)
                marks = self._options.transactions
                notes |= start_note(topics, marks, relation.name.name, cut)
        return FeedStart(_position(topic.id, ends), notes)

    def first_position(self, relation: Relation) -> FeedStart:
        """See BoundedSource: the configured start of the topic."""
        topics = Topics(self._client)
        options = self._topic(relation)
        topic = self._described(topics, [relation])[options.topic]
        numbers = range(topic.partitions)
        begins, ends = topics.begins(topic.name, numbers), topics.ends(topic.name, numbers)
        starts = self._starts(topics, topic, options.start, begins, ends)
        position = _position(topic.id, starts)
        name = relation.name.name
        notes = {f"{START_NOTE}{name}": json.dumps(position).encode()}
        return FeedStart(position, {**notes, f"{DEDUP_NOTE}{name}": UNSEEN})

    def current_end(self, relations: Sequence[Relation]) -> dict[str, Any]:
        """See BoundedSource: the positions after the last committed records, by relation."""
        if self._options.transactions is not None:
            # The end of a topic may lie within a transaction, of which nothing may be emitted.
            raise SourceError(
                "source.bad_option",
                f'option "transactions" of kafka source "{self.name}" needs a feed without an end',
                hint="leave it out, or let the service maintain the view",
            )
        topics = Topics(self._client)
        found = self._described(topics, relations)
        ends = {}
        for relation in relations:
            topic = found[self._topic(relation).topic]
            offsets = topics.ends(topic.name, range(topic.partitions))
            ends[relation.name.name] = _position(topic.id, offsets)
        return ends

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
        return unranged(self._options, self._topic(relation))

    def open_ranges(
        self,
        relations: Sequence[Relation],
        positions: FeedPositions,
        notes: Mapping[str, bytes],
        on_ready: Callable[[], None],
        end: FeedPositions | None = None,
    ) -> RangePlanner:
        """See RangedSource."""
        return KafkaRanges(
            self._client,
            self._options,
            relations,
            (positions, notes),
            self._opened,
            ends=end,
            on_ready=on_ready,
            on_open=self._learn,
        )

    def open_snapshot(
        self, relations: Sequence[Relation], positions: FeedPositions, notes: Mapping[str, bytes]
    ) -> FeedSnapshot:
        """See FeedSource."""
        return KafkaSnapshot(self.name, self._options, positions, notes, self._opened)

    def open_feed(
        self,
        relations: Sequence[Relation],
        positions: FeedPositions,
        notes: Mapping[str, bytes],
        on_ready: Callable[[], None],
    ) -> SourceFeed:
        """See FeedSource; the feed's own thread reaches the cluster."""
        rows = [self._rows(relation) for relation in relations]
        events = FeedEvents(on_ready, self._learn)
        return KafkaFeed(self._client, self._options, rows, FeedState(positions, notes), events)

    def decode_again(self, relation: Relation, rows: Delta) -> SourceBatch:
        """See FeedSource and connectors/kafka/retry.py."""
        return decode_again(self._client, self._rows(relation), rows)

    def _rows(self, relation: Relation) -> RowReader:
        return RowReader(relation, self._topic(relation), self._opened)

    def _topic(self, relation: Relation) -> TopicOptions:
        return self._options.topic_of(relation.name.name)

    def _described(self, topics: Topics, relations: Sequence[Relation]) -> dict[str, Topic]:
        found = topics.describe({self._topic(relation).topic for relation in relations})
        for relation in relations:
            name = self._topic(relation).topic
            if name not in found:
                raise missing(name, relation.name)
        return found

    def _learn(self, topics: Topics) -> None:
        """Remember whether the topics retain all records until they expire by age."""
        is_append = all(topic.mode == APPEND for topic in self._options.topics)
        names = {topic.topic for topic in self._options.topics}
        self.is_replayable = is_append and not topics.is_compacted(names)

    def _starts(
        self,
        topics: Topics,
        topic: Topic,
        start: Start,
        begins: Mapping[int, int],
        ends: Mapping[int, int],
    ) -> dict[int, int]:
        """Return {partition: first offset that the source reads}."""
        if start.kind == EARLIEST:
            return dict(begins)
        if start.kind == LATEST:
            return dict(ends)
        if start.kind == OFFSETS:
            requested = dict(start.offsets)
            for number, offset in requested.items():
                if number not in begins or not begins[number] <= offset <= ends[number]:
                    retained = {p: f"{begins[p]} to {ends[p]}" for p in begins}
                    position = f"{number}:{offset}"
                    raise offsets_gone(topic.name, position, f"the topic retains {retained}")
            return {p: requested.get(p, begin) for p, begin in begins.items()}
        found = topics.at_time(topic.name, begins, start.time_ms)
        return {p: ends[p] if offset < 0 else min(offset, ends[p]) for p, offset in found.items()}


def _position(topic_id: str, offsets: Mapping[int, int]) -> dict[str, Any]:
    return {"topic": topic_id, "next": {str(p): o for p, o in sorted(offsets.items())}}
