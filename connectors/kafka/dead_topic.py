"""Malformed records, written to a topic in addition to the table of dead letters.

Invariant: at least once. The brokers acknowledge a batch's rejected records before the batch is
handed on, so the position never passes a record that the topic lacks. After a failure the record is
written again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from connectors.feed_source import REJECTED_COLUMNS
from connectors.kafka.client import Client
from connectors.kafka.options import TopicOptions
from dataflow.errors import SourceError, TemporaryError, TidemarkError

# How long a batch waits for the acknowledgement of its dead letters.
SEND_S = 10.0
_RELATION, _POSITION, _CODE, _REASON, _KEY, _VALUE = (
    REJECTED_COLUMNS.index(name)
    for name in ("relation", "position", "code", "reason", "key", "value")
)


class DeadTopic:
    """The writer of one feed or snapshot part, for one thread. Nothing is opened before the first
    record.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._producer: Producer | None = None
        self._failures: list[tuple[str, KafkaError]] = []

    def write(self, options: TopicOptions, rejected: Sequence[tuple[Any, ...]]) -> None:
        """Write rows of REJECTED_KINDS if the relation has such a topic.

        TemporaryError source.unreachable. SourceError source.dead_letter_topic: the topic does not
        accept them.
        """
        topic = options.dead_letter_topic
        if topic is None or not rejected:
            return
        if self._producer is None:
            self._producer = self._client.producer(
                message_timeout_ms=int(SEND_S * 1000) - 1000, allow_auto_create_topics=False
            )

        def note(error: KafkaError | None, _record: Any) -> None:
            if error is not None:
                self._failures.append((topic, error))

        for row in rejected:
            headers = _headers(options.topic, row)
            self._produce(topic, row[_KEY], row[_VALUE], headers, note)
        left = self._producer.flush(SEND_S)
        failures, self._failures = self._failures, []
        if failures:
            raise self._refused(*failures[0])
        if left:
            raise TemporaryError(
                "source.unreachable",
                f'kafka source "{self._client.name}" cannot write its dead letters',
                detail=f'{left} records for topic "{topic}" are not acknowledged',
            )

    def _produce(self, topic: str, key: Any, value: Any, headers: Any, note: Any) -> None:
        assert self._producer is not None
        try:
            while True:
                try:
                    self._producer.produce(topic, value, key, headers=headers, on_delivery=note)
                    return
                except BufferError:
                    # This ends: a queued record is acknowledged or times out.
                    self._producer.poll(1.0)
        except KafkaException as error:
            raise self._refused(topic, error) from None

    def _refused(self, topic: str, error: KafkaException | KafkaError) -> TidemarkError:
        reported = self._client.refused(error, f'writing to "{topic}"', self._producer)
        self._producer = None
        if reported.is_temporary or reported.code != "source.failed":
            return reported
        return SourceError(
            "source.dead_letter_topic",
            f'topic "{topic}" does not accept dead letters',
            detail=reported.detail,
            hint="create the topic, with the max.message.bytes of the topics that are read",
        )


def _headers(topic: str, row: tuple[Any, ...]) -> list[tuple[str, bytes]]:
    number, _, offset = row[_POSITION].partition(":")
    reported = {
        "tidemark.topic": topic,
        "tidemark.partition": number,
        "tidemark.offset": offset,
        "tidemark.relation": row[_RELATION],
        "tidemark.code": row[_CODE],
        "tidemark.reason": row[_REASON],
    }
    return [(name, text.encode(errors="replace")) for name, text in reported.items()]
