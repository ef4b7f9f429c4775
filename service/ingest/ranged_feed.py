"""A feed of which executors read what can be read in ranges, and this process the rest.

While something in this process needs the changes themselves, such as a build that spools them, or a
replay that may not pass a position, this process reads all. Both ways use the same positions.
Invariant: a relation is read in one way at a time, from the position at which the other has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from connectors.feed_source import (
    BY_EXECUTORS,
    FeedPositions,
    FeedSource,
    RangePlanner,
    SourceFeed,
    problem_of,
    read_in_ranges,
    reader_of,
)
from connectors.source import SourceBatch
from dataflow.errors import TidemarkError
from dataflow.schema import Relation
from service.engine.range_reader import RangeReader
from service.ingest.source_worker import unanswered_s
from service.runtime.log import log

# Positions and notes, from which a feed begins.
State = tuple[FeedPositions, Mapping[str, bytes]]


class Opens(Protocol):
    """Open a feed of a source's relations."""

    def __call__(
        self, relations: Sequence[Relation], state: State, on_ready: Callable[[], None]
    ) -> SourceFeed:
        """See FeedSource.open_feed."""
        ...


def open_feed(
    source: FeedSource,
    relations: Sequence[Relation],
    state: State,
    on_ready: Callable[[], None],
    reader: RangeReader | None,
    *,
    opens: Opens,
) -> SourceFeed:
    """Return a feed from these positions and notes. reader: of ranges, where an engine has one.

    opens: returns the source's own feed.
    """
    if reader is None:
        return opens(relations, state, on_ready)
    found = {relation.name: reader_of(source, relation) for relation in relations}
    reader.note(found)
    if BY_EXECUTORS not in found.values():
        return opens(relations, state, on_ready)
    return RangedFeed(source, relations, state, on_ready, reader, opens=opens)


class RangedFeed:
    """A SourceFeed. A poll with ranges waits for the tasks that read them."""

    def __init__(
        self,
        source: FeedSource,
        relations: Sequence[Relation],
        state: State,
        on_ready: Callable[[], None],
        reader: RangeReader,
        *,
        opens: Opens,
    ) -> None:
        self._source = source
        self._relations = relations
        self._positions, self._notes = dict(state[0]), dict(state[1])
        self._on_ready = on_ready
        self._reader = reader
        self._opens = opens
        self._planner: RangePlanner | None = None
        self._feed: SourceFeed | None = None
        self._is_ranged: bool | None = None
        self._is_planners_turn = False
        self._skipped = 0

    @property
    def lag(self) -> int:
        """See SourceFeed."""
        return sum(one.lag for one in (self._planner, self._feed) if one is not None)

    @property
    def skipped(self) -> int:
        """See SourceFeed."""
        opened = (one.skipped for one in (self._planner, self._feed) if one is not None)
        return self._skipped + sum(opened)

    @property
    def problem(self) -> TidemarkError | None:
        """See problem_of."""
        return None if self._feed is None else problem_of(self._feed)

    @property
    def unanswered_s(self) -> float:
        """See the function of this name in `source_worker`."""
        return 0.0 if self._feed is None else unanswered_s(self._feed)

    @property
    def has_succeeded(self) -> bool:
        """See SourceFeed."""
        opened = [one for one in (self._planner, self._feed) if one is not None]
        return bool(opened) and all(one.has_succeeded for one in opened)

    def poll(self, max_rows: int, *, until: FeedPositions | None = None) -> SourceBatch | None:
        """See SourceFeed."""
        is_ranged = until is None and self._reader.is_ready()
        if is_ranged != self._is_ranged:
            self.close()
            self._open(is_ranged=is_ranged)
        self._is_planners_turn = not self._is_planners_turn
        ways = [self._read_ranges, lambda rows: self._poll_feed(rows, until)]
        for read in ways if self._is_planners_turn else reversed(ways):
            batch = read(max_rows)
            if batch is not None:
                self._advance(batch)
                return batch
        return None

    def close(self) -> None:
        """See SourceFeed."""
        self._skipped = self.skipped
        for one in (self._planner, self._feed):
            if one is not None:
                one.close()
        self._planner = self._feed = self._is_ranged = None

    def _open(self, *, is_ranged: bool) -> None:
        ranged, here = [], list(self._relations)
        if is_ranged:
            found = {r.name: reader_of(self._source, r) for r in self._relations}
            ranged = [r for r in self._relations if found[r.name] == BY_EXECUTORS]
            here = [r for r in self._relations if found[r.name] != BY_EXECUTORS]
        state = dict(self._positions), dict(self._notes)
        source = read_in_ranges(self._source)
        if ranged and source is not None:
            self._planner = source.open_ranges(ranged, *state, self._on_ready)
        if here:
            self._feed = self._opens(here, state, self._on_ready)
        self._is_ranged = is_ranged
        log.info("source.readers", source=self._source.name, executors=len(ranged), here=len(here))

    def _read_ranges(self, max_rows: int) -> SourceBatch | None:
        if self._planner is None or not self._planner.has_unread():
            return None
        return self._reader.read(self._planner, max_rows)

    def _poll_feed(self, max_rows: int, until: FeedPositions | None) -> SourceBatch | None:
        return None if self._feed is None else self._feed.poll(max_rows, until=until)

    def _advance(self, batch: SourceBatch) -> None:
        self._positions.update(batch.positions or {})
        for name, note in batch.notes.items():
            if note is None:
                self._notes.pop(name, None)
            else:
                self._notes[name] = note
