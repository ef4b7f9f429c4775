"""Topics and records of the tests, by kafka-python: a client that the product does not use."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic

from connectors.kafka.embedded import EmbeddedKafka

TIMEOUT_S = 30.0
_numbers = itertools.count()


def unique_name(stem: str = "t") -> str:
    """A name of a topic that nobody else has in this session of tests."""
    return f"{stem}-{os.getpid()}-{next(_numbers)}"


@contextmanager
def admin_of(broker: EmbeddedKafka) -> Iterator[KafkaAdminClient]:
    """An admin client, closed at the end."""
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    try:
        yield admin
    finally:
        admin.close()


def new_topic(
    broker: EmbeddedKafka,
    partitions: int = 1,
    settings: Mapping[str, str] | None = None,
    *,
    name: str | None = None,
) -> str:
    """Make a topic; its name."""
    name = unique_name() if name is None else name
    made = NewTopic(name, partitions, 1, topic_configs=dict(settings or {}))
    with admin_of(broker) as admin:
        admin.create_topics([made])
    return name


def drop_topic(broker: EmbeddedKafka, name: str) -> None:
    """Delete a topic; returns when the broker no longer knows it."""
    with admin_of(broker) as admin:
        admin.delete_topics([name])


@contextmanager
def producer_of(broker: EmbeddedKafka, **settings: Any) -> Iterator[KafkaProducer]:
    """A producer whose records are all acknowledged; closed at the end."""
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap, acks="all", **settings)
    try:
        yield producer
    finally:
        producer.close(timeout=TIMEOUT_S)


# A record: partition, key, value.
Sent = tuple[int, bytes | None, bytes | None]


def send(broker: EmbeddedKafka, topic: str, records: Iterable[Sent]) -> None:
    """Write records; all are acknowledged at the return."""
    with producer_of(broker, linger_ms=5) as producer:
        futures = [
            producer.send(topic, partition=partition, key=key, value=value)
            for partition, key, value in records
        ]
        producer.flush(timeout=TIMEOUT_S)
        for future in futures:
            future.get(timeout=TIMEOUT_S)


def read_all(broker: EmbeddedKafka, topic: str, *, is_committed: bool = True) -> list[Any]:
    """Return all records of a topic by now, partition by partition in order (kafka-python's
    own)."""
    level = "read_committed" if is_committed else "read_uncommitted"
    consumer = KafkaConsumer(
        bootstrap_servers=broker.bootstrap,
        isolation_level=level,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    try:
        numbers = consumer.partitions_for_topic(topic) or set()
        partitions = [TopicPartition(topic, number) for number in sorted(numbers)]
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        ends = consumer.end_offsets(partitions)
        found: list[Any] = []
        while any(consumer.position(p) < ends[p] for p in partitions):
            for records in consumer.poll(timeout_ms=200).values():
                found += records
        return sorted(found, key=lambda record: (record.partition, record.offset))
    finally:
        consumer.close()


def ends_of(broker: EmbeddedKafka, topic: str, *, is_committed: bool) -> int:
    """The sum of the partitions' ends: of what is settled, or of all that was written."""
    level = "read_committed" if is_committed else "read_uncommitted"
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap, isolation_level=level)
    try:
        numbers = consumer.partitions_for_topic(topic) or set()
        return sum(consumer.end_offsets([TopicPartition(topic, n) for n in numbers]).values())
    finally:
        consumer.close()


def topic_names(broker: EmbeddedKafka) -> set[str]:
    """The topics that the broker knows."""
    with admin_of(broker) as admin:
        return set(admin.list_topics())
