"""A standby of the sink that lags: now and then it takes over, with no more than it has.

What the sink had acknowledged since is gone, catalog too; what was sent to the server that is gone
is never committed.
"""

from __future__ import annotations

from random import Random

from tests.simulation.faults import Faults
from tests.simulation.fibers import Loop
from tests.simulation.sink import Database


class Standby:
    """random: of its own."""

    def __init__(self, loop: Loop, database: Database, faults: Faults, random: Random) -> None:
        self._loop = loop
        self._database = database
        database.has_standby = True
        self._faults = faults
        self._random = random

    def take_over(self) -> None:
        """Again and again, until all is calm."""
        random, faults, past = self._random, self._faults, self._database.past
        while not faults.is_calm:
            self._loop.pause(random.uniform(1.0, 8.0))
            if random.random() < 0.5:
                # What people have asked for is copied too.
                self._database.save()
            most = random.choice((2, 6, 40))
            offset = max(0, len(past) - 1 - random.randrange(1, most))
            # A sink that knows nothing of the state is another one (`sink.empty`).
            at = past[offset].progress if past and self._database.progress else None
            if at and not faults.is_calm and faults.is_allowed("sink.rewound"):
                faults.late.clear()
                self._database.rewound(offset)
                faults.trace("set back", f"to epoch {at.epoch}")
