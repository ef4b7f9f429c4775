"""Ranges of a partition, which any process reads and decodes, and the planner that cuts them.

The planner knows only where logs end; records and rows are seen by the process that reads a range.
It reads and decodes as a feed does. Invariant: ranges that are joined hold every committed record
between two positions, once and in the order of the offsets, or an error names what is missing.
"""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from connectors.feed_source import REJECTED_KINDS, FeedPositions, FeedRange, RangeResult
from connectors.kafka.client import Client
from connectors.kafka.dead_topic import DeadTopic
from connectors.kafka.kept_open import OPEN_READERS, KeptOpen
from connectors.kafka.leader_epochs import LeaderEpochs, epochs_note, leader_epochs_of, learn
from connectors.kafka.options import KafkaOptions, TopicOptions
from connectors.kafka.reader import Reader, Span
from connectors.kafka.records import Records
from connectors.kafka.rows import Accepted, OpenFormat, RowReader, rejected_rows
from connectors.kafka.start_offsets import position_of
from connectors.kafka.topics import Topic, Topics, check_same, offsets_gone
from connectors.source import SourceBatch
from dataflow.changes import Changes
from dataflow.delta import Delta
from dataflow.errors import InvariantError, SourceError, TidemarkError
from dataflow.schema import Relation, RelationName

TAKE_S = 0.5
# Records are decoded in chunks of about so many, or of so many bytes.
CHUNK_RECORDS, CHUNK_BYTES = 50_000, 16 << 20
# How often the ends of logs are listed, while records come and after none have come for a while.
EAGER_S, IDLE_S, IDLE_AFTER_S = 0.05, 0.25, 5.0
# A task reads about so many bytes of records, as far as those before tell, and at most so many. The
# first ranges have so few records, and later ones at most so many times more.
TASK_BYTES, MAX_RANGE_BYTES = 64 << 20, 256 << 20
FIRST_RECORDS, GROWTH = 5_000, 8
# How long a broker waits for more records of a range, which are mostly there.
WAIT_MS = 20
# How much a consumer reads ahead: what lies beyond a range is fetched again for the next.
AHEAD_KB = 4096


@dataclass
class KafkaRange:
    """Offsets [begin, end) of one partition.

    log: the newest known leader epoch of the log before `begin`, see LeaderEpochs.
    """

    source: str
    options: KafkaOptions
    own: Relation
    opened: OpenFormat
    topic_id: str
    partition: int
    begin: int
    end: int
    log: tuple[int, int] | None = None
    _facts: dict[str, Any] = field(default_factory=dict, repr=False)
    _rejected: list[tuple[Any, ...]] = field(default_factory=list, repr=False)
    _failure: SourceError | None = field(default=None, repr=False)

    @property
    def relation(self) -> RelationName:
        """See FeedRange."""
        return self.own.name

    @property
    def name(self) -> str:
        """See FeedRange."""
        return f"{self.own.name} {self.partition}:{self.begin}-{self.end}"

    @property
    def size(self) -> int:
        """See FeedRange."""
        return self.end - self.begin

    def read(self) -> Iterator[Changes]:
        """See FeedRange; it ends before a record that stops the source."""
        counts = dict.fromkeys(("records", "skipped", "bytes", "newest_ms"), 0)
        self._facts = {"next": self.begin, **counts}
        self._rejected, self._failure = [], None
        topic = self.options.topic_of(self.own.name.name)
        key = pickle.dumps((self.own, topic, self.opened))
        rows = _FORMATS.take(key) or RowReader(self.own, topic, self.opened)
        epochs = LeaderEpochs()
        for records, newest_ms in self._records(rows):
            found = rows.accept(records)
            self._note(found, newest_ms)
            learn(epochs, found.records)
            if found.rows.has_truncation or found.rows.orders is not None:
                raise InvariantError("source.range", f"{self.name} cannot be read in ranges")
            if len(found.rows.kinds):
                yield rows.changes(found.records, found.rows)
            self._failure = found.failure
            if found.failure is not None or self._facts["bytes"] > MAX_RANGE_BYTES:
                break
        else:
            self._facts["next"] = self.end
        self._facts["log"] = epochs.get(self.partition)
        _FORMATS.give(key, rows)

    def _note(self, found: Accepted, newest_ms: int) -> None:
        facts = self._facts
        facts["records"] += len(found.records)
        facts["skipped"] += found.skipped
        facts["bytes"] += found.records.nbytes()
        facts["newest_ms"] = max(facts["newest_ms"], newest_ms)
        facts["next"] = found.records.nexts().get(self.partition, facts["next"])
        self._rejected += found.rejected

    def result(self) -> RangeResult:
        """See FeedRange."""
        rejected = Delta.of(REJECTED_KINDS, self._rejected)
        is_whole = self._facts["next"] == self.end
        return RangeResult(self._facts, rejected, is_whole, self._failure)

    def _records(self, rows: RowReader) -> Iterator[tuple[Records, int]]:
        """Yield the records in chunks, with the time of the newest in milliseconds since 1970."""
        key = pickle.dumps((self.source, self.options.connection))
        reader, span = _READERS.take(key), self._span(rows)
        if reader is None:
            client = Client(self.options.connection, "source", self.source)
            reader = Reader(client, [span], wait_ms=WAIT_MS, ahead_kb=AHEAD_KB)
            span = None
        whole, newest_ms, size = Records(), 0, 0
        try:
            if span is not None:
                reader.begin([span])
            while not reader.is_done:
                for chunk in reader.take(TAKE_S):
                    whole.add(chunk.records)
                    newest_ms = max(newest_ms, chunk.newest_ms)
                    size += chunk.records.nbytes()
                if len(whole) >= CHUNK_RECORDS or size >= CHUNK_BYTES:
                    yield whole, newest_ms
                    whole, size = Records(), 0
        except BaseException:
            reader.close()
            raise
        _READERS.give(key, reader)
        if len(whole):
            yield whole, newest_ms

    def _span(self, rows: RowReader) -> Span:
        return Span(
            self.own.name,
            rows.options.topic,
            self.topic_id,
            {self.partition: self.begin},
            {self.partition: self.end},
            rows.needs_times,
            rows.needs_headers,
            {} if self.log is None else {self.partition: self.log},
        )


_READERS: KeptOpen[Reader] = KeptOpen(OPEN_READERS, Reader.close)
_FORMATS: KeptOpen[RowReader] = KeptOpen(4 * OPEN_READERS, lambda _: None)


@dataclass
class _Relation:
    """A relation's position: next offsets by partition, and leader epochs of the logs."""

    own: Relation
    topic: TopicOptions
    topic_id: str
    nexts: dict[int, int]
    epochs: LeaderEpochs

    @property
    def name(self) -> str:
        return self.own.name.name

    def position(self) -> dict[str, Any]:
        offsets = {str(p): offset for p, offset in sorted(self.nexts.items())}
        return {"topic": self.topic_id, "next": offsets}


class KafkaRanges:
    """A RangePlanner.

    ends: positions up to which it reads, by relation; None to continue forever, with new partitions
    from their beginning: then a thread lists the ends of the logs.
    """

    def __init__(
        self,
        client: Client,
        options: KafkaOptions,
        relations: Sequence[Relation],
        state: tuple[FeedPositions, Mapping[str, bytes]],
        opened: OpenFormat,
        *,
        ends: FeedPositions | None,
        on_ready: Callable[[], None],
        on_open: Callable[[Topics], None],
    ) -> None:
        positions, notes = state
        self.skipped = self._lag = 0
        self._client = client
        self._options = options
        self._opened = opened
        self._dead = DeadTopic(client)
        self._failure: TidemarkError | None = None
        self._affordable = FIRST_RECORDS
        self._has_emitted = False
        self._relations: dict[str, _Relation] = {}
        for own in relations:
            name = own.name.name
            topic_id, nexts = position_of(positions[name])
            epochs = leader_epochs_of(notes, name, positions[name])
            topic = options.topic_of(name)
            self._relations[name] = _Relation(own, topic, topic_id, nexts, epochs)
        self._ends: _Ends | None = None
        self._fixed: dict[str, dict[int, int]] = {}
        if ends is None:
            topics = [(one.own, one.topic, one.topic_id) for one in self._relations.values()]
            self._ends = _Ends(client, options.check_ms / 1000, topics, on_ready, on_open)
        else:
            self._fixed = {name: self._end_of(one, ends) for name, one in self._relations.items()}

    def _end_of(self, one: _Relation, ends: FeedPositions) -> dict[int, int]:
        topic_id, offsets = position_of(ends[one.name])
        topics = Topics(self._client).describe([one.topic.topic])
        check_same(one.topic.topic, one.topic_id, topics, one.own.name)
        return offsets if topic_id == one.topic_id else {}

    @property
    def lag(self) -> int:
        """See SourceFeed."""
        return self._lag

    @property
    def has_succeeded(self) -> bool:
        """See SourceFeed: the ends of the logs are known, and something or all was read."""
        is_listed = self._ends is None or bool(self._ends.known)
        return is_listed and self._failure is None and (self._has_emitted or not self._lag)

    def has_unread(self) -> bool:
        """See RangePlanner."""
        if self._failure is not None:
            raise self._failure
        self._lag = sum(end - begin for _, _, begin, end in self._unread())
        if self._ends is not None and not self._lag:
            self._ends.check()
        return self._lag > 0

    def cut(self, count: int, max_rows: int) -> Sequence[KafkaRange]:
        """See RangePlanner. Each partition has its share of the records."""
        if not self.has_unread():
            return []
        unread = self._unread()
        total = sum(end - begin for _, _, begin, end in unread)
        share = min(1.0, min(max_rows, self._affordable * count) / max(1, total))
        taken = [(o, p, b, b + max(1, int((e - b) * share))) for o, p, b, e in unread]
        step = -(-sum(end - begin for _, _, begin, end in taken) // max(1, count))
        ranges, at = [], 0
        for one, partition, begin, end in taken:
            while begin < end:
                stop = min(end, begin + step - at % step)
                ranges.append(self._range(one, partition, begin, stop))
                at += stop - begin
                begin = stop
        return ranges

    def _range(self, one: _Relation, partition: int, begin: int, stop: int) -> KafkaRange:
        # Within one cut the log before a later range is not known yet.
        log = one.epochs.get(partition) if begin == one.nexts.get(partition, 0) else None
        return KafkaRange(
            self._client.name,
            self._options,
            one.own,
            self._opened,
            one.topic_id,
            partition,
            begin,
            stop,
            log,
        )

    def shorten(
        self, ranges: Sequence[FeedRange], results: Sequence[RangeResult]
    ) -> Sequence[KafkaRange]:
        """See RangePlanner. The next `cut` raises the failure."""
        ends: dict[tuple[str, int], int] = {}
        own = cast(Sequence[KafkaRange], ranges)
        for part, result in zip(own, results, strict=True):
            if not result.is_whole:
                at = (part.own.name.name, part.partition)
                ends[at] = min(ends.get(at, result.facts["next"]), result.facts["next"])
                self._failure = self._failure or result.failure
        found = []
        for part in own:
            end = min(part.end, ends.get((part.own.name.name, part.partition), part.end))
            if part.begin < end:
                found.append(replace(part, end=end))
        if not found and self._failure is not None:
            raise self._failure
        return found

    def join(self, ranges: Sequence[FeedRange], results: Sequence[RangeResult]) -> SourceBatch:
        """See RangePlanner."""
        own = cast(Sequence[KafkaRange], ranges)
        rejected: list[Delta] = []
        notes: dict[str, bytes] = {}
        records = newest_ms = 0
        for part, result in zip(own, results, strict=True):
            topic = self._relations[part.own.name.name].topic
            self._dead.write(topic, rejected_rows(result.rejected))
            rejected.append(result.rejected)
        for part, result in zip(own, results, strict=True):
            one, facts = self._relations[part.own.name.name], result.facts
            one.nexts[part.partition] = facts["next"]
            if facts["log"] is not None:
                offset, term = facts["log"]
                one.epochs[part.partition] = offset, term
            records += facts["records"]
            newest_ms = max(newest_ms, facts["newest_ms"])
            self.skipped += facts["skipped"]
        self._lag -= sum(part.size for part in own)
        for one in self._relations.values():
            notes |= epochs_note(one.epochs, one.name, one.position())
        self._learn_size([result.facts for result in results])
        self._has_emitted = True
        found = Delta.concat([Delta.empty(REJECTED_KINDS), *rejected])
        return SourceBatch(
            0,
            [],
            1 if records else 0,
            records,
            commit_time_us=newest_ms * 1000,
            source=self._client.name,
            positions={name: one.position() for name, one in self._relations.items()},
            notes=notes,
            rejected=found if len(found) else None,
        )

    def _learn_size(self, read: Sequence[Mapping[str, Any]]) -> None:
        """Set how many records a task can read, from what was read last."""
        size, records = (sum(facts[name] for facts in read) for name in ("bytes", "records"))
        if records:
            self._affordable = min(self._affordable * GROWTH, max(1, TASK_BYTES * records // size))

    def close(self) -> None:
        """See RangePlanner."""
        if self._ends is not None:
            self._ends.close()

    def _unread(self) -> list[tuple[_Relation, int, int, int]]:
        """Return (relation, partition, next offset, end) of all that is unread, in order."""
        ends = self._fixed if self._ends is None else self._ends.known
        found = []
        for name, one in self._relations.items():
            for partition, end in sorted(ends.get(name, {}).items()):
                begin = one.nexts.get(partition, 0)
                if begin < end:
                    found.append((one, partition, begin, end))
                elif begin > end and self._ends is not None:
                    at, detail = f"{partition}:{begin}", f"the log ends at {end}"
                    raise offsets_gone(one.topic.topic, at, detail, one.own.name)
        return found


class _Ends:
    """The thread that lists where logs end. known: by relation, offsets by partition."""

    def __init__(
        self,
        client: Client,
        check_s: float,
        topics: Sequence[tuple[Relation, TopicOptions, str]],
        on_ready: Callable[[], None],
        on_open: Callable[[Topics], None],
    ) -> None:
        self.known: dict[str, dict[int, int]] = {}
        self._client = client
        self._check_s = check_s
        self._topics = topics
        self._on_ready = on_ready
        self._on_open = on_open
        self._error: TidemarkError | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kafka-ends", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise the thread's error."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Stop the thread and wait for it."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._list()
        except TidemarkError as error:
            self._error = error
        except Exception as error:
            what = f'the reader of kafka source "{self._client.name}" failed'
            self._error = SourceError("source.reader", what, detail=repr(error))
        if self._error is not None:
            self._on_ready()

    def _list(self) -> None:
        topics = Topics(self._client)
        self._on_open(topics)
        described: dict[str, Topic] = {}
        described_at = moved_at = float("-inf")
        while not self._closing.is_set():
            now = time.monotonic()
            if now - described_at > self._check_s:
                described, described_at = self._described(topics), now
            found = self._listed(topics, described)
            if found != self.known:
                self.known, moved_at = found, now
                self._on_ready()
            self._closing.wait(IDLE_S if now - moved_at > IDLE_AFTER_S else EAGER_S)

    def _listed(self, topics: Topics, described: Mapping[str, Topic]) -> dict[str, dict[int, int]]:
        try:
            return {
                own.name.name: topics.ends(topic.topic, range(described[topic.topic].partitions))
                for own, topic, _ in self._topics
            }
        except TidemarkError:
            # The reason may be that a topic is gone.
            self._described(topics)
            raise

    def _described(self, topics: Topics) -> dict[str, Topic]:
        found = topics.describe([topic.topic for _, topic, _ in self._topics])
        for own, topic, topic_id in self._topics:
            check_same(topic.topic, topic_id, found, own.name)
        return found
