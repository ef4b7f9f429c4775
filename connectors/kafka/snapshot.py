"""Rows of topics up to a position, in parts of partitions; each can be read alone and again.

Invariant: the parts of a position are disjoint and hold every record from the start up to it. For
an upsert topic a part is a whole partition, from which only the last row of each key is emitted. A
key must therefore stay in one partition, as Kafka's partitioning by key ensures. For events that
may be delivered again (Debezium's) it is also whole, since a copy may be far from the original.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from connectors.feed_source import REJECTED_KINDS, FeedPart, FeedPositions
from connectors.formats.debezium_order import DedupState
from connectors.kafka.client import Client
from connectors.kafka.dead_topic import DeadTopic
from connectors.kafka.options import FAIL, SKIP, UPSERT, KafkaOptions
from connectors.kafka.reader import Reader, Span
from connectors.kafka.records import Records
from connectors.kafka.rows import OpenFormat, RowReader, Rows, rejected_delta
from connectors.kafka.start_offsets import position_of, starts_of
from connectors.kafka.topics import Topics, check_same
from dataflow.changes import Changes
from dataflow.delta import Delta, row_hashes
from dataflow.errors import SourceError, TemporaryError
from dataflow.schema import Relation

TAKE_S = 1.0
# Keys are merged once so many are new.
_LEAST_ROWS = 100_000


@dataclass
class KafkaPart:
    """Offsets [begin, end) of one partition.

    columns: the requested columns of the relation. is_whole: the topic has no other partition.
    """

    name: str
    source: str
    options: KafkaOptions
    relation: Relation
    columns: tuple[int, ...]
    opened: OpenFormat
    topic_id: str
    partition: int
    begin: int
    end: int
    is_whole: bool = True
    _rejected: list[tuple] = field(default_factory=list, repr=False)

    def read(self) -> Iterator[Delta]:
        """See FeedPart; records that retention removed meanwhile are missing."""
        self._rejected = []
        topic = self.options.topic_of(self.relation.name.name)
        rows = RowReader(self.relation, topic, self.opened)
        if topic.mode == UPSERT:
            yield from self._last_rows(rows)
        else:
            for records, found in self._read(rows):
                yield self._delta(found, np.arange(len(found.kinds)))
                self._reject(rows, records, found)
        client = Client(self.options.connection, "source", self.source)
        DeadTopic(client).write(topic, self._rejected)

    def rejected(self) -> Delta:
        """See FeedPart."""
        return rejected_delta(self._rejected) or Delta.empty(REJECTED_KINDS)

    def _last_rows(self, rows: RowReader) -> Iterator[Delta]:
        last = _LastRows(rows.relation)
        for records, found in self._read(rows):
            if found.has_truncation and not self.is_whole:
                raise rows.truncation()
            last.add(found, np.array(records.offsets, np.int64)[found.records])
            self._reject(rows, records, found)
        last_offsets = last.offsets()
        # Only the emitted rows are decoded in the second pass.
        for records in self._records(rows):
            mask = np.isin(np.array(records.offsets, np.int64), last_offsets, assume_unique=True)
            if mask.any():
                found = rows.read(records.where(mask.tolist()))
                unsent = found.unsent()
                if unsent.any() and rows.options.on_error == FAIL:
                    raise _unavailable(rows)
                if unsent.any():
                    emitted = rows.changes(records.where(mask.tolist()), found)
                    self._rejected += [letter for letter in emitted.letters or () if letter]
                yield self._delta(found, np.arange(len(found.kinds))).filter(~unsent)

    def _read(self, rows: RowReader) -> Iterator[tuple[Records, Rows]]:
        state = DedupState()
        for records in self._records(rows):
            found = rows.read(records)
            if found.bad and rows.options.on_error == FAIL:
                raise rows.refusal(records, found.bad[0])
            yield records, found if found.orders is None else found.fresh(records, state)

    def _records(self, rows: RowReader) -> Iterator[Records]:
        client = Client(self.options.connection, "source", self.source)
        topic = rows.options.topic
        first = Topics(client).begins(topic, [self.partition])[self.partition]
        begin = max(self.begin, first)
        if begin >= self.end:
            return
        span = Span(
            self.relation.name,
            topic,
            self.topic_id,
            {self.partition: begin},
            {self.partition: self.end},
            rows.needs_times,
            rows.needs_headers,
        )
        reader = Reader(client, [span], wait_ms=20)
        try:
            while not reader.is_done:
                for chunk in reader.take(TAKE_S):
                    if len(chunk.records):
                        yield chunk.records
        except SourceError as error:
            if error.code != "source.offsets_gone":
                raise
            raise TemporaryError(
                "source.snapshot_gone",
                f'records of topic "{topic}" were deleted while they were read',
                detail=error.detail,
                hint="no action needed: the backfill starts again with the retained records",
            ) from None
        finally:
            reader.close()

    def _reject(self, rows: RowReader, records: Records, found: Rows) -> None:
        if found.bad and rows.options.on_error != SKIP:
            self._rejected += rows.rejected(records, found.bad)

    def _delta(self, rows: Rows, index: np.ndarray) -> Delta:
        columns = [rows.columns[column] for column in self.columns]
        return Delta(columns, np.ones(len(index), np.int64))


class KafkaSnapshot:
    """A FeedSnapshot: plans parts, holds nothing at the cluster."""

    def __init__(
        self,
        source: str,
        options: KafkaOptions,
        positions: FeedPositions,
        notes: Mapping[str, bytes],
        opened: OpenFormat,
    ) -> None:
        self._source = source
        self._options = options
        self._positions = positions
        self._notes = notes
        self._opened = opened

    def parts(
        self,
        relation: Relation,
        columns: Sequence[int],
        count: int,
        known: Sequence[str] = (),
    ) -> Sequence[FeedPart]:
        """See FeedSnapshot; an append topic is cut at round offsets."""
        name = relation.name.name
        topic = self._options.topic_of(name)
        topic_id, ends = position_of(self._positions[name])
        client = Client(self._options.connection, "source", self._source)
        topics = Topics(client)
        check_same(topic.topic, topic_id, topics.describe([topic.topic]), relation.name)
        starts = starts_of(self._notes, name, topic_id)
        ranges = [_range_of(part) for part in known]
        if not ranges:
            first = topics.begins(topic.topic, ends)
            begins = {p: max(first[p], starts.get(p, 0)) for p in ends}
            spread = sum(max(0, ends[p] - begins[p]) for p in ends)
            step = 1 << max(0, (spread // max(1, count)) - 1).bit_length()
            is_one = topic.mode == UPSERT or topic.is_debezium
            for partition, end in sorted(ends.items()):
                cuts = _cuts(begins[partition], end, is_one or step)
                ranges += [(partition, begin, stop) for begin, stop in cuts]
        return [
            KafkaPart(
                f"{topic_id}:{partition}:{begin}-{stop}",
                self._source,
                self._options,
                relation,
                tuple(columns),
                self._opened,
                topic_id,
                partition,
                max(begin, starts.get(partition, 0)),
                stop,
                len(ends) == 1,
            )
            for partition, begin, stop in ranges
        ]

    def close(self) -> None:
        """Do nothing: the snapshot holds nothing."""


def _unavailable(rows: RowReader) -> SourceError:
    return SourceError(
        "source.unavailable",
        f'topic "{rows.options.topic}" lacks values of its last rows',
        detail="an event omits a large value that it does not change",
        hint="ALTER TABLE ... REPLICA IDENTITY FULL at its source, or do not declare that column",
        relation=rows.relation.name,
    )


def _range_of(name: str) -> tuple[int, int, int]:
    """Return partition, begin and stop of the part of this name."""
    _, partition, offsets = name.rsplit(":", 2)
    begin, stop = offsets.split("-")
    return int(partition), int(begin), int(stop)


def _cuts(begin: int, end: int, step: int | bool) -> list[tuple[int, int]]:
    """Return [begin, end) cut at multiples of step; True: whole, from offset 0."""
    if begin >= end:
        return []
    if step is True:
        return [(0, end)]
    edges = list(range(begin // step * step, end, step))
    return list(zip(edges, [*edges[1:], end], strict=True))


class _LastRows:
    """The last row of each key of one partition; rows arrive in the order of their offsets.

    By 128-bit hashes of the keys, 25 bytes a key, twice that while they are merged; no row is
    stored. For the risk of a hash collision see docs/contributing/decisions/0002.
    """

    def __init__(self, relation: Relation) -> None:
        self._key = relation.key
        self._whole = _empty()
        self._parts: list[tuple[np.ndarray, ...]] = []
        self._waiting = 0
        self._truncated = -1

    def add(self, rows: Rows, offsets: np.ndarray) -> None:
        """Add rows and removals, with their offsets."""
        n = len(rows.kinds)
        if not n:
            return
        truncated = offsets[rows.kinds == Changes.TRUNCATE]
        if len(truncated):
            self._truncated = int(truncated.max())
        first, second = row_hashes([rows.columns[c] for c in self._key], n)
        self._parts.append((first, second, offsets, rows.kinds != Changes.UPSERT))
        self._waiting += n
        # Merging costs as much as there are keys: do it rarely enough to be linear overall.
        if self._waiting > max(_LEAST_ROWS, len(self._whole[0])):
            self._gather()

    def offsets(self) -> np.ndarray:
        """Return int64, ascending: offsets of the rows that no later one replaced or removed."""
        self._gather()
        _, _, offsets, removes = self._whole
        found = np.sort(offsets[~removes & (offsets > self._truncated)])
        self._whole = _empty()
        return found

    def _gather(self) -> None:
        parts = [self._whole, *self._parts]
        first, second, offsets, removes = (np.concatenate(p) for p in zip(*parts, strict=True))
        order = np.lexsort((offsets, second, first))
        first, second = first[order], second[order]
        is_last = np.ones(len(order), np.bool_)
        is_last[:-1] = (first[1:] != first[:-1]) | (second[1:] != second[:-1])
        kept = order[is_last]
        self._whole = (first[is_last], second[is_last], offsets[kept], removes[kept])
        self._parts, self._waiting = [], 0


def _empty() -> tuple[np.ndarray, ...]:
    hashes = np.empty(0, np.uint64)
    return hashes, hashes, np.empty(0, np.int64), np.empty(0, np.bool_)
