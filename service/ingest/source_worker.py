"""The thread of one external source: it opens, polls and closes a feed on behalf of the pipeline.

Terms: request (what the next batch may be), answer (the batch, nothing, or an error). Invariants: a
feed is used by its worker alone; the pipeline's thread never waits longer than PATIENCE_S for it; a
batch that was read for a wider request than the present one is not handed out. What no answer has
held is read again by the next feed, from the state's positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from connectors.feed_source import (
    FeedPosition,
    FeedPositions,
    FeedSource,
    RetainingFeed,
    SourceFeed,
    gaps_of,
    problem_of,
    selective,
)
from connectors.pushdown import PushdownRequirement
from connectors.source import SourceBatch
from dataflow.errors import SourceError, TemporaryError, TidemarkError
from service.runtime.disk_errors import disk_error
from service.runtime.log import log
from service.runtime.runtime import Runtime, Thread

# How long the pipeline's thread waits for a source that has answered its last call in this time.
PATIENCE_S = 0.1
# A feed that had nothing is polled again after this time even if it does not call `on_ready`.
REPOLL_S = 0.25
# A call that takes longer is reported, and after RENEW_S another worker takes its place.
STUCK_S, RENEW_S = 30.0, 60.0
# A worker that was asked to end has so long before its successor begins without waiting for it.
ABANDON_S = 10.0
# Of one source: with more workers that do not end, no further one is begun.
MAX_ABANDONED = 3
# At shutdown, all workers together have so long to end.
END_S = 3.0

Opens = Callable[[Callable[[], None]], SourceFeed]


class OutdatedAnswer(Exception):
    """A batch holds more than may be read now: open the feed again at the state's positions."""


@dataclass(frozen=True)
class FeedFigures:
    """The figures of a feed after its last poll; see SourceFeed."""

    lag: int = 0
    skipped: int = 0
    gaps: int = 0
    has_succeeded: bool = False
    problem: TidemarkError | None = None

    @classmethod
    def of(cls, feed: SourceFeed) -> FeedFigures:
        """Read a feed's figures."""
        return cls(
            feed.lag, feed.skipped, gaps_of(feed), bool(feed.has_succeeded), problem_of(feed)
        )


@dataclass(frozen=True)
class _Request:
    max_rows: int
    until: FeedPositions | None

    def covers(self, other: _Request) -> bool:
        """Return whether an answer to another request may be taken for this one."""
        is_before = self.until is None or self.until == other.until
        return is_before and other.max_rows <= self.max_rows


@dataclass(frozen=True)
class _Answer:
    request: _Request
    batch: SourceBatch | None = None
    error: TidemarkError | None = None


def unanswered_s(feed: SourceFeed) -> float:
    """Return for how long a feed has not answered its last call; 0.0 if none is under way."""
    return float(getattr(feed, "unanswered_s", 0.0))


def stuck(name: str, seconds: float) -> TemporaryError:
    """Return the error of a source that does not answer a call. seconds: for how long."""
    return TemporaryError(
        "source.stuck",
        f'source "{name}" does not answer',
        detail=f"a call of its connector has taken more than {STUCK_S:.0f} s"
        if seconds < RENEW_S
        else f"a call of its connector was abandoned after {RENEW_S:.0f} s",
        hint="check the server that it reads from; others continue",
    )


class SourceWorker:
    """A SourceFeed of which no call waits. It opens its feed once `earlier` workers have ended.

    opens: returns the feed, given what it calls when it has something. on_ready: called from any
    thread. required: of a selective source, before it is opened.
    """

    def __init__(
        self,
        source: FeedSource,
        opens: Opens,
        on_ready: Callable[[], None],
        runtime: Runtime,
        *,
        earlier: Sequence[SourceWorker] = (),
        required: Mapping[str, PushdownRequirement] | None = None,
    ) -> None:
        self.name = source.name
        self._source = source
        self._opens = opens
        self._on_ready = on_ready
        self._runtime = runtime
        self._earlier = earlier
        self._required = required
        self._durable: FeedPosition | None = None
        self._moved = runtime.condition()
        self._figures = FeedFigures()
        self._request: _Request | None = None
        self._answer: _Answer | None = None
        self._requested_at = self._answered_at = 0.0
        self._is_prompt = self._is_ready = True
        self._is_waited_for = False
        self._ended_at: float | None = None
        self._has_ended = False
        self._thread: Thread = runtime.begin(self._run, f"source {self.name}")

    # --- the pipeline's thread -------------------------------------------------------------------

    @property
    def lag(self) -> int:
        """See SourceFeed, as of the last poll; so are the others."""
        return self._figures.lag

    @property
    def skipped(self) -> int:
        """See SourceFeed."""
        return self._figures.skipped

    @property
    def gaps(self) -> int:
        """See gaps_of."""
        return self._figures.gaps

    @property
    def has_succeeded(self) -> bool:
        """See SourceFeed."""
        return self._figures.has_succeeded

    @property
    def problem(self) -> TidemarkError | None:
        """See problem_of."""
        return self._figures.problem

    @property
    def unanswered_s(self) -> float:
        """See the function of this name."""
        with self._moved:
            is_answered = self._request is None or self._answer is not None
            return 0.0 if is_answered else max(1e-9, self._runtime.monotonic() - self._requested_at)

    def poll(self, max_rows: int, *, until: FeedPositions | None = None) -> SourceBatch | None:
        """Return what the worker has read; see SourceFeed. None also while it has not answered.

        OutdatedAnswer: it read by an earlier request that allowed more than this one.
        """
        request = _Request(max_rows, until)
        with self._moved:
            if self._request is None:
                if not self._is_due():
                    return None
                self._ask(request)
            answer = self._answer
            if answer is None:
                return None
            self._request = self._answer = None
        if answer.error is not None:
            raise answer.error
        if answer.batch is not None and not request.covers(answer.request):
            raise OutdatedAnswer
        return answer.batch

    def durable(self, position: FeedPosition) -> None:
        """See RetainingFeed."""
        with self._moved:
            self._durable = position
            self._moved.notify_all()

    def require(self, required: Mapping[str, PushdownRequirement]) -> None:
        """See SelectiveSource."""
        with self._moved:
            self._required = required
            self._moved.notify_all()

    def close(self) -> None:
        """Ask it to close its feed and to end; wait only if it has answered promptly so far."""
        is_awaited = self._is_prompt and not self.is_stopping
        self.stop()
        if is_awaited:
            self.await_end(PATIENCE_S)

    def stop(self) -> None:
        """Ask it to close its feed and to end."""
        with self._moved:
            if self._ended_at is None:
                self._ended_at = self._runtime.monotonic()
            self._moved.notify_all()

    def await_end(self, timeout_s: float) -> bool:
        """Wait for its end, at most so long; return whether it has ended."""
        with self._moved:
            self._moved.wait_for(lambda: self._has_ended, timeout_s)
            return self._has_ended

    @property
    def is_stopping(self) -> bool:
        """Return whether it was asked to end."""
        return self._ended_at is not None

    @property
    def has_ended(self) -> bool:
        """Return whether its feed is closed, and its thread does nothing more."""
        return self._has_ended

    @property
    def is_abandoned(self) -> bool:
        """Return whether it was asked to end too long ago to be waited for."""
        if self._has_ended or self._ended_at is None:
            return False
        return self._runtime.monotonic() - self._ended_at > ABANDON_S

    def _is_due(self) -> bool:
        since_s = self._runtime.monotonic() - self._answered_at
        return self._is_ready or since_s >= REPOLL_S or since_s < 0

    def _ask(self, request: _Request) -> None:
        self._request, self._is_ready = request, False
        self._requested_at = self._runtime.monotonic()
        self._moved.notify_all()
        if self._is_prompt:
            self._is_waited_for = True
            self._moved.wait_for(lambda: self._answer is not None, PATIENCE_S)
            self._is_waited_for = False
            # Whoever is slow is not waited for again until it was prompt once.
            self._is_prompt = self._answer is not None

    # --- the worker's thread ---------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._await_earlier()
            self._read()
        except Exception as error:
            self._put(error=self._read_error(error))
        finally:
            with self._moved:
                self._has_ended = True
                self._moved.notify_all()

    def _await_earlier(self) -> None:
        """Wait for the end of the feeds before this one, which may share what they read."""
        for worker in self._earlier:
            while not (worker.is_abandoned or self.is_stopping or worker.await_end(REPOLL_S)):
                pass
        self._earlier = ()

    def _read(self) -> None:
        if self.is_stopping:
            return
        self._apply_required()
        feed = self._opens(self._note_ready)
        try:
            while (request := self._next(feed)) is not None:
                batch = feed.poll(request.max_rows, until=request.until)
                self._figures = FeedFigures.of(feed)
                self._put(batch)
        except Exception as error:
            self._put(error=self._read_error(error))
        finally:
            self._close(feed)

    def _next(self, feed: SourceFeed) -> _Request | None:
        """Wait for the next request, and do what else is asked for; None once it is to end."""
        while True:
            with self._moved:
                self._moved.wait_for(self._has_work)
                if self.is_stopping:
                    return None
                position, self._durable = self._durable, None
                request = self._request if self._answer is None else None
            self._apply_required()
            if position is not None:
                cast(RetainingFeed, feed).durable(position)
            if request is not None:
                return request

    def _has_work(self) -> bool:
        is_requested = self._request is not None and self._answer is None
        is_awaited = self._durable is not None or self._required is not None
        return is_requested or is_awaited or self.is_stopping

    def _apply_required(self) -> None:
        with self._moved:
            required, self._required = self._required, None
        source = selective(self._source)
        if required is not None and source is not None:
            source.require(required)

    def _put(self, batch: SourceBatch | None = None, error: TidemarkError | None = None) -> None:
        """Answer the present request, or the next one."""
        with self._moved:
            self._answered_at = self._runtime.monotonic()
            if self._request is None:
                self._request = _Request(0, None)
            self._is_ready |= batch is not None
            self._is_prompt |= self._answered_at - self._requested_at < PATIENCE_S
            self._answer = _Answer(self._request, batch, error)
            is_news = (batch is not None or error is not None) and not self._is_waited_for
            self._moved.notify_all()
        if is_news and not self.is_stopping:
            self._on_ready()

    def _note_ready(self) -> None:
        with self._moved:
            self._is_ready = True
        if not self.is_stopping:
            self._on_ready()

    def _read_error(self, error: Exception) -> TidemarkError:
        """Return what a feed has raised as an error of its source."""
        # The boundary of connectors has made another error of what the disk raised.
        cause = error.__context__ if isinstance(error, TidemarkError) else error
        # So has the reader's own thread.
        is_readers = isinstance(error, TidemarkError) and error.code == "source.reader"
        suspect = error if is_readers else cause
        if is_readers or isinstance(cause, OSError):
            found = disk_error(suspect or error, f'source "{self.name}"')
            if found is not None:
                return found
        if isinstance(error, TidemarkError):
            return error
        log.exception("source.reader", source=self.name)
        what = f'the reader of source "{self.name}" failed'
        return SourceError("source.reader", what, detail=repr(error), hint="report it")

    def _close(self, feed: SourceFeed) -> None:
        try:
            feed.close()
        except Exception as error:
            code = error.code if isinstance(error, TidemarkError) else "source.reader"
            log.warning("source.unclosed", source=self.name, code=code, why=str(error))


class SourceWorkers:
    """The workers of all sources, until they have ended. Used by the pipeline's thread."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._workers: list[SourceWorker] = []
        self._reported: set[SourceWorker] = set()
        self._required: dict[str, Mapping[str, PushdownRequirement]] = {}

    def begin(self, source: FeedSource, opens: Opens, on_ready: Callable[[], None]) -> SourceWorker:
        """Begin a worker, which waits until those that were asked to end have closed their feeds.

        TemporaryError source.stuck: too many of them do not.
        """
        earlier = self.ending(source.name)
        if sum(worker.is_abandoned for worker in earlier) >= MAX_ABANDONED:
            raise stuck(source.name, RENEW_S)
        required = self._required.get(source.name)
        worker = SourceWorker(
            source, opens, on_ready, self._runtime, earlier=earlier, required=required
        )
        self._workers.append(worker)
        return worker

    def require(self, source: FeedSource, required: Mapping[str, PushdownRequirement]) -> None:
        """See SelectiveSource; also for the workers that begin later."""
        if self._required.get(source.name) == required:
            return
        self._required[source.name] = required
        for worker in self._workers:
            if worker.name == source.name:
                worker.require(required)

    def forget(self, name: str) -> None:
        """Forget what was required of a source that is another one now, or not read any more."""
        self._required.pop(name, None)

    def ending(self, name: str) -> list[SourceWorker]:
        """Return the workers of a source that were asked to end, and have not."""
        self._workers = [worker for worker in self._workers if not worker.has_ended]
        return [worker for worker in self._workers if worker.name == name and worker.is_stopping]

    def abandoned(self) -> int:
        """Return how many workers are not waited for any more; log each of them once."""
        self._workers = [worker for worker in self._workers if not worker.has_ended]
        found = {worker for worker in self._workers if worker.is_abandoned}
        for worker in found - self._reported:
            log.warning("source.abandoned", source=worker.name, code="source.stuck")
        self._reported = found
        return len(found)

    def close(self) -> None:
        """Ask all to end; wait for them together, at most END_S seconds."""
        for worker in self._workers:
            worker.stop()
        deadline = self._runtime.monotonic() + END_S
        for worker in self._workers:
            if not worker.await_end(max(0.0, deadline - self._runtime.monotonic())):
                log.warning("source.abandoned", source=worker.name, code="source.stuck")
