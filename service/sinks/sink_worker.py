"""A thread that writes one view's epochs from the outbox to one additional sink.

Invariant: the sink gets every epoch that changes the view, in order, exactly once. After a lost
connection, the sink's own progress decides which epochs it has. The thread pulls: a slow or
unreachable sink delays only its own epochs, which wait in the outbox. Only this thread and those
that interrupt it call the sink, so one that never returns holds up nobody else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from connectors.sink import Progress, SinkEpoch, SinkRows, SinkTable
from connectors.view_sink import ADD_AGAIN, ViewEpoch, ViewSink, lost
from dataflow.delta import Delta
from dataflow.errors import SinkError, TemporaryError, TidemarkError
from service.runtime.log import log
from service.runtime.runtime import RUNTIME, Runtime
from service.sinks.sink_thread import ABANDON_S, SinkThread
from storage import clock
from storage.backoff import Backoff
from storage.failpoints import failpoint

RETRY_S, JITTER = (0.1, 30.0), (0.5, 1.0)
# How often the sink's readers learn of epochs that do not change the view.
IDLE_PROGRESS_S = 5.0
# One transaction takes the waiting epochs, up to this many rows.
BATCH_ROWS = 20_000
BATCH_BYTES = 16 << 20
# Of a sink that waits for more changes.
LARGE_BATCH_ROWS = 500_000
LARGE_BATCH_BYTES = 32 << 20

# A call that moves nothing for so long is reported.
STUCK_S = 60.0

# An error of the sink that has no code of its own.
UNNAMED = "sink.failed"
# Errors that are repaired at the target; meanwhile the epochs wait, and then the sink continues.
REPAIRABLE = {"sink.read_only", "sink.login", "sink.privilege", "sink.database", "sink.tls"}

STARTING, LIVE, RETRYING, FAILED = "starting", "live", "retrying", "failed"

# The view's rows, with the progress at which they were read.
RowsAt = Callable[[], AbstractContextManager[tuple[Progress, Iterable[Delta]]]]


@dataclass(frozen=True)
class SinkRoute:
    """What a worker writes, and where.

    - find: returns a committed epoch of the outbox
    - shown: returns positions in the form that users read
    - has_rows: the sink starts with the view's rows; otherwise it starts at their epoch
    - begins: the epoch from which on the view's table is certainly the one expected here
    - max_delay_s: how long changes may wait for more of them, so that a transaction has many
    """

    table: SinkTable
    sink: ViewSink
    find: Callable[[int], SinkEpoch | None]
    rows_at: RowsAt
    shown: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    has_rows: bool = True
    begins: int = 0
    max_delay_s: float = 0.0

    def is_full(self, rows: int, buffered_bytes: int) -> bool:
        """Return True if so many rows are enough for a transaction."""
        if self.max_delay_s:
            return rows >= LARGE_BATCH_ROWS or buffered_bytes >= LARGE_BATCH_BYTES
        return rows >= BATCH_ROWS or buffered_bytes >= BATCH_BYTES


@dataclass(frozen=True)
class Reached:
    """A worker's state after a restart.

    epoch: up to this one, the sink has everything or does not need it. has_begun: the sink has its
    first rows. written: the newest epoch that it has acknowledged, 0 if that is unknown.
    """

    epoch: int
    has_begun: bool = False
    written: int = 0


class SinkWorker:
    """Runs from `start` until its thread is stopped, or until it has failed.

    reached: None for a sink that was never written to; the outbox then retains all epochs after
    `newest` for it. earlier: threads that used the same sink and were asked to end.
    """

    def __init__(
        self,
        title: str,
        route: SinkRoute,
        reached: Reached | None,
        newest: int,
        runtime: Runtime = RUNTIME,
        *,
        earlier: Sequence[SinkThread] = (),
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
        self.skipped_total = 0
        self._route = route
        self._newest = newest
        self._runtime = runtime
        self._reported_at = runtime.monotonic()
        self._written_at: float | None = None
        self._unreported: ViewEpoch | None = None
        self._moved = runtime.condition()
        self._earlier = earlier
        # When the present call of the sink began, or last took rows.
        self._called_at: float | None = None
        self.thread = SinkThread(title, route.sink, runtime, self._wake)
        self._stopping = self.thread.stopping

    def start(self) -> None:
        """Start, if not started; from now on the outbox must retain the epochs after `reached`."""
        self.thread.start(self._run, f"follower {self.title}")

    def advance(self, newest: int) -> None:
        """Announce that epochs up to this one are in the outbox and in the view's table."""
        with self._moved:
            self._newest = newest
            self._moved.notify_all()

    def fail(self, error: TidemarkError) -> None:
        """Fail permanently; called by the owner and by the thread itself."""
        if self.status != FAILED:
            log.warning("sink.failed", sink=self.title, code=error.code, why=error.described)
        self.error, self.status = error, FAILED
        self.thread.stop()

    @property
    def stuck(self) -> TidemarkError | None:
        """Return the error of a sink that does not answer a call, None while it does."""
        called_at = self._called_at
        if called_at is None or self._runtime.monotonic() - called_at < STUCK_S:
            return None
        return TemporaryError(
            "sink.stuck",
            f'sink "{self.title}" does not answer',
            detail=f"a call of its connector has moved nothing for more than {STUCK_S:.0f} s",
            hint="check the server that it writes to; its epochs wait, other sinks continue",
        )

    def _wake(self) -> None:
        with self._moved:
            self._moved.notify_all()

    @contextmanager
    def _calling(self) -> Iterator[None]:
        """Note the time of a call of the sink."""
        self._called_at = self._runtime.monotonic()
        try:
            yield
        finally:
            self._called_at = None

    def _run(self) -> None:
        for thread in self._earlier:
            thread.await_end(ABANDON_S, unless=self._stopping)
        backoff = self._backoff(2 * RETRY_S[0])
        while not self._stopping.is_set():
            written = self.transactions_total
            try:
                self._follow()
            except TidemarkError as error:
                if self._stopping.is_set():
                    break
                if not self._is_retryable(error):
                    self.fail(error)
                    break
                if self.transactions_total > written:
                    # A sink that has just accepted rows is retried sooner.
                    backoff = self._backoff(RETRY_S[0])
                self._retry(error, backoff.next_s())
            except Exception as error:
                log.exception("sink.failed", sink=self.title)
                self.fail(
                    SinkError("sink.internal", "the sink's writer failed", detail=repr(error))
                )
                break
        with self._calling():
            self._route.sink.close()

    def _backoff(self, first_s: float) -> Backoff:
        return Backoff(first_s, RETRY_S[1], jitter=JITTER, draw=self._runtime.draw)

    def _is_retryable(self, error: TidemarkError) -> bool:
        """Return True if the error may be temporary.

        An error without its own code may be temporary too, and others are repaired at the target:
        once the sink has begun, its epochs wait, up to the budget.
        """
        is_waited_for = error.code == UNNAMED or error.code in REPAIRABLE
        return error.is_temporary or (is_waited_for and self.reached.has_begun)

    def _retry(self, error: TidemarkError, pause_s: float) -> None:
        self.error = error
        self.status = RETRYING
        log.warning("sink.retry", sink=self.title, code=error.code, pause_s=round(pause_s, 2))
        with self._calling():
            self._route.sink.close()
        self._stopping.wait(pause_s)

    def _follow(self) -> None:
        """Bring the sink from its epoch to the newest one, and continue."""
        before = self.reached
        known = before.written or before.epoch
        with self._calling():
            found = self._route.sink.open(known if before.has_begun else None)
        if found is None:
            if self.reached.has_begun:
                raise lost(f"it was at epoch {self.reached.epoch}")
            self._is_untouched = False
            if not self._await_table():
                return
            found = self._begin()
        elif self._is_untouched or found > self._newest:
            raise _state_lost(f"the sink is at epoch {found}, the state at {self._newest}")
        elif found < before.written:
            detail = f"it is at epoch {found}, and had acknowledged epoch {before.written}"
            raise lost(detail, "the sink has lost data that it had acknowledged")
        self._unreported = None
        self.reached = Reached(max(self.reached.epoch, found), has_begun=True, written=found)
        self.status, self.error = LIVE, None
        self.live_at = self.live_at or clock.utc()
        while not self._stopping.is_set():
            self._write_waiting()
            with self._moved:
                if self.reached.epoch >= self._newest and not self._stopping.is_set():
                    self._moved.wait(self._idle_left_s())

    def _await_table(self) -> bool:
        """Wait until the view's table is the expected one; return False if stopped first."""
        with self._moved:
            self._moved.wait_for(
                lambda: self._newest >= self._route.begins or self._stopping.is_set()
            )
        return not self._stopping.is_set()

    def _begin(self) -> int:
        """Write the view's rows, or none, as of an epoch after which the outbox is complete."""
        with self._route.rows_at() as (progress, rows):
            shown = self._route.shown(progress.positions)
            initial = rows if self._route.has_rows else ()
            epoch = ViewEpoch(progress.epoch, shown, self._until_stopped(initial), 0, True)
            with self._calling():
                self._route.sink.write([epoch])
        self._written(epoch)
        log.info("sink.began", sink=self.title, epoch=progress.epoch)
        return progress.epoch

    def _until_stopped(self, rows: Iterable[Delta]) -> Iterator[Delta]:
        """Yield the view's first rows, which may be many: stopping must not wait for them."""
        for delta in rows:
            if self._stopping.is_set():
                raise TemporaryError("sink.stopped", "the sink was stopped during its first write")
            self.rows_total += len(delta)
            self._called_at = self._runtime.monotonic()
            yield delta

    def _write_waiting(self) -> None:
        """Write the waiting epochs, as many as fit a transaction; skip those without rows."""
        epochs: list[ViewEpoch] = []
        rows, buffered_bytes, reached = 0, 0, self.reached.epoch
        while not self._route.is_full(rows, buffered_bytes):
            if reached >= self._newest and not (epochs and self._await_more(reached)):
                break
            reached += 1
            epoch, size = self._read(reached)
            if epoch.rows:
                epochs.append(epoch)
                rows, buffered_bytes = rows + epoch.rows, buffered_bytes + size
            self._unreported = None if epoch.rows else epoch
        if not epochs and self._unreported is not None and self._idle_left_s() <= 0:
            epochs = [self._unreported]
        if self._stopping.is_set():
            return
        if epochs:
            with self._calling():
                self._route.sink.write(epochs)
            failpoint("sink.notify.before")
            self.rows_total += rows
            self._written(epochs[-1])
        written = epochs[-1].number if epochs else self.reached.written
        self.reached = Reached(reached, has_begun=True, written=written)

    def _await_more(self, reached: int) -> bool:
        """Wait for an epoch after this one, if changes may wait; return True if there is one."""
        if self._written_at is None:
            return False
        ends = self._written_at + self._route.max_delay_s
        with self._moved:
            while self._newest <= reached and not self._stopping.is_set():
                left_s = ends - self._runtime.monotonic()
                if left_s <= 0:
                    return False
                self._moved.wait(left_s)
        return not self._stopping.is_set()

    def _written(self, epoch: ViewEpoch) -> None:
        if self._unreported is epoch:
            self._unreported = None
        self.positions = epoch.positions
        self.transactions_total += 1
        self._note_skipped()
        self._reported_at = self._written_at = self._runtime.monotonic()

    def _note_skipped(self) -> None:
        """Log what the sink's target has refused and the sink has left out."""
        skipped = getattr(self._route.sink, "skipped_total", 0)
        if skipped > self.skipped_total:
            log.warning("sink.skipped", sink=self.title, messages=skipped - self.skipped_total)
        self.skipped_total = skipped

    def _idle_left_s(self) -> float:
        """Return the seconds until skipped epochs must be reported."""
        if self._unreported is None:
            return IDLE_PROGRESS_S
        return max(0.0, self._reported_at + IDLE_PROGRESS_S - self._runtime.monotonic())

    def _read(self, number: int) -> tuple[ViewEpoch, int]:
        """Return an epoch of the outbox, and its size in memory."""
        found = self._route.find(number)
        if found is None:
            raise _state_lost(f"epoch {number} is no longer in the outbox")
        table = self._route.table
        later, own = found.rows.later, found.rows.deltas
        if found.repair is not None:
            # It repairs the view's table, which is another sink.
            later, own = None, []
        own = [(t, delta) for t, delta in own if t.relation == table.relation]
        left = SinkRows(own, later=later, left_out=found.rows.left_out)
        positions = self._route.shown(found.progress.positions)
        rows = left.count_of(table)
        # Views in parts on disk may not have a row count: then they count as one row.
        count = 0 if rows is None else max(rows, 1)
        return ViewEpoch(number, positions, _DeltasOf(left, table), count), left.nbytes()


@dataclass(frozen=True)
class _DeltasOf:
    """One view's deltas in an epoch, part by part."""

    rows: SinkRows
    table: SinkTable

    def __iter__(self) -> Iterator[Delta]:
        return self.rows.deltas_of(self.table)


def _state_lost(detail: str) -> SinkError:
    return SinkError(
        "sink.state_lost",
        "the state lacks epochs that the sink needs",
        detail=detail,
        hint=f"the state was rebuilt or restored: {ADD_AGAIN}",
    )
