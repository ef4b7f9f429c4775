"""The pipeline's feeds from all sources except the database, reopened when views change.

An unreachable source is retried after a growing pause. A source that refuses to continue is retried
rarely, in case someone has repaired it. One that does not answer is reported, and its worker is
replaced. None of them delays the others: each has a thread of its own (`source_worker`). Invariant:
a feed opens at the state's offsets, so nothing is lost or read twice, however often it is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import cast

from connectors.feed_source import (
    FeedPositions,
    FeedSource,
    RelationAltered,
    RetainingFeed,
    RetainingSource,
    SourceFeed,
    gaps_of,
    problem_of,
    reaches_nothing,
    retaining,
    selective,
)
from connectors.source import MAIN_SOURCE, SourceBatch
from dataflow.errors import SourceError, TemporaryError, TidemarkError, described
from dataflow.schema import VIEW_SOURCE, Relation, RelationName
from service.engine.column_requirements import Read
from service.engine.positions import Positions
from service.engine.range_reader import RangeReader
from service.ingest.ranged_feed import State, open_feed
from service.ingest.source_requirements import SourceRequirements
from service.ingest.source_worker import (
    ABANDON_S,
    RENEW_S,
    STUCK_S,
    OutdatedAnswer,
    SourceWorker,
    SourceWorkers,
    stuck,
    unanswered_s,
)
from service.metrics.metrics import Reach
from service.runtime.log import log
from service.runtime.outage import Outage
from service.runtime.runtime import RUNTIME, Runtime
from service.views.requested_changes import problem_facts
from storage.backoff import Backoff

RETRY_S = (0.2, 30.0)
STOPPED_S = 30.0
# 9999-12-31, the last day of Python's calendar.
LAST_US = 253_402_300_799_999_999
# Services that lost the same broker should not all reconnect at once.
JITTER = (0.75, 1.25)
# At a start, all sources together have so long to tell whether they can be read again.
CHECK_S = 10.0
# More of a source's malformed records are not stored before someone has looked at them.
REJECTED_BYTES = 1 << 30
_DISK_SHORT = TemporaryError(
    "state.disk_full",
    "only the reserve of the state's disk is left",
    hint="free space on the disk of the state directory: external sources are read on then",
)
# A malformed record stops its source if its options say so; the views stay unchanged.
STOPPING = frozenset({"source.bad_record"})


@dataclass
class ExternalStatus:
    """The status of a source, for people.

    skipped: malformed records that its options skip. gaps: reconnects that may have lost records.
    lag: approximate number of unread records. reached: up to when it was read.
    """

    outage: Outage
    rows: int = 0
    rejected: int = 0
    skipped: int = 0
    gaps: int = 0
    lag: int = 0
    reached: Reach = field(default_factory=Reach)

    @property
    def status(self) -> str:
        """Return RUNNING, RETRYING or STOPPED."""
        return self.outage.status

    @property
    def error(self) -> TidemarkError | None:
        """Return why it is not read; None while it is."""
        return self.outage.error

    def facts(self) -> dict[str, object]:
        """Return the status in the form of the metrics."""
        return {
            "status": self.status,
            "error": "" if self.error is None else str(self.error),
            "problem": None if self.error is None else problem_facts(self.error),
            "rows_total": self.rows,
            "rejected_total": self.rejected,
            "skipped_total": self.skipped,
            "gaps_total": self.gaps,
            "lag": self.lag,
            "lag_seconds": self.reached.lag_seconds,
        }


@dataclass
class _OpenSource:
    source: FeedSource
    outage: Outage
    status: ExternalStatus
    relations: dict[RelationName, Relation] = field(default_factory=dict)
    feed: SourceFeed | None = None
    retry_at: float = 0.0
    # Counted by earlier feeds.
    skipped: int = 0
    gaps: int = 0
    # Of its dead letters since it was declared or retried.
    rejected_bytes: int = 0

    def refresh(self) -> ExternalStatus:
        """Return the status, with the feed's current figures."""
        if self.feed is not None:
            self.status.lag = self.feed.lag
            self.status.skipped = self.skipped + self.feed.skipped
            self.status.gaps = self.gaps + gaps_of(self.feed)
        return self.status

    def close(self) -> None:
        if self.feed is not None:
            self.skipped += self.feed.skipped
            self.gaps += gaps_of(self.feed)
            self.status.skipped, self.status.gaps = self.skipped, self.gaps
            self.feed.close()
            self.feed = None


class ExternalSources:
    """Used by the pipeline's thread.

    make: returns a declared source by name. on_ready: called from any thread when something may
    have arrived. plan: tells a feed what it need not deliver, before it is polled. ranges: the
    engine's reader of ranges, if it has one. requirements: what is needed of selective sources.
    is_disk_short: tells that only the reserve of the state's disk is left.
    """

    def __init__(
        self,
        make: Callable[[str], FeedSource],
        positions: Positions,
        on_ready: Callable[[], None],
        *,
        plan: Callable[[str, SourceFeed], None] | None = None,
        ranges: RangeReader | None = None,
        requirements: SourceRequirements | None = None,
        is_disk_short: Callable[[], bool] = lambda: False,
        runtime: Runtime = RUNTIME,
    ) -> None:
        self._runtime = runtime
        self._is_disk_short = is_disk_short
        self._requirements = requirements
        self._plan = plan
        self._ranges = ranges
        self._make = make
        self._positions = positions
        self._on_ready = on_ready
        self._sources: dict[str, _OpenSource] = {}
        self._workers = SourceWorkers(runtime)
        # Of these nothing is read: their dead letters are being retried.
        self.held: Collection[str] = ()
        self._turn = 0
        # No longer read, but they retain changes until they are released; and when they were.
        self._unread: dict[str, RetainingSource] = {}
        self._released_at: dict[str, float] = {}

    @property
    def is_any(self) -> bool:
        """Return True if any source besides the database is read."""
        return bool(self._sources)

    def source(self, name: str) -> FeedSource:
        """Return a declared source. SourceError source.not_found."""
        opened = self._sources.get(name)
        return self._make(name) if opened is None else opened.source

    def is_replayable(self, batch: SourceBatch) -> bool:
        """Return True if the batch can be read again.

        A record without an offset (a retried dead letter) is not replayed by any feed.
        """
        if batch.source == MAIN_SOURCE:
            return True
        return batch.positions is not None and self.source(batch.source).is_replayable

    def not_replayable(self, names: Iterable[str]) -> list[str]:
        """Return those sources that cannot replay the same changes from older offsets."""
        sources = {name: self.source(name) for name in names if name != MAIN_SOURCE}
        unsure = [source for source in sources.values() if not source.is_replayable]
        # A topic's retention is known only once its cluster is reachable.
        checks = [self._runtime.begin(partial(_check, one), f"check {one.name}") for one in unsure]
        deadline = self._runtime.monotonic() + CHECK_S
        for check in checks:
            check.join(max(0.0, deadline - self._runtime.monotonic()))
        return [name for name, source in sources.items() if not source.is_replayable]

    def statuses(self) -> dict[str, ExternalStatus]:
        """Return the status of each source that is read."""
        return {name: opened.refresh() for name, opened in self._sources.items()}

    @property
    def abandoned_threads(self) -> int:
        """Return how many threads of sources do not end although they were asked to."""
        return self._workers.abandoned()

    def open(self, reads: Iterable[Read]) -> None:
        """Read exactly these relations from now on; a feed with unchanged relations continues."""
        desired = external_relations(relation for relation, _ in reads)
        for name in list(self._sources):
            if name not in desired:
                opened = self._sources.pop(name)
                opened.close()
                self._workers.forget(name)
                source = retaining(opened.source)
                if source is not None:
                    self._unread[name] = source
        for name, relations in desired.items():
            opened = self._sources.get(name)
            if opened is None:
                outage = self._outage(name)
                opened = _OpenSource(self._make(name), outage, ExternalStatus(outage))
                self._sources[name] = opened
            if opened.relations.keys() != relations.keys():
                opened.close()
                opened.retry_at = 0.0
            opened.relations = relations
        self.require()

    def require(self) -> None:
        """Make selective sources read what is needed now."""
        for name, opened in self._sources.items():
            source = selective(opened.source)
            if source is not None and self._requirements is not None:
                self._workers.require(source, self._requirements.of(name))

    def declared_again(self, names: Collection[str]) -> None:
        """Reopen those of these sources that are read: their options have changed."""
        for name in sorted(self._sources.keys() & names):
            opened = self._sources[name]
            opened.close()
            self._workers.forget(name)
            opened.source = self._make(name)
            opened.outage.begin_again()
            opened.retry_at = 0.0
            opened.rejected_bytes = 0
        self.require()

    def release_unread(self, declared: Iterable[str] = ()) -> None:
        """Let sources that are no longer read discard what they retain, in threads of their own.

        declared: others that may retain something for an earlier process. Once no state on disk
        needs what they retain.
        """
        for name in declared:
            source = retaining(self._make(name))
            if source is not None:
                self._unread[name] = source
        requested_at = self._runtime.monotonic()
        for name, source in self._unread.items():
            if name not in self._sources:
                self._released_at[name] = requested_at
                ending = self._workers.ending(name)
                release = partial(_release, source, requested_at, ending)
                self._runtime.begin(release, "release")
        self._unread.clear()

    def released_at(self, name: str) -> float:
        """Return when a source was last released, on the runtime's monotonic clock.

        What it retained before that is gone; -inf if it never was.
        """
        return self._released_at.get(name, float("-inf"))

    def confirm(self, retained: Callable[[str], Sequence[FeedPositions] | None]) -> None:
        """Let the sources discard what is before the state's positions, which are on disk.

        retained: of a source, where copies of the state continue; None while that is unknown.
        """
        for name, opened in self._sources.items():
            source, copies = retaining(opened.source), retained(name)
            if opened.feed is None or source is None or copies is None:
                continue
            needed = [at for one in (self._positions.offsets(name), *copies) for at in one.values()]
            if needed:
                cast(RetainingFeed, opened.feed).durable(min(needed, key=source.order_of))

    def poll(
        self,
        max_rows: int,
        until: Mapping[str, FeedPositions],
        singly: Collection[str] = (),
    ) -> SourceBatch | None:
        """Return a batch of one of the feeds, in turn.

        until: offsets that must not be passed, by source. If it names any source, even the
        database, only the named ones are read. singly: sources of which a batch has one
        transaction. A TidemarkError with a relation concerns its readers; all other errors become
        the source's status.
        """
        names = [
            name for name in self._sources if (not until or name in until) and name not in self.held
        ]
        if names and self._is_disk_short():
            # What others send may not fill it: the database's changes need the space that is left.
            for name in names:
                self._sources[name].outage.held_back(_DISK_SHORT)
            return None
        for step in range(len(names)):
            name = names[(self._turn + step) % len(names)]
            rows = 1 if name in singly else max_rows
            batch = self._poll_one(self._sources[name], rows, until.get(name))
            if batch is not None:
                self._turn = (self._turn + step + 1) % len(names)
                return batch
        return None

    def close(self) -> None:
        """Close all feeds; those that do not close in time are abandoned."""
        self._workers.close()
        for opened in self._sources.values():
            opened.close()

    def _poll_one(
        self, opened: _OpenSource, max_rows: int, until: FeedPositions | None
    ) -> SourceBatch | None:
        name = opened.source.name
        try:
            if opened.feed is None and not self._reopen(opened):
                return None
            assert opened.feed is not None
            if self._plan is not None and until is None:
                self._plan(name, opened.feed)
            batch = opened.feed.poll(max_rows, until=until)
        except OutdatedAnswer:
            opened.close()
            return None
        except TidemarkError as error:
            opened.close()
            if isinstance(error, RelationAltered):
                # It concerns the readers of one relation, which are built again.
                opened.retry_at = self._runtime.monotonic() + RETRY_S[0]
                raise
            self._pause(opened, error)
            if error.relation is not None and not (error.is_temporary or error.code in STOPPING):
                raise
            return None
        waited_s = unanswered_s(opened.feed)
        if waited_s:
            self._note_unanswered(opened, waited_s)
            return None
        problem = problem_of(opened.feed)
        if problem is not None:
            opened.outage.held_back(problem)
        elif opened.feed.has_succeeded:
            opened.outage.over()
        if batch is None:
            if opened.feed.has_succeeded and not opened.feed.lag:
                opened.status.reached.moved(self._runtime.time())
            return None
        # A server may claim any time; it is stored and shown.
        batch.commit_time_us = min(max(batch.commit_time_us, 0), LAST_US)
        opened.status.reached.moved(batch.commit_time_us / 1e6 or None)
        gaps = opened.gaps + gaps_of(opened.feed)
        if gaps > opened.status.gaps:
            opened.status.gaps = gaps
            log.warning("source.gap", source=name, gaps=gaps)
        opened.status.rows += batch.rows
        if batch.rejected is not None:
            opened.status.rejected += len(batch.rejected)
            opened.rejected_bytes += batch.rejected.nbytes()
            if opened.rejected_bytes > REJECTED_BYTES:
                opened.close()
                opened.outage.failed(_too_many_rejected(name))
                # Until someone requests it.
                opened.retry_at = float("inf")
        return batch

    def _reopen(self, opened: _OpenSource) -> bool:
        if self._runtime.monotonic() < opened.retry_at:
            return False
        name = opened.source.name
        opened.feed = open_feed(
            opened.source,
            list(opened.relations.values()),
            (self._positions.offsets(name), self._positions.notes(name)),
            self._on_ready,
            self._ranges,
            opens=partial(self._begin, opened.source),
        )
        return True

    def _begin(
        self,
        source: FeedSource,
        relations: Sequence[Relation],
        state: State,
        on_ready: Callable[[], None],
    ) -> SourceFeed:
        opens = partial(source.open_feed, relations, *state)
        return (
            opens(on_ready)
            if reaches_nothing(source)
            else self._workers.begin(source, opens, on_ready)
        )

    def _note_unanswered(self, opened: _OpenSource, seconds: float) -> None:
        """Report a source that has not answered for so long; begin again with a new worker."""
        if seconds < STUCK_S:
            return
        error = stuck(opened.source.name, seconds)
        if seconds < RENEW_S:
            opened.outage.held_back(error)
            return
        opened.close()
        self._pause(opened, error)

    def _pause(self, opened: _OpenSource, error: TidemarkError) -> None:
        opened.retry_at = self._runtime.monotonic() + opened.outage.failed(error)

    def _outage(self, name: str) -> Outage:
        draw = self._runtime.draw
        backoff = Backoff(*RETRY_S, jitter=JITTER, draw=draw)
        return Outage("source", name, backoff, lambda: STOPPED_S * draw(*JITTER))


def _too_many_rejected(name: str) -> SourceError:
    return SourceError(
        "source.too_many_rejected",
        f'source "{name}" has sent too many malformed records',
        detail=f"more than {REJECTED_BYTES >> 20} MB of dead letters were stored",
        hint="see its dead letters; drop or retry them, then retry the source",
    )


def _check(source: FeedSource) -> None:
    try:
        source.check()
    except Exception as error:
        code = error.code if isinstance(error, TidemarkError) else "source.reader"
        log.warning("source.retry", source=source.name, code=code, why=described(error))


def _release(source: RetainingSource, requested_at: float, ending: Sequence[SourceWorker]) -> None:
    for worker in ending:
        worker.await_end(ABANDON_S)
    try:
        source.release(requested_at)
    except TidemarkError as error:
        why = f"{error.described}; {error.hint}"
        log.warning("source.slot_not_dropped", source=source.name, code=error.code, why=why)


def external_relations(relations: Iterable[Relation]) -> dict[str, dict[RelationName, Relation]]:
    """Return, by source, the relations that are neither the database's nor views."""
    found: dict[str, dict[RelationName, Relation]] = {}
    for relation in relations:
        if relation.name.source not in (MAIN_SOURCE, VIEW_SOURCE):
            found.setdefault(relation.name.source, {})[relation.name] = relation
    return found


def is_main(relation: Relation) -> bool:
    """Return True if a base relation is the database's."""
    return relation.name.source == MAIN_SOURCE
