"""Sources of the tests: topics declared as users do, batches applied to rows by key."""

from __future__ import annotations

import json
import pickle
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from connectors.feed_source import FeedPositions, FeedRange, RangePlanner, SourceFeed
from connectors.formats.declared import declared_type
from connectors.kafka.embedded import EmbeddedKafka
from connectors.kafka.options import KafkaOptions, read_options
from connectors.kafka.topic_source import KafkaSource
from connectors.source import SourceBatch
from dataflow.changes import Changes
from dataflow.delta import Delta
from dataflow.errors import TidemarkError
from dataflow.schema import Field, Relation, RelationName

TIMEOUT_S = 30.0
COLUMNS = {"_partition": "int4", "_offset": "int8", "id": "int8", "name": "text"}
Row = tuple[Any, ...]


def topic_options(topic: str, **more: Any) -> dict[str, Any]:
    """One entry of `topics`: an append topic of JSON, unless told otherwise."""
    return {"topic": topic, "format": "json", "columns": COLUMNS, **more}


def upsert_options(topic: str, **more: Any) -> dict[str, Any]:
    """One entry of `topics`: rows by the id in the record's key, which is JSON too."""
    columns = [
        {"name": "id", "type": "int8", "in": "key", "path": "$"},
        {"name": "name", "type": "text"},
    ]
    upsert = {"mode": "upsert", "key": ["id"], "key_format": "json", "columns": columns}
    return topic_options(topic, **{**upsert, **more})


def source_of(
    broker: EmbeddedKafka, topics: Mapping[str, Mapping[str, Any]], **more: Any
) -> KafkaSource:
    """A source with these topics."""
    given = {"bootstrap_servers": broker.bootstrap, "check_ms": 100, "topics": topics, **more}
    options = read_options(given)
    return KafkaSource("shop", options, relations_of(options))


def relations_of(options: KafkaOptions) -> list[Relation]:
    """The relations as the service resolves them."""
    found = []
    for number, topic in enumerate(options.topics, start=1):
        declared = topic.declared()
        fields = tuple(Field(n, declared_type(t)[0]) for n, t in declared.columns)
        names = [n for n, _ in declared.columns]
        name = RelationName("shop", "shop", declared.name)
        key = tuple(names.index(k) for k in declared.key)
        found.append(Relation(name, number, fields, key, is_append=declared.is_append))
    return found


def value(id: int, name: str | None = "a") -> bytes:
    """A record's value as JSON."""
    return json.dumps({"id": id, "name": name}).encode()


@dataclass
class TransactionBuffer:
    """Rows of relations as batches make them."""

    rows: dict[str, Counter[Row]] = field(default_factory=dict)
    keyed: dict[str, dict[Row, Row]] = field(default_factory=dict)
    rejected: list[Row] = field(default_factory=list)
    positions: dict[str, Any] = field(default_factory=dict)

    def add_batch(self, batch: SourceBatch) -> None:
        """Apply what a feed says."""
        for change in batch.whole():
            self.add_changes(change)
        if batch.rejected is not None:
            self.rejected += [row for row, _ in batch.rejected.rows()]
        self.positions.update(batch.positions or {})

    def add_changes(self, changes: Changes) -> None:
        """Rows by key where they replace each other, else as a multiset."""
        name, key = changes.relation.name.name, changes.relation.key
        rows = zip(*(column.to_list() for column in changes.columns), strict=True)
        for kind, row in zip(changes.kinds.tolist(), rows, strict=True):
            if kind == Changes.INSERT:
                self.rows.setdefault(name, Counter())[row] += 1
            elif kind == Changes.UPSERT:
                self.keyed.setdefault(name, {})[tuple(row[c] for c in key)] = row
            else:
                assert kind == Changes.REMOVE
                assert all(v is None for c, v in enumerate(row) if c not in key)
                self.keyed.setdefault(name, {}).pop(tuple(row[c] for c in key), None)

    def add_snapshot(self, relation: Relation, delta: Delta) -> None:
        """Apply rows of a part."""
        for row, weight in delta.rows():
            assert weight == 1
            if relation.is_append:
                self.rows.setdefault(relation.name.name, Counter())[row] += 1
            else:
                key = tuple(row[c] for c in relation.key)
                held = self.keyed.setdefault(relation.name.name, {})
                assert key not in held
                held[key] = row


def snapshot(
    source: KafkaSource, positions: FeedPositions, notes: Mapping[str, bytes], count: int = 4
) -> TransactionBuffer:
    """All rows of all relations as of their places."""
    held = TransactionBuffer(positions=dict(positions))
    opened = source.open_snapshot(source.relations(), positions, notes)
    for relation in source.relations():
        parts = opened.parts(relation, range(len(relation.fields)), count)
        assert len({part.name for part in parts}) == len(parts)
        for part in parts:
            for delta in part.read():
                held.add_snapshot(relation, delta)
            held.rejected += [row for row, _ in part.rejected().rows()]
    opened.close()
    return held


def snapshot_offsets(source: KafkaSource) -> tuple[dict[str, Any], dict[str, bytes]]:
    """(places, notes) of all relations where nothing reads them yet."""
    positions, notes = {}, {}
    for relation in source.relations():
        start_position = source.start_position(relation)
        positions[relation.name.name] = json.loads(json.dumps(start_position.position))
        notes.update(start_position.notes)
    return positions, notes


class SourceSubscriptions:
    """A feed, and what it has told so far."""

    def __init__(
        self, source: KafkaSource, held: TransactionBuffer, notes: Mapping[str, bytes]
    ) -> None:
        self._ready = threading.Event()
        self.held = held
        self.notes: dict[str, bytes] = {}
        self.feed = self.open_feed(source, notes)

    def open_feed(self, source: KafkaSource, notes: Mapping[str, bytes]) -> SourceFeed:
        """A feed from the positions that are held."""
        positions = dict(self.held.positions)
        return source.open_feed(source.relations(), positions, notes, self._ready.set)

    def __enter__(self) -> SourceSubscriptions:
        return self

    def __exit__(self, *_: object) -> None:
        self.feed.close()

    def step(
        self, *, until: FeedPositions | None = None, max_rows: int = 50_000
    ) -> SourceBatch | None:
        """One poll, waiting for the feed's word where there was nothing."""
        self._ready.clear()
        batch = self.feed.poll(max_rows, until=until)
        if batch is None:
            self._ready.wait(0.5)
        else:
            self.held.add_batch(batch)
            self.notes.update(batch.notes)
        return batch

    def until(
        self,
        is_enough: Callable[[TransactionBuffer], bool],
        *,
        positions: FeedPositions | None = None,
    ) -> TransactionBuffer:
        """Poll until it is."""
        deadline = time.monotonic() + TIMEOUT_S
        while not is_enough(self.held):
            assert time.monotonic() < deadline, self.held
            self.step(until=positions)
        return self.held

    def failure(self) -> TidemarkError:
        """Poll until it raises."""
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            try:
                self.step()
            except TidemarkError as error:
                return error
        raise AssertionError("nothing was raised")


class RangesFeed:
    """What a planner cuts, read here: as a feed, so that both can be asked the same.

    Ranges are pickled, as they are on their way to other processes.
    """

    def __init__(self, planner: RangePlanner, count: int = 3) -> None:
        self.planner = planner
        self.ranges: list[FeedRange] = []
        self._count = count

    def poll(self, max_rows: int, *, until: FeedPositions | None = None) -> SourceBatch | None:
        """See SourceFeed."""
        assert until is None
        ranges = self.planner.cut(self._count, max_rows)
        while ranges:
            ranges = pickle.loads(pickle.dumps(ranges))
            self.ranges += ranges
            changes = [change for part in ranges for change in part.read()]
            results = [part.result() for part in ranges]
            if all(result.is_whole for result in results):
                batch = self.planner.join(ranges, results)
                batch.changes = changes
                return batch
            ranges = self.planner.shorten(ranges, results)
        return None

    @property
    def lag(self) -> int:
        """See SourceFeed."""
        return self.planner.lag

    @property
    def skipped(self) -> int:
        """See SourceFeed."""
        return self.planner.skipped

    @property
    def has_succeeded(self) -> bool:
        """See SourceFeed."""
        return self.planner.has_succeeded

    def close(self) -> None:
        """See SourceFeed."""
        self.planner.close()


class RangeSubscriptions(SourceSubscriptions):
    """The same, read in ranges."""

    def open_feed(self, source: KafkaSource, notes: Mapping[str, bytes]) -> SourceFeed:
        """A feed of ranges from the positions that are held."""
        positions = dict(self.held.positions)
        on_ready = self._ready.set
        return RangesFeed(source.open_ranges(source.relations(), positions, notes, on_ready))


def ids(held: TransactionBuffer, name: str = "clicks") -> list[int]:
    """The ids of an append relation's rows, in order; each row once."""
    assert set(held.rows.get(name, Counter()).values()) <= {1}
    return sorted(row[2] for row in held.rows.get(name, Counter()))


def names(held: TransactionBuffer, name: str = "clicks") -> dict[int, str | None]:
    """The rows of an upsert relation: id -> name."""
    rows: Iterable[Row] = held.keyed.get(name, {}).values()
    return {row[0]: None if row[1] is None else row[1].decode() for row in rows}
