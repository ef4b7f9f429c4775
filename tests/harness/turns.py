"""Where clocks and calendars turn: the paths of a test's clock, and values near them.

Changes of local time in both directions, ends of months, a leap day, offsets of half and quarter
hours. Clock and values are on one grid of minutes, so that they often tie. Invariant: what is drawn
depends on the generator alone, and a path never goes backwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from random import Random

from tests.harness.draw import Draw, quote

ZONES = (
    *("UTC", "America/New_York", "Europe/Berlin", "Asia/Kolkata", "Australia/Lord_Howe"),
    *("America/St_Johns", "Asia/Kathmandu", "Africa/Casablanca", "Pacific/Apia"),
)
OWN_ZONE_SHARE, UTC_SHARE = 0.4, 0.35


@dataclass(frozen=True)
class Turn:
    """What happens in a zone, which is so many hours from UTC, at a moment: text in UTC."""

    zone: str
    hours: float
    moment: str

    @property
    def at(self) -> datetime:
        """The moment."""
        return datetime.fromisoformat(self.moment).replace(tzinfo=UTC)


TURNS = (
    # Forward, back, and a day after that, when `now() - interval '1 day'` goes back.
    Turn("America/New_York", -5, "2024-03-10 07:00"),
    Turn("America/New_York", -5, "2024-11-03 06:00"),
    Turn("America/New_York", -5, "2024-11-04 06:00"),
    Turn("Europe/Berlin", 1, "2024-03-31 01:00"),
    Turn("Europe/Berlin", 1, "2024-10-27 01:00"),
    Turn("Europe/Berlin", 1, "2024-10-28 01:00"),
    Turn("Australia/Lord_Howe", 10.5, "2024-04-06 15:00"),
    Turn("Australia/Lord_Howe", 10.5, "2024-10-05 15:30"),
    Turn("America/St_Johns", -3.5, "2024-11-03 04:30"),
    Turn("Africa/Casablanca", 1, "2024-03-10 02:00"),
    Turn("Africa/Casablanca", 1, "2024-04-14 02:00"),
    # Ends of months, a leap day, a new year.
    Turn("UTC", 0, "2024-03-01 00:00"),
    Turn("UTC", 0, "2024-03-30 00:00"),
    Turn("UTC", 0, "2024-12-31 00:00"),
    Turn("Asia/Kolkata", 5.5, "2024-02-29 18:30"),
    Turn("Asia/Kathmandu", 5.75, "2024-02-28 18:15"),
    Turn("Pacific/Apia", 13, "2024-05-30 11:00"),
)
_GRID = timedelta(minutes=10)
_HOUR, _DAY = timedelta(hours=1), timedelta(days=1)
# By how much a clock moves, and how often; 30 days lead beyond most ends of months.
_STEPS = {
    timedelta(): 1,
    timedelta(seconds=1): 1,
    _GRID: 3,
    3 * _GRID: 3,
    _HOUR: 3,
    5 * _HOUR: 1,
    _DAY: 2,
    25 * _HOUR: 1,
    7 * _DAY: 1,
    30 * _DAY: 1,
}
# The first steps are small, so that the turn itself is among them.
_FIRST = {step: often for step, often in _STEPS.items() if step <= _HOUR}
SMALL_STEPS = 4
_BEFORE = (_GRID, 3 * _GRID, _HOUR, _HOUR, 2 * _HOUR)
# How far values lie from the moment: what queries add to now(), and some steps of the grid.
_AWAY = (timedelta(), _DAY, -_DAY, 7 * _DAY, 29 * _DAY, 30 * _DAY, 31 * _DAY, 9 * _GRID, -3 * _HOUR)
NEAR_SHARE = 0.6


def turn_of(rng: Random) -> Turn:
    """One of them."""
    return rng.choice(TURNS)


def zone_of(turn: Turn, rng: Random) -> str:
    """The time zone of a query: the turn's own, UTC, or any."""
    choice = rng.random()
    if choice < OWN_ZONE_SHARE:
        return turn.zone
    return "UTC" if choice < OWN_ZONE_SHARE + UTC_SHARE else rng.choice(ZONES)


def path(turn: Turn, rng: Random) -> Iterator[str]:
    """The values of a clock that begins before the turn, as texts of timestamptz; endless."""
    at = turn.at - rng.choice(_BEFORE)
    for number in count():
        yield f"{at:%Y-%m-%d %H:%M:%S}+00"
        steps = _FIRST if number < SMALL_STEPS else _STEPS
        at += rng.choices(list(steps), list(steps.values()))[0]


def instants(turn: Turn) -> Draw:
    """Values of timestamptz near the turn."""
    return lambda rng: quote(f"{_near(turn, rng):%Y-%m-%d %H:%M:%S}+00")


def local_instants(turn: Turn) -> Draw:
    """Values of timestamp near the turn, in its local time."""
    offset = timedelta(hours=turn.hours)
    return lambda rng: quote(f"{_near(turn, rng) + offset:%Y-%m-%d %H:%M:%S}")


def dates(turn: Turn) -> Draw:
    """Days near the turn."""
    offset = timedelta(hours=turn.hours)
    return lambda rng: quote(f"{_near(turn, rng) + offset:%Y-%m-%d}")


def often(near: Draw, far: Draw) -> Draw:
    """Values near a turn, or any others."""
    return lambda rng: (near if rng.random() < NEAR_SHARE else far)(rng)


def _near(turn: Turn, rng: Random) -> datetime:
    return turn.at - rng.choice(_AWAY) + rng.choice((0, 0, rng.randint(-12, 24))) * _GRID
