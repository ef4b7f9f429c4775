"""What runs in the child processes of Kafka's client: the makers of their objects.

Each function makes the object of one use, whose methods the service calls from `source.py`,
`ranges_apart.py` and `sink.py`. `report` sends an event to it. What the service passes on without
reading, parts and ranges, is pickled here.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from connectors.feed_source import FeedPositions, FeedStart, RangeResult, SourceFeed
from connectors.kafka import make_sink
from connectors.kafka.discover import discover
from connectors.kafka.options import read_options
from connectors.kafka.ranges import KafkaRange
from connectors.kafka.snapshot import KafkaPart
from connectors.kafka.topic_source import KafkaSource
from connectors.sink import SinkTable
from connectors.source import SourceBatch
from connectors.view_sink import ViewEpoch
from dataflow.changes import Changes
from dataflow.delta import Delta
from dataflow.errors import TidemarkError
from dataflow.schema import Relation, RelationName

Report = Callable[..., None]
# Name, options and all relations of a source.
Declared = tuple[str, Mapping[str, Any], Sequence[Relation]]
State = tuple[FeedPositions, Mapping[str, bytes]]
# A range as the service holds it: name, relation, about how many records, and itself.
RangeFacts = tuple[str, RelationName, int, bytes]
# Lag, skipped, has_succeeded and problem of a feed; see SourceFeed.
Figures = tuple[int, int, bool, TidemarkError | None]
# Events.
READY, REPLAYABLE = "ready", "replayable"


class _Source(KafkaSource):
    """A source whose calls also report whether it is replayable."""

    def __init__(self, report: Report, name: str, options: Any, relations: Any) -> None:
        self._report = report
        super().__init__(name, read_options(options), relations)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "is_replayable" and value:
            self._report(REPLAYABLE, value)


class SourceUse:
    """One call of a source."""

    def __init__(self, name: str, options: Mapping[str, Any], relations: Sequence[Relation]):
        self._source = KafkaSource(name, read_options(options), relations)

    def check(self) -> tuple[None, bool]:
        """Each method returns also whether the source is replayable, as far as it is known."""
        self._source.check()
        return None, self._source.is_replayable

    def start_position(self, relation: Relation) -> tuple[FeedStart, bool]:
        """See FeedSource."""
        return self._source.start_position(relation), self._source.is_replayable

    def first_position(self, relation: Relation) -> tuple[FeedStart, bool]:
        """See BoundedSource."""
        return self._source.first_position(relation), self._source.is_replayable

    def current_end(self, relations: Sequence[Relation]) -> tuple[dict[str, Any], bool]:
        """See BoundedSource."""
        return self._source.current_end(relations), self._source.is_replayable

    def decode_again(self, relation: Relation, rows: Delta) -> tuple[SourceBatch, bool]:
        """See FeedSource."""
        return self._source.decode_again(relation, rows), self._source.is_replayable

    def parts(self, state: State, relation: Relation, *cut: Any) -> tuple[list[Any], bool]:
        """Return name, offsets and pickle of each part of a snapshot. cut: see FeedSnapshot."""
        snapshot = self._source.open_snapshot(self._source.relations(), *state)
        found: Sequence[Any] = snapshot.parts(relation, *cut)
        facts = [(part.name, part.end - part.begin, pickle.dumps(part)) for part in found]
        return facts, self._source.is_replayable


def source(report: Report, *arguments: Any) -> SourceUse:
    """Return a source, for one call."""
    return SourceUse(*arguments)


class FeedUse:
    """A feed, whose figures come with each answer."""

    def __init__(self, feed: SourceFeed) -> None:
        self._feed = feed

    def poll(
        self, max_rows: int, until: FeedPositions | None
    ) -> tuple[SourceBatch | None, Figures]:
        """See SourceFeed."""
        batch, feed = self._feed.poll(max_rows, until=until), self._feed
        problem = getattr(feed, "problem", None)
        return batch, (feed.lag, feed.skipped, feed.has_succeeded, problem)


def feed(report: Report, source: Declared, relations: Sequence[Relation], state: State) -> FeedUse:
    """Return a feed of some relations of a source."""
    opened = _Source(report, *source)
    return FeedUse(opened.open_feed(relations, *state, lambda: report(READY)))


class PartUse:
    """A part of a snapshot."""

    def __init__(self, part: KafkaPart) -> None:
        self._part = part

    def read(self) -> Iterator[Delta]:
        """See FeedPart."""
        return self._part.read()

    def rejected(self) -> Delta:
        """See FeedPart."""
        return self._part.rejected()


def part(report: Report, payload: bytes) -> PartUse:
    """Return a part from its pickle."""
    return PartUse(pickle.loads(payload))


class RangeUse:
    """Reads ranges, one after the other; what they share stays open between them."""

    def __init__(self) -> None:
        self._range: KafkaRange | None = None

    def read(self, payload: bytes) -> Iterator[Changes]:
        """See FeedRange."""
        self._range = pickle.loads(payload)
        assert self._range is not None
        return self._range.read()

    def result(self) -> RangeResult:
        """See FeedRange."""
        assert self._range is not None
        return self._range.result()


def range_reader(report: Report) -> RangeUse:
    """Return what reads ranges of one source."""
    return RangeUse()


class PlannerUse:
    """A planner, whose figures come with each answer."""

    def __init__(self, planner: Any) -> None:
        self._planner = planner

    def has_unread(self) -> tuple[bool, Figures]:
        """See RangePlanner."""
        return self._planner.has_unread(), self._figures()

    def cut(self, count: int, max_rows: int) -> tuple[list[RangeFacts], Figures]:
        """See RangePlanner."""
        return _facts_of(self._planner.cut(count, max_rows)), self._figures()

    def shorten(
        self, ranges: Sequence[bytes], results: Sequence[RangeResult]
    ) -> tuple[list[RangeFacts], Figures]:
        """See RangePlanner."""
        found = self._planner.shorten(list(map(pickle.loads, ranges)), results)
        return _facts_of(found), self._figures()

    def join(
        self, ranges: Sequence[bytes], results: Sequence[RangeResult]
    ) -> tuple[SourceBatch, Figures]:
        """See RangePlanner."""
        return self._planner.join(list(map(pickle.loads, ranges)), results), self._figures()

    def _figures(self) -> Figures:
        planner = self._planner
        return planner.lag, planner.skipped, planner.has_succeeded, None


def planner(
    report: Report,
    source: Declared,
    relations: Sequence[Relation],
    state: State,
    end: FeedPositions | None,
) -> PlannerUse:
    """Return what cuts some relations of a source into ranges."""
    opened = _Source(report, *source)
    return PlannerUse(opened.open_ranges(relations, *state, lambda: report(READY), end))


def _facts_of(ranges: Iterable[KafkaRange]) -> list[RangeFacts]:
    return [(one.name, one.relation, one.size, pickle.dumps(one)) for one in ranges]


class Discoverer:
    """Proposes columns."""

    def discover(self, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """See Connector."""
        return discover(options)


def discoverer(report: Report) -> Discoverer:
    """Return what proposes columns."""
    return Discoverer()


class SinkUse:
    """The sink of a view."""

    def __init__(self, sink: Any) -> None:
        self._sink = sink

    def open(self, known: int | None) -> int | None:
        """See ViewSink."""
        return self._sink.open(known)

    def write(self, epochs: Sequence[ViewEpoch], *deltas: Iterable[Delta]) -> None:
        """See ViewSink. deltas: of each epoch."""
        whole = [
            ViewEpoch(one.number, one.positions, own, one.rows, one.is_initial)
            for one, own in zip(epochs, deltas, strict=True)
        ]
        self._sink.write(whole)

    def remove(self) -> None:
        """See ViewSink."""
        self._sink.remove()

    def detach(self) -> None:
        """See ViewSink."""
        self._sink.detach()

    def interrupt(self) -> None:
        """See ViewSink."""
        self._sink.interrupt()

    def close(self) -> None:
        """See ViewSink."""
        self._sink.close()


def sink(report: Report, *arguments: Any) -> SinkUse:
    """Return a sink; see `make_sink.make`."""
    return SinkUse(make_sink.make(*arguments))


class Checker:
    """Checks the options of a new sink."""

    def check(self, options: Mapping[str, Any], table: SinkTable, title: str) -> dict[str, Any]:
        """See SinkConnector."""
        return make_sink.check(options, table, title)


def checker(report: Report) -> Checker:
    """Return what checks sinks."""
    return Checker()
