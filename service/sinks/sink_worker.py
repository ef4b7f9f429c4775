"""A thread that brings one view's epochs from the outbox to one further sink.

Invariant: the sink gets every epoch that changes the view, in order and each exactly once; what
was on its way when a connection was lost is settled by the sink's own progress. The thread pulls:
a sink that is away or slow holds up nothing but its own epochs, which wait in the outbox.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from connectors.sink import Progress, SinkEpoch, SinkTable
from connectors.view_sink import ViewEpoch, ViewSink
from dataflow.delta import Delta
from dataflow.errors import SinkError, TemporaryError, TidemarkError
from service.runtime.log import log
from service.runtime.runtime import RUNTIME, Runtime, Thread
from storage import clock
from storage.backoff import Backoff
from storage.failpoints import failpoint

RETRY_S, JITTER = (0.1, 30.0), (0.5, 1.0)
ADD_AGAIN = "drop the sink and add it again, with its rows"
# Epochs that do not change the view are told to the sink's readers at most this often.
IDLE_PROGRESS_S = 5.0
# A transaction takes the epochs that wait, up to so many rows.
BATCH_ROWS = 20_000
BATCH_BYTES = 16 << 20

# A refusal of the sink's that nobody has given a code of its own.
UNNAMED = "sink.failed"

STARTING, LIVE, RETRYING, FAILED = "starting", "live", "retrying", "failed"

# The view's rows, as of the epoch that stands with them.
RowsAt = Callable[[], AbstractContextManager[tuple[Progress, Iterable[Delta]]]]


@dataclass(frozen=True)
class Road:
    """What a follower brings where.

    find: a committed epoch of the outbox. shown: positions as people write them. has_rows:
    whether the sink begins with the view's rows; without, it begins at their epoch. begins: from
    which epoch on the view's table is surely the one that is known here.
    """

    table: SinkTable
    sink: ViewSink
    find: Callable[[int], SinkEpoch | None]
    rows_at: RowsAt
    shown: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    has_rows: bool = True
    begins: int = 0


@dataclass(frozen=True)
class Reached:
    """What is known of a follower after a restart. epoch: up to which the sink has everything, or
    need not have it. has_begun: the sink has had its first rows."""

    epoch: int
    has_begun: bool = False


class SinkWorker:
    """Runs from `start` until `close`, or until it has failed.

    reached: None for a sink that nothing was ever written to; then epochs after the newest one
    are kept for it.
    """

    def __init__(
        self, title: str, road: Road, reached: Reached | None, newest: int, host: Runtime = RUNTIME
    ) -> None:
        self.title = title
        self.status = STARTING
        self.error: TidemarkError | None = None
        self.reached = reached or Reached(newest)
        self._is_untouched = reached is None
        self.positions: Mapping[str, Any] = {}
        self.live_at: datetime | None = None
        self.rows_total = 0
        self.transactions_total = 0
        self._road = road
        self._newest = newest
        self._host = host
        self._reported_at = host.monotonic()
        self._unreported: ViewEpoch | None = None
        self._stopping = host.event()
        self._moved = host.condition()
        self._thread: Thread | None = None

    def start(self) -> None:
        """Begin, if it has not begun; the epochs after `reached` must be kept from now on."""
        if self._thread is None:
            self._thread = self._host.begin(self._run, f"follower {self.title}")

    def advance(self, newest: int) -> None:
        """Epochs up to this one are in the outbox, and in the view's table."""
        with self._moved:
            self._newest = newest
            self._moved.notify_all()

    def fail(self, error: TidemarkError) -> None:
        """Give up for good; for the owner, and for the thread itself."""
        if self.status != FAILED:
            log.warning("sink.failed", sink=self.title, code=error.code, why=error.described)
        self.error, self.status = error, FAILED
        self.stop()

    def stop(self) -> None:
        """Ask it to end; what is on its way is settled by the next one that opens the sink."""
        self._stopping.set()
        self._road.sink.interrupt()
        with self._moved:
            self._moved.notify_all()

    def close(self) -> None:
        """Stop, and wait for the end."""
        self.stop()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        backoff = self._backoff(2 * RETRY_S[0])
        while not self._stopping.is_set():
            written = self.transactions_total
            try:
                self._follow()
            except TidemarkError as error:
                if self._stopping.is_set():
                    break
                if not self._may_pass(error):
                    self.fail(error)
                    break
                if self.transactions_total > written:
                    # A sink that has just taken rows is tried again sooner.
                    backoff = self._backoff(RETRY_S[0])
                self._retry(error, backoff.next_s())
            except Exception as error:
                log.exception("sink.failed", sink=self.title)
                self.fail(
                    SinkError("sink.internal", "the sink's writer failed", detail=repr(error))
                )
                break
        self._road.sink.close()

    def _backoff(self, first_s: float) -> Backoff:
        return Backoff(first_s, RETRY_S[1], jitter=JITTER, draw=self._host.draw)

    def _may_pass(self, error: TidemarkError) -> bool:
        """What has no name of its own may be over soon too: once the sink has begun, its epochs
        wait for that like for any other, up to the budget."""
        return error.is_temporary or (error.code == UNNAMED and self.reached.has_begun)

    def _retry(self, error: TidemarkError, pause_s: float) -> None:
        self.error = error
        self.status = RETRYING
        log.warning("sink.retry", sink=self.title, code=error.code, pause_s=round(pause_s, 2))
        self._road.sink.close()
        self._stopping.wait(pause_s)

    def _follow(self) -> None:
        """From what the sink holds to the newest epoch, and on."""
        found = self._road.sink.open()
        if found is None:
            if self.reached.has_begun:
                raise SinkError(
                    "sink.lost",
                    "what the sink had written is gone",
                    detail=f"epoch {self.reached.epoch} was there",
                    hint=ADD_AGAIN,
                )
            self._is_untouched = False
            if not self._await_table():
                return
            found = self._begin()
        elif self._is_untouched or found > self._newest:
            raise _lost(f"the sink is at epoch {found}, the state at {self._newest}")
        self._unreported = None
        self.reached = Reached(max(self.reached.epoch, found), has_begun=True)
        self.status, self.error = LIVE, None
        self.live_at = self.live_at or clock.utc()
        while not self._stopping.is_set():
            self._write_waiting()
            with self._moved:
                if self.reached.epoch >= self._newest and not self._stopping.is_set():
                    self._moved.wait(self._patience())

    def _await_table(self) -> bool:
        """Whether the view's table is the one that is known here; False once it is to stop."""
        with self._moved:
            self._moved.wait_for(
                lambda: self._newest >= self._road.begins or self._stopping.is_set()
            )
        return not self._stopping.is_set()

    def _begin(self) -> int:
        """The view's rows, or none, as of an epoch from which on the outbox has everything."""
        with self._road.rows_at() as (progress, rows):
            shown = self._road.shown(progress.positions)
            initial = rows if self._road.has_rows else ()
            epoch = ViewEpoch(progress.epoch, shown, self._while_wanted(initial), 0, True)
            self._road.sink.write([epoch])
        self._told(epoch)
        log.info("sink.began", sink=self.title, epoch=progress.epoch)
        return progress.epoch

    def _while_wanted(self, rows: Iterable[Delta]) -> Iterator[Delta]:
        """The view's first rows may be many: stopping must not wait for them."""
        for delta in rows:
            if self._stopping.is_set():
                raise TemporaryError("sink.stopped", "the sink was stopped while it began")
            self.rows_total += len(delta)
            yield delta

    def _write_waiting(self) -> None:
        """Epochs that wait, as many as make a transaction; those without rows are passed over."""
        epochs: list[ViewEpoch] = []
        rows, held_bytes, reached, newest = 0, 0, self.reached.epoch, self._newest
        while reached < newest and rows < BATCH_ROWS and held_bytes < BATCH_BYTES:
            reached += 1
            epoch, size = self._read(reached)
            if epoch.rows:
                epochs.append(epoch)
                rows, held_bytes = rows + epoch.rows, held_bytes + size
            self._unreported = None if epoch.rows else epoch
        if not epochs and self._unreported is not None and self._patience() <= 0:
            epochs = [self._unreported]
        if epochs:
            self._road.sink.write(epochs)
            failpoint("follower.written.before")
            self.rows_total += rows
            self._told(epochs[-1])
        self.reached = Reached(reached, has_begun=True)

    def _told(self, epoch: ViewEpoch) -> None:
        if self._unreported is epoch:
            self._unreported = None
        self.positions = epoch.positions
        self.transactions_total += 1
        self._reported_at = self._host.monotonic()

    def _patience(self) -> float:
        """Seconds until what was passed over is to be told."""
        if self._unreported is None:
            return IDLE_PROGRESS_S
        return max(0.0, self._reported_at + IDLE_PROGRESS_S - self._host.monotonic())

    def _read(self, number: int) -> tuple[ViewEpoch, int]:
        """An epoch of the outbox, and what it takes in memory."""
        found = self._road.find(number)
        if found is None:
            raise _lost(f"epoch {number} is not kept any more")
        table = self._road.table
        if found.returns is not None:
            # It mends the view's table, which is another sink.
            found = replace(found, deltas=[], later=None)
        own = [(t, delta) for t, delta in found.deltas if t.relation == table.relation]
        found = replace(found, deltas=own, errors=None, rejected=None)
        positions = self._road.shown(found.progress.positions)
        rows = {t.relation: n for t, n in found.row_counts().items()}
        # Views in parts on disk may not know their rows: then they count as one.
        known = max(rows[table.relation], 1) if table.relation in rows else 0
        return ViewEpoch(number, positions, _DeltasOf(found, table), known), found.nbytes()


@dataclass(frozen=True)
class _DeltasOf:
    """One view's deltas in an epoch, part by part."""

    epoch: SinkEpoch
    table: SinkTable

    def __iter__(self) -> Iterator[Delta]:
        for part in self.epoch.parts():
            for table, delta in part.deltas:
                if table.relation == self.table.relation and len(delta):
                    yield delta


def _lost(detail: str) -> SinkError:
    return SinkError(
        "sink.state_lost",
        "what the sink lacks is not in the state",
        detail=detail,
        hint=f"the state was rebuilt or restored: {ADD_AGAIN}",
    )
