"""Read partitions of topics from offsets on: one consumer, for one thread.

Invariant: every committed record from an offset on is returned once and in order, or an error names
the reason. Offsets have holes (transaction markers, compaction), so an end is reached by position,
never by count. Returned records belong to the topic with the stored id. The ids are requested after
the records arrived, since a client continues silently with a recreated topic.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as Partition

from connectors.kafka.client import Client
from connectors.kafka.leader_epochs import LeaderEpochs
from connectors.kafka.records import Records
from connectors.kafka.topics import Topics, check_same, offsets_gone
from dataflow.errors import TemporaryError, TidemarkError
from dataflow.schema import RelationName

MAX_RECORDS = 10_000
# How long nothing may arrive before an end is checked against the log's own end.
STALLED_S = 30.0
_OUT_OF_RANGE = {
    KafkaError._AUTO_OFFSET_RESET,
    KafkaError._LOG_TRUNCATION,
    KafkaError.OFFSET_OUT_OF_RANGE,
}
_DOWN = {KafkaError._ALL_BROKERS_DOWN, KafkaError._AUTHENTICATION, KafkaError._SSL}


@dataclass
class Span:
    """The range of a topic to read for a relation: by partition from `begins` up to `ends`.

    ends: None to continue forever, with new partitions from their beginning; else the offsets after
    the last record, and only these partitions. relation: None if all relations of the source need
    the topic. leader_epochs: leader epochs of the log up to `begins`.
    """

    relation: RelationName | None
    topic: str
    topic_id: str
    begins: dict[int, int]
    ends: dict[int, int] | None = None
    needs_times: bool = False
    needs_headers: bool = False
    leader_epochs: LeaderEpochs = field(default_factory=dict)


@dataclass
class Chunk:
    """Records of one relation, and by partition the offset after them."""

    relation: RelationName | None
    records: Records
    nexts: dict[int, int] = field(default_factory=dict)
    newest_ms: int = 0


class Reader:
    """Reads spans of different topics.

    check_s: how often topics are described while idle. wait_ms: how long a broker may wait for
    records. ahead_kb: how much the client reads ahead.
    """

    def __init__(
        self,
        client: Client,
        spans: Sequence[Span],
        *,
        check_s: float = 5.0,
        wait_ms: int = 100,
        ahead_kb: int = 16384,
    ) -> None:
        self._client = client
        self._check_s = check_s
        self._open: set[tuple[str, int]] = set()
        self._topics = Topics(client)
        self._consumer = client.consumer(
            self._note,
            enable_partition_eof=True,
            fetch_wait_max_ms=wait_ms,
            fetch_queue_backoff_ms=20,
            queued_max_messages_kbytes=ahead_kb,
        )
        try:
            self.begin(spans)
        except BaseException:
            self.close()
            raise

    def begin(self, spans: Sequence[Span]) -> None:
        """Read these spans, in place of all others, with the same consumer."""
        if self._open:
            self._consumer.incremental_unassign([Partition(*one) for one in self._open])
        self._spans = {span.topic: span for span in spans}
        self._down: list[KafkaError] = []
        self._open = set()
        self._answered: set[tuple[str, int]] = set()
        self._first: list[Chunk] = []
        self._early: dict[tuple[str, int], int] = {}
        self._checked = self._moved = time.monotonic()
        self._check()

    @property
    def is_done(self) -> bool:
        """Return True if every span with an end has reached it."""
        return (
            not self._open
            and not self._first
            and all(span.ends is not None for span in self._spans.values())
        )

    @property
    def has_answers(self) -> bool:
        """Return True if of every partition a record has arrived, or that there is none."""
        return self._open <= self._answered

    def take(self, timeout_s: float) -> list[Chunk]:
        """Return what has arrived, at most one chunk a relation; wait if there is nothing."""
        if self._first:
            first, self._first = self._first, []
            return first
        try:
            one = self._consumer.poll(timeout_s)
            found = [] if one is None else [one, *self._consumer.consume(MAX_RECORDS, 0)]
            chunks = self._sorted(found)
        except KafkaException as error:
            raise self._client.refused(error, "reading") from None
        now = time.monotonic()
        if chunks:
            self._moved = now
            self._check()
        elif now - self._checked > self._check_s:
            self._check()
            if self._open and now - self._moved > STALLED_S:
                self._check_ends()
        if self._down:
            raise self._client.refused(self._down[-1], "reading")
        return chunks

    def unread(self) -> int:
        """Return about how many offsets lie between the records returned and the ends
        of the logs.
        """
        total = 0
        for topic, number in self._open:
            partition = Partition(topic, number)
            _, high = self._consumer.get_watermark_offsets(partition, cached=True)
            total += max(0, high - self._spans[topic].begins[number])
        return total

    def close(self) -> None:
        """Close the consumer and the admin client."""
        self._consumer.close()
        self._topics.close()

    def _note(self, error: KafkaError) -> None:
        if error.code() in _DOWN:
            self._down.append(error)

    def _check(self) -> None:
        """Check that every topic is still the same; add new partitions."""
        found = self._topics.describe(self._spans.keys())
        fresh = []
        for span in self._spans.values():
            topic = check_same(span.topic, span.topic_id, found, span.relation)
            for number in range(topic.partitions) if span.ends is None else span.ends:
                if (span.topic, number) not in self._open and self._is_desired(span, number):
                    fresh.append(self._from(span, number))
        if fresh:
            self._consumer.incremental_assign(fresh)
            self._open.update((p.topic, p.partition) for p in fresh)
        self._checked = time.monotonic()

    def _from(self, span: Span, number: int) -> Partition:
        """Return where to start reading a partition so that the broker checks its log.

        This is after the last record before the position, if the broker still retains it.
        """
        start = span.begins[number]
        offset, term = span.leader_epochs.get(number, (start, -1))
        if offset < start and self._topics.begins(span.topic, [number])[number] > offset:
            term = -1
        if term < 0 or offset > start:
            return Partition(span.topic, number, start)
        if offset < start:
            self._early[span.topic, number] = start
        return Partition(span.topic, number, offset, leader_epoch=term)

    def _is_desired(self, span: Span, number: int) -> bool:
        is_new = number not in span.begins
        begin = span.begins.setdefault(number, 0)
        if span.ends is None or begin < span.ends[number]:
            return True
        if is_new:  # an empty partition that the position says was read
            self._first.append(Chunk(span.relation, Records(), {number: begin}))
        return False

    def _sorted(self, found: Sequence[Any]) -> list[Chunk]:
        """Return the records by relation, without those beyond an end."""
        good = [record for record in found if record.error() is None]
        if self._early:
            self._refuse_earlier(good)
        if not self.has_answers:
            self._answered.update((record.topic(), record.partition()) for record in good)
        by_topic: dict[str, list[Any]] = {}
        if len(self._spans) == 1 and good:
            by_topic[next(iter(self._spans))] = good
        else:
            for record in good:
                by_topic.setdefault(record.topic(), []).append(record)
        nexts: dict[str, dict[int, int]] = {}
        for record in found if len(good) < len(found) else ():
            error = record.error()
            if error is None:
                continue
            if error.code() != KafkaError._PARTITION_EOF:
                raise self._refused(error, record)
            start = self._early.pop((record.topic(), record.partition()), 0)
            if record.offset() < start:
                # It is our log, but it may end before our position.
                self._consumer.seek(Partition(record.topic(), record.partition(), start))
                continue
            self._answered.add((record.topic(), record.partition()))
            nexts.setdefault(record.topic(), {})[record.partition()] = record.offset()
        chunks = []
        for topic in {**by_topic, **nexts}:
            span = self._spans[topic]
            taken = by_topic.get(topic, [])
            chunk = Chunk(span.relation, _records(taken, span), nexts.get(topic, {}))
            chunk.newest_ms = taken[-1].timestamp()[1] if taken else 0
            for number, offset in chunk.records.nexts().items():
                chunk.nexts[number] = max(offset, chunk.nexts.get(number, 0))
            if span.ends is not None:
                self._cut(span, chunk)
            chunk.nexts = {p: o for p, o in chunk.nexts.items() if o > span.begins.get(p, -1)}
            span.begins.update(chunk.nexts)
            if chunk.nexts:
                chunks.append(chunk)
        return chunks

    def _cut(self, span: Span, chunk: Chunk) -> None:
        ends = span.ends or {}
        over = {p for p, offset in chunk.nexts.items() if offset >= ends[p]}
        if not over:
            return
        pairs = zip(chunk.records.numbers, chunk.records.offsets, strict=True)
        chunk.records = chunk.records.where([offset < ends[p] for p, offset in pairs])
        chunk.nexts.update((p, ends[p]) for p in over)
        done = [(span.topic, p) for p in over if (span.topic, p) in self._open]
        if done:
            self._consumer.incremental_unassign([Partition(*one) for one in done])
            self._open.difference_update(done)

    def _refuse_earlier(self, good: Sequence[Any]) -> None:
        """Refuse records between the stored leader epoch and the position: there were none."""
        for record in good:
            start = self._early.pop((record.topic(), record.partition()), 0)
            if record.offset() < start:
                span = self._spans[record.topic()]
                found_at = f"a record is at {record.offset()}, where none was"
                raise offsets_gone(
                    span.topic, f"{record.partition()}:{start}", found_at, span.relation
                )

    def _refused(self, error: KafkaError, record: Any) -> TidemarkError:
        """Return the error for an error that arrived in place of a record."""
        self._check()
        span, number = self._spans[record.topic()], record.partition()
        if error.code() in _OUT_OF_RANGE:
            start = f"{number}:{span.begins[number]}"
            return offsets_gone(span.topic, start, error.str(), span.relation)
        return self._client.refused(error, f'reading topic "{span.topic}"')

    def _check_ends(self) -> None:
        """Nothing arrived for long: fail if the requested end lies after the log's own end."""
        for topic, number in sorted(self._open):
            span = self._spans[topic]
            last = self._topics.ends(topic, [number])[number]
            if span.ends is not None and last < span.ends[number]:
                start = f"{number}:{span.begins[number]}"
                raise offsets_gone(topic, start, f"the log ends at {last}", span.relation)
        if any(span.ends is not None for span in self._spans.values()):
            raise TemporaryError(
                "source.unreachable",
                f'kafka source "{self._client.name}" sends nothing',
                detail=f"nothing for {STALLED_S:.0f} s before the requested end",
            )


def _records(taken: Sequence[Any], span: Span) -> Records:
    return Records(
        [one.partition() for one in taken],
        [one.offset() for one in taken],
        [one.key() for one in taken],
        [one.value() for one in taken],
        [one.timestamp()[1] if one.timestamp()[0] else -1 for one in taken]
        if span.needs_times
        else [],
        [one.headers() for one in taken] if span.needs_headers else [],
        [-1 if (term := one.leader_epoch()) is None else term for one in taken],
    )
