"""Metadata of topics: their ids, partitions, end offsets, and whether they are compacted.

Invariant: the id identifies a topic. A topic that was deleted and recreated is another topic; its
records are never taken for those of the old one.
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

QUERY_TIMEOUT_S = 5.0
# New partitions, or those whose broker has left, have no leader for a moment.
ELECTION_S = 3.0
# Brokers may not know a topic for a moment that was created just now.
PROPAGATION_S = 1.0
_ELECTING = {
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
}
# For a topic that all views of a source need: its state is dropped with the last reader.
_EVERY_VIEW = ": pause all views of the source, and resume them"
_MISSING = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.UNKNOWN_TOPIC_ID}
_REFUSED = {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED}


@dataclass(frozen=True)
class Topic:
    """A topic as the cluster describes it. id: base64, new for each creation.
    partitions: how many.
    """

    name: str
    id: str
    partitions: int


class Topics:
    """Queries one cluster; for one thread. Each call waits up to QUERY_TIMEOUT_S.

    TemporaryError: the cluster is unreachable. What holds one for long closes it: an object in a
    cycle is freed late, and each admin client has threads and connections.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._admin = client.admin()

    def close(self) -> None:
        """Release the admin client, which ends with its last reference."""
        del self._admin

    def describe(
        self, names: Collection[str], *, within_s: float = PROPAGATION_S
    ) -> dict[str, Topic]:
        """Return those of the topics that exist, by name; wait so long for those that are missing.

        Without waiting, a topic that was created just now may be missing.
        """
        deadline = time.monotonic() + within_s
        found = self._describe(names)
        while len(found) < len(set(names)) and time.monotonic() < deadline:
            time.sleep(0.05)
            found = self._describe(names)
        return found

    def _describe(self, names: Collection[str]) -> dict[str, Topic]:
        requested = TopicCollection(sorted(names))
        futures = self._query(lambda: self._admin.describe_topics(requested, **_TIMEOUT))
        found = {}
        for name, future in futures.items():
            try:
                answer = future.result()
            except KafkaException as error:
                if error_of(error).code() in _MISSING:
                    continue
                raise self._failed(error, f'asking for topic "{name}"') from None
            nodes = (n for p in answer.partitions for n in (p.leader, *p.replicas) if n is not None)
            self._client.check_brokers(n.host for n in nodes if n.host)
            found[name] = Topic(name, str(answer.topic_id), len(answer.partitions))
        return found

    def ends(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """Return {partition: offset after the last committed record}."""
        return self._offsets(topic, partitions, OffsetSpec.latest())

    def tips(self, topic: str, partitions: Iterable[int]) -> dict[int, tuple[int, int]]:
        """Return {partition: (offset after the last committed record, the leader's term)}.

        The term is -1 if the broker does not send it (connectors/kafka/leader_epochs.py).
        """
        found = self._list_offsets(topic, partitions, OffsetSpec.latest())
        return {p: (one.offset, _term(one.leader_epoch)) for p, one in found.items()}

    def begins(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """Return {partition: first retained offset}."""
        return self._offsets(topic, partitions, OffsetSpec.earliest())

    def at_time(self, topic: str, partitions: Iterable[int], time_ms: int) -> dict[int, int]:
        """Return {partition: first offset at that time or later}, -1 if there is none."""
        return self._offsets(topic, partitions, OffsetSpec.for_timestamp(time_ms))

    def is_compacted(self, names: Collection[str]) -> bool:
        """Return True if any of the topics may lose records that have later ones of their key.

        Also True if we lack the privilege to find out.
        """
        requested = [ConfigResource(ResourceType.TOPIC, name) for name in sorted(names)]
        futures = self._query(lambda: self._admin.describe_configs(requested, **_TIMEOUT))
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
        found = self._list_offsets(topic, partitions, spec)
        return {number: one.offset for number, one in found.items()}

    def _list_offsets(self, topic: str, partitions: Iterable[int], spec: Any) -> dict[int, Any]:
        requested = {Partition(topic, number): spec for number in partitions}
        if not requested:
            return {}
        level = IsolationLevel.READ_COMMITTED
        deadline = time.monotonic() + ELECTION_S
        while True:
            futures = self._query(
                lambda: self._admin.list_offsets(requested, isolation_level=level, **_TIMEOUT)
            )
            try:
                return {p.partition: future.result() for p, future in futures.items()}
            except KafkaException as error:
                if error_of(error).code() not in _ELECTING or time.monotonic() > deadline:
                    raise self._failed(error, f'asking for offsets of topic "{topic}"') from None
            time.sleep(0.02)

    def _query(self, request: Any) -> Any:
        try:
            return request()
        except KafkaException as error:
            raise self._failed(error, "asking for topics") from None

    def _failed(self, error: KafkaException, doing: str) -> TidemarkError:
        return self._client.refused(error, doing, self._admin)


def _term(answer: int | None) -> int:
    return -1 if answer is None else answer


_TIMEOUT = {"request_timeout": QUERY_TIMEOUT_S}


def missing(topic: str, relation: RelationName | None = None) -> SourceError:
    """Return the error for a topic that does not exist."""
    return SourceError(
        "source.topic_missing",
        f'topic "{topic}" is missing',
        hint="create it or correct its name, and rebuild the views that had read it",
        relation=relation,
    )


def recreated(topic: str, relation: RelationName | None = None) -> SourceError:
    """Return the error for a topic that was deleted and recreated since it was first read."""
    return SourceError(
        "source.topic_recreated",
        f'topic "{topic}" was deleted and recreated',
        detail="its id has changed: it does not hold the records that were read",
        hint=f"rebuild the views that read it{_EVERY_VIEW if relation is None else ''}",
        relation=relation,
    )


def offsets_gone(
    topic: str, position: str, detail: str, relation: RelationName | None = None
) -> SourceError:
    """Return the error for lost records after our offset, or a log that ends before it."""
    return SourceError(
        "source.offsets_gone",
        f'topic "{topic}" has lost records before they were read',
        detail=f"at {position} (partition:offset): {detail}",
        hint="increase the topic's retention; rebuild the views that read the topic"
        + (_EVERY_VIEW if relation is None else ""),
        relation=relation,
    )


def check_same(
    topic: str, id: str, found: Mapping[str, Topic], relation: RelationName | None
) -> Topic:
    """Return the topic if its id is this one."""
    answer = found.get(topic)
    if answer is None:
        raise missing(topic, relation)
    if answer.id != id:
        raise recreated(topic, relation)
    return answer
