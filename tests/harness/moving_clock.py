"""The clock of a test: one session of PostgreSQL has it as a setting, views as a relation.

A transaction moves it by SET, so a history says when it moves, and one that is rolled back moves
nothing. Invariant: PostgreSQL computes `at_clock(query)` with the moment that the views have.
"""

from __future__ import annotations

import re
from typing import Any

from connectors.clock.source import RELATION, ClockFeed, ClockSource, Machine, timestamp_of
from connectors.source import SourceBatch
from dataflow.delta import Delta
from dataflow.schema import Field, Relation, RelationName
from dataflow.types import INT4, TIMESTAMPTZ

CLOCK = "clock"
CLOCK_RELATION = Relation(
    RelationName(CLOCK, CLOCK, RELATION),
    7,
    (Field("id", INT4, False), Field("at", TIMESTAMPTZ)),
    (0,),
    is_single=True,
)
CLOCK_NAME = f"{CLOCK}.{RELATION}"
SETTING = "test.clock"
_NOW = f"current_setting('{SETTING}')::timestamptz"
# What says the moment of a transaction in SQL, and what each is of now().
_CASTS = {
    "now()": "",
    "transaction_timestamp()": "",
    "CURRENT_TIMESTAMP": "",
    "CURRENT_DATE": "::date",
    "CURRENT_TIME": "::timetz",
    "LOCALTIMESTAMP": "::timestamp",
    "LOCALTIME": "::time",
}
_SAID = re.compile(r"(?<!\w)(?:" + "|".join(map(re.escape, _CASTS)) + r")(?!\w)")


def at_clock(query: str) -> str:
    """Return the query with the session's clock for now() and its relatives.

    >>> at_clock("SELECT CURRENT_DATE")
    "SELECT ((current_setting('test.clock')::timestamptz)::date)"
    """
    return _SAID.sub(lambda said: f"(({_NOW}){_CASTS[said[0]]})", query)


def set_clock(at: str) -> str:
    """Return the statement that moves the clock of its session; at: a timestamptz with offset."""
    return f"SET {SETTING} = '{at}'"


def clock_text(connection: Any) -> str:
    """Return the clock of a session; "" without one."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting(%s, true)", (SETTING,))
        return cursor.fetchone()[0] or ""


def clock_us(connection: Any) -> int | None:
    """Return the clock of a session in microseconds since 1970; None without one."""
    at = clock_text(connection)
    if not at:
        return None
    with connection.cursor() as cursor:
        cursor.execute("SELECT (extract(epoch FROM %s::timestamptz) * 1000000)::bigint", (at,))
        return cursor.fetchone()[0]


class SetMachine(Machine):
    """A machine whose time is set. Nothing is started: the test polls."""

    def __init__(self, us: int) -> None:
        self.us = us

    def now_us(self) -> int:
        """Return the time that was set."""
        return self.us

    def start(self, run: Any, name: str) -> None:
        """Start nothing."""


class MovingClock:
    """The product's clock over a machine whose time is set; `us` since 1970."""

    def __init__(self, us: int, resolution_s: float = 1.0) -> None:
        self._machine = SetMachine(us)
        self._source = ClockSource(CLOCK, resolution_s, [CLOCK_RELATION], self._machine)
        positions = {RELATION: self._source.start_position(CLOCK_RELATION).position}
        self.us = timestamp_of(positions) or 0
        self._feed: ClockFeed = self._source.open_feed([CLOCK_RELATION], positions, {}, _ignore)
        self._snapshot = self._source.open_snapshot([CLOCK_RELATION], positions, {})

    def rows(self, columns: tuple[int, ...]) -> list[Delta]:
        """Return the first row, with these columns."""
        parts = self._snapshot.parts(CLOCK_RELATION, columns, 1)
        return [delta for part in parts for delta in part.read()]

    def move(self, us: int) -> SourceBatch | None:
        """Set the time; return the tick, None if it is no later than before."""
        self._machine.us = us
        batch = self._feed.poll(1)
        if batch is not None:
            self.us = us
        return batch


def _ignore() -> None:
    """Do nothing: no thread waits."""
