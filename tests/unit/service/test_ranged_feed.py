"""Oracle: the records of topics in memory, each once and in the order of its partition.

A source of which one relation is read in ranges and another is not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

import pytest

from connectors.feed_source import FeedPositions, RangePlanner, SourceFeed
from connectors.source import SourceBatch, StoredInput
from dataflow.errors import SourceError
from dataflow.schema import Relation
from service.engine.positions import Positions
from service.engine.range_reader import RangeReader
from service.ingest.external_sources import ExternalSources
from service.ingest.ranged_feed import RangedFeed, State, open_feed
from service.runtime.outage import RUNNING, STOPPED
from storage.memory import MemoryStore
from tests.harness.ranges import BAD, MemoryPlanner, MemoryTopic
from tests.property.test_bucket_ranges import relation

SALES, PRICES = relation("sales", is_append=True), relation("prices", is_append=False)


class Feed:
    """Reads the same topics in this process."""

    skipped = 0

    def __init__(self, planner: MemoryPlanner) -> None:
        self._planner = planner
        self.lag = 0

    def poll(self, max_rows: int, *, until: FeedPositions | None = None) -> SourceBatch | None:
        """See SourceFeed."""
        ranges = self._planner.cut(1, max_rows)
        if not ranges:
            return None
        changes = [change for part in ranges for change in part.read()]
        batch = self._planner.join(ranges, [part.result() for part in ranges])
        batch.changes = changes
        return batch

    def close(self) -> None:
        """See SourceFeed."""


class Source:
    """A RangedSource: prices are not read in ranges. opened: what was opened, in order."""

    name = "m"
    is_replayable = True

    def __init__(self) -> None:
        self.opened: list[str] = []
        self.topics = {r.name.name: MemoryTopic(r, [[], []], Random(1)) for r in (SALES, PRICES)}

    def unranged(self, own: Relation) -> str:
        """See RangedSource."""
        return "they are few" if own.name.name == "prices" else ""

    def open_feed(
        self,
        relations: Sequence[Relation],
        positions: FeedPositions,
        notes: Mapping[str, bytes],
        on_ready: Callable[[], None],
    ) -> Feed:
        """See FeedSource."""
        return Feed(self._planner("feed", relations, positions))

    def open_ranges(
        self,
        relations: Sequence[Relation],
        positions: FeedPositions,
        notes: Mapping[str, bytes],
        on_ready: Callable[[], None],
    ) -> MemoryPlanner:
        """See RangedSource."""
        return self._planner("ranges", relations, positions)

    def _planner(
        self, way: str, relations: Sequence[Relation], positions: FeedPositions
    ) -> MemoryPlanner:
        names = sorted(r.name.name for r in relations)
        self.opened.append(f"{way} of {' and '.join(names)}")
        topics = {name: self.topics[name] for name in names}
        return MemoryPlanner(topics, positions, is_strict=True)


class Executors:
    """Read ranges; their changes are noted, not in the batch."""

    def __init__(self) -> None:
        self.is_ready = True
        self.read_by: dict[Any, str] = {}
        self.stored: list[tuple[Any, ...]] = []
        self.reader = RangeReader(lambda: self.is_ready, self.read, self.read_by.update)

    def read(self, planner: RangePlanner, max_rows: int) -> SourceBatch | None:
        """As `Driver.read`."""
        ranges = planner.cut(2, max_rows)
        while ranges:
            changes = [change for part in ranges for change in part.read()]
            results = [part.result() for part in ranges]
            if all(result.is_whole for result in results):
                batch = planner.join(ranges, results)
                batch.stored = StoredInput(1, 1, ())
                self.stored += [row for change in changes for row in rows_of(change)]
                return batch
            ranges = planner.shorten(ranges, results)
        return None


def rows_of(change: Any) -> list[tuple[Any, ...]]:
    """(relation, key, value) of changes."""
    name = change.relation.name.name
    pairs = zip(*(column.to_list() for column in change.columns), strict=True)
    return [(name, *pair) for pair in pairs]


def _open(
    source: Source, relations: Sequence[Relation], state: State, reader: RangeReader | None
) -> SourceFeed:
    opens = lambda own, state, on_ready: source.open_feed(own, *state, on_ready)  # noqa: E731
    return open_feed(source, relations, state, lambda: None, reader, opens=opens)


def test_each_relation_is_read_in_its_way_and_both_change_over() -> None:
    source, executors = Source(), Executors()
    positions: dict[str, Any] = {"sales": {}, "prices": {}}
    feed = _open(source, [SALES, PRICES], (positions, {}), executors.reader)
    assert {str(name): by for name, by in executors.read_by.items()} == {
        "m.sales": "executors",
        "m.prices": "driver, because they are few",
    }
    here: list[tuple[Any, ...]] = []

    def read(until: FeedPositions | None = None) -> None:
        quiet = 0
        while quiet < 2:
            batch = feed.poll(5, until=until)
            quiet = quiet + 1 if batch is None else 0
            if batch is not None:
                positions.update(batch.positions or {})
                here.extend(row for change in batch.changes for row in rows_of(change))

    def write(first: int) -> None:
        for n in range(first, first + 20):
            source.topics["sales"].append((n, n))
            source.topics["prices"].append((n, n))

    def of(rows: list[tuple[Any, ...]], name: str) -> list[int]:
        return sorted(row[1] for row in rows if row[0] == name)

    write(0)
    read()
    assert of(executors.stored, "sales") == list(range(20))
    assert of(here, "prices") == list(range(20)) and of(here, "sales") == []
    # A build needs the changes themselves, then a replay may not pass a position.
    executors.is_ready = False
    write(20)
    read()
    executors.is_ready = True
    write(40)
    read(until={"sales": {}})
    assert of(here, "sales") == list(range(20, 60))
    write(60)
    read()
    assert of(executors.stored, "sales") == [*range(20), *range(60, 80)]
    assert of(here, "prices") == list(range(80))
    assert positions == {n: {"0": 40, "1": 40} for n in ("sales", "prices")}
    assert source.opened == [
        *("ranges of sales", "feed of prices"),
        "feed of prices and sales",
        *("ranges of sales", "feed of prices"),
    ]
    feed.close()


def test_without_executors_or_ranges_the_source_s_own_feed_is_used() -> None:
    source, executors = Source(), Executors()
    state = ({"sales": {}, "prices": {}}, {})
    assert isinstance(_open(source, [SALES], state, None), Feed)
    assert isinstance(_open(source, [PRICES], state, executors.reader), Feed)
    opened = _open(source, [SALES], state, executors.reader)
    assert isinstance(opened, RangedFeed)


def test_a_record_that_stops_the_source_is_its_status() -> None:
    """As of any feed: the rows before it come, then the source is retried rarely."""
    source, executors = Source(), Executors()
    positions = Positions(MemoryStore(), "source")
    sources = ExternalSources(lambda _: source, positions, lambda: None, ranges=executors.reader)
    positions._move(0, "m", {"sales": {}})
    sources.open([(SALES, [0])])
    for n in (0, 1, 2):
        source.topics["sales"].append((2 * n, BAD if n == 2 else n))
    batch = sources.poll(100, {})
    assert batch is not None and batch.rows == 2
    positions.pass_over(batch, 1)
    assert sources.statuses()["m"].status == RUNNING
    assert sources.poll(100, {}) is None
    status = sources.statuses()["m"]
    assert status.status == STOPPED
    assert isinstance(status.error, SourceError) and status.error.code == "source.bad_record"
    source.topics["sales"].starts = [1, 1]
    sources.declared_again({"m"})
    sources._positions._move(1, "m", {"sales": {}})
    with pytest.raises(SourceError, match=r"source\.offsets_gone"):
        sources.poll(100, {})
    sources.close()
