"""Oracle: the contract of additional sinks: what may pass is tried again, each epoch comes once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from connectors.sink import Progress, SinkEpoch, SinkRows, SinkTable
from connectors.view_sink import Detachment, ViewEpoch
from dataflow.delta import Delta
from dataflow.errors import SinkError, TemporaryError, TidemarkError
from dataflow.schema import Field
from dataflow.types import INT8
from service.runtime.runtime import Runtime
from service.sinks.sink_thread import ABANDON_S, EndingThreads
from service.sinks.sink_worker import (
    FAILED,
    LIVE,
    STUCK_S,
    UNNAMED,
    Reached,
    SinkRoute,
    SinkWorker,
)

TABLE = SinkTable("public", "totals", (Field("n", INT8),), ())
AWAY = TemporaryError("sink.unreachable", "away")
UNKNOWN = SinkError(UNNAMED, "nobody gave it a code")
READ_ONLY = SinkError("sink.read_only", "a standby for the moment")
REFUSED = SinkError("sink.permission_denied", "no right to write")


class RefusingSink:
    """Keeps what it is given as epoch numbers; refuses as often as the test has listed errors."""

    def __init__(self, holds: Sequence[int] = ()) -> None:
        self.refusals: list[TidemarkError] = []
        self.epochs = list(holds)

    def open(self, known: int | None = None) -> int | None:
        return self.epochs[-1] if self.epochs else None

    def write(self, epochs: Sequence[ViewEpoch]) -> None:
        if self.refusals:
            raise self.refusals.pop(0)
        self.epochs += [epoch.number for epoch in epochs]

    def remove(self) -> None: ...

    def detachment(self) -> Detachment:
        return Detachment()

    def detach(self) -> None: ...

    def interrupt(self) -> None: ...

    def close(self) -> None: ...


class NoPause(Runtime):
    """Draws pauses of no length, so that what is tried again is tried at once."""

    def draw(self, low: float, high: float) -> float:
        return 0.0


class StillClock(Runtime):
    """Time that passes when the test says so."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


def _epoch(number: int) -> SinkEpoch:
    return SinkEpoch(Progress(number, {}), SinkRows([(TABLE, Delta.of("i", [(number,)]))]))


@contextmanager
def _rows() -> Iterator[tuple[Progress, list[Delta]]]:
    yield Progress(1, {}), []


def _follow(sink: RefusingSink, reached: Reached | None) -> SinkWorker:
    """Runs in this thread, until it fails or has written epoch 3."""
    route = SinkRoute(TABLE, sink, _epoch, _rows, dict)
    follower = SinkWorker("totals/copy", route, reached, 1, NoPause())
    follower.advance(3)
    write = sink.write

    def stopping_at_the_end(epochs: Sequence[ViewEpoch]) -> None:
        write(epochs)
        if sink.epochs[-1] == 3:
            follower.thread.stop()

    sink.write = stopping_at_the_end
    follower._run()
    return follower


@pytest.mark.parametrize("error", [AWAY, UNKNOWN, READ_ONLY])
def test_a_sink_that_has_begun_is_tried_again(error: TidemarkError) -> None:
    sink = RefusingSink(holds=[1])
    sink.refusals = [error, error]
    follower = _follow(sink, Reached(1, has_begun=True))
    assert (follower.status, follower.error) == (LIVE, None)
    assert sink.epochs == [1, 2, 3]


def test_one_that_is_away_before_it_has_begun_is_tried_again() -> None:
    sink = RefusingSink()
    sink.refusals = [AWAY]
    follower = _follow(sink, None)
    assert (follower.status, sink.epochs) == (LIVE, [1, 2, 3])


@pytest.mark.parametrize(
    ("error", "holds"),
    [(REFUSED, [1]), (UNKNOWN, []), (READ_ONLY, [])],
    ids=["by name", "before it has begun", "of a new sink"],
)
def test_a_refusal_is_for_good(error: TidemarkError, holds: list[int]) -> None:
    sink = RefusingSink(holds)
    sink.refusals = [error]
    follower = _follow(sink, Reached(1, has_begun=True) if holds else None)
    assert (follower.status, follower.error) == (FAILED, error)
    assert sink.epochs == holds


def test_changes_wait_for_more_of_them() -> None:
    sink, writes = RefusingSink(holds=[1]), []
    route = SinkRoute(TABLE, sink, _epoch, _rows, dict, max_delay_s=0.5)
    follower = SinkWorker("totals/copy", route, Reached(1, has_begun=True), 1, NoPause())
    write = sink.write

    def note(epochs: Sequence[ViewEpoch]) -> None:
        write(epochs)
        writes.append([epoch.number for epoch in epochs])

    sink.write = note
    follower.start()
    for number in range(2, 40):
        follower.advance(number)
        time.sleep(0.01)
    deadline = time.monotonic() + 60
    while sink.epochs[-1] != 39 and time.monotonic() < deadline:
        time.sleep(0.01)
    follower.thread.stop()
    assert follower.thread.await_end(60)
    assert sink.epochs == list(range(1, 40))
    assert len(writes) < 10, writes


def test_a_stop_does_not_wait_for_more_changes() -> None:
    sink = RefusingSink(holds=[1])
    route = SinkRoute(TABLE, sink, _epoch, _rows, dict, max_delay_s=3600)
    follower = SinkWorker("totals/copy", route, Reached(1, has_begun=True), 2, NoPause())
    follower.start()
    deadline = time.monotonic() + 60
    while sink.epochs[-1] != 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    follower.advance(3)
    time.sleep(0.1)
    follower.thread.stop()
    assert follower.thread.await_end(60)
    assert sink.epochs == [1, 2]


def test_one_that_lacks_what_it_had_acknowledged_is_lost() -> None:
    sink = RefusingSink(holds=[1])
    follower = _follow(sink, Reached(2, has_begun=True, written=2))
    assert follower.status == FAILED and follower.error is not None
    assert follower.error.code == "sink.lost"
    assert sink.epochs == [1]
    # Epochs that do not change the view are not written: it may have fewer than it has reached.
    follower = _follow(RefusingSink(holds=[1]), Reached(2, has_begun=True, written=1))
    assert (follower.status, follower.error) == (LIVE, None)


def test_a_sink_that_does_not_answer_is_named() -> None:
    sink, clock, gate = RefusingSink(holds=[1]), StillClock(), threading.Event()
    route = SinkRoute(TABLE, sink, _epoch, _rows, dict)
    follower = SinkWorker("totals/copy", route, Reached(1, has_begun=True), 2, clock)
    write, begun = sink.write, threading.Event()

    def late(epochs: Sequence[ViewEpoch]) -> None:
        begun.set()
        gate.wait()
        write(epochs)

    sink.write = late
    follower.start()
    assert begun.wait(60)
    assert follower.stuck is None
    clock.now += STUCK_S
    assert follower.stuck is not None and follower.stuck.code == "sink.stuck"
    ending = EndingThreads(clock)
    ending.add("a", follower.thread)
    assert (ending.abandoned(), ending.of("a")) == (0, [follower.thread])
    clock.now += ABANDON_S + 1
    assert ending.abandoned() == 1
    gate.set()
    assert follower.thread.await_end(60)
    assert (follower.stuck, ending.abandoned(), ending.of("a")) == (None, 0, [])
