"""A topic in memory that is read in ranges: partitions of keyed records, retention and compaction.

Invariant: what a range reads is what the topic has at that moment, as of a broker. So two attempts
of one range may read different records.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import numpy as np

from connectors.feed_source import REJECTED_KINDS, RangeResult, rejected_row
from connectors.source import SourceBatch
from dataflow.changes import Changes
from dataflow.delta import Column, Delta
from dataflow.errors import SourceError, TemporaryError
from dataflow.schema import Relation, RelationName

# A record: its key and its value; None removes the row of an upsert topic. BAD is malformed.
Record = tuple[int, int | None]
BAD = -1
# Records of a chunk.
CHUNK = 3


@dataclass
class MemoryTopic:
    """partitions: records by offset; None where one was removed. starts: retained from here on.

    away: how often, as a fraction, a read finds the broker away.
    """

    relation: Relation
    partitions: list[list[Record | None]]
    random: Random
    starts: list[int] = field(default_factory=list)
    away: float = 0.0
    read: int = 0

    def __post_init__(self) -> None:
        self.starts = [0] * len(self.partitions)

    def append(self, record: Record) -> None:
        """Write a record to the partition of its key."""
        self.partitions[record[0] % len(self.partitions)].append(record)

    def compact(self) -> None:
        """Remove rows that have a later one of their key."""
        for records in self.partitions:
            rows = [(at, r[0]) for at, r in enumerate(records) if r is not None and r[1] != BAD]
            newest = {key: at for at, key in rows}
            for at, key in rows:
                if newest[key] != at:
                    records[at] = None

    def ends(self) -> dict[int, int]:
        """The offsets after the last records."""
        return {p: len(records) for p, records in enumerate(self.partitions)}


@dataclass
class MemoryRange:
    """Offsets [begin, end) of a partition. A bad record is rejected, or stops it."""

    topic: MemoryTopic
    partition: int
    begin: int
    end: int
    is_strict: bool = False
    _next: int = 0
    _rejected: list[tuple[Any, ...]] = field(default_factory=list)

    @property
    def relation(self) -> RelationName:
        """See FeedRange."""
        return self.topic.relation.name

    @property
    def name(self) -> str:
        """See FeedRange."""
        return f"{self.partition}:{self.begin}-{self.end}"

    @property
    def size(self) -> int:
        """See FeedRange."""
        return self.end - self.begin

    def read(self) -> Iterator[Changes]:
        """See FeedRange."""
        topic = self.topic
        if topic.random.random() < topic.away:
            raise TemporaryError("source.unreachable", "the topic does not answer")
        if self.begin < topic.starts[self.partition]:
            raise SourceError("source.offsets_gone", "records are gone", relation=self.relation)
        self._next, self._rejected, chunk = self.end, [], []
        for offset in range(self.begin, self.end):
            record = topic.partitions[self.partition][offset]
            if record is not None and record[1] == BAD:
                if self.is_strict:
                    self._next = offset
                    break
                at = f"{self.partition}:{offset}"
                self._rejected.append(
                    rejected_row(self.relation, at, "record.malformed", "", key=None, value=None)
                )
            elif record is not None:
                chunk.append(record)
                topic.read += 1
            if len(chunk) == CHUNK:
                yield self._changes(chunk)
                chunk = []
        if chunk:
            yield self._changes(chunk)

    def _changes(self, records: Sequence[Record]) -> Changes:
        keys, values = zip(*records, strict=True)
        removes = np.array([value is None for value in values])
        kinds = np.where(removes, Changes.REMOVE, Changes.UPSERT).astype(np.uint8)
        if self.topic.relation.is_append:
            kinds[:] = Changes.INSERT
        columns = Column(np.array(keys, np.int64)), Column.of("i", values)
        return Changes(self.topic.relation, kinds, columns)

    def result(self) -> RangeResult:
        """See FeedRange."""
        is_whole, failure = self._next == self.end, None
        if not is_whole:
            what = f"the record at {self.partition}:{self._next} is not a row"
            failure = SourceError("source.bad_record", what, relation=self.relation)
        rejected = Delta.of(REJECTED_KINDS, self._rejected)
        return RangeResult({"next": self._next}, rejected, is_whole, failure)


class MemoryPlanner:
    """Cuts topics into ranges; positions: by relation, next offsets by partition as text."""

    def __init__(
        self,
        topics: Mapping[str, MemoryTopic],
        positions: Mapping[str, Mapping[str, int]],
        *,
        is_strict: bool = False,
    ) -> None:
        self.skipped = 0
        self._topics = topics
        self._nexts = {
            name: {p: positions.get(name, {}).get(str(p), 0) for p in topic.ends()}
            for name, topic in topics.items()
        }
        self._is_strict = is_strict
        self._failure: SourceError | None = None

    @property
    def lag(self) -> int:
        """See RangePlanner."""
        return sum(
            end - self._nexts[name][partition]
            for name, topic in self._topics.items()
            for partition, end in topic.ends().items()
        )

    @property
    def has_succeeded(self) -> bool:
        """See RangePlanner: topics in memory always answer."""
        return self._failure is None

    def has_unread(self) -> bool:
        """See RangePlanner."""
        if self._failure is not None:
            raise self._failure
        return self.lag > 0

    def cut(self, count: int, max_rows: int) -> Sequence[MemoryRange]:
        """See RangePlanner."""
        if not self.has_unread():
            return []
        found = []
        for name, topic in self._topics.items():
            for partition, end in topic.ends().items():
                begin = self._nexts[name][partition]
                end = min(end, begin + max(1, max_rows // len(topic.partitions)))
                step = max(1, -(-(end - begin) // count))
                found += [
                    MemoryRange(topic, partition, at, min(at + step, end), self._is_strict)
                    for at in range(begin, end, step)
                ]
        return found

    def shorten(
        self, ranges: Sequence[MemoryRange], results: Sequence[RangeResult]
    ) -> Sequence[MemoryRange]:
        """See RangePlanner."""
        ends: dict[tuple[RelationName, int], int] = {}
        for part, result in zip(ranges, results, strict=True):
            if not result.is_whole:
                ends.setdefault((part.relation, part.partition), result.facts["next"])
                self._failure = self._failure or result.failure  # type: ignore[assignment]
        cut = [
            replace(part, end=min(part.end, ends.get((part.relation, part.partition), part.end)))
            for part in ranges
        ]
        found = [part for part in cut if part.begin < part.end]
        if not found and self._failure is not None:
            raise self._failure
        return found

    def join(self, ranges: Sequence[MemoryRange], results: Sequence[RangeResult]) -> SourceBatch:
        """See RangePlanner."""
        for part, result in zip(ranges, results, strict=True):
            assert self._nexts[part.relation.name][part.partition] == part.begin
            self._nexts[part.relation.name][part.partition] = result.facts["next"]
        positions = {
            name: {str(p): at for p, at in nexts.items()} for name, nexts in self._nexts.items()
        }
        rejected = Delta.concat([r.rejected for r in results])
        rows = sum(part.size for part in ranges)
        return SourceBatch(0, [], 1, rows, source="m", positions=positions, rejected=rejected)

    def close(self) -> None:
        """See RangePlanner."""
