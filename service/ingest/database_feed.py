"""The pipeline's side of the source: one stream for all views, opened anew when they change.

PostgreSQL tells nobody that a table was changed, dropped or taken out of a publication: that is
looked up, before anything is decoded and from time to time. Errors are passed on; one that names a
relation leaves the stream closed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from connectors.postgres.replication.stream import ReplicationStream, StreamLimits
from connectors.postgres.source import PostgresSource
from connectors.source import SourceBatch
from dataflow.errors import TidemarkError
from dataflow.schema import Relation
from service.engine.column_requirements import Read, all_read
from service.ingest.table_watch import SourceWatch
from service.runtime.log import log
from service.runtime.runtime import RUNTIME, Runtime

WATCH_S = 1.0
# The server is asked for a sign of life every second or two.
HEARD_S = 5.0


class Memory(Protocol):
    """What is remembered of the server that the state was built from."""

    def source_identity(self) -> tuple[object, ...] | None:
        """Its identity; None before the first view."""
        ...

    def remember_source(self) -> None:
        """From now on it is the one that is there now."""
        ...


class Feed:
    """At most one open stream. memory: of the server that the state was built from; watch: on the
    tables that are streamed; limits: the memory of the stream."""

    def __init__(
        self,
        source: PostgresSource,
        memory: Memory,
        watch: SourceWatch,
        limits: StreamLimits | None = None,
        *,
        host: Runtime = RUNTIME,
    ) -> None:
        self._source = source
        self._host = host
        self._limits = limits
        self._memory = memory
        self._stream: ReplicationStream | None = None
        self._followed: list[object] = []
        self._opened_for: set[object] = set()
        self._watch = watch
        self._watched_at = 0.0
        self._woken = host.event()

    @property
    def is_open(self) -> bool:
        """Whether there is something to poll."""
        return self._stream is not None

    @property
    def received_position(self) -> int:
        """How far the server has sent; 0 when no stream is open."""
        return 0 if self._stream is None else self._stream.received_position

    @property
    def silent_s(self) -> float:
        """How long the server has given no sign of life, where it should have; else 0."""
        silent_s = 0.0 if self._stream is None else self._stream.silent_s
        return silent_s if silent_s > HEARD_S else 0.0

    def open(self, position: int, reads: Iterable[Read], shown: int = 0) -> None:
        """Stream everything after `position` that is read, instead of what was streamed. shown:
        up to where the sink has everything, where that is further on."""
        self.close()
        reads = list(reads)
        self._opened_for = _distinct(reads)
        relations = all_read(reads)
        self._stream = self._source.stream(
            position,
            relations,
            identity=self._memory.source_identity(),
            on_promoted=self._follow_promoted,
            shown=shown,
            takes_over=True,
            limits=self._limits,
            shapes=self._watch.shapes,
            refresh=self._look,
        )
        self._watched_at = self._host.monotonic()
        try:
            # Not before it is known to be the right server.
            self._watch.tells = self._stream.has_truncation
            self._watch.follow(relations)
        except TidemarkError:
            self.close()
            raise
        self._followed = _numbered(relations)

    def follows(self, reads: Iterable[Read]) -> bool:
        """Whether what is streamed is just this, so that nothing need be opened anew."""
        return self._stream is not None and _numbered(all_read(reads)) == self._followed

    def was_opened_for(self, reads: Iterable[Read]) -> bool:
        """Whether the stream, be it closed by now, was opened for just this."""
        return _distinct(reads) == self._opened_for

    def narrow(self, reads: Iterable[Read]) -> None:
        """Some of what is streamed is no longer read: it may go without notice."""
        self._followed = []
        self._watch.narrow(all_read(reads))

    def poll(self, rows: int, timeout_s: float, until: int | None) -> SourceBatch | None:
        """The next whole transactions; see ReplicationStream.poll."""
        assert self._stream is not None
        try:
            self._look_if_due()
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
        self._followed = []
        self._watch.tells = None
        if stream is not None:
            stream.close()

    def _follow_promoted(self) -> None:
        self._memory.remember_source()
        log.warning("source.promoted")

    def _look(self) -> None:
        self._watched_at = self._host.monotonic()
        self._watch.look()

    def _look_if_due(self) -> None:
        """A table may change while nothing is told."""
        if self._host.monotonic() - self._watched_at > WATCH_S:
            self._look()


def _distinct(reads: Iterable[Read]) -> set[object]:
    return {(relation, relation.numbers, tuple(columns)) for relation, columns in reads}


def _numbered(relations: Iterable[Relation]) -> list[object]:
    """Columns of the same names may be others."""
    return [(relation, relation.numbers) for relation in relations]
