"""Whether the clock of a view of now() has stopped beyond its tick.

A view equals its query at its own clock, and at every later moment until the clock ticks. So the
answer at a moment by which the clock must have ticked is the same, unless the clock has stopped.
Invariant: a clock is reported only if PostgreSQL has another answer by then, and the clock has not
moved within WAIT_S since.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from connectors.clock.source import DEFAULT_RESOLUTION_S, RESOLUTION, timestamp_of
from connectors.postgres.catalog.catalog import SourceRow, ViewRow
from connectors.postgres.query.answer_comparison import Comparison
from service.factory.planning import CLOCK, TimeOptions
from storage import clock

# How long a clock that is due may take to move: its epoch waits for others, and for the sink.
WAIT_S = 30.0
_POLL_S = 0.25
_US = 1_000_000
Positions = Mapping[str, Any]


@dataclass(frozen=True)
class Clocks:
    """The clocks of a comparison: by source, its value there, and until when the answer holds.

    Both in microseconds since 1970. Each clock is judged alone: others need not tick.
    """

    at_us: Mapping[str, int]
    until_us: Mapping[str, int]

    @property
    def due(self) -> list[str]:
        """Return the clocks that must have ticked if the answer has changed since."""
        return [name for name, us in self.at_us.items() if us < self.until_us[name]]

    def later(self, name: str) -> Clocks:
        """Return the same clocks, one of them at the moment by which it must have ticked."""
        return replace(self, at_us={**self.at_us, name: self.until_us[name]})

    def texts(self) -> dict[str, str]:
        """Return each value as SQL of a timestamptz."""
        return {
            name: f"(timestamptz 'epoch' + interval '{us} microseconds')"
            for name, us in self.at_us.items()
        }


@dataclass(frozen=True)
class StandingClock:
    """A clock that must have ticked by `until_us`, since PostgreSQL has another answer then.

    found: how that differs from its answer at the view's clock.
    """

    source: str
    until_us: int
    found: Comparison

    def moves(self, take: Callable[[], Positions], is_closed: Callable[[], bool]) -> bool:
        """Wait until the clock is where it must be; return False if it does not get there.

        take: returns the sink's present positions. is_closed: ends the waiting.
        """
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline and not is_closed():
            if (timestamp_of(take().get(self.source) or {}) or 0) >= self.until_us:
                return True
            time.sleep(_POLL_S)
        return False


def clocks_of(
    sources: Iterable[SourceRow], positions: Positions, views: Iterable[ViewRow]
) -> Clocks:
    """Return the clocks at these positions. views: all whose queries are compared."""
    refresh_us = max(TimeOptions.of(view.options).refresh_us for view in views)
    now_us = clock.wall_ns() // 1000
    at, until = {}, {}
    for source in sources:
        us = timestamp_of(positions.get(source.name) or {}) if source.type == CLOCK else None
        if us is not None:
            resolution = round(source.options.get(RESOLUTION, DEFAULT_RESOLUTION_S) * _US)
            due = now_us - resolution - refresh_us
            at[source.name], until[source.name] = us, due - due % resolution
    return Clocks(at, until)
