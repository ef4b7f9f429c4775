"""Changes of tables after their positions: a thread reads the log, the poller decodes columns.

Invariant: a batch holds whole transactions, and its positions are those after the last of them.
What was read ahead and not handed out is read again by the next feed. buffer_bytes bounds the
memory; a larger transaction is in a file and is delivered in parts. Threads: `poll` and `close`
belong to the pipeline's thread, `_ReadAhead` owns the connection.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from connectors.feed_source import REJECTED_KINDS, FeedPositions
from connectors.mysql.charsets import Charsets
from connectors.mysql.images import ImageReader, RowImages, alike, truncation
from connectors.mysql.log import LogReader, LogRequest
from connectors.mysql.options import FAIL, SKIP, MySqlOptions
from connectors.mysql.positions import Gtid, LogPosition, earliest
from connectors.mysql.resume import is_by_gtid, watched
from connectors.mysql.server import Server
from connectors.mysql.shapes import Shape
from connectors.mysql.statements import Watched
from connectors.mysql.transactions import TRUNCATE, RowEvent, Transaction
from connectors.outside.boundary import bad_answer
from connectors.source import SourceBatch
from dataflow.changes import Changes
from dataflow.delta import Delta
from dataflow.errors import TidemarkError
from dataflow.schema import Relation, RelationName

# Images of a large transaction that are decoded at once.
CHUNK_IMAGES = 20_000
# Positions move at most so often while nothing of the watched tables changes.
IDLE_S = 1.0
_EMPTY_BYTES = 200


@dataclass
class _Relation:
    """A relation that is read. until: it never passes this position."""

    images: ImageReader
    position: LogPosition

    @property
    def name(self) -> str:
        return self.images.relation.name.name


@dataclass(frozen=True)
class _Passed:
    """A transaction, and the relations that it changes and that have not passed it before."""

    transaction: Transaction
    names: frozenset[RelationName]


class MySqlFeed:
    """A SourceFeed. Nothing is opened before the first poll."""

    def __init__(
        self,
        source: str,
        options: MySqlOptions,
        relations: Sequence[Relation],
        positions: FeedPositions,
        on_ready: Callable[[], None],
    ) -> None:
        self.skipped = 0
        self._source = source
        self._options = options
        self._on_ready = on_ready
        self._relations = {
            one.name: _Relation(
                ImageReader(one, options.table_of(one.name.name)),
                LogPosition.of(positions[one.name.name]),
            )
            for one in relations
        }
        self._ahead: _ReadAhead | None = None
        self._until: FeedPositions | None = None
        self._failure: TidemarkError | None = None
        self._emitted_at = 0.0
        self._has_moved = self._has_emitted = False
        # Transactions that wait: until all relations are at one position, or a large one.
        self._unaligned: list[Transaction] = []

    @property
    def lag(self) -> int:
        """Rows that were read and that no batch has held yet."""
        return 0 if self._ahead is None else self._ahead.waiting

    @property
    def has_succeeded(self) -> bool:
        """See SourceFeed: a transaction was passed, or the log has none."""
        is_read = self._ahead is not None and self._ahead.is_at_end and not self._ahead.waiting
        return self._failure is None and (self._has_emitted or is_read)

    def poll(self, max_rows: int, *, until: FeedPositions | None = None) -> SourceBatch | None:
        """See SourceFeed."""
        if self._failure is not None:
            raise self._failure
        if self._ahead is None or until != self._until:
            self._read_from_here(until)
        assert self._ahead is not None
        # Known before the buffer is found empty.
        is_at_end = self._ahead.is_at_end
        transactions, self._unaligned = self._unaligned, []
        if not (transactions and transactions[0].is_large):
            transactions += self._ahead.take(max_rows)
        if transactions and not is_at_end and self._awaits_more(transactions):
            self._unaligned = transactions
            return None
        if len(transactions) > 1 and transactions[-1].is_large:
            # It is delivered alone, in parts.
            self._unaligned = [transactions.pop()]
        return self._batch(transactions) if transactions else self._idle_batch()

    def close(self) -> None:
        """End the thread; what was read ahead is dropped."""
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None

    def _awaits_more(self, transactions: Sequence[Transaction]) -> bool:
        """Return True until all relations are at one position, so that no view shows two.

        Relations that were added lately begin at the end of the log. More than the buffer may hold
        does not wait.
        """
        order = max(one.position.order for one in self._relations.values())
        last = transactions[-1]
        if all(one.position.order == order for one in self._relations.values()):
            return False
        if last.end.order >= order or any(one.is_large for one in transactions):
            return False
        return sum(one.nbytes for one in transactions) < self._options.buffer_bytes

    def _read_from_here(self, until: FeedPositions | None) -> None:
        self.close()
        self._unaligned = []
        self._until = until
        begin = earliest([one.position for one in self._relations.values()])
        relations = [one.images.relation for one in self._relations.values()]
        checks = {name: one.images.check for name, one in self._relations.items()}
        request = LogRequest(
            begin,
            watched(relations, self._options),
            server_id=self._options.server_id,
            max_bytes=self._options.buffer_bytes // 2,
        )
        positions = [one.position for one in self._relations.values()]
        self._ahead = _ReadAhead(
            self._source, self._options, request, _Events(positions, checks, self._on_ready)
        )

    # --- batches -------------------------------------------------------------------------------

    def _batch(self, transactions: Sequence[Transaction]) -> SourceBatch | None:
        assert self._ahead is not None
        passed, positions = self._passed(transactions)
        if transactions[0].is_large:
            return self._large_batch(passed[0], positions)
        changes, rejected, failed = self._decoded(passed)
        if failed is not None:
            number, self._failure = failed
            passed, positions = self._passed(transactions[:number])
            changes, rejected, _ = self._decoded(passed)
            if not passed:
                raise self._failure
        self._has_emitted = True
        self._move(positions)
        if not changes and not rejected:
            return self._idle_batch()
        count = sum(bool(one.names) for one in passed)
        return self._emitted(changes, rejected, count, passed[-1].transaction.time_us)

    def _large_batch(
        self, passed: _Passed, positions: Mapping[RelationName, LogPosition]
    ) -> SourceBatch | None:
        """Return a transaction whose changes are decoded while they are read.

        Its rows are checked first: nothing of it may be applied before a bad row is found.
        """
        rejected: list[Any] = []
        for events in _in_chunks(passed):
            _, more, failed = self._decoded_events(events, passed.transaction)
            if failed is not None:
                raise failed
            rejected += more
        self._has_emitted = True
        self._move(positions)
        if not passed.names:
            passed.transaction.close()
            return self._idle_batch()
        batch = self._emitted([], rejected, 1, passed.transaction.time_us)
        batch.rows = passed.transaction.count
        batch.later = self._later(passed)
        return batch

    def _later(self, passed: _Passed) -> Iterator[list[Changes]]:
        try:
            for events in _in_chunks(passed):
                changes, _, failed = self._decoded_events(events, passed.transaction)
                assert failed is None, "a transaction is checked before it is applied"
                if changes:
                    yield changes
        finally:
            passed.transaction.close()

    def _idle_batch(self) -> SourceBatch | None:
        """Return the positions alone, now and then; always during recovery, which awaits them."""
        is_due = self._until is not None or time.monotonic() - self._emitted_at >= IDLE_S
        return self._emitted([], [], 0, 0) if self._has_moved and is_due else None

    def _emitted(
        self, changes: list[Changes], rejected: list[Any], transactions: int, time_us: int
    ) -> SourceBatch:
        self._emitted_at, self._has_moved = time.monotonic(), False
        return SourceBatch(
            0,
            changes,
            transactions,
            sum(map(len, changes)),
            commit_time_us=time_us,
            source=self._source,
            positions={one.name: one.position.as_json() for one in self._relations.values()},
            rejected=Delta.of(REJECTED_KINDS, rejected, 1) if rejected else None,
        )

    def _move(self, positions: Mapping[RelationName, LogPosition]) -> None:
        for name, position in positions.items():
            self._has_moved |= position != self._relations[name].position
            self._relations[name].position = position

    def _passed(
        self, transactions: Sequence[Transaction]
    ) -> tuple[list[_Passed], dict[RelationName, LogPosition]]:
        """Return what each transaction changes, and the positions after the last one."""
        assert self._ahead is not None
        positions = {name: one.position for name, one in self._relations.items()}
        found = []
        for transaction in transactions:
            gtid = transaction.gtid if self._ahead.is_by_gtid else None
            names = set()
            for name, position in positions.items():
                if position.has(transaction.end, gtid) or self._is_beyond(name, transaction, gtid):
                    continue
                names.add(name)
                positions[name] = _after(position, transaction)
            if transaction.is_empty:
                changed = frozenset()
            else:
                changed = frozenset(e.relation for e in transaction.events()) & names
            found.append(_Passed(transaction, changed))
        return found, positions

    def _is_beyond(self, name: RelationName, transaction: Transaction, gtid: Gtid | None) -> bool:
        if self._until is None:
            return False
        end = self._until.get(name.name)
        # A relation that `until` lacks has no changes before it.
        return end is None or not LogPosition.of(end).has(transaction.end, gtid)

    # --- decoding ------------------------------------------------------------------------------

    def _decoded(
        self, passed: Sequence[_Passed]
    ) -> tuple[list[Changes], list[Any], tuple[int, TidemarkError] | None]:
        """Return (changes, rejected rows, the first transaction that cannot be passed and why)."""
        by_relation: dict[RelationName, list[tuple[int, RowEvent]]] = {}
        for number, one in enumerate(passed):
            if one.names:
                for event in one.transaction.events():
                    if event.relation in one.names:
                        by_relation.setdefault(event.relation, []).append((number, event))
        changes: list[Changes] = []
        rejected: list[Any] = []
        failed: tuple[int, TidemarkError] | None = None
        for name, numbered in by_relation.items():
            owners = [number for number, event in numbered for _ in range(event.count or 1)]
            done = 0
            for run in alike([event for _, event in numbered]):
                images = self._images(name, run)
                size = 1 if images is None else len(images)
                own = owners[done : done + size]
                done += size
                if images is None:
                    relation = self._relations[name].images.relation
                    changes += [truncation(relation) for _ in run]
                    done += len(run) - 1
                    continue
                places = [str(passed[number].transaction.end) for number in own]
                rows, error = self._faults(name, images, places)
                rejected += rows
                if error is not None and (failed is None or own[error[0]] < failed[0]):
                    failed = own[error[0]], error[1]
                changed = images.changes()
                if len(changed):
                    changes.append(changed)
        return changes, rejected, failed

    def _decoded_events(
        self, events: Sequence[RowEvent], transaction: Transaction
    ) -> tuple[list[Changes], list[Any], TidemarkError | None]:
        """Return (changes, rejected rows, why the transaction cannot be passed) of a chunk."""
        alone = Transaction(transaction.end, transaction.gtid)
        for event in events:
            alone.add(event, 1 << 62)
        names = frozenset(event.relation for event in events)
        changes, rejected, failed = self._decoded([_Passed(alone, names)])
        return changes, rejected, None if failed is None else failed[1]

    def _images(self, name: RelationName, run: Sequence[RowEvent]) -> RowImages | None:
        assert self._ahead is not None
        if run[0].kind == TRUNCATE:
            return None
        return self._relations[name].images.read(run, self._ahead.charsets)

    def _faults(
        self, name: RelationName, images: RowImages, places: Sequence[str]
    ) -> tuple[list[Any], tuple[int, TidemarkError] | None]:
        """Return (rejected rows, (image, error) that stops the source)."""
        reader = self._relations[name].images
        bad = images.reported()
        if not bad:
            return [], None
        policy = reader.options.on_error
        if policy == FAIL:
            return [], (bad[0].image, reader.refusal(bad[0], places[bad[0].image]))
        if policy == SKIP:
            self.skipped += len(bad)
            return [], None
        return [row for b in bad for row in reader.rejected(images, [b], places[b.image])], None


@dataclass(frozen=True)
class _Events:
    """What the thread is given: the positions to begin at, and callbacks."""

    positions: Sequence[LogPosition]
    checks: Mapping[RelationName, Callable[[Shape], None]]
    on_ready: Callable[[], None]


class _ReadAhead:
    """The thread that reads ahead, and its buffer.

    waiting: images in the buffer. is_at_end: all of the log is in the buffer, or was.
    """

    def __init__(
        self, source: str, options: MySqlOptions, request: LogRequest, events: _Events
    ) -> None:
        self.waiting = 0
        self.is_at_end = False
        self.is_by_gtid = False
        self._source = source
        self._options = options
        self._request = request
        self._events = events
        self._changed = threading.Condition()
        self._found: deque[Transaction] = deque()
        self._bytes = 0
        self._ready_at = 0.0
        self._error: TidemarkError | None = None
        self._is_closed = False
        self._server: Server | None = None
        self._reader: LogReader | None = None
        self._thread = threading.Thread(target=self._run, name="mysql-feed", daemon=True)
        self._thread.start()

    @property
    def charsets(self) -> Charsets:
        """The character sets of the server; known with its first transaction."""
        assert self._reader is not None
        return self._reader.charsets

    def take(self, max_rows: int) -> list[Transaction]:
        """Return transactions with about max_rows images; a large one is alone. Raise the thread's
        error after the last one.
        """
        with self._changed:
            found: list[Transaction] = []
            rows = 0
            while self._found and rows < max_rows:
                if found and self._found[0].is_large:
                    break
                found.append(self._found.popleft())
                rows += found[-1].count
                self._bytes -= found[-1].nbytes + _EMPTY_BYTES
                if found[-1].is_large:
                    break
            self.waiting -= rows
            if not found and self._error is not None:
                raise self._error
            self._changed.notify()
        return found

    def close(self) -> None:
        """Stop the thread and wait for it."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
            reader, server = self._reader, self._server
        if server is not None:
            server.abort()
        if reader is not None:
            reader.close()
        self._thread.join()
        for transaction in self._found:
            transaction.close()

    def _run(self) -> None:
        try:
            self._read()
        except TidemarkError as error:
            self._fail(error)
        except Exception as error:
            self._fail(bad_answer("source", self._source, error))

    def _read(self) -> None:
        login = self._options.login
        with Server(login, self._source) as server:
            self._server = server
            self.is_by_gtid = is_by_gtid(server, self._events.positions)
        request = LogRequest(**{**vars(self._request), "is_by_gtid": self.is_by_gtid})
        reader = LogReader(
            login,
            self._source,
            request,
            self._put,
            on_shape=self._check,
            beat=self._note_end,
        )
        with self._changed:
            self._reader = reader
            if self._is_closed:
                return
        reader.run()

    def _note_end(self) -> None:
        self.is_at_end = True
        self._events.on_ready()

    def _check(self, watched: Watched, shape: Shape) -> None:
        self._events.checks[watched.relation](shape)

    def _put(self, transaction: Transaction) -> None:
        """Put a transaction into the buffer once it has space."""
        with self._changed:
            while self._bytes >= self._options.buffer_bytes and not self._is_closed:
                self._changed.wait()
            was_empty = not self._found
            self.is_at_end = False
            self._found.append(transaction)
            self._bytes += transaction.nbytes + _EMPTY_BYTES
            self.waiting += transaction.count
        is_due = not transaction.is_empty or time.monotonic() - self._ready_at >= IDLE_S
        if is_due and (was_empty or not transaction.is_empty):
            self._ready_at = time.monotonic()
            self._events.on_ready()

    def _fail(self, error: TidemarkError) -> None:
        with self._changed:
            self._error = error
        self._events.on_ready()


def _after(position: LogPosition, transaction: Transaction) -> LogPosition:
    end, gtid = transaction.end, transaction.gtid
    gtids = position.gtids if gtid is None else position.gtids.plus(gtid)
    return LogPosition(end.file, end.offset, gtids, end.server)


def _in_chunks(passed: _Passed) -> Iterator[list[RowEvent]]:
    chunk: list[RowEvent] = []
    count = 0
    for event in passed.transaction.events():
        if event.relation not in passed.names:
            continue
        chunk.append(event)
        count += event.count
        if count >= CHUNK_IMAGES:
            yield chunk
            chunk, count = [], 0
    if chunk:
        yield chunk
