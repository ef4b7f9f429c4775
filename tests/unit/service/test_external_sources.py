"""Oracle: the contract of feeds: who is away is tried again, who refuses stops, nobody waits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from connectors.feed_source import (
    REJECTED_KINDS,
    FeedPositions,
    FeedSnapshot,
    FeedStart,
    SourceFeed,
    rejected_row,
)
from connectors.source import MAIN_SOURCE, SourceBatch
from dataflow.delta import Delta
from dataflow.errors import SourceError, TemporaryError, TidemarkError
from dataflow.schema import VIEW_SOURCE, Field, Relation, RelationName
from dataflow.types import INT8
from service.engine.positions import Positions
from service.ingest import external_sources
from service.ingest.external_sources import ExternalSources, external_relations
from service.runtime import outage
from service.runtime.runtime import Runtime
from storage.memory import MemoryStore


class ListedFeed:
    """Gives out what the test has put into its source's list; an error is raised."""

    lag = skipped = 0

    def __init__(
        self, source: ListedSource, positions: FeedPositions, on_ready: Callable[[], None]
    ) -> None:
        self._source = source
        self._on_ready = on_ready
        self.positions = positions
        self.has_succeeded = source.answers
        self.is_closed = False

    def poll(self, max_rows: int, *, until: FeedPositions | None = None) -> SourceBatch | None:
        if not self._source.waiting:
            # It may have something at any time.
            self._on_ready()
            return None
        found = self._source.waiting.pop(0)
        if isinstance(found, TidemarkError):
            raise found
        self.has_succeeded = True
        return found

    def close(self) -> None:
        self.is_closed = True


class ListedSource:
    """A source behind our own contract, driven by the test."""

    is_replayable = True

    def __init__(self, name: str) -> None:
        self.name = name
        self.waiting: list[SourceBatch | TidemarkError] = []
        self.opened: list[ListedFeed] = []
        # Whether it answers at once that there is nothing new.
        self.answers = True

    def relations(self) -> Sequence[Relation]:
        return ()

    def check(self) -> None: ...

    def start_position(self, relation: Relation) -> FeedStart:
        return FeedStart({})

    def open_snapshot(
        self, relations: Sequence[Relation], positions: FeedPositions, notes: Mapping[str, bytes]
    ) -> FeedSnapshot:
        raise NotImplementedError

    def open_feed(
        self,
        relations: Sequence[Relation],
        positions: FeedPositions,
        notes: Mapping[str, bytes],
        on_ready: Callable[[], None],
    ) -> SourceFeed:
        self.opened.append(ListedFeed(self, positions, on_ready))
        return self.opened[-1]

    def decode_again(self, relation: Relation, rows: Delta) -> SourceBatch:
        raise NotImplementedError


class Clock(Runtime):
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def _relation(source: str, name: str) -> Relation:
    return Relation(RelationName(source, source, name), 1, (Field("n", INT8),), is_append=True)


def _batch(source: str, **positions: Any) -> SourceBatch:
    return SourceBatch(0, [], 0, 1, source=source, positions=positions)


class World:
    """Two sources, both read."""

    def __init__(self, clock: Clock) -> None:
        self.sources = {name: ListedSource(name) for name in ("a", "b")}
        self.positions = Positions(MemoryStore(), MAIN_SOURCE)
        self.is_disk_short = False
        self.feeds = ExternalSources(
            self.sources.__getitem__,
            self.positions,
            lambda: None,
            is_disk_short=lambda: self.is_disk_short,
            runtime=clock,
        )
        self.reads = [(_relation(name, "t"), (0,)) for name in self.sources]
        self.feeds.open(self.reads)

    def poll(self, until: Mapping[str, Any] | None = None) -> str | None:
        batch = self.feeds.poll(10, until or {})
        return None if batch is None else batch.source


def test_they_take_turns(clock: Clock) -> None:
    world = World(clock)
    world.sources["a"].waiting = [_batch("a")] * 3
    world.sources["b"].waiting = [_batch("b")] * 2
    assert [world.poll() for _ in range(6)] == ["a", "b", "a", "b", "a", None]


def test_while_some_are_awaited_the_others_wait(clock: Clock) -> None:
    world = World(clock)
    world.sources["a"].waiting = [_batch("a")]
    world.sources["b"].waiting = [_batch("b")]
    assert world.poll({"b": {"t": {}}}) == "b"
    assert world.poll({MAIN_SOURCE: 7}) is None
    assert world.poll() == "a"


def test_one_that_is_away_is_tried_again_after_a_growing_pause(clock: Clock) -> None:
    world = World(clock)
    source = world.sources["a"]
    source.answers, pauses = False, list[float]()
    for _ in range(12):
        source.waiting = [TemporaryError("source.unreachable", "away")]
        world.poll()
        status = world.feeds.statuses()["a"]
        assert status.status == outage.RETRYING
        began, opened = clock.now, len(source.opened)
        while len(source.opened) == opened:
            clock.now += 0.05
            world.poll()
        pauses.append(clock.now - began)
    assert all(feed.is_closed for feed in source.opened[:-1])
    assert pauses[0] < 0.4 < 10 < pauses[-1] <= external_sources.RETRY_S[1] * 1.25 + 0.1
    source.waiting = [_batch("a")]
    assert world.poll() == "a"
    assert world.feeds.statuses()["a"].status == outage.RUNNING


def test_an_answer_without_news_ends_what_was_wrong(clock: Clock) -> None:
    """Whatever the error: nothing needs to change at the source, but it has to answer."""
    world = World(clock)
    source = world.sources["a"]
    refused = SourceError("http.login", "no")
    for error in (TemporaryError("source.unreachable", "away"), refused):
        source.waiting, source.answers = list[SourceBatch | TidemarkError]([error]), False
        world.poll()
        before = world.feeds.statuses()["a"]
        assert before.error is error
        reached = before.reached()
        clock.now += 60
        world.poll()
        # It was opened again, and is not known to be well.
        assert world.feeds.statuses()["a"].error is error
        assert world.feeds.statuses()["a"].reached() == reached
        source.opened[-1].has_succeeded = True
        world.poll()
        status = world.feeds.statuses()["a"]
        assert (status.status, status.error) == (outage.RUNNING, None)
        assert status.reached() == clock.now


def test_who_asks_to_retry_waits_as_after_the_first_failure(clock: Clock) -> None:
    world = World(clock)
    source = world.sources["a"]
    source.answers = False
    for _ in range(12):
        source.waiting = [TemporaryError("source.unreachable", "away")]
        world.poll()
        clock.now += 60
    world.feeds.declared_again({"a"})
    source.waiting = [TemporaryError("source.unreachable", "away")]
    world.poll()
    opened = len(source.opened)
    clock.now += 1
    world.poll()
    assert len(source.opened) == opened + 1


def test_a_bad_record_stops_its_source_and_fails_no_view(clock: Clock) -> None:
    world = World(clock)
    relation = _relation("a", "t").name
    world.sources["a"].waiting = [SourceError("source.bad_record", "no row", relation=relation)]
    world.sources["b"].waiting = [_batch("b")]
    assert world.poll() == "b"
    assert world.feeds.statuses()["a"].status == outage.STOPPED
    world.sources["a"].waiting = [SourceError("source.offsets_gone", "gone", relation=relation)]
    clock.now += 60
    with pytest.raises(SourceError, match="gone"):
        world.poll()


def test_one_that_is_away_after_a_refusal_is_away_for_the_first_time(clock: Clock) -> None:
    world = World(clock)
    source, relation = world.sources["a"], _relation("a", "t").name
    source.waiting = [SourceError("source.topic_missing", "gone", relation=relation)]
    with pytest.raises(SourceError, match="gone"):
        world.poll()
    # What read it has failed; the rest is read on.
    world.feeds.open([(_relation("a", "u"), (0,)), world.reads[1]])
    source.waiting = [TemporaryError("source.unreachable", "away")]
    world.poll()
    opened = len(source.opened)
    clock.now += 1
    world.poll()
    assert len(source.opened) == opened + 1


def test_a_feed_continues_unless_what_is_read_changes(clock: Clock) -> None:
    world = World(clock)
    world.poll()
    world.feeds.open(world.reads)
    world.poll()
    assert [len(s.opened) for s in world.sources.values()] == [1, 1]
    world.positions.begin("a", {"t": FeedStart({"next": 5})})
    world.feeds.open([*world.reads, (_relation("a", "u"), (0,))])
    world.poll()
    assert world.sources["a"].opened[0].is_closed
    assert world.sources["a"].opened[1].positions == {"t": {"next": 5}}
    world.feeds.open(world.reads[1:])
    assert world.sources["a"].opened[1].is_closed
    assert list(world.feeds.statuses()) == ["b"]
    world.feeds.open([])
    assert not world.feeds.is_any


def test_other_options_of_one_source_leave_the_others_open(clock: Clock) -> None:
    world = World(clock)
    world.poll()
    world.feeds.declared_again({"a", "unread"})
    world.poll()
    assert [len(source.opened) for source in world.sources.values()] == [2, 1]
    assert world.sources["a"].opened[0].is_closed


def test_nothing_is_read_while_the_disk_is_short(clock: Clock) -> None:
    world = World(clock)
    world.sources["a"].waiting = [_batch("a")]
    world.is_disk_short = True
    assert world.poll() is None
    error = world.feeds.statuses()["a"].error
    assert error is not None and error.code == "state.disk_full"
    world.is_disk_short = False
    assert world.poll() == "a"
    assert world.feeds.statuses()["a"].error is None


def test_endless_malformed_records_stop_their_source(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(external_sources, "REJECTED_BYTES", 1000)
    world = World(clock)
    name = _relation("a", "t").name
    bad = rejected_row(name, "1", "record.bad", "no row", key=None, value=bytes(300))
    batch = replace(_batch("a"), rejected=Delta.of(REJECTED_KINDS, [bad]))
    world.sources["a"].waiting = [batch] * 10
    read = 0
    while world.poll() == "a":
        read += 1
    assert 0 < read < 10
    clock.now += 10_000
    assert world.poll() is None
    error = world.feeds.statuses()["a"].error
    assert error is not None and error.code == "source.too_many_rejected"
    assert world.feeds.statuses()["a"].status == outage.STOPPED
    # The other one is read on, and so is this one once someone asks for it.
    world.sources["b"].waiting = [_batch("b")]
    assert world.poll() == "b"
    world.feeds.declared_again({"a"})
    assert world.poll() == "a"


def test_what_has_no_position_cannot_be_read_again(clock: Clock) -> None:
    feeds = World(clock).feeds
    assert feeds.is_replayable(SourceBatch(7, [], 1, 1))
    assert feeds.is_replayable(_batch("a", t={}))
    assert not feeds.is_replayable(SourceBatch(0, [], 0, 1, source="a"))


def test_what_is_read_elsewhere_is_left_alone() -> None:
    relations = [_relation(name, "t") for name in (MAIN_SOURCE, VIEW_SOURCE, "a")]
    assert list(external_relations(relations)) == ["a"]
