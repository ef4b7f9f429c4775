"""The clock in a simulation: the product's own source over a machine whose clock is set at random.

`at` counts from the beginning of the run and is an integer here, because the queries' analyzer and
sqlite have no timestamps; nothing between them depends on its type.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from connectors.clock.source import RELATION, ClockSource, Machine, timestamp_of
from connectors.feed_source import FeedPositions
from connectors.postgres.catalog.catalog import SourceRow
from dataflow.schema import Field, Relation, RelationName
from dataflow.types import EPOCH_2000_US, INT4
from service.engine import output_fields
from service.ingest.declared_sources import relations_of
from tests.simulation.faults import Faults
from tests.simulation.fibers import FiberHost

CLOCK = "clock"
RESOLUTION_S = 0.1
_BEGAN_S = 1_000_000
_NAME = RelationName(CLOCK, CLOCK, RELATION)
_RELATION = Relation(_NAME, 2101, (Field("id", INT4, False), Field("at", INT4, False)), (0,))
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


def declared() -> SourceRow:
    """Return the clock as the catalog has it."""
    facts = {
        "name": RELATION,
        "oid": _RELATION.oid,
        "fields": output_fields.to_json(_RELATION.fields),
        "key": ["id"],
        "is_append": False,
    }
    return SourceRow(CLOCK, "", type=CLOCK, relations=[facts])


class SimClock:
    """The wall clock of the machine, which somebody sets forwards and back.

    now: simulated seconds. It is one for all processes, as the machine's is.
    """

    def __init__(self, now: Callable[[], float], faults: Faults, random: Random) -> None:
        self._now = now
        self._faults = faults
        self._random = random
        self._shift_s = 0.0

    def now_us(self) -> int:
        """Return microseconds since 1970, of which the run begins at 2000."""
        if self._faults.happens("clock.set"):
            self._shift_s += self._random.choice((-2.0, -0.3, 0.3, 1.0, 5.0))
        return EPOCH_2000_US + max(0, round((self._now() - _BEGAN_S + self._shift_s) * 1e6))

    def shown(self) -> int:
        """Return the value that a clock may have by now, in microseconds since 2000."""
        now_us = EPOCH_2000_US + round((self._now() - _BEGAN_S + self._shift_s) * 1e6)
        return now_us - now_us % round(RESOLUTION_S * 1e6) - EPOCH_2000_US


class SimMachine(Machine):
    """What a clock's feed needs of the machine, for one process."""

    def __init__(self, clock: SimClock, host: FiberHost) -> None:
        self._clock = clock
        self._host = host

    def now_us(self) -> int:
        return self._clock.now_us()

    def condition(self) -> Any:
        return self._host.condition()

    def start(self, run: Callable[[], None], name: str) -> None:
        self._host.begin(run, name)


def source(row: SourceRow, clock: SimClock, host: FiberHost) -> ClockSource:
    """Return the product's source over the simulated machine."""
    return ClockSource(row.name, RESOLUTION_S, relations_of(row), SimMachine(clock, host))


def at_of(positions: FeedPositions | None) -> int | None:
    """Return what a clock stands at, in microseconds since 2000; None if nobody reads it."""
    us = timestamp_of(positions) if positions else None
    return None if us is None else us - EPOCH_2000_US


def position_at(at: int) -> dict[str, Any]:
    """Return the positions of a clock that stands at so many microseconds since 2000."""
    return {RELATION: {"us": at + EPOCH_2000_US}}
