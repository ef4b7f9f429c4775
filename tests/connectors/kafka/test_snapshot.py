"""Oracle: the records that were written, replayed by the test itself in the order of offsets."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Sequence
from typing import Any

import pytest
from kafka import KafkaConsumer, TopicPartition

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
from tests.harness.broker import admin_of, drop_topic, new_topic, producer_of, send, unique_name
from tests.harness.waiting import wait_until

SEED = 20261122


def parts_of(
    source: KafkaSource, positions: Any, notes: Any, count: int, known: Sequence[str] = ()
) -> list[Any]:
    relation = source.relations()[0]
    opened = source.open_snapshot([relation], positions, notes)
    return list(opened.parts(relation, range(len(relation.fields)), count, known))


def _ends(broker: EmbeddedKafka, topic: str, level: str) -> dict[TopicPartition, int]:
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap, isolation_level=level)
    try:
        return consumer.end_offsets([TopicPartition(topic, n) for n in range(3)])
    finally:
        consumer.close()


def _await_marks(broker: EmbeddedKafka, topic: str) -> None:
    """The marks that end a transaction come to its partitions a moment after the commit, one by
    one; until then its records are not seen in all of them."""
    wait_until(
        lambda: _ends(broker, topic, "read_committed") == _ends(broker, topic, "read_uncommitted")
    )


def test_snapshot_and_feed_make_all_records_wherever_it_is_pinned(broker: EmbeddedKafka) -> None:
    chance = random.Random(SEED)
    topic = new_topic(broker, 3)
    source = source_of(broker, {"clicks": topic_options(topic)})
    written: list[int] = []
    pinned = []
    with producer_of(broker, transactional_id=unique_name("id")) as producer:
        producer.init_transactions()
        for turn in range(12):
            producer.begin_transaction()
            fresh = list(range(turn * 100, turn * 100 + chance.randrange(1, 60)))
            for n in fresh:
                producer.send(topic, value(n), partition=chance.randrange(3))
            producer.flush()
            if chance.random() < 0.3:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
                written += fresh
            _await_marks(broker, topic)
            pinned.append((*snapshot_offsets(source), len(written)))
    for positions, notes, count in chance.sample(pinned, 5):
        held = snapshot(source, positions, notes, chance.choice([1, 3, 8]))
        assert ids(held) == written[:count]
        with SourceSubscriptions(source, held, notes) as feed:
            feed.until(lambda held: len(ids(held)) == len(written))
        assert ids(held) == written


@pytest.mark.whole
def test_upserts_wherever_they_are_pinned(broker: EmbeddedKafka) -> None:
    chance = random.Random(SEED)
    topic = new_topic(broker, 2)
    source = source_of(broker, {"clicks": upsert_options(topic)})
    state: dict[int, str] = {}
    pinned = []
    for turn in range(8):
        records = []
        for _ in range(chance.randrange(1, 80)):
            key = chance.randrange(40)
            text = f"{turn}.{len(records)}"
            is_removed = chance.random() < 0.2
            records.append((key % 2, b"%d" % key, None if is_removed else value(key, text)))
            state.pop(key, None)
            if not is_removed:
                state[key] = text
        send(broker, topic, records)
        pinned.append((*snapshot_offsets(source), dict(state)))
    ends = pinned[-1][0]
    for positions, notes, then in chance.sample(pinned, 4):
        held = snapshot(source, positions, notes)
        assert names(held) == then
        with SourceSubscriptions(source, held, notes) as feed:
            feed.until(lambda held: held.positions == ends)
        assert names(held) == state


def test_parts_are_disjoint_stable_and_travel(broker: EmbeddedKafka) -> None:
    topic = new_topic(broker, 2)
    send(broker, topic, [(n % 2, None, value(n)) for n in range(1000)])
    source = source_of(broker, {"clicks": topic_options(topic)})
    positions, notes = snapshot_offsets(source)
    parts = parts_of(source, positions, notes, 8)
    assert len(parts) >= 8
    before = [part.name for part in parts]
    seen: list[int] = []
    for part in pickle.loads(pickle.dumps(parts)):
        for _ in range(2):  # a part is read again after an interruption
            rows = [row for delta in part.read() for row, _ in delta.rows()]
        seen += [row[2] for row in rows]
    assert sorted(seen) == list(range(1000))
    # Retention that takes a little of the beginning moves no other part.
    with admin_of(broker) as admin:
        admin.delete_records({TopicPartition(topic, 0): 10})
    again = parts_of(source, positions, notes, 8)
    assert [part.name for part in again] == before
    later = [row[2] for part in again for d in part.read() for row, _ in d.rows()]
    assert sorted(later) == sorted([*range(20, 1000, 2), *range(1, 1000, 2)])


@pytest.mark.parametrize("kind", [topic_options, upsert_options])
def test_a_snapshot_is_cut_as_before_when_records_are_gone(
    broker: EmbeddedKafka, kind: Any
) -> None:
    topic = new_topic(broker, 3)
    send(broker, topic, [(n % 3, b"%d" % n, value(n)) for n in range(300)])
    source = source_of(broker, {"clicks": kind(topic)})
    positions, notes = snapshot_offsets(source)
    before = [part.name for part in parts_of(source, positions, notes, 8)]
    with admin_of(broker) as admin:
        admin.delete_records({TopicPartition(topic, 0): 100, TopicPartition(topic, 1): 90})
    parts = parts_of(source, positions, notes, 8, before)
    assert [part.name for part in parts] == before
    held = TransactionBuffer()
    for part in parts:
        for delta in part.read():
            held.add_snapshot(source.relations()[0], delta)
    left = [n for n in range(300) if n % 3 == 2 or (n % 3 == 1 and n // 3 >= 90)]
    assert sorted([*ids(held), *names(held)]) == left


def test_only_requested_columns_are_reported(broker: EmbeddedKafka) -> None:
    topic = new_topic(broker)
    send(broker, topic, [(0, None, value(5, "x"))])
    source = source_of(broker, {"clicks": topic_options(topic)})
    positions, notes = snapshot_offsets(source)
    [relation] = source.relations()
    opened = source.open_snapshot([relation], positions, notes)
    [part] = opened.parts(relation, [3, 1], 1)
    [delta] = part.read()
    assert delta.rows() == [((b"x", 0), 1)]


@pytest.mark.parametrize(
    "start, expected",
    [
        ("earliest", [0, 1, 2, 3, 4, 5]),
        ("latest", []),
        ({"timestamp": "2026-01-01T00:00:03"}, [3, 4, 5]),
        ({"timestamp": "2026-01-01T01:00:03+01:00"}, [3, 4, 5]),
        ({"timestamp": "2100-01-01"}, []),
        ({"offsets": {"0": 1}}, [1, 2, 3, 4, 5]),
        ({"offsets": {"0": 3, "1": 2}}, [3]),
    ],
)
def test_where_it_starts(broker: EmbeddedKafka, start: Any, expected: list[int]) -> None:
    """Records 0 to 5, a second apart: 0 to 3 in partition 0, 4 and 5 in partition 1."""
    topic = new_topic(broker, 2)
    midnight_ms = 1_767_225_600_000
    with producer_of(broker) as producer:
        for n in range(6):
            at = midnight_ms + n * 1000
            producer.send(topic, value(n), partition=n // 4, timestamp_ms=at)
    source = source_of(broker, {"clicks": topic_options(topic, start=start)})
    positions, notes = snapshot_offsets(source)
    assert ids(snapshot(source, positions, notes)) == expected
    # Whatever the start, the feed begins at the place, with nothing of before.
    send(broker, topic, [(0, None, value(6)), (1, None, value(7))])
    with SourceSubscriptions(source, TransactionBuffer(positions=positions), notes) as feed:
        assert ids(feed.until(lambda held: len(ids(held)) == 2)) == [6, 7]


def test_offsets_to_start_at_must_be_there(broker: EmbeddedKafka) -> None:
    topic = new_topic(broker)
    send(broker, topic, [(0, None, value(n)) for n in range(10)])
    with admin_of(broker) as admin:
        admin.delete_records({TopicPartition(topic, 0): 5})
    for offsets in ({"0": 4}, {"0": 11}, {"3": 0}):
        source = source_of(broker, {"clicks": topic_options(topic, start={"offsets": offsets})})
        with pytest.raises(SourceError, match=r"source\.offsets_gone"):
            source.start_position(source.relations()[0])


def test_a_topic_made_again_has_no_snapshot(broker: EmbeddedKafka) -> None:
    topic = new_topic(broker)
    send(broker, topic, [(0, None, value(n)) for n in range(10)])
    source = source_of(broker, {"clicks": topic_options(topic)})
    positions, notes = snapshot_offsets(source)
    [part] = parts_of(source, positions, notes, 1)
    drop_topic(broker, topic)
    new_topic(broker, name=topic)
    send(broker, topic, [(0, None, value(n)) for n in range(20)])
    for read in (lambda: list(part.read()), lambda: parts_of(source, positions, notes, 1)):
        with pytest.raises(SourceError, match=r"source\.topic_recreated"):
            read()


@pytest.mark.whole
def test_compaction_and_marks_leave_holes(broker: EmbeddedKafka) -> None:
    settings = {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0"}
    topic = new_topic(broker, 1, {**settings, "max.compaction.lag.ms": "100"})
    source = source_of(broker, {"clicks": upsert_options(topic)})
    for turn in range(30):
        send(broker, topic, [(0, b"%d" % k, value(k, f"{turn}")) for k in range(20)])
    positions, notes = snapshot_offsets(source)
    wait_for_compaction(broker, topic, source, positions, notes)
    assert names(snapshot(source, positions, notes)) == dict.fromkeys(range(20), "29")
    begin = json.loads(json.dumps(positions))
    begin["clicks"]["next"] = {"0": 0}
    with SourceSubscriptions(source, TransactionBuffer(positions=begin), notes) as feed:
        held = feed.until(lambda held: held.positions == positions, positions=positions)
    assert names(held) == dict.fromkeys(range(20), "29")


def wait_for_compaction(
    broker: EmbeddedKafka, topic: str, source: KafkaSource, positions: Any, notes: Any
) -> None:
    """Until fewer records are left than were written; each look writes one that rolls a segment
    and belongs to no snapshot."""
    options = topic_options(topic, columns={"_offset": "int8", "_partition": "int4"})
    raw = source_of(broker, {"clicks": options})
    for _ in range(300):
        left = sum(snapshot(raw, positions, notes).rows["clicks"].values())
        if left < 500:
            return
        send(broker, topic, [(0, b"0", value(0, "later"))])
    raise AssertionError("the broker has compacted nothing")


@pytest.mark.whole
def test_retention_while_a_part_is_read_is_worth_another_try(broker: EmbeddedKafka) -> None:
    topic = new_topic(broker)
    wide = json.dumps({"id": 1, "name": "x" * 50_000}).encode()
    send(broker, topic, [(0, None, wide)] * 400)
    options = {"fetch.max.bytes": 1 << 20, "queued.min.messages": 1}
    source = source_of(broker, {"clicks": topic_options(topic)}, client=options)
    positions, notes = snapshot_offsets(source)
    [part] = parts_of(source, positions, notes, 1)
    reading = part.read()
    next(reading)
    with admin_of(broker) as admin:
        admin.delete_records({TopicPartition(topic, 0): 390})
    with pytest.raises(TemporaryError, match=r"source\.snapshot_gone"):
        list(reading)
