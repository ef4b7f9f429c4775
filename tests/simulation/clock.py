"""The clock in a simulation: the product's own source over a machine whose clock is set at random.

Of the clock `clock` the column `at` counts from the beginning of the run and is an integer, because
its queries divide it; nothing depends on its type. That of `zoned` is a time shortly before one at
which the clocks of some zone change, a month ends or a leap day begins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from connectors.clock.source import RELATION, ClockSource, Machine, timestamp_of
from connectors.feed_source import FeedPositions
from connectors.postgres.catalog.catalog import SourceRow
from dataflow.schema import Field
from dataflow.types import EPOCH_2000_US, INT4, TIMESTAMPTZ
from service.engine import output_fields
from service.ingest.declared_sources import relations_of
from tests.simulation import zones
from tests.simulation.faults import Faults, Violation
from tests.simulation.fibers import FiberHost

CLOCK = "clock"
# Those of a run: one counts from the run's beginning, the other from a moment that matters.
CLOCKS = (CLOCK, zones.ZONED)
RESOLUTION_S = 0.1
JUMPS_S = (-2.0, -0.3, 0.3, 1.0, 5.0)
# Where it counts what day it is.
LONG_JUMPS_S = (*JUMPS_S, 40.0, 900.0, 1800.0, 3600.0, 86_400.0, -1800.0)
WEEK_S = 7 * 86_400.0
_BEGAN_S = 1_000_000
_OIDS = dict(zip(CLOCKS, (2101, 2102), strict=True))
_TYPES = dict(zip(CLOCKS, (INT4, TIMESTAMPTZ), strict=True))
_AT = "(SELECT n.at FROM clock.now n)"

QUERIES = (
    # Rows leave, each once.
    f" SELECT id, balance FROM public.accounts WHERE (balance > ({_AT} / 100000))",
    # Rows leave and return, at moments that lie apart.
    f" SELECT id, owner FROM public.accounts WHERE (balance < (({_AT} / 300000) % 40))",
    f" SELECT account, count(*) AS n, sum(amount) AS moved FROM public.entries WHERE"
    f" (amount <= ({_AT} / 200000)) GROUP BY account",
    # A value that changes each second.
    " SELECT n.id, (n.at / 1000000) AS second FROM clock.now n",
)


def declared(name: str = CLOCK) -> SourceRow:
    """Return a clock as the catalog has it."""
    fields = (Field("id", INT4, False), Field("at", _TYPES[name], False))
    facts = {
        "name": RELATION,
        "oid": _OIDS[name],
        "fields": output_fields.to_json(fields),
        "key": ["id"],
        "is_append": False,
    }
    return SourceRow(name, "", type=CLOCK, relations=[facts])


class SimClock:
    """The wall clock of the machine, which somebody sets forwards and back, or which stands still.

    now: simulated seconds. It is one for all processes, as the machine's is. bases: by clock, what
    its values begin with, in microseconds. jumps: by how much it is set.
    """

    def __init__(
        self,
        now: Callable[[], float],
        faults: Faults,
        random: Random,
        *,
        zoned_us: int = 0,
        jumps: Sequence[float] = JUMPS_S,
    ) -> None:
        self.bases = {CLOCK: 0, zones.ZONED: zoned_us}
        self._now = now
        self._faults = faults
        self._random = random
        self._jumps = jumps
        self._shift_s = 0.0
        # When it stands still: what it says, and until when.
        self._still: tuple[int, float] | None = None
        # Of the process: the least that the clock has said, and the positions that it began with.
        self._least_us = 0
        self._known: Mapping[str, Any] = {}

    def now_us(self) -> int:
        """Return microseconds since the run began, never less than 0."""
        if self._faults.happens("clock.set"):
            self._shift_s += self._random.choice(self._jumps)
        if "clock.still" in self._faults.streams and self._faults.happens("clock.still"):
            until = self._now() + self._random.uniform(0.5, 6.0)
            self._still = self._wall_us(), until
        found = max(0, self._wall_us())
        self._least_us = min(self._least_us, found)
        return found

    def shown(self, name: str = CLOCK) -> int:
        """Return the value that a clock may have by now, in microseconds since 2000."""
        return _cut(self._wall_us() + self.bases[name])

    def sleep_for_a_week(self) -> None:
        """Let a week pass in which nothing runs."""
        self._shift_s += WEEK_S

    def started(self, positions: Mapping[str, Any]) -> None:
        """Note that a process begins, with a state at these positions."""
        self._known = positions
        self._least_us = max(0, self._wall_us())

    def require_new(self, name: str, at: int) -> None:
        """Violation where a clock has come to a value of the time in which nothing ran: whatever
        was due in the meantime leaves in one epoch."""
        known, least = at_of(self._known.get(name)), _cut(self._least_us + self.bases[name])
        if known is not None and known < at < least:
            raise Violation(f"{name} came to {at}; it had {known} when a process began at {least}")

    def _wall_us(self) -> int:
        if self._still is not None:
            us, until = self._still
            if self._now() < until:
                return us
            # It goes on from where it stood.
            self._shift_s = us / 1e6 - (until - _BEGAN_S)
            self._still = None
        return round((self._now() - _BEGAN_S + self._shift_s) * 1e6)


def _cut(us: int) -> int:
    return us - us % round(RESOLUTION_S * 1e6)


class SimMachine(Machine):
    """What a clock's feed needs of the machine, for one process."""

    def __init__(self, clock: SimClock, host: FiberHost, base_us: int) -> None:
        self._clock = clock
        self._host = host
        self._base_us = EPOCH_2000_US + base_us

    def now_us(self) -> int:
        return self._base_us + self._clock.now_us()

    def condition(self) -> Any:
        return self._host.condition()

    def start(self, run: Callable[[], None], name: str) -> None:
        self._host.begin(run, name)


def source(row: SourceRow, clock: SimClock, host: FiberHost) -> ClockSource:
    """Return the product's source over the simulated machine."""
    machine = SimMachine(clock, host, clock.bases[row.name])
    return ClockSource(row.name, RESOLUTION_S, relations_of(row), machine)


def at_of(positions: FeedPositions | None) -> int | None:
    """Return what a clock stands at, in microseconds since 2000; None if nobody reads it."""
    us = timestamp_of(positions) if positions else None
    return None if us is None else us - EPOCH_2000_US


def position_at(at: int) -> dict[str, Any]:
    """Return the positions of a clock that stands at so many microseconds since 2000."""
    return {RELATION: {"us": at + EPOCH_2000_US}}
