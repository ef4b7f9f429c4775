"""The pipeline's side of all sources but the database: a feed each, opened anew when views change.

A source that is away is tried again after a growing pause, one that refuses to go on is tried
again seldom, in case someone has repaired it; neither holds up the others. Invariant: a feed is
opened where the state stands, so nothing is lost or read twice, however often it is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from connectors.feed_source import FeedSource, Places, SourceFeed
from connectors.source import MAIN_SOURCE, SourceBatch
from dataflow.errors import TidemarkError
from dataflow.schema import VIEW_SOURCE, Relation, RelationName
from service.engine.column_requirements import Read
from service.engine.positions import Positions
from service.metrics.metrics import Reach
from service.runtime.log import log
from service.runtime.runtime import RUNTIME, Runtime
from service.views.requested_changes import problem_facts
from storage.backoff import Backoff

RETRY_S = (0.2, 30.0)
STOPPED_S = 30.0
# Many services that lost one broker are not to come back all at once.
JITTER = (0.75, 1.25)
# A record that is not a row stops its source where it was asked to; the views stay as they are.
STOPPING = frozenset({"source.bad_record"})

RUNNING, RETRYING, STOPPED = "running", "retrying", "stopped"


@dataclass
class ExternalStatus:
    """How a source stands, for people. skipped: records that are not rows, passed over as its
    options say; lag: about how much it has that was not read; reached: up to when it was read."""

    status: str = RUNNING
    error: TidemarkError | None = None
    rows: int = 0
    rejected: int = 0
    skipped: int = 0
    lag: int = 0
    reached: Reach = field(default_factory=Reach)

    def facts(self) -> dict[str, object]:
        """As metrics show it."""
        return {
            "status": self.status,
            "error": "" if self.error is None else str(self.error),
            "problem": None if self.error is None else problem_facts(self.error),
            "rows_total": self.rows,
            "rejected_total": self.rejected,
            "skipped_total": self.skipped,
            "lag": self.lag,
            "lag_seconds": self.reached.lag_seconds,
        }


@dataclass
class _Side:
    source: FeedSource
    backoff: Backoff
    relations: dict[RelationName, Relation] = field(default_factory=dict)
    feed: SourceFeed | None = None
    retry_at: float = 0.0
    status: ExternalStatus = field(default_factory=ExternalStatus)
    # By the feeds before this one.
    skipped: int = 0

    def tell(self) -> ExternalStatus:
        """The status, with what the feed knows of itself."""
        if self.feed is not None:
            self.status.lag = self.feed.lag
            self.status.skipped = self.skipped + self.feed.skipped
        return self.status

    def close(self) -> None:
        if self.feed is not None:
            self.skipped += self.feed.skipped
            self.status.skipped = self.skipped
            self.feed.close()
            self.feed = None


class ExternalSources:
    """Used by the pipeline's thread. make: a declared source by its name; on_ready: called from
    any thread when something may have arrived."""

    def __init__(
        self,
        make: Callable[[str], FeedSource],
        positions: Positions,
        on_ready: Callable[[], None],
        *,
        host: Runtime = RUNTIME,
    ) -> None:
        self._host = host
        self._make = make
        self._positions = positions
        self._on_ready = on_ready
        self._sides: dict[str, _Side] = {}
        self._turn = 0

    @property
    def is_any(self) -> bool:
        """Whether anything beside the database is read."""
        return bool(self._sides)

    def source(self, name: str) -> FeedSource:
        """A declared source. SourceError source.not_found."""
        side = self._sides.get(name)
        return self._make(name) if side is None else side.source

    def is_replayable(self, batch: SourceBatch) -> bool:
        """Whether what the batch says can be read once more.

        What has no place (a record that was asked to be tried again) no feed tells again.
        """
        if batch.source == MAIN_SOURCE:
            return True
        return batch.places is not None and self.source(batch.source).is_replayable

    def not_replayable(self, names: Iterable[str]) -> list[str]:
        """Which of these sources do not tell the same changes again at older places."""
        others = [name for name in names if name != MAIN_SOURCE]
        return [name for name in others if not self._tells_again(name)]

    def _tells_again(self, name: str) -> bool:
        source = self.source(name)
        if not source.is_replayable:
            try:
                # What a topic keeps is known once its cluster is reached.
                source.check()
            except TidemarkError as error:
                log.warning("source.retry", source=name, code=error.code, why=error.described)
        return source.is_replayable

    def statuses(self) -> dict[str, ExternalStatus]:
        """Each source that is read, as it stands."""
        return {name: side.tell() for name, side in self._sides.items()}

    def open(self, reads: Iterable[Read]) -> None:
        """Read just this from now on. A feed whose relations stay the same goes on."""
        wanted = external_relations(relation for relation, _ in reads)
        for name in list(self._sides):
            if name not in wanted:
                self._sides.pop(name).close()
        for name, relations in wanted.items():
            side = self._sides.get(name)
            if side is None:
                side = self._sides[name] = _Side(self._make(name), self._backoff())
            if side.relations.keys() != relations.keys():
                side.close()
                side.retry_at = 0.0
            side.relations = relations

    def declared_again(self, names: Collection[str]) -> None:
        """These sources have other options now: those that are read are opened again."""
        for name in sorted(self._sides.keys() & names):
            side = self._sides[name]
            side.close()
            side.source = self._make(name)
            side.retry_at = 0.0

    def poll(self, max_rows: int, until: Mapping[str, Places]) -> SourceBatch | None:
        """What one of the feeds has; they take turns. until: places that are not to be passed, by
        source; where it names any source, even the database, only those that it names are read.

        A TidemarkError with a relation is about what reads it; all others are kept as status.
        """
        names = [name for name in self._sides if not until or name in until]
        for step in range(len(names)):
            name = names[(self._turn + step) % len(names)]
            batch = self._poll_one(self._sides[name], max_rows, until.get(name))
            if batch is not None:
                self._turn = (self._turn + step + 1) % len(names)
                return batch
        return None

    def close(self) -> None:
        """End all feeds."""
        for side in self._sides.values():
            side.close()

    def _poll_one(self, side: _Side, max_rows: int, until: Places | None) -> SourceBatch | None:
        name = side.source.name
        try:
            if side.feed is None and not self._reopen(side):
                return None
            assert side.feed is not None
            batch = side.feed.poll(max_rows, until=until)
        except TidemarkError as error:
            side.close()
            self._pause(side, error)
            if error.relation is not None and not (error.is_temporary or error.code in STOPPING):
                raise
            return None
        if batch is None:
            if not side.feed.lag:
                side.status.reached.moved(self._host.time())
            return None
        side.status.reached.moved(batch.commit_time_us / 1e6 or None)
        if side.status.error is not None:
            log.info("source.running", source=name)
        side.backoff.reset()
        side.status.status, side.status.error = RUNNING, None
        side.status.rows += batch.rows
        side.status.rejected += 0 if batch.rejected is None else len(batch.rejected)
        return batch

    def _reopen(self, side: _Side) -> bool:
        if self._host.monotonic() < side.retry_at:
            return False
        name = side.source.name
        side.feed = side.source.open_feed(
            list(side.relations.values()),
            self._positions.places(name),
            self._positions.notes(name),
            self._on_ready,
        )
        return True

    def _pause(self, side: _Side, error: TidemarkError) -> None:
        if error.is_temporary:
            side.status.status, pause_s = RETRYING, side.backoff.next_s()
        else:
            # One that is away after it was put right is away for the first time.
            side.backoff.reset()
            side.status.status, pause_s = STOPPED, STOPPED_S * self._host.draw(*JITTER)
        side.retry_at = self._host.monotonic() + pause_s
        if str(side.status.error) != str(error):
            log.warning("source.retry", source=side.source.name, code=error.code, pause_s=pause_s)
        side.status.error = error

    def _backoff(self) -> Backoff:
        return Backoff(*RETRY_S, jitter=JITTER, draw=self._host.draw)


def external_relations(relations: Iterable[Relation]) -> dict[str, dict[RelationName, Relation]]:
    """By source those that are neither the database's nor views."""
    found: dict[str, dict[RelationName, Relation]] = {}
    for relation in relations:
        if relation.name.source not in (MAIN_SOURCE, VIEW_SOURCE):
            found.setdefault(relation.name.source, {})[relation.name] = relation
    return found


def is_main(relation: Relation) -> bool:
    """Whether a base relation is the database's."""
    return relation.name.source == MAIN_SOURCE
