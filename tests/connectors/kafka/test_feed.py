"""Oracle: the records that were written, and what kafka-python reads of the topic."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kafka import KafkaProducer, TopicPartition
from kafka.admin import NewPartitions

from connectors.kafka.broker_settings import USERS
from connectors.kafka.embedded import EmbeddedKafka
from connectors.kafka.topic_source import KafkaSource
from dataflow.errors import SourceError, TemporaryError
from tests.connectors.kafka.reading import (
    SourceSubscriptions,
    TransactionBuffer,
    ids,
    names,
    snapshot,
    snapshot_offsets,
    source_of,
    topic_options,
    upsert_options,
    value,
)
from tests.harness.broker import (
    admin_of,
    drop_topic,
    new_topic,
    producer_of,
    read_all,
    send,
    unique_name,
)


def numbered(count: int, partitions: int = 1, first: int = 0) -> list[Any]:
    return [(n % partitions, None, value(n)) for n in range(first, first + count)]


@contextmanager
def following(
    source: KafkaSource, held: TransactionBuffer | None = None
) -> Iterator[SourceSubscriptions]:
    positions, notes = snapshot_offsets(source)
    with SourceSubscriptions(source, held or TransactionBuffer(positions=positions), notes) as feed:
        yield feed


def test_records_are_rows_with_their_metadata(broker: EmbeddedKafka) -> None:
    topic = new_topic(broker)
    columns = {"id": "int8", "_partition": "int4", "_offset": "bigint", "_key": "bytea"}
    columns |= {"_timestamp": "timestamptz", "_headers": "jsonb"}
    source = source_of(broker, {"clicks": topic_options(topic, columns=columns)})
    assert source.relations()[0].key == (1, 2)
    assert source.relations()[0].is_append
    with following(source) as feed:
        headers = [("trace", b'\xc3\xa9"'), ("raw", b"\xff")]
        with producer_of(broker) as producer:
            producer.send(topic, value(7), b"k\x00", headers, 0, 946_684_801_500)
            producer.send(topic, value(8))
        held = feed.until(lambda held: len(held.rows.get("clicks", ())) == 2)
    first, second = sorted(held.rows["clicks"])
    assert first[:5] == (7, 0, 0, b"\\x6b00", 1_500_000)
    shown = b'[{"key": "trace", "value": "\xc3\xa9\\""}, {"key": "raw", "bytes": "\\\\xff"}'
    assert first[5] == shown + b"]"
    assert (second[3], second[5]) == (None, b"[]")


def test_positions_are_offsets_by_partition(broker: EmbeddedKafka) -> None:
    topic = new_topic(broker, 2)
    send(broker, topic, numbered(5, 2))
    source = source_of(broker, {"clicks": topic_options(topic)})
    source.check()
    positions, _ = snapshot_offsets(source)
    assert positions["clicks"]["next"] == {"0": 3, "1": 2}
    with following(source) as feed:
        send(broker, topic, numbered(3, 2, first=5))
        held = feed.until(lambda held: len(ids(held)) == 3)
        assert ids(held) == [5, 6, 7]
        assert held.positions["clicks"]["next"] == {"0": 4, "1": 4}
        assert feed.feed.lag == 0


def test_a_batch_names_all_its_relations(broker: EmbeddedKafka) -> None:
    topics = {name: new_topic(broker) for name in ("clicks", "orders")}
    source = source_of(broker, {name: topic_options(t) for name, t in topics.items()})
    with following(source) as feed:
        send(broker, topics["clicks"], numbered(3))
        held = feed.until(lambda held: len(ids(held)) == 3)
        assert held.positions["orders"]["next"] == {"0": 0}
        send(broker, topics["orders"], numbered(2))
        held = feed.until(lambda held: len(ids(held, "orders")) == 2)
        assert held.positions["clicks"]["next"] == {"0": 3}


def test_aborted_transactions_are_not_seen_and_their_marks_are_passed(
    broker: EmbeddedKafka,
) -> None:
    topic = new_topic(broker)
    source = source_of(broker, {"clicks": topic_options(topic)})
    with following(source) as feed, transactions(broker) as producer:
        for n in range(6):
            producer.begin_transaction()
            producer.send(topic, value(n))
            producer.flush()
            _ = producer.commit_transaction() if n % 2 else producer.abort_transaction()
        held = feed.until(lambda held: held.positions["clicks"]["next"] == {"0": 12})
        assert ids(held) == [1, 3, 5]
        # What is not decided yet is not told, and holds up what comes after it.
        producer.begin_transaction()
        producer.send(topic, value(6))
        producer.flush()
        send(broker, topic, numbered(1, first=7))
        assert snapshot_offsets(source)[0]["clicks"]["next"] == {"0": 12}
        assert feed.step() is None
        producer.commit_transaction()
        assert ids(feed.until(lambda held: len(ids(held)) == 5)) == [1, 3, 5, 6, 7]


@contextmanager
def transactions(broker: EmbeddedKafka) -> Iterator[KafkaProducer]:
    with producer_of(broker, transactional_id=unique_name("id")) as producer:
        producer.init_transactions()
        yield producer


def test_until_is_never_passed(broker: EmbeddedKafka) -> None:
    topic = new_topic(broker, 2)
    source = source_of(broker, {"clicks": topic_options(topic)})
    positions, notes = snapshot_offsets(source)
    with transactions(broker) as producer:
        producer.begin_transaction()
        for n in range(1000):
            producer.send(topic, value(n), partition=n % 2)
        producer.commit_transaction()
    ends = json.loads(json.dumps(positions))
    ends["clicks"]["next"] = {"0": 137, "1": 501}
    with SourceSubscriptions(source, TransactionBuffer(positions=dict(positions)), notes) as feed:
        held = feed.until(lambda held: held.positions == ends, positions=ends)
        assert ids(held) == sorted([*range(0, 274, 2), *range(1, 1000, 2)])
        assert feed.feed.poll(10, until=ends) is None
        # Beyond it, nothing is lost or told twice.
        assert ids(feed.until(lambda held: len(ids(held)) == 1000)) == list(range(1000))


def test_a_feed_continues_where_another_ended(broker: EmbeddedKafka) -> None:
    topic = new_topic(broker, 3)
    source = source_of(broker, {"clicks": topic_options(topic)})
    positions, notes = snapshot_offsets(source)
    held = TransactionBuffer(positions=dict(positions))
    send(broker, topic, numbered(3000, 3))
    while len(ids(held)) < 3000:
        held.positions = json.loads(json.dumps(held.positions))
        with SourceSubscriptions(source, held, notes) as feed:
            while feed.step(max_rows=100) is None:
                pass
    assert ids(held) == list(range(3000))


def test_new_partitions_are_read_from_their_beginning(broker: EmbeddedKafka) -> None:
    topic = new_topic(broker)
    send(broker, topic, numbered(2, first=-2))
    source = source_of(broker, {"clicks": topic_options(topic, start="latest")})
    positions, notes = snapshot_offsets(source)
    with SourceSubscriptions(source, TransactionBuffer(positions=positions), notes) as feed:
        send(broker, topic, numbered(2))
        feed.until(lambda held: len(ids(held)) == 2)
        with admin_of(broker) as admin:
            admin.create_partitions({topic: NewPartitions(3)})
        send(broker, topic, numbered(6, 3, first=2))
        held = feed.until(lambda held: len(ids(held)) == 8)
        assert held.positions["clicks"]["next"] == {"0": 6, "1": 2, "2": 2}
    # A view that is made now reads them too, and what came before the start neither.
    assert ids(snapshot(source, held.positions, notes)) == list(range(8))


def test_a_topic_that_is_gone_is_refused(broker: EmbeddedKafka) -> None:
    topic = new_topic(broker)
    source = source_of(broker, {"clicks": topic_options(topic)})
    with following(source) as feed:
        feed.step()
        drop_topic(broker, topic)
        error = feed.failure()
        assert (error.code, str(error.relation)) == ("source.topic_missing", "shop.clicks")
    for refused in (source.check, lambda: source.start_position(source.relations()[0])):
        with pytest.raises(SourceError, match=r"source\.topic_missing"):
            refused()


def test_a_topic_that_was_made_again_is_refused(broker: EmbeddedKafka) -> None:
    topic = new_topic(broker)
    source = source_of(broker, {"clicks": topic_options(topic)}, check_ms=60_000)
    with following(source) as feed:
        send(broker, topic, numbered(10))
        held = feed.until(lambda held: len(ids(held)) == 10)
        drop_topic(broker, topic)
        new_topic(broker, name=topic)
        # More than the old one had: the client itself would continue in the middle of the new one.
        send(broker, topic, numbered(50, first=100))
        error = feed.failure()
        assert (error.code, str(error.relation)) == ("source.topic_recreated", "shop.clicks")
        assert ids(feed.held) == list(range(10))
    with SourceSubscriptions(source, held, {}) as feed:
        assert feed.failure().code == "source.topic_recreated"


def test_records_that_are_gone_are_refused(broker: EmbeddedKafka) -> None:
    topic = new_topic(broker)
    source = source_of(broker, {"clicks": topic_options(topic)})
    positions, notes = snapshot_offsets(source)
    send(broker, topic, numbered(10))
    with admin_of(broker) as admin:
        admin.delete_records({TopicPartition(topic, 0): 5})
    with SourceSubscriptions(source, TransactionBuffer(positions=dict(positions)), notes) as feed:
        error = feed.failure()
    assert (error.code, str(error.relation)) == ("source.offsets_gone", "shop.clicks")
    assert "0:0" in error.detail


def test_a_log_that_ends_before_our_position_is_refused(broker: EmbeddedKafka) -> None:
    topic = new_topic(broker)
    send(broker, topic, numbered(10))
    source = source_of(broker, {"clicks": topic_options(topic)})
    positions, notes = snapshot_offsets(source)
    positions["clicks"]["next"] = {"0": 500}
    with SourceSubscriptions(source, TransactionBuffer(positions=dict(positions)), notes) as feed:
        assert feed.failure().code == "source.offsets_gone"


@pytest.mark.whole
def test_a_log_that_was_lost_and_grew_past_our_position_is_refused(
    own_broker: EmbeddedKafka,
) -> None:
    """Under the same topic id; a mark of a transaction that a later leader has written, and
    records that are gone below our place, are no such thing."""
    topics = {name: new_topic(own_broker) for name in ("clicks", "orders")}
    source = source_of(own_broker, {name: topic_options(t) for name, t in topics.items()})
    send(own_broker, topics["orders"], numbered(10))
    positions, notes = snapshot_offsets(source)
    with transactions(own_broker) as producer:
        producer.begin_transaction()
        for n in range(10):
            producer.send(topics["clicks"], value(n))
        producer.flush()
        own_broker.kill()
        own_broker.start()
        producer.commit_transaction()
    held = TransactionBuffer(positions=positions)
    with SourceSubscriptions(source, held, notes) as feed:
        feed.until(lambda held: held.positions["clicks"]["next"] == {"0": 11})
        notes |= feed.notes
    with SourceSubscriptions(source, held, notes) as feed:
        send(own_broker, topics["clicks"], numbered(10, first=10))
        feed.until(lambda held: len(ids(held)) == 20)
        notes |= feed.notes
    with admin_of(own_broker) as admin:
        admin.delete_records({TopicPartition(topics["clicks"], 0): 21})
    with SourceSubscriptions(source, held, notes) as feed:
        send(own_broker, topics["clicks"], numbered(5, first=20))
        feed.until(lambda held: len(ids(held)) == 25)
        notes |= feed.notes
    own_broker.kill()
    for topic in topics.values():
        shutil.rmtree(own_broker.directory / "records" / f"{topic}-0")
    own_broker.start()
    for topic in topics.values():
        send(own_broker, topic, numbered(50, first=1000))
    for name in ("clicks", "orders"):
        alone = source_of(own_broker, {name: topic_options(topics[name])})
        with SourceSubscriptions(
            alone, TransactionBuffer(positions={name: held.positions[name]}), notes
        ) as feed:
            error = feed.failure()
            assert (error.code, str(error.relation)) == ("source.offsets_gone", f"shop.{name}")
            assert not feed.held.rows


def test_upserts_and_tombstones(broker: EmbeddedKafka) -> None:
    topic = new_topic(broker, 2)
    source = source_of(broker, {"clicks": upsert_options(topic)})
    with following(source) as feed:
        records = [(k % 2, b"%d" % k, value(k, f"v{n}")) for n in range(3) for k in range(10)]
        send(broker, topic, [*records, (0, b"4", None), (1, b"99", None), (1, b"7", None)])
        held = feed.until(lambda held: held.positions["clicks"]["next"] == {"0": 16, "1": 17})
    assert names(held) == {k: "v2" for k in range(10) if k not in (4, 7)}


def test_rows_known_by_the_bytes_of_the_key(broker: EmbeddedKafka) -> None:
    topic = new_topic(broker)
    options = topic_options(
        topic, mode="upsert", key=["_key"], columns={"_key": "bytea", "id": "int8"}
    )
    source = source_of(broker, {"clicks": {**options, "on_error": "dead_letter"}})
    with following(source) as feed:
        records = [(0, b"a", value(1)), (0, b"b", value(2)), (0, None, value(3))]
        send(broker, topic, [*records, (0, b"a", None), (0, b"b", value(4))])
        held = feed.until(lambda held: held.positions["clicks"]["next"] == {"0": 5})
    assert held.keyed["clicks"] == {(b"\\x62",): (b"\\x62", 4)}
    assert [row[2:4] for row in held.rejected] == [(b"0:2", b"record.no_key")]


@pytest.mark.whole
def test_a_source_with_tls_and_a_password(
    broker: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(broker)
    user, password = next(iter(USERS.items()))
    sasl = {"mechanism": "SCRAM-SHA-256", "username": user, "password": "${env:KAFKA_PASSWORD}"}
    secured = {
        "bootstrap_servers": broker.secured_bootstrap,
        "tls": {"ca_file": str(broker.ca_file)},
        "sasl": sasl,
    }
    source = source_of(broker, {"clicks": topic_options(topic)}, **secured)
    monkeypatch.setenv("KAFKA_PASSWORD", password)
    send(broker, topic, numbered(5))
    positions, notes = snapshot_offsets(source)
    held = snapshot(source, positions, notes)
    send(broker, topic, numbered(5, first=5))
    with SourceSubscriptions(source, held, notes) as feed:
        assert ids(feed.until(lambda held: len(ids(held)) == 10)) == list(range(10))
    monkeypatch.setenv("KAFKA_PASSWORD", "wrong")
    with SourceSubscriptions(source, held, notes) as feed:
        assert feed.failure().code == "source.login"


@pytest.mark.whole
def test_a_broker_that_is_killed_loses_and_doubles_nothing(own_broker: EmbeddedKafka) -> None:
    topic = new_topic(own_broker, 2)
    source = source_of(own_broker, {"clicks": topic_options(topic)})
    positions, notes = snapshot_offsets(source)
    held = TransactionBuffer(positions=dict(positions))
    with SourceSubscriptions(source, held, notes) as feed:
        send(own_broker, topic, numbered(500, 2))
        feed.until(lambda held: len(ids(held)) > 0)
        own_broker.kill()
        error = feed.failure()
        assert isinstance(error, TemporaryError), getattr(error, "detail", "")
        assert error.code == "source.unreachable"
    with SourceSubscriptions(source, held, notes) as feed:  # still away
        assert isinstance(feed.failure(), TemporaryError)
    own_broker.start()
    send(own_broker, topic, numbered(500, 2, first=500))
    with SourceSubscriptions(source, held, notes) as feed:
        feed.until(lambda held: len(ids(held)) == 1000)
    assert ids(held) == list(range(1000))
    assert len(read_all(own_broker, topic)) == 1000


def test_a_small_buffer_holds_up_nothing(broker: EmbeddedKafka) -> None:
    topic = new_topic(broker)
    wide = json.dumps({"id": 1, "name": "x" * 1000}).encode()
    source = source_of(broker, {"clicks": topic_options(topic)}, buffer_bytes=1 << 16)
    with following(source) as feed:
        send(broker, topic, [(0, None, wide)] * 3000)
        rows = 0
        while rows < 3000:
            batch = feed.step(max_rows=1)
            rows += 0 if batch is None else batch.rows
        assert rows == 3000


def test_replay_is_trusted_only_without_compaction(broker: EmbeddedKafka) -> None:
    kept, compacted = new_topic(broker), new_topic(broker, settings={"cleanup.policy": "compact"})
    for options, is_replayable in (
        (topic_options(kept), True),
        (topic_options(compacted), False),
        (upsert_options(kept), False),
    ):
        source = source_of(broker, {"clicks": options})
        assert not source.is_replayable
        source.check()
        assert source.is_replayable == is_replayable
