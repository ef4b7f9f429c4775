"""The pipeline's side of the source: one stream for all views, opened anew when they change.

PostgreSQL tells nobody that a table was dropped or taken out of a publication: that is looked up
from time to time. Errors are passed on; one that names a relation leaves the stream closed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from connectors.postgres.replication import ReplicationStream, StreamLimits
from connectors.postgres.source import PostgresSource
from connectors.source import SourceBatch
from dataflow.errors import TidemarkError
from dataflow.schema import Relation
from service.log import log
from service.reads import Read, all_read

WATCH_S = 10.0
Identity = Callable[[], tuple[object, ...] | None]


class Feed:
    """At most one open stream. identity: the server that the state was built from; limits: the
    memory of the stream."""

    def __init__(
        self, source: PostgresSource, identity: Identity, limits: StreamLimits | None = None
    ) -> None:
        self._source = source
        self._limits = limits
        self._identity = identity
        self._stream: ReplicationStream | None = None
        self._relations: list[Relation] = []
        self._watched_at = 0.0
        self._woken = threading.Event()

    @property
    def is_open(self) -> bool:
        """Whether there is something to poll."""
        return self._stream is not None

    @property
    def received_position(self) -> int:
        """How far the server has sent; 0 when no stream is open."""
        return 0 if self._stream is None else self._stream.received_position

    def open(self, position: int, reads: Iterable[Read]) -> None:
        """Stream everything after `position` that is read, instead of what was streamed."""
        self.close()
        self._relations = all_read(reads)
        self._stream = self._source.stream(
            position,
            self._relations,
            identity=self._identity(),
            takes_over=True,
            limits=self._limits,
        )
        self._watched_at = time.monotonic()

    def narrow(self, reads: Iterable[Read]) -> None:
        """Some of what is streamed is no longer read: it may go without notice."""
        self._relations = all_read(reads)

    def poll(self, rows: int, timeout_s: float, until: int | None) -> SourceBatch | None:
        """The next whole transactions; see ReplicationStream.poll."""
        assert self._stream is not None
        try:
            self._watch()
            return self._stream.poll(rows, timeout_s, until=until)
        except TidemarkError as error:
            if error.relation is not None:
                self.close()
            raise

    def wake(self) -> None:
        """End a `poll` or `await_wake` early; from any thread."""
        self._woken.set()
        stream = self._stream
        if stream is not None:
            stream.wake()

    def await_wake(self, timeout_s: float) -> None:
        """Sleep where no stream is open."""
        self._woken.wait(timeout_s)
        self._woken.clear()

    def confirm(self, position: int) -> None:
        """The source may forget what lies before."""
        if self._stream is not None and position:
            self._stream.confirm(position)

    def close(self) -> None:
        """End the stream, if one is open."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def _watch(self) -> None:
        now = time.monotonic()
        if now - self._watched_at < WATCH_S:
            return
        self._watched_at = now
        try:
            self._source.require_watched(self._relations)
        except TidemarkError as error:
            if not error.is_temporary:
                raise
            log.warning("source.watch_retry", code=error.code)
