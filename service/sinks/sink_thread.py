"""Threads that call additional sinks: asked to end, waited for within bounds, then abandoned.

Invariant: the pipeline's thread never waits longer than PATIENCE_S for a sink, and never calls one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from connectors.view_sink import ViewSink
from dataflow.errors import TidemarkError, described
from service.runtime.log import log
from service.runtime.runtime import Event, Runtime, Thread

# How long the pipeline's thread waits for a thread that it has asked to end.
PATIENCE_S = 0.1
# One that was asked to end has so long before others begin without waiting for it.
ABANDON_S = 10.0
# At shutdown, all threads together have so long to end.
END_S = 3.0
_CHECK_S = 0.2


class SinkThread:
    """The one thread that uses a sink, and its end.

    stopping: set once it is to end. on_stop: wakes it then, if it waits for anything else.
    """

    def __init__(
        self,
        title: str,
        sink: ViewSink,
        runtime: Runtime,
        on_stop: Callable[[], None] = lambda: None,
    ) -> None:
        self.title = title
        self.stopping: Event = runtime.event()
        self._sink = sink
        self._runtime = runtime
        self._on_stop = on_stop
        self._thread: Thread | None = None
        self._stopped_at: float | None = None

    def start(self, run: Callable[[], None], name: str) -> None:
        """Start the thread, if it was not started."""
        if self._thread is None:
            self._thread = self._runtime.begin(run, name)

    def stop(self) -> None:
        """Ask it to end, without waiting; a call of the sink is interrupted from another thread.

        What is in flight then is resolved by whatever opens the sink next.
        """
        if self.stopping.is_set():
            return
        self._stopped_at = self._runtime.monotonic()
        self.stopping.set()
        self._on_stop()
        if not self.has_ended:
            self._runtime.begin(self._interrupt, f"interrupt {self.title}")

    def _interrupt(self) -> None:
        try:
            self._sink.interrupt()
        except Exception as error:
            code = error.code if isinstance(error, TidemarkError) else "sink.internal"
            log.warning("sink.uninterrupted", sink=self.title, code=code, why=described(error))

    @property
    def has_ended(self) -> bool:
        """Return whether nothing uses the sink any more."""
        return self._thread is None or not self._thread.is_alive()

    @property
    def is_abandoned(self) -> bool:
        """Return whether it was asked to end too long ago to be waited for."""
        if self.has_ended or self._stopped_at is None:
            return False
        return self._runtime.monotonic() - self._stopped_at > ABANDON_S

    def await_end(self, timeout_s: float, unless: Event | None = None) -> bool:
        """Wait for its end, at most so long, or until `unless` is set; return whether it has
        ended.
        """
        left_s = timeout_s
        while left_s > 0 and not (self.has_ended or (unless is not None and unless.is_set())):
            assert self._thread is not None
            self._thread.join(min(left_s, _CHECK_S))
            left_s -= _CHECK_S
        return self.has_ended


class EndingThreads:
    """Threads that were asked to end, by the identity of their sink, until they have."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._threads: dict[str, list[SinkThread]] = {}
        self._reported: set[SinkThread] = set()

    def add(self, identity: str, thread: SinkThread) -> None:
        """Ask a thread to end; wait PATIENCE_S for it, then follow its end."""
        thread.stop()
        if not thread.await_end(PATIENCE_S):
            self._threads.setdefault(identity, []).append(thread)

    def of(self, identity: str) -> list[SinkThread]:
        """Return the threads of a sink that have not ended."""
        self._forget_ended()
        return list(self._threads.get(identity, ()))

    def abandoned(self) -> int:
        """Return how many are not waited for any more; log each of them once."""
        self._forget_ended()
        running = [thread for threads in self._threads.values() for thread in threads]
        self._reported &= set(running)
        found = {thread for thread in running if thread.is_abandoned}
        for thread in found - self._reported:
            log.warning("sink.abandoned", sink=thread.title, code="sink.stuck")
        self._reported |= found
        return len(found)

    def close(self, others: Iterable[SinkThread]) -> None:
        """Ask these others to end too; wait for all together, at most END_S seconds."""
        running = [thread for threads in self._threads.values() for thread in threads]
        running += others
        for thread in running:
            thread.stop()
        deadline = self._runtime.monotonic() + END_S
        for thread in running:
            if not thread.await_end(max(0.0, deadline - self._runtime.monotonic())):
                log.warning("sink.abandoned", sink=thread.title, code="sink.stuck")

    def _forget_ended(self) -> None:
        for identity, threads in list(self._threads.items()):
            left = [thread for thread in threads if not thread.has_ended]
            if left:
                self._threads[identity] = left
            else:
                del self._threads[identity]
