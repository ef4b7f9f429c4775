"""When each clock ticks: as soon as a view changes by it, and not before.

Invariant: between two ticks of a clock no view would have other rows, at any value that the clock
passed over. So idle costs nothing, and the view equals the query at its own clock and ever since.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from connectors.clock.source import ClockFeed
from connectors.feed_source import SourceFeed
from dataflow.due import TickSearch
from service.engine.engine import Engine

# How many values are looked at in advance: more than an hour of seconds.
CANDIDATES = 4096


@dataclass
class _Planned:
    """What was reported to a feed: by which search, over which views, in which epoch."""

    feed: ClockFeed
    version: int
    candidates: np.ndarray
    search: TickSearch
    epoch: int = -1


class ClockSchedule:
    """Used by the pipeline's thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._planned: dict[str, _Planned] = {}

    def plan(self, source: str, feed: SourceFeed) -> None:
        """Tell a clock's feed when it ticks next; do nothing for the feed of another source."""
        if not isinstance(feed, ClockFeed):
            return
        engine, known = self._engine, self._planned.get(source)
        version = engine.views.version
        is_new = known is None or known.feed is not feed or known.version != version
        # The second candidate was the earliest value that could come.
        is_set_back = known is not None and feed.may_come_before(int(known.candidates[1]))
        if known is None or is_new or is_set_back or feed.has_waited:
            candidates = feed.candidates(CANDIDATES)
            search = engine.due_search(source, candidates)
            known = self._planned[source] = _Planned(feed, version, candidates, search)
        elif known.epoch == engine.epoch:
            return
        known.epoch = engine.epoch
        first, last = known.search.first(), len(known.candidates) - 1
        feed.wait_until(int(known.candidates[min(first, last)]), is_due=first <= last)
