"""The replication stream: whole transactions in WAL order, each batch with its position.

A reader thread drains the connection, cuts at commits, answers keepalives and sends confirmations;
`poll` takes what has arrived and decodes it. Invariants: a batch ends at a commit; only positions
that the caller confirmed are confirmed; transactions that end at or before the start position do
not reappear. In-progress transactions are not streamed: PostgreSQL spills a big one until its
commit, and so do we.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain, islice

from connectors.postgres.replication.decode import Decoder, truncated_oids
from connectors.postgres.replication.transactions import StreamLimits, Transaction, chunks_of
from connectors.postgres.replication.wal_connection import (
    WalConnection,
    commit_of,
    keepalive_of,
    wal_of,
    xid_of,
)
from connectors.source import SourceBatch
from dataflow.changes import Changes
from dataflow.errors import InvariantError, TemporaryError, TidemarkError
from storage.failpoints import failpoint

_KEEPALIVE, _BEGIN, _COMMIT = ord("k"), ord("B"), ord("C")
_ROWS = frozenset(b"IUDT")
_BUFFERED = frozenset(b"IUDTR")
_TRUNCATE = ord("T")
_DRAIN_PAYLOADS = 1000
_LINGER_S = 0.002
# Keepalives advance the position of a source that is busy elsewhere; more often is no use.
_IDLE_STEP_S = 0.05
_JOIN_S = 10.0
_WAIT_S = 2.0
_TRUNCATIONS = 1000


class ReplicationStream:
    """A running stream; one thread polls. Always close it."""

    def __init__(
        self,
        connection: WalConnection,
        decoder: Decoder,
        start_position: int,
        limits: StreamLimits | None = None,
        refresh: Callable[[], None] | None = None,
    ) -> None:
        """refresh: called when a batch has arrived, before it is decoded; may refuse it."""
        self._connection = connection
        self._refresh = refresh
        self._decoder = decoder
        self._limits = limits or StreamLimits()
        self._ready = threading.Condition()
        # Shared with the reader thread, under _ready:
        self._queue: deque[Transaction] = deque()
        self._queued_bytes = 0
        self._queued_rows = 0
        self._received = start_position
        self._is_idle = self._is_woken = False
        self._failure: TidemarkError | None = None
        self._truncations: deque[tuple[int, int]] = deque(maxlen=_TRUNCATIONS)
        # The reader thread's own:
        self._open: Transaction | None = None
        self._relations: list[bytes] = []
        self._status_at = self._heard_at = time.monotonic()
        self._sent_confirmed = 0
        self._is_reply_due = False
        # The polling thread's own:
        self._handed = start_position
        self._handed_at = 0.0
        self._refusal: Exception | None = None
        self._has_unread = False
        self._start = start_position

        self._confirmed = 0
        self._is_closing = False
        # Called by the reader thread when transactions have arrived, or the stream has failed.
        self.on_received: Callable[[], None] | None = None
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="wal-reader", daemon=True)
        self._thread.start()

    @property
    def position(self) -> int:
        """Return the position of the newest batch handed out."""
        return self._handed

    @property
    def received_position(self) -> int:
        """Return how far the server has sent; at or ahead of `position`."""
        return self._received

    @property
    def silent_s(self) -> float:
        """Return for how long the server has been silent despite periodic probes, in seconds."""
        return time.monotonic() - self._heard_at

    @property
    def queued_rows(self) -> int:
        """Return the rows that have arrived and wait."""
        return self._queued_rows

    @property
    def queued_bytes(self) -> int:
        """Return the bytes that have arrived and wait in memory."""
        return self._queued_bytes

    def poll(
        self, max_rows: int, timeout_s: float, *, until: int | None = None
    ) -> SourceBatch | None:
        """Return whole transactions that have arrived: as many as fit max_rows, but at least one.

        Each counts as at least one row, so max_rows 1 returns them one by one.

        Returns at once when something is there and no more is arriving; None after timeout_s. A
        batch without changes advances the position of an idle source. Read the chunks of a batch
        before the next call. `until`: never go beyond this position. TemporaryError when the
        connection is lost: open a new stream from `position`. SourceError when the source has
        changed incompatibly.
        """
        if self._refusal is not None:
            raise self._refusal
        if self._has_unread:
            raise InvariantError("source.order", "the previous batch was not read to its end")
        deadline = time.monotonic() + timeout_s
        with self._ready:
            while not self._has_something(until):
                if self._failure is not None and not self._queue:
                    raise self._failure
                left = deadline - time.monotonic()
                if left <= 0 or self._is_woken:
                    self._is_woken = False
                    return None
                self._ready.wait(min(left, _IDLE_STEP_S))
            if not self._is_idle:
                self._ready.wait_for(lambda: self._is_full(max_rows), _LINGER_S)
            taken, position = self._take(max_rows, until)
        return self._decode(taken, position)

    def wake(self) -> None:
        """Make a waiting `poll` return None now, or the next one that would wait; from any
        thread."""
        with self._ready:
            self._is_woken = True
            self._ready.notify_all()

    def confirm(self, position: int) -> None:
        """Confirm that everything up to `position` is durable here: the server may discard it."""
        if position > self._handed:
            raise InvariantError("source.confirm", "a position was confirmed before it was read")
        if position > self._confirmed:
            self._confirmed = position
            self._wake()

    def has_truncation(self, xid: int, oid: int, position: int) -> bool:
        """Return whether that transaction truncated the table; it lies before `position`.

        Wait briefly for what is in progress; False also when that does not arrive.
        """
        with self._ready:
            self._ready.wait_for(
                lambda: self._received >= position or self._is_stalled() or self._failure,
                _WAIT_S,
            )
            return (xid, oid) in self._truncations

    def close(self) -> None:
        """Stop the thread, send the last confirmation, end the connection."""
        self._is_closing = True
        self._wake()
        self._thread.join(_JOIN_S)
        if self._thread.is_alive():
            raise InvariantError("source.reader", "the reader thread of the stream does not end")
        self._connection.close()
        self._wake_in.close()
        self._wake_out.close()
        for transaction in self._queue:
            transaction.close()
        self._queue.clear()
        if self._open is not None:
            self._open.close()

    # --- the polling thread's, under the lock ----------------------------------------------

    def _has_something(self, until: int | None) -> bool:
        if self._queue and (until is None or self._queue[0].end <= until):
            return True
        if self._idle_position(until) <= self._handed:
            return False
        return until is not None or time.monotonic() - self._handed_at >= _IDLE_STEP_S

    def _idle_position(self, until: int | None) -> int:
        """Return the position once everything that is not queued is handed out."""
        reached = self._received
        if self._queue:
            # Something is queued beyond `until`: everything before it has been read.
            reached = self._handed if until is None else until
        return reached if until is None else min(reached, until)

    def _is_full(self, max_rows: int) -> bool:
        return (
            self._is_idle
            or self._queued_rows >= max_rows
            or self._failure is not None
            or self._queued_bytes > self._limits.queue_bytes
        )

    def _take(self, max_rows: int, until: int | None) -> tuple[list[Transaction], int]:
        taken: list[Transaction] = []
        rows, position = 0, self._handed
        while self._queue:
            first = self._queue[0]
            if until is not None and first.end > until:
                break
            if taken and rows + max(first.rows, 1) > max_rows:
                break
            taken.append(self._queue.popleft())
            rows += first.rows
            position = max(position, first.end)
            self._queued_bytes -= first.size_bytes
        was_stalled = self._queued_bytes + sum(t.size_bytes for t in taken)
        self._queued_rows -= rows
        if was_stalled > self._limits.queue_bytes:
            self._wake()
        if not self._queue or (until is not None and self._queue[0].end > until):
            position = max(position, self._idle_position(until))
        return taken, position

    def _decode(self, taken: list[Transaction], position: int) -> SourceBatch:
        """Decode the first chunk; check the relation messages of the rest for refusals."""
        chunks = chunks_of(taken, self._limits.chunk_rows, self._limits.chunk_bytes)
        try:
            if self._refresh is not None:
                self._refresh()
            if self._limits.is_foreign:
                self._try_large(taken)
            first = self._decoder.decode(next(chunks, []))
            second = next(chunks, None)
            if second is not None:
                for payload in (p for t in taken for p in t.relations):
                    self._decoder.check(payload)
        except Exception as error:
            # The batch is lost: nothing may follow it.
            self._refusal = error
            _close(taken)
            raise
        failpoint("stream.decode.after")
        self._handed = position
        self._handed_at = time.monotonic()
        self._has_unread = second is not None
        return SourceBatch(
            position,
            first,
            sum(t.end > self._start for t in taken),
            sum(t.rows for t in taken) if second else sum(map(len, first)),
            taken[-1].commit_us if taken else 0,
            taken[-1].end if taken else 0,
            self._decode_later(second, chunks, taken) if second else None,
        )

    def _try_large(self, taken: list[Transaction]) -> None:
        """Decode transactions of several chunks to see that it can be done: no epoch has begun with
        them yet, so a server that sends nonsense stops this stream alone.
        """
        limits = self._limits
        chunks = chunks_of(taken, limits.chunk_rows, limits.chunk_bytes, is_kept=True)
        begin = list(islice(chunks, 2))
        if len(begin) == 2:
            decoder = self._decoder.copied()
            for payloads in chain(begin, chunks):
                decoder.decode(payloads)

    def _decode_later(
        self, second: list[bytes], chunks: Iterator[list[bytes]], taken: list[Transaction]
    ) -> Iterator[list[Changes]]:
        try:
            yield self._decoder.decode(second)
            for payloads in chunks:
                yield self._decoder.decode(payloads)
            self._has_unread = False
        except TidemarkError as error:
            self._refusal = error
            raise
        finally:
            _close(taken)

    # --- the reader thread's ----------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._is_closing:
                self._report()
                if self._is_stalled():
                    self._rest(is_reading=False)
                elif self._drain():
                    self._rest(is_reading=True)
            if self._confirmed > self._sent_confirmed:
                self._connection.send_status(self._received, self._confirmed)
        except TidemarkError as error:
            self._fail(error)
        except Exception as error:
            self._fail(
                InvariantError(
                    "source.reader", "the reader thread of the stream failed", detail=repr(error)
                )
            )

    def _fail(self, error: TidemarkError) -> None:
        with self._ready:
            self._failure = error
            self._is_idle = True
            self._ready.notify_all()
        if self.on_received is not None:
            self.on_received()

    def _is_stalled(self) -> bool:
        return self._queued_bytes > self._limits.queue_bytes

    def _rest(self, is_reading: bool) -> None:
        """Wait for the server (unless stalled), for a wake, or for the next report."""
        left = max(0.0, self._status_at + self._limits.status_s - time.monotonic())
        waiting = select.poll()
        waiting.register(self._wake_out, select.POLLIN)
        if is_reading:
            waiting.register(self._connection, select.POLLIN)
        else:
            # While we do not read, the server's silence means nothing.
            self._heard_at = time.monotonic()
        for descriptor, _ in waiting.poll(left * 1000):
            if descriptor == self._wake_out.fileno():
                self._wake_out.recv(4096)
            else:
                self._is_idle = False

    def _wake(self) -> None:
        try:
            self._wake_in.send(b"!")
        except BlockingIOError:
            return  # a wake is already in progress

    def _report(self) -> None:
        """Send status when there is a confirmation, a requested reply, or the interval is over."""
        now = time.monotonic()
        is_due = now - self._status_at >= self._limits.status_s
        confirmed = self._confirmed
        if not (is_due or self._is_reply_due or confirmed > self._sent_confirmed):
            return
        silent_s = now - self._heard_at
        if silent_s > self._limits.liveness_timeout_s:
            what = f"the source has been silent for {silent_s:.0f} s"
            raise TemporaryError("source.unreachable", what)
        is_silent = silent_s > self._limits.status_s / 2
        self._connection.send_status(self._received, confirmed, needs_reply=is_silent)
        self._sent_confirmed, self._status_at, self._is_reply_due = confirmed, now, False

    def _drain(self) -> bool:
        """Take up to _DRAIN_PAYLOADS payloads off the connection; True when none is left."""
        read, count, payload = self._connection.read, 0, None
        transaction = self._open
        while count < _DRAIN_PAYLOADS and (payload := read()) is not None:
            count += 1
            if payload[0] == _KEEPALIVE:
                position, needs_reply = keepalive_of(payload)
                self._is_reply_due = self._is_reply_due or needs_reply
                if transaction is None:
                    self._reach(position)
                continue
            wal = wal_of(payload)
            tag = wal[0]
            if tag == _BEGIN:
                transaction = self._open = Transaction(
                    self._limits.spill_bytes, is_reserved=self._limits.is_foreign
                )
                transaction.xid = xid_of(wal)
            elif tag == _COMMIT and transaction is not None:
                transaction.end, transaction.commit_us = commit_of(wal)
                self._finish(transaction)
                transaction = self._open = None
            elif tag in _BUFFERED and transaction is not None:
                transaction.rows += tag in _ROWS
                transaction.add(wal)
                if tag == _TRUNCATE:
                    transaction.truncated.update(truncated_oids(wal))
        if count:
            self._heard_at = time.monotonic()
        with self._ready:
            self._is_idle = payload is None
            has_any = bool(self._queue)
            self._ready.notify_all()
        if count and has_any and self.on_received is not None:
            self.on_received()
        return payload is None

    def _reach(self, position: int) -> None:
        with self._ready:
            self._received = max(self._received, position)

    def _finish(self, transaction: Transaction) -> None:
        if transaction.end <= self._start:
            # Tables are described once per connection: descriptions in a skipped transaction stay
            # valid.
            self._relations += transaction.relations
            transaction.close()
            return
        with self._ready:
            if self._relations:
                described = Transaction(self._limits.spill_bytes, self._relations)
                described.end, self._relations = self._start, []
                self._queue.append(described)
            self._queue.append(transaction)
            self._truncations += [(transaction.xid, oid) for oid in transaction.truncated]
            self._queued_bytes += transaction.size_bytes
            self._queued_rows += transaction.rows
            self._received = max(self._received, transaction.end)


def _close(transactions: list[Transaction]) -> None:
    for transaction in transactions:
        transaction.close()
