"""Changes of declared relations after their positions: the stream of one slot.

`poll` never waits: a thread opens the stream and checks the catalog, and the stream's own thread
receives. Invariants: a batch holds whole transactions; none is decoded before the catalog was
checked after its arrival; a relation gets no change before its position, also if another one
begins earlier. Only what `durable` says is confirmed to the server.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from connectors.feed_source import FeedPosition, FeedPositions
from connectors.outside.boundary import bad_answer
from connectors.postgres.remote.options import RemoteOptions
from connectors.postgres.remote.positions import identity_of, lsn_of, position_at
from connectors.postgres.remote.table_watch import Found, RemoteTables, known_of
from connectors.postgres.replication.slot import LOST
from connectors.postgres.replication.stream import ReplicationStream
from connectors.postgres.replication.table_facts import TableCatalog
from connectors.postgres.source import PostgresSource
from connectors.source import SourceBatch
from dataflow.changes import Changes
from dataflow.errors import TidemarkError
from dataflow.schema import Relation

# Changes since the positions are lost.
_GAPS = (*LOST, "source.identity_changed", "source.promoted_behind")
# Positions move at most so often while nothing of the relations changes.
IDLE_S = 1.0
# The catalog is checked so often while nothing arrives.
WATCH_S = 1.0


@dataclass(frozen=True)
class Connection:
    """How a feed reaches its database.

    new_source: of the source's slot and publication. reading: held by the one feed of this process
    that reads the slot.
    """

    name: str
    options: RemoteOptions
    new_source: Callable[[], PostgresSource]
    reading: threading.Lock


class RemoteFeed:
    """A RetainingFeed. Nothing is opened before the first poll."""

    skipped = 0

    def __init__(
        self,
        connection: Connection,
        relations: Sequence[Relation],
        positions: FeedPositions,
        notes: Mapping[str, bytes],
        on_ready: Callable[[], None],
    ) -> None:
        self._name = connection.name
        self._first = relations[0].name
        self._positions = {r.name.name: lsn_of(positions[r.name.name]) for r in relations}
        self._identity = identity_of(positions)
        self._notes: dict[str, bytes | None] = {}
        self._failure: TidemarkError | None = None
        self._emitted_at = 0.0
        self._has_moved = False
        begin = min(self._positions.values())
        self._worker = _Worker(connection, relations, (begin, positions, notes), on_ready)

    @property
    def lag(self) -> int:
        """Rows that have arrived and that no batch has held yet."""
        stream = self._worker.stream
        return 0 if stream is None else stream.queued_rows

    @property
    def has_succeeded(self) -> bool:
        """See SourceFeed: the stream is open, and the catalog was checked."""
        return self._failure is None and self._worker.is_checked

    def poll(self, max_rows: int, *, until: FeedPositions | None = None) -> SourceBatch | None:
        """See SourceFeed."""
        if self._failure is not None:
            raise self._failure
        try:
            return self._poll(max_rows, until)
        except TidemarkError as error:
            if error.code in _GAPS and error.relation is None:
                # What changed meanwhile is unknown: each relation's readers fail, in turn.
                error.relation = self._first
            self._failure = error
            raise

    def durable(self, position: FeedPosition) -> None:
        """See RetainingFeed."""
        stream = self._worker.stream
        if stream is not None:
            stream.confirm(min(stream.position, lsn_of(position)))

    def close(self) -> None:
        """End the thread and the stream, without waiting for them."""
        self._worker.close()

    def _poll(self, max_rows: int, until: FeedPositions | None) -> SourceBatch | None:
        stream, tables, checked = self._worker.take()
        if stream is None or tables is None:
            return None
        self._identity = self._worker.identity or self._identity
        for found in checked.found:
            self._notes.update(tables.accept(found))
        batch = stream.poll(max_rows, 0.0, until=self._limit(stream, checked.position, until))
        if batch is None:
            return self._idle_batch(until)
        before = self._positions
        self._positions = {n: max(lsn, batch.position) for n, lsn in before.items()}
        self._has_moved |= self._positions != before
        self._notes.update(tables.passed(batch.position))
        convert = _Converter(tables.declared, {n for n, p in before.items() if p < batch.position})
        changes, later = convert(batch.changes), batch.later
        if not (changes or later is not None):
            return self._idle_batch(until)
        return replace(
            self._emitted(until),
            changes=changes,
            transactions=batch.transactions,
            rows=batch.rows,
            commit_time_us=batch.commit_time_us,
            last_commit=batch.last_commit,
            later=None if later is None else map(convert, later),
        )

    def _limit(self, stream: ReplicationStream, checked: int, until: FeedPositions | None) -> int:
        """Return the position that a batch must not pass: no relation begins within a batch."""
        limits = [checked, *(p for p in self._positions.values() if p > stream.position)]
        limits += [lsn_of(p) for name, p in (until or {}).items() if name in self._positions]
        return min(limits)

    def _idle_batch(self, until: FeedPositions | None) -> SourceBatch | None:
        """Return the positions alone, now and then; always during recovery, which awaits them."""
        is_due = until is not None or time.monotonic() - self._emitted_at >= IDLE_S
        return self._emitted(until) if (self._has_moved or self._notes) and is_due else None

    def _emitted(self, until: FeedPositions | None) -> SourceBatch:
        self._emitted_at, self._has_moved = time.monotonic(), False
        notes, self._notes = self._notes, {}
        positions = {n: position_at(p, self._identity) for n, p in self._positions.items()}
        for name, position in (until or {}).items():
            # Recovery awaits this very position, also on a server that was promoted since.
            if self._positions.get(name) == lsn_of(position):
                positions[name] = position
        return SourceBatch(0, [], 0, 0, source=self._name, positions=positions, notes=notes)


class _Converter:
    """Changes of wire relations as those of the declared ones. names: those that begin before."""

    def __init__(self, declared: Mapping[int, Relation], names: set[str]) -> None:
        self._declared = declared
        self._names = names

    def __call__(self, changes: Sequence[Changes]) -> list[Changes]:
        found = []
        for one in changes:
            relation = self._declared[one.relation.oid]
            if relation.name.name in self._names:
                found.append(replace(one, relation=relation))
        return found


@dataclass(frozen=True)
class _Checked:
    """Up to where the catalog was checked, and what that found since the last `take`."""

    position: int
    found: tuple[Found, ...] = ()


# What a stream begins with: the position in the WAL, the relations' positions, the state's notes.
Begin = tuple[int, FeedPositions, Mapping[str, bytes]]


class _Worker:
    """The thread that opens the stream, then checks the catalog on request; it also closes all.

    identity: of the server, once the stream is open.
    """

    def __init__(
        self,
        connection: Connection,
        relations: Sequence[Relation],
        begin: Begin,
        on_ready: Callable[[], None],
    ) -> None:
        self.stream: ReplicationStream | None = None
        self.identity = identity_of(begin[1])
        self._connection = connection
        self._relations = relations
        self._begin = begin
        self._on_ready = on_ready
        self._changed = threading.Condition()
        self._tables: RemoteTables | None = None
        self._checked = _Checked(0)
        self._error: TidemarkError | None = None
        self._is_requested = self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="postgres-feed", daemon=True)
        self._thread.start()

    def take(self) -> tuple[ReplicationStream | None, RemoteTables | None, _Checked]:
        """Return (stream, tables, what was checked); None before they are open. Raise the error of
        the thread.
        """
        with self._changed:
            if self._error is not None:
                raise self._error
            checked = self._checked
            self._checked = _Checked(checked.position)
            if checked.found:
                self._changed.notify_all()
            return self.stream, self._tables, checked

    @property
    def is_checked(self) -> bool:
        """Return True if the stream is open, the catalog was checked, and nothing has failed."""
        return self._checked.position > 0 and self._error is None

    def request(self) -> None:
        """Check the catalog for what has arrived; from any thread."""
        with self._changed:
            self._is_requested = True
            self._changed.notify_all()

    def close(self) -> None:
        """End the thread; it closes the stream."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            with self._connection.reading:
                if not self._is_closed:
                    self._read()
        except TidemarkError as error:
            self._fail(error)
        except Exception as error:
            self._fail(bad_answer("source", self._connection.name, error))

    def _read(self) -> None:
        source = self._connection.new_source()
        catalog = source.tables()
        stream: ReplicationStream | None = None
        try:
            tables = self._known_tables(catalog)
            lsn, positions, _ = self._begin
            identity = identity_of(positions)
            stream = source.stream(
                lsn,
                tables.wires,
                identity=identity,
                takes_over=True,
                limits=self._connection.options.limits(),
                shapes=tables.shapes,
                shown=max(map(lsn_of, positions.values())),
                on_promoted=lambda: setattr(self, "identity", source.identity()),
            )
            stream.on_received = self.request
            with self._changed:
                self.stream, self._tables = stream, tables
            self._watch(stream, tables)
        finally:
            if stream is not None:
                stream.close()
            catalog.close()
            source.close()

    def _known_tables(self, catalog: TableCatalog) -> RemoteTables:
        known = {}
        for relation in self._relations:
            table = known_of(self._begin[2], relation.name.name)
            assert table is not None, "the state has a note of every relation that it reads"
            known[relation.name.name] = table
        return RemoteTables(self._connection.options, self._relations, known, catalog)

    def _watch(self, stream: ReplicationStream, tables: RemoteTables) -> None:
        while not self._is_closed:
            # Everything that has arrived was committed before the check.
            position = stream.received_position
            found = tables.check(stream.has_truncation)
            with self._changed:
                more = () if found is None else (found,)
                self._checked = _Checked(position, (*self._checked.found, *more))
            self._on_ready()
            with self._changed:
                # The next check compares with what was taken; each that finds something writes.
                self._changed.wait_for(lambda: not self._checked.found or self._is_closed)
                self._changed.wait_for(lambda: self._is_requested or self._is_closed, WATCH_S)
                self._is_requested = False

    def _fail(self, error: TidemarkError) -> None:
        with self._changed:
            self._error = error
        self._on_ready()
