"""Oracle: a feed whose calls the test lets through one by one, in time that the test sets."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

from connectors.feed_source import FeedPositions, FeedStart
from connectors.source import MAIN_SOURCE, SourceBatch
from dataflow.errors import SourceError
from dataflow.schema import Field, Relation, RelationName
from dataflow.types import INT8
from service.engine.positions import Positions
from service.ingest.external_sources import ExternalSources
from service.ingest.source_worker import ABANDON_S, MAX_ABANDONED, RENEW_S, STUCK_S
from service.runtime.runtime import Runtime
from storage.memory import MemoryStore

WAIT_S = 60.0
T = Relation(RelationName("a", "a", "t"), 1, (Field("n", INT8),), is_append=True)
U = Relation(RelationName("a", "a", "u"), 2, (Field("n", INT8),), is_append=True)


class Clock(Runtime):
    """Time that passes when the test says so."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


class GatedSource:
    """Its feeds return batches 1, 2, ... once the gate of that call is open."""

    name, is_replayable = "a", True

    def __init__(self) -> None:
        self.gates = {name: threading.Event() for name in ("open", "poll", "close")}
        for gate in self.gates.values():
            gate.set()
        self.opened: list[FeedPositions] = []
        self.asked: list[int] = []
        self.closed = 0
        self.failure: Exception | None = None

    def open_feed(
        self,
        relations: Sequence[Relation],
        positions: FeedPositions,
        notes: Mapping[str, bytes],
        on_ready: Callable[[], None],
    ) -> GatedFeed:
        self.opened.append(positions)
        self.gates["open"].wait()
        return GatedFeed(self, int(positions.get("t", {"n": 0})["n"]))

    def start_position(self, relation: Relation) -> FeedStart:
        return FeedStart({"n": 0})


class GatedFeed:
    lag = skipped = 0
    has_succeeded = True

    def __init__(self, source: GatedSource, at: int) -> None:
        self._source, self._at = source, at

    def poll(self, max_rows: int, *, until: FeedPositions | None = None) -> SourceBatch | None:
        self._source.asked.append(max_rows)
        self._source.gates["poll"].wait()
        if self._source.failure is not None:
            raise self._source.failure
        self._at += 1
        return SourceBatch(0, [], 0, max_rows, source="a", positions={"t": {"n": self._at}})

    def close(self) -> None:
        self._source.gates["close"].wait()
        self._source.closed += 1


class World:
    def __init__(self) -> None:
        self.clock, self.source = Clock(), GatedSource()
        self.positions = Positions(MemoryStore(), MAIN_SOURCE)
        self.positions.begin("a", {"t": FeedStart({"n": 0})})
        self.feeds = ExternalSources(
            lambda _: self.source,  # type: ignore[arg-type,return-value]
            self.positions,
            lambda: None,
            runtime=self.clock,
        )
        self.feeds.open([(T, (0,))])

    def poll(self, singly: Sequence[str] = ()) -> SourceBatch | None:
        return self.feeds.poll(10, {}, singly)

    def next(self, singly: Sequence[str] = ()) -> SourceBatch:
        """The next batch, stepped."""
        deadline = time.monotonic() + WAIT_S
        while (batch := self.poll(singly)) is None:
            assert time.monotonic() < deadline
            self.clock.now += 0.01
            time.sleep(0.01)
        self.positions.pass_over(batch, self.positions.epoch + 1)
        return batch

    def code(self) -> str:
        error = self.feeds.statuses()["a"].error
        return "" if error is None else error.code


def await_so(is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_source_that_does_not_answer_is_named_and_called_again() -> None:
    world = World()
    assert world.next().positions == {"t": {"n": 1}}
    world.source.gates["poll"].clear()
    assert world.poll() is None
    assert world.code() == ""
    world.clock.now += STUCK_S
    assert world.poll() is None
    assert (world.code(), world.feeds.statuses()["a"].status) == ("source.stuck", "retrying")
    world.clock.now += RENEW_S - STUCK_S
    assert world.poll() is None
    world.clock.now += 100
    assert world.poll() is None
    # The next worker waits for it, but not for ever.
    world.clock.now += ABANDON_S + 1
    await_so(lambda: len(world.source.opened) == 2)
    assert world.feeds.abandoned_threads == 1
    world.source.gates["poll"].set()
    # From the state's position: what the abandoned one has read since is nobody's.
    assert world.next().positions == {"t": {"n": 2}}
    assert world.source.opened[1] == {"t": {"n": 1}}
    assert world.code() == ""
    await_so(lambda: world.feeds.abandoned_threads == 0)
    world.feeds.close()


def test_threads_that_do_not_end_are_limited() -> None:
    world = World()
    world.source.gates["open"].clear()

    def poll_later() -> None:
        world.poll()
        world.clock.now += RENEW_S + ABANDON_S
        time.sleep(0.3)

    await_so(lambda: poll_later() or len(world.source.opened) >= MAX_ABANDONED)
    for _ in range(5):
        poll_later()
    assert len(world.source.opened) == MAX_ABANDONED
    assert world.feeds.abandoned_threads == MAX_ABANDONED
    world.source.gates["open"].set()
    assert world.next().positions == {"t": {"n": 1}}
    world.feeds.close()


def test_a_batch_read_for_more_than_may_come_now_is_read_again() -> None:
    """A build began between the request and its answer: its transactions have to come singly."""
    world = World()
    world.source.gates["poll"].clear()
    assert world.poll() is None
    await_so(lambda: world.source.asked == [10])
    world.source.gates["poll"].set()
    time.sleep(0.1)
    assert world.next(singly=["a"]).rows == 1
    assert world.source.asked[:2] == [10, 1]
    assert world.source.opened == [{"t": {"n": 0}}] * 2
    world.feeds.close()


def test_a_feed_is_opened_once_the_one_before_it_is_closed() -> None:
    """They may share a slot, or a connection."""
    world = World()
    world.next()
    world.source.gates["close"].clear()
    world.feeds.open([(T, (0,)), (U, (0,))])
    world.poll()
    time.sleep(0.3)
    assert (len(world.source.opened), world.source.closed) == (1, 0)
    world.source.gates["close"].set()
    assert world.next().positions == {"t": {"n": 2}}
    assert (len(world.source.opened), world.source.closed) == (2, 1)
    world.feeds.close()
    await_so(lambda: world.source.closed == 2)


def test_what_a_feed_raises_is_an_error_of_its_source() -> None:
    world = World()
    world.source.failure = ValueError("unexpected")
    await_so(lambda: world.poll() is None and world.code())
    error = world.feeds.statuses()["a"].error
    assert isinstance(error, SourceError) and error.code == "source.reader"
    world.source.failure = OSError(28, "No space left on device")
    world.clock.now += 100
    await_so(lambda: world.poll() is None and world.code() == "state.disk_full")
    # Its own thread has met the same, and could not name it.
    world.source.failure = SourceError(
        "source.reader", "the reader failed", detail="OSError(28, 'No space left on device')"
    )
    world.clock.now += 100
    await_so(lambda: world.poll() is None and world.code() == "state.disk_full")
    world.source.failure = None
    world.clock.now += 100
    assert world.next().positions == {"t": {"n": 1}}
    world.feeds.close()


def test_closing_waits_for_no_call() -> None:
    world = World()
    world.next()
    world.source.gates["poll"].clear()
    world.poll()
    world.feeds.close()
    assert world.source.closed == 0
    world.source.gates["poll"].set()
    await_so(lambda: world.source.closed == 1)
