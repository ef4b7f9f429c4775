"""A source of topics as a process has it: pins, snapshots, a feed; each call may fail.

A feed returns read-ahead records, cut anywhere in each partition. With its offsets it stores the
number of records before them, which it must find beside the offsets when it is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Any

import numpy as np

from connectors.feed_source import REJECTED_KINDS, FeedPositions, FeedStart
from connectors.source import SourceBatch
from dataflow.changes import Changes
from dataflow.delta import Delta
from dataflow.errors import TemporaryError
from dataflow.schema import Relation
from tests.simulation.faults import Faults, Violation
from tests.simulation.source import SimPart
from tests.simulation.topics import FORGETFUL, Broker, Record, Topic


class SimFeedSource:
    """As FeedSource, for one process."""

    def __init__(
        self, name: str, relations: Sequence[Relation], broker: Broker, faults: Faults
    ) -> None:
        self.name = name
        self.is_replayable = name != FORGETFUL
        self._relations = tuple(relations)
        self._broker = broker
        self._faults = faults

    def relations(self) -> Sequence[Relation]:
        return self._relations

    def check(self) -> None:
        self._ask("feed.check")

    def start_position(self, relation: Relation) -> FeedStart:
        self._ask("feed.pin")
        topic = self._broker.topics[self.name, relation.name.name]
        return FeedStart(topic.position(), _note(topic, topic.position()))

    def open_snapshot(
        self, relations: Sequence[Relation], offsets: FeedPositions, notes: Mapping[str, bytes]
    ) -> SimFeedSnapshot:
        self._ask("feed.snapshot")
        topics = {r.name.name: self._broker.topics[self.name, r.name.name] for r in relations}
        _require_notes(topics, offsets, notes)
        return SimFeedSnapshot(topics, offsets, self._faults)

    def open_feed(
        self,
        relations: Sequence[Relation],
        offsets: FeedPositions,
        notes: Mapping[str, bytes],
        on_ready: Callable[[], None],
    ) -> SimFeed:
        topics = {r.name.name: self._broker.topics[self.name, r.name.name] for r in relations}
        _require_notes(topics, offsets, notes)
        return SimFeed(self, topics, offsets, on_ready)

    def decode_again(self, relation: Relation, rows: Delta) -> SourceBatch:
        raise NotImplementedError

    def _ask(self, name: str) -> None:
        self._faults.step(name)
        self.may_be_away()

    def may_be_away(self) -> None:
        """TemporaryError now and then."""
        if self._faults.happens("feed.away"):
            raise TemporaryError("source.unreachable", f"the simulated {self.name} is away")

    @property
    def random(self) -> Random:
        """What it draws how it reads from."""
        return self._faults.streams["feed.away"]

    @property
    def faults(self) -> Faults:
        """Of its run."""
        return self._faults

    @property
    def broker(self) -> Broker:
        """Where it reads."""
        return self._broker


class SimFeed:
    """As SourceFeed. stalls_until: nothing comes before that, and nobody says so."""

    skipped = 0
    # Each poll asks the source.
    has_succeeded = True

    def __init__(
        self,
        source: SimFeedSource,
        topics: Mapping[str, Topic],
        offsets: FeedPositions,
        on_ready: Callable[[], None],
    ) -> None:
        self._source = source
        self._topics = topics
        self._next = {
            name: {int(p): at for p, at in offsets[name]["next"].items()} for name in topics
        }
        self._on_ready = on_ready
        self._stalls_until = 0.0

    @property
    def lag(self) -> int:
        return sum(len(r) - self._next[name][p] for name, p, r in self._partitions())

    def poll(self, max_rows: int, *, until: FeedPositions | None = None) -> SourceBatch | None:
        source, random = self._source, self._source.random
        source.faults.step("feed.poll")
        source.may_be_away()
        if source.faults.happens("feed.stall"):
            self._stalls_until = source.faults.now + random.uniform(0.5, 5.0)
        taken: dict[str, list[Record]] = {}
        if source.faults.now >= self._stalls_until:
            taken = {name: self._take(name, max_rows, until) for name in self._topics}
        if not any(taken.values()):
            source.broker.told.append(self._on_ready)
            return None
        offsets, notes = {}, {}
        for name, topic in self._topics.items():
            offsets[name] = {"next": {str(p): at for p, at in self._next[name].items()}}
            notes |= _note(topic, offsets[name])
        records = [record for found in taken.values() for record in found]
        return SourceBatch(
            0,
            [
                _changes(self._topics[name].relation, found)
                for name, found in taken.items()
                if found
            ],
            1,
            len(records),
            int(max(record.at for record in records) * 1e6),
            source=source.name,
            positions=offsets,
            notes=notes,
        )

    def close(self) -> None:
        """What was not handed out is read again."""

    def _partitions(self) -> Iterator[tuple[str, int, list[Record]]]:
        for name, topic in self._topics.items():
            for number, records in enumerate(topic.partitions):
                yield name, number, records

    def _take(self, name: str, max_rows: int, until: FeedPositions | None) -> list[Record]:
        """Some of each partition, one partition after another."""
        random, found = self._source.random, []
        for number, records in enumerate(self._topics[name].partitions):
            begin, end = self._next[name][number], len(records)
            if until is not None:
                known = until.get(name)
                end = begin if known is None else min(end, known["next"][str(number)])
            count = max(0, min(end - begin, max_rows))
            count = random.choice((count, count, random.randint(0, count)))
            found += records[begin : begin + count]
            self._next[name][number] = begin + count
        return found


class SimFeedSnapshot:
    """As FeedSnapshot."""

    def __init__(self, topics: Mapping[str, Topic], offsets: FeedPositions, faults: Faults) -> None:
        self._topics = topics
        self._positions = {name: offsets[name] for name in topics}
        self._faults = faults

    def parts(
        self,
        relation: Relation,
        columns: Sequence[int],
        count: int,
        known: Sequence[str] = (),
    ) -> list[SimFeedPart]:
        topic = self._topics[relation.name.name]
        offset = self._positions[relation.name.name]["next"]
        parts = []
        for number in range(len(topic.partitions)):
            only = {p: at if int(p) == number else 0 for p, at in offset.items()}
            rows = sorted(topic.rows_at({"next": only}).elements(), key=repr)
            parts.append(SimFeedPart(str(number), relation, tuple(columns), rows, self._faults))
        return parts

    def close(self) -> None:
        """Nothing is held."""


class SimFeedPart(SimPart):
    """A partition up to an offset."""

    def _meet_faults(self) -> None:
        self.faults.step("feed.read")
        if self.faults.happens("feed.away"):
            raise TemporaryError("source.unreachable", "the simulated topics are away")

    def rejected(self) -> Delta:
        return Delta.empty(REJECTED_KINDS)


def _changes(relation: Relation, records: Sequence[Record]) -> Changes:
    kinds, rows = [], []
    for record in records:
        kind = Changes.UPSERT if relation.key else Changes.INSERT
        nothing = tuple(None for _ in relation.fields)
        row = record.row
        if row is None:
            # Only the key is there.
            kind, row = Changes.REMOVE, (record.key, *nothing[1:])
        kinds.append(kind)
        rows.append(row)
    physical = "".join(f.type.physical for f in relation.fields)
    return Changes(relation, np.array(kinds, np.uint8), tuple(Delta.of(physical, rows).columns))


def _note(topic: Topic, offset: Mapping[str, Any]) -> dict[str, bytes]:
    count = sum(offset["next"].values())
    return {f"count/{topic.relation.name.name}": str(count).encode()}


def _require_notes(
    topics: Mapping[str, Topic], offsets: FeedPositions, notes: Mapping[str, bytes]
) -> None:
    for name, topic in topics.items():
        if name not in offsets:
            raise Violation(f"{topic.relation.name} is read from no place")
        for key, value in _note(topic, offsets[name]).items():
            if notes.get(key) != value:
                raise Violation(f"beside {offsets[name]} stands {key} {notes.get(key)!r}")
