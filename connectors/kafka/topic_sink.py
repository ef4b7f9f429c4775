"""A view as a topic of its changes: one fenced transaction for whole epochs, progress inside.

`open` fences every earlier producer of this sink (init_transactions, by its transactional id)
before it reads the topic's progress, so an unknown outcome is resolved by then. Invariant: a reader
with read_committed sees each epoch once and whole, and END markers show where each one ends. Of two
writers, the one that opened last continues; the other ends with sink.fenced. Of two sinks that were
configured with one topic, the first to write its marker owns it. Topics are identified by their
ids: rows are never written to a recreated topic. Failures of a transaction are TemporaryErrors;
`open` resolves their outcome.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from connectors.kafka.client import Client, error_of
from connectors.kafka.epoch_markers import Standing, begin_marker, end_marker, open_marker
from connectors.kafka.topic_options import TopicOptions, detachment_of
from connectors.kafka.topic_owner import TopicOwner
from connectors.kafka.topic_records import OPERATIONS, RecordBatch, TopicRecords
from connectors.kafka.topic_setup import TopicSetup, topic_not_empty
from connectors.view_sink import Detachment, Interruption, ViewEpoch
from dataflow.errors import SinkError, TemporaryError, TidemarkError
from storage.failpoints import failpoint

OPEN_TIMEOUT_S = 30.0
# After this time without progress the cluster counts as unreachable, and the outcome of pending
# records is unknown.
STALLED_S = 10.0
ABORT_TIMEOUT_S = 2.0
# How long a call into the client may delay an interrupt.
STEP_S = 0.2
MAX_TIMEOUT_MS = 900_000
# How many unacknowledged records the client may buffer.
QUEUE_KB = 32 << 10
_QUEUE_FULL = 0.05
_FENCED = {
    KafkaError._FATAL,
    KafkaError._FENCED,
    # The client's reply to the next record once the broker has aborted the transaction.
    KafkaError._STATE,
    KafkaError._PURGE_QUEUE,
    KafkaError._PURGE_INFLIGHT,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.INVALID_PRODUCER_ID_MAPPING,
    KafkaError.INVALID_TXN_STATE,
    KafkaError.PRODUCER_FENCED,
    KafkaError.UNKNOWN_PRODUCER_ID,
}
# The topic is missing or was changed: `open` reports which.
_GONE = {
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.UNKNOWN_TOPIC_ID,
}


class TopicSink:
    """One sink.

    owner: its identity is the transactional id. records: makes the format (registering schemas, for
    Avro) when the sink is opened.
    """

    def __init__(
        self,
        client: Client,
        options: TopicOptions,
        owner: TopicOwner,
        records: Callable[[], TopicRecords],
    ) -> None:
        self._client = client
        self._options = options
        self._owner = owner
        self._make_records = records
        self._setup = TopicSetup(client, options)
        self._timeout_ms = options.transaction_timeout_ms
        self._interrupted = Interruption()
        self._producer: Producer | None = None
        self._in_transaction = False
        self._records: TopicRecords | None = None
        self._partitions = 1
        self._epoch: int | None = None

    # --- life ------------------------------------------------------------------------------

    def open(self, known: int | None = None) -> int | None:
        """Fence every earlier writer; return the newest epoch of the topic, None before the first.

        TemporaryError, SinkError sink.fenced, and the refusals of topics and registry.
        """
        self.close()
        rows, markers = self._setup.check()
        standing = self._owner.standing() if markers else None
        self._owner.check(standing, has_rows=bool(rows))
        partitions = self._setup.ensure()
        self._owner.record_topics(standing)
        self._records = self._make_records()
        # The initial rows of a view may be many, and are one transaction.
        is_first = standing is None or standing.epoch is None
        self._producer = self._fence(MAX_TIMEOUT_MS if is_first else self._timeout_ms)
        standing = self._owner.standing()
        self._epoch = None if standing is None else standing.epoch
        if standing is None:
            # Later the topic may hold records of an aborted transaction.
            self._setup.require_empty()
        elif standing.sink not in ("", self._owner.identity):
            raise topic_not_empty(self._options.markers, "another sink has written to it")
        # Keys stay in their partitions even if partitions were added since.
        self._partitions = (standing and standing.partitions) or partitions
        self._claim()
        self._owner.claimed(self._epoch)
        return self._epoch

    def _fence(self, timeout_ms: int) -> Producer:
        producer = self._client.producer(
            transactional_id=f"tidemark-{self._owner.identity}",
            transaction_timeout_ms=timeout_ms,
            queue_buffering_max_kbytes=QUEUE_KB,
            linger_ms=5,
        )
        try:
            self._repeat(producer.init_transactions, OPEN_TIMEOUT_S)
        except KafkaException as error:
            is_too_long = error_of(error).code() == KafkaError.INVALID_TRANSACTION_TIMEOUT
            if is_too_long and timeout_ms > self._options.transaction_timeout_ms:
                # The broker's limit is lower than Kafka's default limit.
                self._timeout_ms = self._options.transaction_timeout_ms
                return self._fence(self._timeout_ms)
            raise self._failure(error, "taking over its transactions") from None
        return producer

    def _claim(self) -> None:
        """Write our name as a marker: an earlier writer that wakes up finds it there."""
        standing = self._standing(self._epoch)
        try:
            self._begin()
            self._write_marker(open_marker(standing))
            self._commit()
        except KafkaException as error:
            raise self._failure(error) from None

    def _standing(self, epoch: int | None) -> Standing:
        return self._owner.marker(epoch, self._partitions)

    def interrupt(self) -> None:
        """Interrupt from any thread: the current call and all later ones end soon."""
        self._interrupted.set()

    def close(self) -> None:
        """Close the connection; abort an open transaction if that is quick."""
        self._owner.close()
        producer, self._producer = self._producer, None
        if producer is None:
            return
        if self._in_transaction:
            self._in_transaction = False
            # Otherwise the next `open` aborts it, or the broker after the transaction timeout.
            with suppress(KafkaException):
                producer.purge()
                producer.abort_transaction(ABORT_TIMEOUT_S)
        producer.purge()

    def remove(self) -> None:
        """Delete the topics of rows and markers. SinkError sink.topic_not_ours."""
        self._owner.require_ours(self._setup)
        self._setup.remove()

    def detachment(self) -> Detachment:
        """See ViewSink."""
        return detachment_of(self._options)

    def detach(self) -> None:
        """Delete the topic of the markers. SinkError sink.topic_not_ours."""
        self._owner.require_ours(self._setup, is_left=True)
        self._setup.remove_markers()

    # --- epochs ----------------------------------------------------------------------------

    def write(self, epochs: Sequence[ViewEpoch]) -> None:
        """Write whole epochs in one transaction.

        TemporaryError: none of them is written, or the outcome is unknown. SinkError
        sink.record_too_large.
        """
        began = time.monotonic()
        try:
            self._begin()
            written = [(epoch, *self._write_rows(epoch)) for epoch in epochs]
            self._flush()
            if not self._owner.has_same_topics():
                # The next `open` resolves the outcome.
                raise self._abandoned("its topics no longer exist")
            failpoint("topic.rows.flushed")
            for epoch, counts, ends in written:
                standing = self._standing(epoch.number)
                self._write_marker(begin_marker(epoch.number, is_initial=epoch.is_initial))
                self._write_marker(end_marker(standing, epoch.positions, counts, ends.found()))
            self._commit()
        except KafkaException as error:
            took_ms = (time.monotonic() - began) * 1000
            if took_ms > self._timeout_ms * 0.9:
                # The broker may have aborted it: it needs more time.
                self._timeout_ms = min(2 * self._timeout_ms, MAX_TIMEOUT_MS)
            raise self._failure(error) from None
        self._epoch = epochs[-1].number
        if epochs[-1].is_initial:
            self._producer = self._fence(self._timeout_ms)

    def _write_rows(self, epoch: ViewEpoch) -> tuple[Mapping[int, int], Ends]:
        assert self._records is not None
        counts: Counter[int] = Counter()
        ends = Ends()
        for delta in epoch.deltas:
            for batch in self._records.batches(delta, epoch.number, epoch.positions):
                self._produce(batch, epoch.number, counts, ends)
        return counts, ends

    def _produce(self, batch: RecordBatch, epoch: int, counts: Counter[int], ends: Ends) -> None:
        assert self._producer is not None
        produce, topic = self._producer.produce, self._options.topic
        number = str(epoch).encode()
        headers = [[("epoch", number), ("op", name.encode())] for name in OPERATIONS]
        partitions = (batch.hashes % self._partitions).tolist()
        # The last record of each partition shows where the epoch ends in it.
        last = {partition: row for row, partition in enumerate(partitions)}
        ends_at = set(last.values())
        counts.update(partitions)
        rows = zip(
            batch.keys.to_list(),
            batch.values.to_list(),
            partitions,
            batch.operations.tolist(),
            strict=True,
        )
        for row, (key, value, partition, operation) in enumerate(rows):
            on_delivery = ends.note if row in ends_at else None
            while True:
                try:
                    produce(topic, value, key, partition, on_delivery, headers=headers[operation])
                    break
                except BufferError:
                    self._await_space()
        self._producer.poll(0)
        self._interrupted.check()

    def _await_space(self) -> None:
        """Wait until the client may buffer more records: some must be acknowledged first."""
        assert self._producer is not None
        waiting, began = len(self._producer), time.monotonic()
        while len(self._producer) >= waiting:
            self._producer.poll(_QUEUE_FULL)
            self._interrupted.check()
            if time.monotonic() - began > STALLED_S:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "records not acknowledged"))

    def _flush(self) -> None:
        """Wait until the rows are acknowledged; only then their end offsets are known."""
        assert self._producer is not None
        least, moved_at = 1 << 62, time.monotonic()
        while left := self._producer.flush(STEP_S):
            self._interrupted.check()
            if left < least:
                least, moved_at = left, time.monotonic()
            if time.monotonic() - moved_at > STALLED_S:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "records not acknowledged"))

    # --- transactions ----------------------------------------------------------------------

    def _begin(self) -> None:
        assert self._producer is not None
        self._in_transaction = True
        self._producer.begin_transaction()

    def _write_marker(self, marker: bytes) -> None:
        assert self._producer is not None
        self._producer.produce(self._options.markers, marker, b"mark", 0)

    def _commit(self) -> None:
        assert self._producer is not None
        commit = self._producer.commit_transaction
        failpoint("topic.commit.before")
        self._repeat(commit, STALLED_S)
        self._in_transaction = False
        failpoint("topic.commit.after")

    def _repeat(self, call: Callable[[float], Any], timeout_s: float) -> None:
        """Retry the call for up to timeout_s, as long as it only needs more time."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                call(STEP_S)
                return
            except KafkaException as error:
                if not error_of(error).retriable() or time.monotonic() > deadline:
                    raise
            self._interrupted.check()

    def _failure(self, error: KafkaException, doing: str = "writing an epoch") -> TidemarkError:
        reported = error_of(error)
        if reported.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            return SinkError(
                "sink.record_too_large",
                f'a row is too large for topic "{self._options.topic}"',
                detail=reported.str(),
                hint="raise the topic's max.message.bytes, and client message.max.bytes, "
                "then add the sink again",
            )
        is_lost = reported.code() in _FENCED | _GONE
        if is_lost or reported.fatal() or reported.txn_requires_abort():
            return self._abandoned(f"{doing}: {reported.str()}")
        return self._client.refused(error, doing, self._producer)

    def _abandoned(self, detail: str) -> TemporaryError:
        return TemporaryError(
            "sink.transaction_lost",
            f'the transaction on topic "{self._options.topic}" was aborted',
            detail=detail,
            hint="no action needed: none of it is visible, and it is written again",
        )


class Ends:
    """The end offsets of an epoch by partition, as the broker acknowledges its records."""

    def __init__(self) -> None:
        self._ends: dict[int, int] = {}
        self._error: KafkaError | None = None

    def note(self, error: KafkaError | None, record: Any) -> None:
        """Handle a delivery report."""
        if error is not None:
            self._error = self._error or error
            return
        self._ends[record.partition()] = record.offset() + 1

    def found(self) -> Mapping[int, int]:
        """Return the ends once all records are acknowledged. KafkaException if one was not."""
        if self._error is not None:
            raise KafkaException(self._error)
        return self._ends
