"""Changes of polled relations: one thread each polls, compares, and waits until that is taken.

Invariant: a relation's next poll is compared with what `poll` has returned before. A thread that
fails reports its error after what it has read. The feed's lock guards what the threads and `poll`
share.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from connectors.feed_source import FeedPositions
from connectors.outside.boundary import boundary
from connectors.outside.ending import Ending
from connectors.polled.contents import Fetched, PolledContents, Step
from connectors.polled.schedule import PollSchedule
from connectors.pushdown import PushdownRequirement
from connectors.source import SourceBatch
from dataflow.errors import SourceError, TidemarkError
from dataflow.schema import Relation
from storage import clock

CLOSE_S = 60.0


class Fetch(Protocol):
    """Reads a relation whole."""

    def __call__(self, validators: Mapping[str, str]) -> Fetched:
        """Return the relation as it is now. SourceError, TemporaryError, RetryLaterError."""
        ...


class SelectiveFetch(Protocol):
    """Reads what is required of a relation; a Fetch."""

    def __call__(
        self, validators: Mapping[str, str], required: PushdownRequirement | None = None
    ) -> Fetched:
        """Return it as it is now, with what was read: no less. See Fetch."""
        ...


@dataclass
class Watch:
    """A relation, what of it was emitted, and how it is read. step: read and not yet taken.

    is_read: it was polled since the feed was opened. on_end: called by the thread when it ends.
    """

    relation: Relation
    contents: PolledContents
    fetch: Fetch
    schedule: PollSchedule
    step: Step | None = None
    on_end: Callable[[], None] = lambda: None
    error: BaseException | None = None
    skipped: int = 0
    is_read: bool = False


def fetched(watch: Watch) -> Fetched:
    """Poll a relation, and note how that went. SourceError, TemporaryError."""
    watch.schedule.check()
    watch.schedule.begin()
    try:
        with boundary("source", watch.relation.name.source):
            found = watch.fetch(watch.contents.validators)
    except TidemarkError as error:
        watch.schedule.failed(error)
        raise
    watch.schedule.succeeded(has_more=found.has_more)
    return found


class PolledFeed:
    """Changes after the contents of the watches; see SourceFeed.

    watches: by relation. dropped: notes that no longer belong to any relation.
    """

    def __init__(
        self,
        source: str,
        watches: Mapping[str, Watch],
        dropped: Mapping[str, None],
        on_ready: Callable[[], None],
    ) -> None:
        self._source = source
        self._watches = dict(watches)
        self._dropped = dict(dropped)
        self._on_ready = on_ready
        self._lock = threading.Condition()
        self._is_closed = False
        self._ending = Ending()
        self._threads = [
            threading.Thread(target=self._run, args=(watch,), name="poll", daemon=True)
            for watch in self._watches.values()
        ]
        for thread in self._threads:
            thread.start()

    @property
    def lag(self) -> int:
        """Relations whose changes no batch has held yet."""
        with self._lock:
            return sum(watch.step is not None for watch in self._watches.values())

    @property
    def skipped(self) -> int:
        """Malformed records of the newest polls that are not reported."""
        return sum(watch.skipped for watch in self._watches.values())

    @property
    def has_succeeded(self) -> bool:
        """Whether each relation was polled, and no thread has failed since; see SourceFeed."""
        return all(watch.is_read and watch.error is None for watch in self._watches.values())

    def poll(self, max_rows: int, *, until: FeedPositions | None = None) -> SourceBatch | None:
        """Return what the polls of one relation have changed; see SourceFeed."""
        with self._lock:
            for name, watch in self._watches.items():
                step = watch.step
                if step is not None and not _is_beyond(step, (until or {}).get(name)):
                    watch.contents, watch.step = step.contents, None
                    self._lock.notify_all()
                    return self._batch(name, step)
            failed = [w.error for w in self._watches.values() if w.error and w.step is None]
        if failed:
            raise failed[0]
        return self._of_dropped() if self._dropped else None

    def hasten(self) -> None:
        """Poll the relations whose schedules allow that now."""
        with self._lock:
            self._lock.notify_all()

    def close(self) -> None:
        """End all threads. What they wait for over HTTP is aborted; another answer is awaited until
        its request times out. SourceError source.reader: one has not ended in time.
        """
        with self._lock:
            self._is_closed = True
            self._lock.notify_all()
        self._ending.end()
        deadline = time.monotonic() + CLOSE_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads):
            what = f'a reader thread of source "{self._source}" does not stop'
            raise SourceError("source.reader", what, hint="restart the service")

    def _run(self, watch: Watch) -> None:
        try:
            watch.schedule.check()
            while self._wait(watch):
                with self._ending.of_this_thread():
                    found = fetched(watch)
                watch.skipped = found.skipped
                step = watch.contents.after(watch.relation, found)
                is_first, watch.is_read = not watch.is_read, True
                if step.contents is not watch.contents:
                    with self._lock:
                        watch.step = step
                if is_first or watch.step is not None:
                    self._on_ready()
        except BaseException as error:
            with self._lock:
                watch.error = error
            self._on_ready()
        finally:
            watch.on_end()

    def _wait(self, watch: Watch) -> bool:
        """Wait until the relation may be polled; False if the feed is closed."""
        with self._lock:
            self._lock.wait_for(lambda: self._is_closed or watch.step is None)
            schedule = watch.schedule
            self._lock.wait_for(lambda: self._is_closed or not schedule.wait_s(), schedule.wait_s())
            return not self._is_closed

    def _batch(self, name: str, step: Step) -> SourceBatch:
        changes = [] if step.changes is None else [step.changes]
        dropped, self._dropped = self._dropped, {}
        return SourceBatch(
            0,
            changes,
            1,
            sum(map(len, changes)),
            commit_time_us=clock.wall_ns() // 1000,
            source=self._source,
            positions={name: step.contents.position},
            notes={**dropped, **step.notes},
            rejected=step.rejected if len(step.rejected) else None,
        )

    def _of_dropped(self) -> SourceBatch:
        dropped, self._dropped = self._dropped, {}
        return SourceBatch(0, [], 0, 0, source=self._source, positions={}, notes=dropped)


def _is_beyond(step: Step, position: Mapping[str, object] | None) -> bool:
    """Return whether a step passes a position of the same beginning."""
    if position is None or position["pin"] != step.contents.pin:
        return False
    return step.contents.poll > int(str(position["poll"]))
