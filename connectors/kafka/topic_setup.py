"""Create the topics of a sink, or check that existing ones have the required settings.

Invariant: rows are never written into a topic that would lose them (compaction of changes, another
retention than requested) or that holds something else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.cimpl import NewTopic

from connectors.kafka.client import Client, error_of
from connectors.kafka.epoch_markers import ANSWER_S
from connectors.kafka.topic_options import TopicOptions
from dataflow.errors import SinkError

_EXISTS = KafkaError.TOPIC_ALREADY_EXISTS
_GONE = KafkaError.UNKNOWN_TOPIC_OR_PART


class TopicSetup:
    """Creates, checks and deletes the topics of one sink."""

    def __init__(self, client: Client, options: TopicOptions) -> None:
        self._client = client
        self._options = options

    def ensure(self) -> int:
        """Create missing topics and check existing ones; return the number of partitions of the
        rows.

        SinkError sink.topic_settings.
        """
        admin = self._client.admin()
        options = self._options
        self._make(admin, options.topic, options.partitions or 1, options.settings())
        self._make(admin, options.markers, 1, options.marker_settings())
        return self.check(admin)[0]

    def check(self, admin: AdminClient | None = None) -> tuple[int, int]:
        """Return the existing partitions of rows and markers, 0 if there is no such topic.

        SinkError sink.topic_settings.
        """
        admin = admin or self._client.admin()
        options = self._options
        markers = self._check(admin, options.markers, 1, options.marker_settings())
        rows = self._check(admin, options.topic, options.partitions, options.settings())
        return rows, markers

    def require_empty(self) -> None:
        """Fail with SinkError sink.topic_not_empty if there are rows in the topic."""
        for number, count in self._offsets().items():
            if count:
                detail = f"{count} offsets in partition {number}"
                raise topic_not_empty(self._options.topic, detail)

    def is_empty(self) -> bool:
        """Return True if there are no rows in the topic."""
        return not any(self._offsets().values())

    def _offsets(self) -> dict[int, int]:
        """Return {partition: retained offsets} of the rows' topic."""
        consumer = self._client.consumer()
        name = self._options.topic
        try:
            found = consumer.list_topics(name, ANSWER_S).topics[name]
            bounds = {
                number: consumer.get_watermark_offsets(TopicPartition(name, number), ANSWER_S)
                for number in (found.partitions if found.error is None else ())
            }
            return {number: high - low for number, (low, high) in bounds.items()}
        except KafkaException as error:
            raise self._client.refused(error, "looking into its topic", consumer) from None
        finally:
            consumer.close()

    def remove(self) -> None:
        """Delete the topics that exist."""
        self._delete(self._options.topic, self._options.markers)

    def remove_markers(self) -> None:
        """Delete the topic of the markers if it exists."""
        self._delete(self._options.markers)

    def _delete(self, *names: str) -> None:
        admin = self._client.admin()
        deletions = admin.delete_topics([*names], request_timeout=ANSWER_S)
        for name, deletion in deletions.items():
            try:
                deletion.result()
            except KafkaException as error:
                if error_of(error).code() != _GONE:
                    raise self._client.refused(error, f'deleting "{name}"', admin) from None

    def _make(
        self, admin: AdminClient, name: str, partitions: int, settings: Mapping[str, str]
    ) -> None:
        requested = NewTopic(
            name,
            num_partitions=partitions,
            replication_factor=self._options.replication,
            config=dict(settings),
        )
        made = admin.create_topics([requested], request_timeout=ANSWER_S)[name]
        try:
            made.result()
        except KafkaException as error:
            if error_of(error).code() != _EXISTS:
                raise self._client.refused(error, f'creating "{name}"', admin) from None

    def _check(
        self, admin: AdminClient, name: str, partitions: int, settings: Mapping[str, str]
    ) -> int:
        try:
            cluster = admin.list_topics(name, ANSWER_S)
            self._client.check_brokers(str(b.host) for b in cluster.brokers.values())
            found = cluster.topics[name]
            if found.error is not None and found.error.code() == _GONE:
                return 0
            if found.error is not None:
                raise KafkaException(found.error)
            resource = ConfigResource(ConfigResource.Type.TOPIC, name)
            described: Any = admin.describe_configs([resource], request_timeout=ANSWER_S)[resource]
            actual = {k: v.value for k, v in described.result().items()}
        except KafkaException as error:
            raise self._client.refused(error, f'describing "{name}"', admin) from None
        wrong = [
            f"{k} is {actual.get(k)}, not {v}" for k, v in settings.items() if actual.get(k) != v
        ]
        if partitions and len(found.partitions) != partitions:
            wrong.append(f"it has {len(found.partitions)} partitions, not {partitions}")
        if wrong:
            raise SinkError(
                "sink.topic_settings",
                f'topic "{name}" has the wrong settings',
                detail="; ".join(wrong),
                hint="change the topic's settings or the sink's options, or choose another topic",
            )
        return len(found.partitions)


def topic_not_empty(name: str, detail: str) -> SinkError:
    """Return the error for a topic that a new sink cannot use."""
    return SinkError(
        "sink.topic_not_empty",
        f'topic "{name}" already holds records',
        detail=detail,
        hint="choose another topic, or delete this one",
    )
