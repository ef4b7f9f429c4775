"""Changes of topics after their offsets: one thread reads ahead, the poller decodes by columns.

Invariant: a batch's offsets are exactly those after its records, by partition. Records that were
read ahead but not handed out are read again by the next feed. buffer_bytes bounds the memory.
Threads: `poll` and `close` belong to the pipeline's thread, `_ReadAhead` owns the consumer.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from connectors.feed_source import FeedPositions
from connectors.formats.debezium_order import DedupState
from connectors.kafka.client import Client
from connectors.kafka.dead_topic import DeadTopic
from connectors.kafka.dedup_state import dedup_note, dedup_of, read_dedup
from connectors.kafka.leader_epochs import LeaderEpochs, epochs_note, leader_epochs_of, learn
from connectors.kafka.options import KafkaOptions, TopicOptions
from connectors.kafka.reader import Chunk, Reader, Span
from connectors.kafka.records import Records
from connectors.kafka.rows import RowReader, rejected_delta
from connectors.kafka.start_offsets import position_of, starts_of
from connectors.kafka.topics import Topics, recreated
from connectors.kafka.transaction_buffer import TransactionBuffer, bad_of
from connectors.source import SourceBatch
from dataflow.changes import Changes
from dataflow.errors import SourceError, TidemarkError

POLL_S = 0.05
# How often to ask for the ends of logs while they are unknown.
LAG_EVERY = 20


@dataclass
class _Relation:
    """A relation that is read.

    position: {"topic": id, "next": offset by partition}. starts: where its snapshot started. dedup:
    dedup state of envelopes, None until it is read. leader_epochs: leader epochs of the logs.
    """

    rows: RowReader
    topic_id: str
    nexts: dict[int, int]
    starts: dict[int, int]
    dedup: DedupState | None
    leader_epochs: LeaderEpochs

    @property
    def name(self) -> str:
        return self.rows.relation.name.name

    @property
    def topic(self) -> TopicOptions:
        return self.rows.options

    def span(self, begins: dict[int, int], ends: dict[int, int] | None) -> Span:
        needs = (self.rows.needs_times, self.rows.needs_headers)
        relation = self.rows.relation.name
        return Span(
            relation,
            self.topic.topic,
            self.topic_id,
            begins,
            ends,
            *needs,
            dict(self.leader_epochs),
        )

    def position(self) -> dict[str, Any]:
        return {
            "topic": self.topic_id,
            "next": {str(p): offset for p, offset in sorted(self.nexts.items())},
        }


@dataclass(frozen=True)
class FeedState:
    """Where a feed starts, from an earlier batch or the start positions."""

    positions: FeedPositions
    notes: Mapping[str, bytes]


@dataclass(frozen=True)
class FeedEvents:
    """Callbacks of the feed's thread.

    on_ready: see SourceFeed. on_open: called each time that the cluster was reached.
    """

    on_ready: Callable[[], None]
    on_open: Callable[[Topics], None]


class KafkaFeed:
    """A SourceFeed. Nothing is opened before the first poll."""

    def __init__(
        self,
        client: Client,
        options: KafkaOptions,
        rows: Sequence[RowReader],
        state: FeedState,
        events: FeedEvents,
    ) -> None:
        self._skipped = 0
        self._dead = DeadTopic(client)
        self._client = client
        self._options = options
        self._events = events
        self._relations = {one.relation.name: _opened(one, state) for one in rows}
        self._ahead: _ReadAhead | None = None
        self._notes = state.notes
        self._buffer: TransactionBuffer | None = None
        self._markers: _ReadAhead | None = None
        self._until: FeedPositions | None = None
        self._failure: TidemarkError | None = None
        self._has_emitted = False

    @property
    def lag(self) -> int:
        """Offsets that no batch has held yet, including transaction markers."""
        buffered = 0 if self._buffer is None else self._buffer.waiting
        return 0 if self._ahead is None else self._ahead.unread + self._ahead.waiting + buffered

    @property
    def skipped(self) -> int:
        """See SourceFeed."""
        return self._skipped

    @property
    def problem(self) -> TidemarkError | None:
        """See problem_of: a transaction that has been incomplete for too long."""
        if self._buffer is None or self._ahead is None or self._markers is None:
            return None
        awaited = [self._ahead, *([self._markers] if self._buffer.needs_more else [])]
        unread = sum(one.unread + one.waiting for one in awaited)
        return self._buffer.overdue(self._options.transaction_wait_s, unread)

    @property
    def has_succeeded(self) -> bool:
        """See SourceFeed."""
        found = [one for one in (self._ahead, self._markers) if one is not None]
        is_answered = bool(found) and all(one.has_answers for one in found)
        return is_answered and self._failure is None and (self._has_emitted or not self.lag)

    def poll(self, max_rows: int, *, until: FeedPositions | None = None) -> SourceBatch | None:
        """See SourceFeed."""
        if self._failure is not None:
            raise self._failure
        if self._ahead is None or until != self._until:
            self._read_from_here(until)
        assert self._ahead is not None
        if self._buffer is not None:
            chunks = self._take_whole(self._buffer, max_rows)
            return self._batch(chunks) if chunks or self._buffer.is_due() else None
        chunks = self._ahead.take(max_rows)
        return self._batch(chunks) if chunks else None

    def close(self) -> None:
        """End the threads; records that were read ahead or buffered are dropped."""
        for ahead in (self._ahead, self._markers):
            if ahead is not None:
                ahead.close()
        self._ahead = self._markers = None

    def _take_whole(self, buffer: TransactionBuffer, max_rows: int) -> list[Chunk]:
        """Return the records that may be emitted: those of complete transactions."""
        assert self._ahead is not None and self._markers is not None
        max_bytes = self._options.transaction_buffer_bytes
        while True:
            is_full = buffer.is_full(max_bytes)
            markers = self._markers.take(max_rows) if is_full or buffer.needs_more else []
            buffer.add_markers(markers)
            # Records before `until` were emitted before, so all of them may be emitted.
            is_last = self._until is not None and self._ahead.is_finished
            chunks = [] if is_full else self._ahead.take(max_rows)
            for chunk in chunks:
                assert chunk.relation is not None
                buffer.add_events(chunk, self._relations[chunk.relation].dedup)
            ready = buffer.take(self._bad_at, all=is_last and not chunks)
            if ready or self._failure is not None:
                break
            if not chunks and not markers:
                if is_full:
                    buffer.check_size(max_bytes)
                break
        if not ready and self._failure is not None:
            raise self._failure
        return ready

    def _bad_at(self, name: str, records: Records) -> int | None:
        """Return the first record that stops the source; it stops at the next poll."""
        rows = next(one.rows for one in self._relations.values() if one.name == name)
        bad = bad_of(rows, records)
        if bad is not None:
            self._failure = rows.refusal(records, bad)
            return bad.number
        return None

    def _read_from_here(self, until: FeedPositions | None) -> None:
        """Return a reader from the offsets of the last batch; it never passes `until`."""
        self.close()
        self._until = until
        spans = []
        for name, one in self._relations.items():
            ends = None
            if until is not None:
                # A relation that `until` lacks has no records before it.
                end = until.get(name.name)
                topic_id, ends = (one.topic_id, {}) if end is None else position_of(end)
                if topic_id != one.topic_id:
                    raise recreated(one.topic.topic, name)
            spans.append(one.span(dict(one.nexts), ends))
        self._ahead = _ReadAhead(self._client, self._options, spans, self._events, self._read_dedup)
        if self._options.transactions is not None:
            if self._buffer is not None:
                self._notes = {**self._notes, **self._buffer.note()}
            rows = [one.rows for one in self._relations.values()]
            topic = self._options.transactions
            self._buffer = TransactionBuffer(self._client, topic, rows, self._notes)
            spans = [self._buffer.span()]
            events = FeedEvents(self._events.on_ready, lambda _: None)
            self._markers = _ReadAhead(self._client, self._options, spans, events, lambda _: None)

    def _read_dedup(self, is_desired: Callable[[], bool]) -> None:
        """Read the dedup state of the snapshots; called by the feed's thread before it
        reads ahead.
        """
        for one in self._relations.values():
            if one.topic.is_debezium and one.dedup is None:
                span = one.span(one.starts, dict(one.nexts))
                one.dedup = read_dedup(self._client, one.rows, span, is_desired)

    def _batch(self, chunks: Sequence[Chunk]) -> SourceBatch | None:
        merged: dict[Any, Records] = {}
        newest_ms = 0
        for chunk in chunks:
            merged.setdefault(chunk.relation, Records()).add(chunk.records)
            newest_ms = max(newest_ms, chunk.newest_ms)
        changes: list[Changes] = []
        rejected: list[tuple[Any, ...]] = []
        notes: dict[str, bytes] = {}
        count = 0
        for name, records in merged.items():
            one = self._relations[name]
            whole = self._decode(one, records, changes, rejected)
            count += len(whole)
            if len(whole) == len(records):
                for chunk in chunks:
                    if chunk.relation == name:
                        one.nexts.update(chunk.nexts)
            else:
                one.nexts.update(whole.nexts())
            learn(one.leader_epochs, whole)
            notes |= epochs_note(one.leader_epochs, one.name, one.position())
            if one.dedup is not None:
                notes |= dedup_note(one.dedup, one.name, one.topic_id)
        if self._failure is not None and not count:
            raise self._failure
        if self._buffer is not None:
            notes |= self._buffer.note()
        self._has_emitted = True
        return SourceBatch(
            0,
            changes,
            1 if changes else 0,
            count,
            commit_time_us=newest_ms * 1000,
            source=self._client.name,
            positions={one.name: one.position() for one in self._relations.values()},
            notes=notes,
            rejected=rejected_delta(rejected),
        )

    def _decode(
        self,
        one: _Relation,
        records: Records,
        changes: list[Changes],
        rejected: list[tuple[Any, ...]],
    ) -> Records:
        """Append the changes and rejected rows of the records; return the records that were passed.

        These are all of them, or those before a bad record that stops the source; then the next
        poll raises.
        """
        accepted = one.rows.accept(records)
        records, rows = accepted.records, accepted.rows
        self._failure = accepted.failure or self._failure
        self._skipped += accepted.skipped
        self._dead.write(one.topic, accepted.rejected)
        rejected += accepted.rejected
        if one.dedup is not None and rows.orders is not None:
            rows = rows.fresh(records, one.dedup)
        if rows.has_truncation and len(one.nexts) > 1:
            raise one.rows.truncation()
        if len(rows.kinds):
            changes.append(one.rows.changes(records, rows))
        return records


def _opened(rows: RowReader, state: FeedState) -> _Relation:
    name = rows.relation.name.name
    position = state.positions[name]
    topic_id, nexts = position_of(position)
    starts = starts_of(state.notes, name, topic_id)
    dedup = dedup_of(state.notes, name, topic_id)
    leader_epochs = leader_epochs_of(state.notes, name, position)
    return _Relation(rows, topic_id, nexts, starts, dedup, leader_epochs)


class _ReadAhead:
    """The thread that reads ahead, and its buffer.

    unread: offsets that it has not read. waiting: records in the buffer. is_finished: all ends were
    reached. has_answers: see Reader. before: runs first on the thread, while it is still needed.
    """

    def __init__(
        self,
        client: Client,
        options: KafkaOptions,
        spans: Sequence[Span],
        events: FeedEvents,
        before: Callable[[Callable[[], bool]], None],
    ) -> None:
        self.unread = 0
        self.waiting = 0
        self.is_finished = self.has_answers = False
        self._client = client
        self._options = options
        self._spans = spans
        self._events = events
        self._before = before
        self._changed = threading.Condition()
        self._chunks: deque[tuple[Chunk, int]] = deque()
        self._bytes = 0
        self._error: TidemarkError | None = None
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="kafka-feed", daemon=True)
        self._thread.start()

    def take(self, max_rows: int) -> list[Chunk]:
        """Return about max_rows buffered records; raise the thread's error after the last one."""
        with self._changed:
            found: list[Chunk] = []
            rows = 0
            while self._chunks and rows < max_rows:
                chunk, size = self._chunks.popleft()
                found.append(chunk)
                rows += len(chunk.records)
                self._bytes -= size
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
        self._thread.join()

    def _run(self) -> None:
        try:
            self._read()
        except TidemarkError as error:
            self._fail(error)
        except Exception as error:
            what = f'the reader of kafka source "{self._client.name}" failed'
            self._fail(SourceError("source.reader", what, detail=repr(error)))

    def _read(self) -> None:
        self._before(lambda: not self._is_closed)
        check_s = self._options.check_ms / 1000
        reader = Reader(self._client, self._spans, check_s=check_s)
        try:
            self._events.on_open(Topics(self._client))
            turn = 0
            while not self._is_closed and not reader.is_done:
                chunks = reader.take(POLL_S)
                if chunks or turn % LAG_EVERY == 0:
                    self.unread = reader.unread()
                turn += 1
                self._put(chunks)
                self.has_answers = reader.has_answers
            self.is_finished = reader.is_done
        finally:
            reader.close()
        self._events.on_ready()

    def _put(self, chunks: Sequence[Chunk]) -> None:
        """Put chunks into the buffer once it has space."""
        sized = [(chunk, chunk.records.nbytes()) for chunk in chunks]
        with self._changed:
            while self._bytes >= self._options.buffer_bytes and not self._is_closed:
                self._changed.wait()
            was_empty = not self._chunks
            self._chunks.extend(sized)
            self._bytes += sum(size for _, size in sized)
            self.waiting += sum(len(chunk.records) for chunk in chunks)
        if sized and was_empty:
            self._events.on_ready()

    def _fail(self, error: TidemarkError) -> None:
        with self._changed:
            self._error = error
        self._events.on_ready()
