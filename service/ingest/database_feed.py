"""The pipeline's feed from the source database: one stream for all views, reopened when they
change.

PostgreSQL does not report that a table was changed, dropped or removed from a publication. So the
feed checks that before it decodes anything, and periodically. Errors are passed on; an error that
names a relation leaves the stream closed.
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
# The server is probed for a sign of life every second or two.
HEARD_S = 5.0


class Memory(Protocol):
    """The identity of the server that the state was built from."""

    def source_identity(self) -> tuple[object, ...] | None:
        """Return its identity; None before the first view."""
        ...

    def remember_source(self) -> None:
        """Replace it by the current server's."""
        ...


class Feed:
    """At most one open stream.

    memory: identity of the server that the state was built from. watch: watches the streamed
    tables. limits: memory of the stream.
    """

    def __init__(
        self,
        source: PostgresSource,
        memory: Memory,
        watch: SourceWatch,
        limits: StreamLimits | None = None,
        *,
        runtime: Runtime = RUNTIME,
    ) -> None:
        self._source = source
        self._runtime = runtime
        self._limits = limits
        self._memory = memory
        self._stream: ReplicationStream | None = None
        self._followed: list[object] = []
        self._opened_for: set[object] = set()
        self._watch = watch
        self._watched_at = 0.0
        self._woken = runtime.event()

    @property
    def is_open(self) -> bool:
        """Return True if a stream is open."""
        return self._stream is not None

    @property
    def received_position(self) -> int:
        """Return how far the server has sent; 0 if no stream is open."""
        return 0 if self._stream is None else self._stream.received_position

    @property
    def silent_s(self) -> float:
        """Return how long the server has been silent although it was probed; else 0."""
        silent_s = 0.0 if self._stream is None else self._stream.silent_s
        return silent_s if silent_s > HEARD_S else 0.0

    def open(self, position: int, reads: Iterable[Read], shown: int = 0) -> None:
        """Stream all changes after `position` that `reads` needs; close the previous stream.

        shown: the position up to which the sink has everything, if that is later.
        """
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
            refresh=self._refresh,
        )
        self._watched_at = self._runtime.monotonic()
        try:
            # Only once the server is known to be the right one.
            self._watch.reports_truncation = self._stream.has_truncation
            self._watch.follow(relations)
        except TidemarkError:
            self.close()
            raise
        self._followed = _numbered(relations)

    def follows(self, reads: Iterable[Read]) -> bool:
        """Return True if the stream matches these reads exactly, so that it can stay open."""
        return self._stream is not None and _numbered(all_read(reads)) == self._followed

    def was_opened_for(self, reads: Iterable[Read]) -> bool:
        """Return True if the stream, even if closed since, was opened for exactly these reads."""
        return _distinct(reads) == self._opened_for

    @property
    def is_check_due(self) -> bool:
        """Return True if no stream has the catalog checked, and views need that by now."""
        is_due = self._runtime.monotonic() - self._watched_at > WATCH_S
        return is_due and self._stream is None and self._watch.needs_turns

    def check(self) -> None:
        """Check the catalog; an error closes the stream. TablesChanged, TemporaryError."""
        try:
            self._refresh()
        except TidemarkError:
            self.close()
            raise

    def narrow(self, reads: Iterable[Read]) -> None:
        """Stop watching tables that are no longer read: they may change without an error."""
        self._followed = []
        self._watch.narrow(all_read(reads))

    def poll(self, rows: int, timeout_s: float, until: int | None) -> SourceBatch | None:
        """Return the next whole transactions; see ReplicationStream.poll."""
        assert self._stream is not None
        try:
            self._refresh_if_due()
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
        """Sleep while no stream is open."""
        self._woken.wait(timeout_s)
        self._woken.clear()

    def confirm(self, position: int) -> None:
        """Let the source release WAL before this position."""
        if self._stream is not None and position:
            self._stream.confirm(position)

    def close(self) -> None:
        """Close the stream, if one is open."""
        stream, self._stream = self._stream, None
        self._followed = []
        self._watch.reports_truncation = None
        if stream is not None:
            stream.close()

    def _follow_promoted(self) -> None:
        self._memory.remember_source()
        log.warning("source.promoted")

    def _refresh(self) -> None:
        self._watched_at = self._runtime.monotonic()
        self._watch.refresh()

    def _refresh_if_due(self) -> None:
        """Check the tables periodically: they may change while no rows arrive."""
        if self._runtime.monotonic() - self._watched_at > WATCH_S:
            self._refresh()


def _distinct(reads: Iterable[Read]) -> set[object]:
    return {(relation, relation.numbers, tuple(columns)) for relation, columns in reads}


def _numbered(relations: Iterable[Relation]) -> list[object]:
    """Compare column numbers too: columns of the same names may be different ones."""
    return [(relation, relation.numbers) for relation in relations]
