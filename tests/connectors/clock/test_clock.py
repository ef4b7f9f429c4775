"""Oracle: the contract of feed sources, by hand, with a clock that the test sets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from connectors.clock import source as clock_source
from connectors.clock.source import RELATION, ClockFeed, ClockSource, declare, make, timestamp_of
from dataflow.delta import KIND_INT
from dataflow.errors import SourceError
from dataflow.schema import Field, Relation, RelationName
from dataflow.types import INT4, sql_type

BEGIN_US = 1_700_000_000_000_000
SINCE_2000_US = BEGIN_US - 946_684_800_000_000
TIMESTAMPTZ = sql_type("timestamp with time zone", 1184)
FIELDS = (Field("id", INT4, False), Field("at", TIMESTAMPTZ, True))
NOW = Relation(RelationName("clock", "clock", RELATION), 7, FIELDS, (0,))


class Wall:
    """The machine's clock."""

    def __init__(self) -> None:
        self.us = BEGIN_US

    def wall_ns(self) -> int:
        return self.us * 1000


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Wall:
    made = Wall()
    monkeypatch.setattr(clock_source, "clock", made)
    return made


@pytest.fixture
def source(wall: Wall) -> ClockSource:
    return make("clock", {"resolution_s": 0.5}, [NOW])


@pytest.fixture
def feed(source: ClockSource) -> Iterator[ClockFeed]:
    position = source.start_position(NOW).position
    made = source.open_feed([NOW], {RELATION: position}, {}, lambda: None)
    yield made
    made.close()


def _next(feed: ClockFeed, until: int | None = None) -> int | None:
    """The next value, in microseconds since 1970; its row, position and time agree."""
    batch = feed.poll(100, until=None if until is None else {RELATION: {"us": until}})
    if batch is None:
        return None
    [changes] = batch.changes
    at = changes.columns[1].to_list()[0] + 946_684_800_000_000
    assert batch.positions is not None
    assert timestamp_of(batch.positions) == batch.commit_time_us == at
    return at


def test_the_snapshot_is_the_row_at_its_position(source: ClockSource, wall: Wall) -> None:
    wall.us += 700_000
    position = source.start_position(NOW).position
    wall.us += 10_000_000
    snapshot = source.open_snapshot([NOW], {RELATION: position}, {})
    [part] = snapshot.parts(NOW, (0, 1), 8)
    [rows] = part.read()
    assert rows.kinds == KIND_INT * 2
    assert rows.rows() == [((1, SINCE_2000_US + 500_000), 1)]
    [part] = snapshot.parts(NOW, (1,), 8)
    assert [d.rows() for d in part.read()] == [[((SINCE_2000_US + 500_000,), 1)]]
    assert len(part.rejected()) == 0


def test_a_value_comes_once_its_time_has_come(feed: ClockFeed, wall: Wall) -> None:
    assert _next(feed) is None
    wall.us += 499_999
    assert _next(feed) is None
    wall.us += 1
    assert _next(feed) == BEGIN_US + 500_000
    assert _next(feed) is None
    # After a pause the newest value alone.
    wall.us += 10_200_000
    assert _next(feed) == BEGIN_US + 10_500_000


def test_the_clock_never_goes_back(feed: ClockFeed, wall: Wall) -> None:
    wall.us += 2_000_000
    assert _next(feed) == BEGIN_US + 2_000_000
    wall.us -= 3_600_000_000
    assert _next(feed) is None
    wall.us += 3_600_000_000 + 500_000
    assert _next(feed) == BEGIN_US + 2_500_000


def test_reading_again_stops_exactly_where_the_sink_is(feed: ClockFeed, wall: Wall) -> None:
    wall.us += 5_000_000
    reached = BEGIN_US + 1_234_567
    assert _next(feed, until=reached) == reached
    assert _next(feed, until=reached) is None
    assert _next(feed) == BEGIN_US + 5_000_000


def test_values_are_passed_over_until_one_is_due(feed: ClockFeed, wall: Wall) -> None:
    half = 500_000
    wall.us += 700_000
    found = feed.candidates(4)
    assert (found - SINCE_2000_US).tolist() == [0, half, 2 * half, 3 * half]
    feed.wait_until(int(found[2]), is_due=True)
    assert not feed.has_waited and _next(feed) is None
    wall.us += 300_000
    assert feed.has_waited
    assert _next(feed) == BEGIN_US + 2 * half
    # After a stop the time that has passed is left out.
    wall.us += 86_400_000_000
    found = feed.candidates(3)
    assert (found - SINCE_2000_US).tolist() == [2 * half, 86_401_000_000, 86_401_500_000]
    feed.wait_until(int(found[-1]), is_due=False)
    wall.us += 3_600_000_000
    assert feed.has_waited and _next(feed) is None
    # Reading again stops where the sink is, due or not.
    assert _next(feed, until=wall.us - 1) == wall.us - 1


def test_a_value_may_come_earlier_once_the_clock_is_set_back(feed: ClockFeed, wall: Wall) -> None:
    """What was planned while it was ahead is planned again, and due on time."""
    half, hour = 500_000, 3_600_000_000
    wall.us += hour
    found = feed.candidates(4)
    feed.wait_until(int(found[2]), is_due=True)
    assert not feed.may_come_before(int(found[1]))
    wall.us -= hour - 2 * half
    assert feed.may_come_before(int(found[1])) and _next(feed) is None
    found = feed.candidates(4)
    assert (found - SINCE_2000_US).tolist() == [0, 2 * half, 3 * half, 4 * half]
    assert not feed.may_come_before(int(found[1]))
    feed.wait_until(int(found[2]), is_due=True)
    wall.us += half
    assert not feed.may_come_before(int(found[1]))
    assert _next(feed) == BEGIN_US + 3 * half
    # Set back to before what has come, it waits for the next value after that.
    found = feed.candidates(4)
    wall.us -= hour
    assert not feed.may_come_before(int(found[1]))


def test_it_reminds_of_itself(source: ClockSource) -> None:
    import threading

    called = threading.Event()
    position = source.start_position(NOW).position
    feed = source.open_feed([NOW], {RELATION: position}, {}, called.set)
    assert called.wait(30)
    feed.close()


@pytest.mark.parametrize(
    "options",
    [{"resolution_s": 0}, {"resolution_s": "1"}, {"resolution_s": True}, {"zone": "UTC"}],
    ids=str,
)
def test_wrong_options_are_refused_by_name(options: dict[str, object]) -> None:
    with pytest.raises(SourceError) as caught:
        declare(options)
    assert caught.value.code == "source.bad_option"
    assert next(iter(options)) in caught.value.what
