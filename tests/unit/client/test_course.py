"""Oracle: the marks of a stream, written down beside it: whatever bytes arrive together, wherever
connections break, each epoch is given whole, once and in order, or an error is raised."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from dataflow.errors import TemporaryError, TidemarkError
from service.client.course import ChangesOptions, Course, Open, Pause, Read, Shut
from service.client.epochs import Epoch, Gathering, Marker

FIELDS = [{"name": "n", "type": "integer", "nullable": False}]


def event(name: str, **told: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps(told, separators=(',', ':'))}\n\n".encode()


def begin() -> bytes:
    return event("begin", view="v", fields=FIELDS, key=["n"])


def rows(name: str, epoch: int, *values: int) -> bytes:
    told: dict[str, Any] = {"epoch": epoch, "rows": [{"n": v} for v in values]}
    if name == "changes":
        told["weights"] = [1] * len(values)
    return event(name, **told)


def mark(epoch: int) -> bytes:
    # Both names of the event are read.
    name = "progress" if epoch % 2 else "mark"
    return b"id: x\n" + event(name, epoch=epoch, positions={"source": "0/1"}, resume=f"t{epoch}")


def problem(code: str, status: int) -> bytes:
    return event("error", code=code, status=status, title="over", detail="", hint="")


class Service:
    """A stream of ten epochs, of two events each, that breaks off where it is told to."""

    def __init__(self, epochs: int = 10) -> None:
        self.epochs = epochs

    def stream(self, resume: str | None) -> bytes:
        after = 0 if resume is None else int(resume[1:])
        first = b"" if resume else rows("snapshot", 0, 0) + rows("snapshot", 0, 100) + mark(0)
        later = (
            rows("changes", e, e) + rows("changes", e, e + 100) + mark(e)
            for e in range(after + 1, self.epochs + 1)
        )
        return begin() + first + b"".join(later)


def options(**asked: Any) -> ChangesOptions:
    told = {
        "path": "/views/v/changes",
        "params": {"snapshot": True},
        "token_param": "resume",
        "resume": "",
        "timeout_s": None,
        "heartbeat_s": 5,
        "reconnect_s": 60,
        "has_progress": False,
        "begins_again": False,
    }
    return ChangesOptions(**{**told, **asked})


class Driver:
    """Carries out the steps of a course against streams of bytes; its clock is a number."""

    def __init__(self, streams: Iterator[Iterator[bytes]], **asked: Any) -> None:
        self.now = 0.0
        self.course = Course(options(**asked), lambda: self.now)
        self.opened: list[str | None] = []
        self.pauses: list[float] = []
        self._streams = streams
        self._chunks: Iterator[bytes] = iter(())

    def epoch(self) -> Epoch | None:
        steps = self.course.next_epoch()
        try:
            step = next(steps)
            while True:
                try:
                    answer = self._do(step)
                except TidemarkError as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration as end:
            return end.value

    def _do(self, step: object) -> bytes | None:
        match step:
            case Open(asked):
                params: Any = asked.params
                self.opened.append(params.get("resume"))
                self._chunks = next(self._streams)
            case Read():
                return next(self._chunks, None)
            case Pause(seconds):
                self.pauses.append(seconds)
                self.now += seconds
            case _:
                assert isinstance(step, Shut)
        return None


def test_epochs_are_whole_wherever_connections_break() -> None:
    """Streams in pieces of random length that end after a random number of bytes."""
    pick = random.Random(11)
    service = Service()
    driver: Driver

    def streams() -> Iterator[Iterator[bytes]]:
        while True:
            whole = service.stream(driver.course._gathering.token or None)
            cut = whole[: pick.randrange(len(whole) + 200)]
            ends = sorted({pick.randrange(len(cut) + 1) for _ in range(8)} | {len(cut)})
            starts = [0, *ends[:-1]]
            yield (cut[a:b] for a, b in zip(starts, ends, strict=True) if b > a)

    driver = Driver(streams())
    found = [driver.epoch() for _ in range(11)]
    assert [e.number for e in found if e] == list(range(11))
    assert [[r.n for r in e.rows] for e in found if e] == [[e, e + 100] for e in range(11)]
    assert [e.is_snapshot for e in found if e] == [True] + [False] * 10
    assert driver.course.resume == "t10"
    assert len(driver.opened) > 3 and max(driver.pauses) <= 5


def test_a_stream_is_read_from_single_bytes_and_from_all_at_once() -> None:
    whole = Service().stream(None)
    for size in (1, 7, len(whole)):
        gathering = Gathering()
        chunks = (whole[at : at + size] for at in range(0, len(whole), size))
        found = [e for chunk in chunks for e in gathering.take(chunk)]
        assert [e.number for e in found if isinstance(e, Epoch)] == list(range(11))
        assert not gathering.is_amid


def once(*chunks: bytes) -> Iterator[Iterator[bytes]]:
    return iter([iter(chunks)])


def test_what_comes_before_an_error_is_given_before_it() -> None:
    told = begin() + rows("changes", 4, 4) + mark(4) + problem("changes.view_dropped", 410)
    driver = Driver(once(told), resume="t3")
    epoch = driver.epoch()
    assert epoch is not None and epoch.number == 4
    for _ in range(2):
        with pytest.raises(TidemarkError) as caught:
            driver.epoch()
        assert caught.value.code == "changes.view_dropped"
    assert driver.opened == ["t3"]


@pytest.mark.parametrize(
    ("code", "status", "goes_on"),
    [
        ("changes.too_slow", 408, True),
        ("changes.unavailable", 503, True),
        ("changes.interrupted", 503, False),
        ("changes.expired", 410, False),
        ("view.not_found", 404, False),
    ],
)
def test_only_errors_without_a_gap_are_tried_again(code: str, status: int, goes_on: bool) -> None:
    def streams() -> Iterator[Iterator[bytes]]:
        yield iter([begin(), mark(3), problem(code, status)])
        yield iter([begin(), rows("changes", 5, 5), mark(5)])

    driver = Driver(streams())
    if goes_on:
        epoch = driver.epoch()
        assert epoch is not None and epoch.number == 5 and driver.opened == [None, "t3"]
    else:
        with pytest.raises(TidemarkError) as caught:
            driver.epoch()
        assert caught.value.code == code and driver.opened == [None]


def test_a_gap_may_begin_again_with_the_rows() -> None:
    def streams() -> Iterator[Iterator[bytes]]:
        yield iter([begin(), mark(3), problem("changes.interrupted", 503)])
        yield iter([begin(), rows("snapshot", 9, 1), mark(9)])

    driver = Driver(streams(), begins_again=True, params={"snapshot": False})
    epoch = driver.epoch()
    assert epoch is not None and epoch.is_snapshot and driver.opened == [None, None]


def test_the_first_connection_is_not_tried_again_and_others_for_a_bounded_time() -> None:

    class Gone(Driver):
        def _do(self, step: object) -> bytes | None:
            if isinstance(step, Open) and self.now > 0:
                raise TemporaryError("service.unreachable", "nobody there")
            return super()._do(step)

    first = Gone(iter(()))
    first.now = 1
    with pytest.raises(TemporaryError):
        first.epoch()
    assert not first.pauses
    later = Gone(iter([iter([begin(), rows("snapshot", 1, 1), mark(1)])]), reconnect_s=20)
    assert later.epoch() is not None
    with pytest.raises(TemporaryError):
        later.epoch()
    assert 20 <= later.now < 26 and len(later.pauses) < 20


def test_silence_ends_the_iteration_and_the_next_one_continues() -> None:
    driver: Driver

    def slowly() -> Iterator[bytes]:
        yield begin()
        for _ in range(12):
            driver.now += 1
            yield event("heartbeat")
        yield rows("snapshot", 1, 1)
        driver.now += 3
        yield mark(1)
        for _ in range(12):
            driver.now += 0.25
            yield event("heartbeat")
        yield rows("changes", 2, 2)
        driver.now += 50
        yield mark(2)

    driver = Driver(iter([slowly()]), timeout_s=1.0)
    found = [driver.epoch() for _ in range(5)]
    assert [e and e.number for e in found] == [1, None, None, None, 2]
    assert driver.opened == [None]


def test_epochs_without_changes_are_reported_on_demand() -> None:
    told = begin() + mark(1) + rows("changes", 2, 2) + mark(2) + mark(5)
    quiet = Driver(once(told), params={"snapshot": False})
    epoch = quiet.epoch()
    assert epoch is not None and epoch.number == 2
    talking = Driver(once(told), params={"snapshot": False}, has_progress=True)
    found = [talking.epoch() for _ in range(3)]
    assert [(e.number, len(e)) for e in found if e] == [(1, 0), (2, 1), (5, 0)]
    assert isinstance(next(Gathering().take(mark(7))), Marker)
