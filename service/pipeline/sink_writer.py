"""The sink's thread, which writes epochs in order while the next one is stepped.

Invariant: epochs reach the sink in order and each exactly once; after a lost connection the sink's
progress decides whether the current epoch was committed. At most `DEPTH` epochs wait, and at most
so many bytes. So a slow sink slows the stepping, and the source is read in larger batches; a
blocked sink stops the reading. A view that the sink refuses is left out from then on, and the
others continue.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Iterable

from connectors.sink import Sink, SinkChanged, SinkEpoch
from dataflow.errors import TidemarkError
from dataflow.schema import RelationName
from service.metrics.metrics import PipelineMetrics
from service.runtime.log import log
from service.runtime.runtime import RUNTIME, Runtime
from storage.backoff import Backoff
from storage.failpoints import failpoint

DEPTH = 2
RETRY_S = (0.1, 5.0)
# An epoch in hand may end by itself for so long when the service stops; then it is interrupted.
STOP_S = 0.7


class SinkWriter:
    """Owns the sink while it runs; `written` is the newest epoch that the sink holds.

    waiting_bytes: what epochs that wait, and the one in hand, may take in memory together.
    """

    def __init__(
        self,
        sink: Sink,
        written: int,
        metrics: PipelineMetrics,
        waiting_bytes: int = 64 << 20,
        *,
        runtime: Runtime = RUNTIME,
    ) -> None:
        self._sink = sink
        self._runtime = runtime
        self._metrics = metrics
        self._waiting: deque[SinkEpoch] = deque()
        self._stopping = runtime.event()
        self._failure: BaseException | None = None
        self._written = written
        self._submitted = written
        self._max_bytes = waiting_bytes
        self._held_bytes = 0
        # Notified when an epoch is submitted, started or written.
        self._moved = runtime.condition()
        # Called when one more epoch is in the sink, in the writer's thread.
        self.on_written: Callable[[], None] | None = None
        self._began_at: float | None = None
        # Called with a view that is left out from now on, before any epoch without it counts.
        self.on_refused: Callable[[RelationName], None] | None = None
        self._left_out: set[RelationName] = set()
        self._ever_left_out: set[RelationName] = set()
        self._refusals: queue.SimpleQueue[TidemarkError] = queue.SimpleQueue()
        self._thread = runtime.begin(self._run, "sink-writer")

    @property
    def written(self) -> int:
        """Number of the newest epoch that is committed in the sink."""
        return self._written

    @property
    def is_idle(self) -> bool:
        """Return True if everything submitted is in the sink."""
        return self._written >= self._submitted

    @property
    def has_space(self) -> bool:
        """Return True if another epoch may be submitted; False while the sink lags too much."""
        return len(self._waiting) < DEPTH and self._held_bytes <= self._max_bytes

    @property
    def stalled_s(self) -> float:
        """Return how long the current epoch has been on its way."""
        began_at = self._began_at
        return 0.0 if began_at is None else self._runtime.monotonic() - began_at

    def await_progress(self, timeout_s: float) -> None:
        """Sleep until an epoch is in the sink, at most so long; raises what stopped the thread."""
        self.check()
        with self._moved:
            if not self.is_idle:
                self._moved.wait(timeout_s)

    def submit(self, epoch: SinkEpoch) -> None:
        """Queue an epoch; waits while DEPTH epochs are ahead. Raises what stopped the thread."""
        with self._moved:
            self._submitted = epoch.progress.epoch
            self._held_bytes += epoch.rows.nbytes()
            while len(self._waiting) >= DEPTH:
                self.check()
                self._moved.wait(0.2)
            self.check()
            self._waiting.append(epoch)
            self._moved.notify_all()

    def drain(self) -> None:
        """Wait until everything submitted is in the sink."""
        while not self.is_idle:
            self.await_progress(0.2)

    def leave_out(self, views: Iterable[RelationName]) -> None:
        """Write nothing of these views until `forgive`."""
        found = set(views)
        self._left_out |= found
        self._ever_left_out |= found

    @property
    def ever_left_out(self) -> frozenset[RelationName]:
        """Return all views of which something was not written."""
        return frozenset(self._ever_left_out)

    def refusals(self) -> list[TidemarkError]:
        """Return the errors, each with its view, of views that are left out; each is returned once.

        An epoch counts as written only once its refusals are here.
        """
        return [self._refusals.get() for _ in range(self._refusals.qsize())]

    @property
    def has_refusals(self) -> bool:
        """Return True if `refusals` has something to return."""
        return not self._refusals.empty()

    def forgive(self) -> None:
        """Write all views again; what was submitted with them must be written."""
        self.drain()
        self._left_out = set()

    def restart(self, number: int) -> None:
        """Continue from epoch `number`; the sink's progress will be forgotten."""
        self.drain()
        self._written = self._submitted = number

    def check(self) -> None:
        """Raise what stopped the thread, if anything did."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Stop after the current epoch, or within it if the sink is blocked; the rest stays in the
        outbox.
        """
        self._stopping.set()
        self._thread.join(STOP_S)
        while self._thread.is_alive():
            self._sink.interrupt()
            self._thread.join(STOP_S)

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                epoch = self._take()
                if epoch is not None:
                    self._began_at = self._runtime.monotonic()
                    self._write(epoch)
                    self._began_at = None
        except BaseException as error:
            self._failure = error

    def _take(self) -> SinkEpoch | None:
        """Return the next epoch; None after a while without one."""
        with self._moved:
            if not self._waiting:
                self._moved.wait(0.1)
            epoch = self._waiting.popleft() if self._waiting else None
            self._moved.notify_all()
            return epoch

    def _write(self, epoch: SinkEpoch) -> None:
        backoff, number = Backoff(*RETRY_S), epoch.progress.epoch
        is_unknown = False
        held_bytes = epoch.rows.nbytes()
        epoch = epoch.without(self._left_out) if self._left_out else epoch
        while not self._stopping.is_set():
            try:
                if is_unknown and self._is_in_sink(number):
                    break
                self._sink.write(epoch)
                break
            except TidemarkError as error:
                if error.relation is not None and not error.is_temporary:
                    epoch = epoch.refused(error)
                    self.leave_out([error.relation])
                    if self.on_refused is not None:
                        self.on_refused(error.relation)
                    self._refusals.put(error)
                    continue
                if not error.is_temporary or isinstance(error, SinkChanged):
                    raise
                is_unknown = True
                self._metrics.sink_error = str(error)
                pause_s = backoff.next_s()
                log.warning("sink.retry", epoch=number, code=error.code, pause_s=pause_s)
                self._stopping.wait(pause_s)
        else:
            return
        failpoint("sink.written.before")
        self._metrics.sink_error = ""
        self._metrics.epoch_written(epoch)
        with self._moved:
            self._held_bytes -= held_bytes
            self._written = number
            self._moved.notify_all()
        if self.on_written is not None:
            self.on_written()

    def _is_in_sink(self, number: int) -> bool:
        progress = self._sink.read_progress()
        return progress is not None and progress.epoch >= number
