"""What the cluster says of topics: their ids, partitions, ends, and whether they are compacted.

Invariant: a topic is known by its id: one that was deleted and made again is another topic, and
nothing of it is taken for the old one's.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as Partition
from confluent_kafka.admin import (
    ConfigResource,  # pyright: ignore[reportPrivateImportUsage]
    OffsetSpec,  # pyright: ignore[reportPrivateImportUsage]
    ResourceType,  # pyright: ignore[reportPrivateImportUsage]
)

from connectors.kafka.client import Client, error_of
from dataflow.errors import SourceError, TidemarkError
from dataflow.schema import RelationName

ASK_TIMEOUT_S = 5.0
# Partitions that were just made, or whose broker has left, have no leader for a moment.
ELECTION_S = 3.0
_ELECTING = {
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
}
# Of a topic that all of a source need: what it has told is forgotten with the last reader.
_EVERY_VIEW = ": pause all views of the source, and resume them"
_MISSING = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.UNKNOWN_TOPIC_ID}
_REFUSED = {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED}


@dataclass(frozen=True)
class Topic:
    """A topic as it stands. id: base64, new for each creation; partitions: how many."""

    name: str
    id: str
    partitions: int


class Topics:
    """Asks one cluster; for one thread. Each call waits up to ASK_TIMEOUT_S. TemporaryError
    when the cluster is away."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._admin = client.admin()

    def describe(self, names: Collection[str]) -> dict[str, Topic]:
        """Those of the topics that there are."""
        wanted = TopicCollection(sorted(names))
        futures = self._ask(lambda: self._admin.describe_topics(wanted, **_TIMEOUT))
        found = {}
        for name, future in futures.items():
            try:
                told = future.result()
            except KafkaException as error:
                if error_of(error).code() in _MISSING:
                    continue
                raise self._failed(error, f'asking for topic "{name}"') from None
            nodes = (n for p in told.partitions for n in (p.leader, *p.replicas) if n is not None)
            self._client.check_brokers(n.host for n in nodes if n.host)
            found[name] = Topic(name, str(told.topic_id), len(told.partitions))
        return found

    def ends(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """By partition the offset after the last record that is committed."""
        return self._offsets(topic, partitions, OffsetSpec.latest())

    def tips(self, topic: str, partitions: Iterable[int]) -> dict[int, tuple[int, int]]:
        """By partition the offset after the last record that is committed, and the term of the
        leader that says so (connectors/kafka/leader_epochs.py), -1 where it does not."""
        found = self._asked_offsets(topic, partitions, OffsetSpec.latest())
        return {p: (one.offset, _term(one.leader_epoch)) for p, one in found.items()}

    def begins(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """By partition the first offset that is kept."""
        return self._offsets(topic, partitions, OffsetSpec.earliest())

    def at_time(self, topic: str, partitions: Iterable[int], time_ms: int) -> dict[int, int]:
        """By partition the first offset of that time or later, -1 where there is none."""
        return self._offsets(topic, partitions, OffsetSpec.for_timestamp(time_ms))

    def is_compacted(self, names: Collection[str]) -> bool:
        """Whether any of the topics may lose records that have later ones of their key; True
        where we may not know."""
        wanted = [ConfigResource(ResourceType.TOPIC, name) for name in sorted(names)]
        futures = self._ask(lambda: self._admin.describe_configs(wanted, **_TIMEOUT))
        for resource, future in futures.items():
            try:
                policy = future.result()["cleanup.policy"].value
            except KafkaException as error:
                if error_of(error).code() in _REFUSED | _MISSING:
                    return True
                raise self._failed(error, f'asking for topic "{resource.name}"') from None
            if "compact" in policy:
                return True
        return False

    def _offsets(self, topic: str, partitions: Iterable[int], spec: Any) -> dict[int, int]:
        found = self._asked_offsets(topic, partitions, spec)
        return {number: one.offset for number, one in found.items()}

    def _asked_offsets(self, topic: str, partitions: Iterable[int], spec: Any) -> dict[int, Any]:
        wanted = {Partition(topic, number): spec for number in partitions}
        if not wanted:
            return {}
        level = IsolationLevel.READ_COMMITTED
        deadline = time.monotonic() + ELECTION_S
        while True:
            futures = self._ask(
                lambda: self._admin.list_offsets(wanted, isolation_level=level, **_TIMEOUT)
            )
            try:
                return {p.partition: future.result() for p, future in futures.items()}
            except KafkaException as error:
                if error_of(error).code() not in _ELECTING or time.monotonic() > deadline:
                    raise self._failed(error, f'asking for offsets of topic "{topic}"') from None
            time.sleep(0.02)

    def _ask(self, request: Any) -> Any:
        try:
            return request()
        except KafkaException as error:
            raise self._failed(error, "asking for topics") from None

    def _failed(self, error: KafkaException, doing: str) -> TidemarkError:
        return self._client.refused(error, doing, self._admin)


def _term(told: int | None) -> int:
    return -1 if told is None else told


_TIMEOUT = {"request_timeout": ASK_TIMEOUT_S}


def missing(topic: str, relation: RelationName | None = None) -> SourceError:
    """The error for a topic that is not there."""
    return SourceError(
        "source.topic_missing",
        f'topic "{topic}" is missing',
        hint="make it, or correct its name; views that had read it must be rebuilt",
        relation=relation,
    )


def recreated(topic: str, relation: RelationName | None = None) -> SourceError:
    """The error for a topic that was deleted and made again since it was first read."""
    return SourceError(
        "source.topic_recreated",
        f'topic "{topic}" was deleted and made again',
        detail="its id has changed: what was read of the old one is not in it",
        hint=f"rebuild the views that read it{_EVERY_VIEW if relation is None else ''}",
        relation=relation,
    )


def offsets_gone(
    topic: str, place: str, detail: str, relation: RelationName | None = None
) -> SourceError:
    """The error for records after our place that are gone, or a log that ends before it."""
    return SourceError(
        "source.offsets_gone",
        f'topic "{topic}" has lost records that were not read',
        detail=f"at {place} (partition:offset): {detail}",
        hint="keep records for longer (retention); rebuild the views that read the topic"
        + (_EVERY_VIEW if relation is None else ""),
        relation=relation,
    )


def check_same(
    topic: str, id: str, found: Mapping[str, Topic], relation: RelationName | None
) -> Topic:
    """The topic as it stands, if it is the one with this id."""
    told = found.get(topic)
    if told is None:
        raise missing(topic, relation)
    if told.id != id:
        raise recreated(topic, relation)
    return told
