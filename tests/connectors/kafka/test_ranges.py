"""Oracle: the records that were written, and what a feed makes of the same topic."""

from __future__ import annotations

from typing import Any

import pytest
from kafka import TopicPartition
from kafka.admin import NewPartitions

from connectors.feed_source import BY_EXECUTORS, reader_of
from connectors.kafka import ranges as ranges_module
from connectors.kafka.embedded import EmbeddedKafka
from connectors.kafka.reader import Reader
from connectors.kafka.topic_source import KafkaSource
from dataflow.errors import TidemarkError
from tests.connectors.kafka.reading import (
    RangesFeed,
    RangeSubscriptions,
    SourceSubscriptions,
    TransactionBuffer,
    ids,
    names,
    snapshot_offsets,
    source_of,
    topic_options,
    upsert_options,
    value,
)
from tests.connectors.kafka.test_feed import numbered, transactions
from tests.harness.broker import admin_of, drop_topic, new_topic, producer_of, read_all, send

BOTH = pytest.mark.parametrize("reading", [SourceSubscriptions, RangeSubscriptions])


def first_positions(source: KafkaSource) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Before all records."""
    positions, notes = {}, {}
    for relation in source.relations():
        start = source.first_position(relation)
        positions[relation.name.name] = start.position
        notes.update(start.notes)
    return positions, notes


def read_to_end(
    source: KafkaSource, held: TransactionBuffer, notes: dict[str, bytes], max_rows: int = 50_000
) -> RangesFeed:
    """Read what there is now in ranges, without a thread."""
    end = source.current_end(source.relations())
    planner = source.open_ranges(source.relations(), held.positions, notes, lambda: None, end)
    feed = RangesFeed(planner)
    while (batch := feed.poll(max_rows)) is not None:
        held.add_batch(batch)
        for name, note in batch.notes.items():
            assert note is not None
            notes[name] = note
    return feed


@pytest.mark.parametrize("max_rows", [7, 50_000])
def test_ranges_are_what_a_feed_reads(broker: EmbeddedKafka, max_rows: int) -> None:
    """Rows with their metadata, upserts, removals and malformed records of three partitions."""
    topics = {name: new_topic(broker, 3) for name in ("clicks", "people")}
    columns = {"id": "int8", "name": "text", "_partition": "int4", "_offset": "int8"}
    columns |= {"_timestamp": "timestamptz", "_headers": "jsonb", "_key": "bytea"}
    given = {
        "clicks": topic_options(topics["clicks"], columns=columns),
        "people": upsert_options(topics["people"]),
    }
    source = source_of(broker, given, on_error="dead_letter")
    assert [reader_of(source, r) for r in source.relations()] == [BY_EXECUTORS] * 2
    positions, notes = first_positions(source)
    with producer_of(broker) as producer:
        for n in range(60):
            sent = b"no row" if n % 13 == 5 else value(n)
            producer.send(topics["clicks"], sent, b"%d" % n, [("h", b"1")], n % 3, 10**12 + n)
            person = None if n % 4 == 0 else value(0, f"name {n}")
            producer.send(topics["people"], person, b"%d" % (n % 9), partition=n % 9 % 3)
    expected = TransactionBuffer(positions=dict(positions))
    with SourceSubscriptions(source, expected, notes) as feed:
        ends = {name: {str(p): 20 for p in range(3)} for name in topics}
        feed.until(lambda held: {n: p["next"] for n, p in held.positions.items()} == ends)
        noted = dict(feed.notes)
    held = TransactionBuffer(positions=dict(positions))
    found = dict(notes)
    feed = read_to_end(source, held, found, max_rows)
    assert (held.rows, held.keyed, held.positions) == (
        expected.rows,
        expected.keyed,
        expected.positions,
    )
    assert sorted(held.rejected) == sorted(expected.rejected) and held.rejected
    assert {name: found[name] for name in noted} == noted
    assert len(feed.ranges) > (12 if max_rows == 7 else 5)


@BOTH
def test_one_continues_where_the_other_ended(broker: EmbeddedKafka, reading: type) -> None:
    topic = new_topic(broker, 2)
    source = source_of(broker, {"clicks": topic_options(topic)})
    positions, notes = snapshot_offsets(source)
    held = TransactionBuffer(positions=positions)
    for number, kind in enumerate([reading, SourceSubscriptions, RangeSubscriptions]):
        send(broker, topic, numbered(10, 2, first=10 * number))
        with kind(source, held, notes) as feed:
            feed.until(lambda held, n=number: len(ids(held)) == 10 * n + 10)
            notes |= feed.notes
            assert feed.feed.lag == 0
    assert ids(held) == list(range(30))


def test_aborted_records_are_not_read_and_end_a_range(broker: EmbeddedKafka) -> None:
    topic = new_topic(broker)
    source = source_of(broker, {"clicks": topic_options(topic)})
    positions, notes = first_positions(source)
    with transactions(broker) as producer:
        for n in range(6):
            producer.begin_transaction()
            producer.send(topic, value(n))
            producer.flush()
            _ = producer.abort_transaction() if n % 2 else producer.commit_transaction()
        held = TransactionBuffer(positions=positions)
        read_to_end(source, held, notes, 5)
        assert ids(held) == [0, 2, 4]
        assert held.positions["clicks"]["next"] == {"0": 12}
        # What is not decided yet is no part of any range.
        producer.begin_transaction()
        producer.send(topic, value(6))
        producer.flush()
        send(broker, topic, numbered(1, first=7))
        read_to_end(source, held, notes)
        assert ids(held) == [0, 2, 4]
        producer.commit_transaction()
    read_to_end(source, held, notes)
    assert ids(held) == [0, 2, 4, 6, 7]


@pytest.mark.whole
def test_new_partitions_are_read_from_their_beginning(broker: EmbeddedKafka) -> None:
    topic = new_topic(broker)
    source = source_of(broker, {"clicks": topic_options(topic)})
    positions, notes = snapshot_offsets(source)
    with RangeSubscriptions(source, TransactionBuffer(positions=positions), notes) as feed:
        send(broker, topic, numbered(3))
        feed.until(lambda held: len(ids(held)) == 3)
        with admin_of(broker) as admin:
            admin.create_partitions({topic: NewPartitions(2)})
        send(broker, topic, [(1, None, value(3)), (0, None, value(4))])
        held = feed.until(lambda held: len(ids(held)) == 5)
    assert held.positions["clicks"]["next"] == {"0": 4, "1": 1}


def test_a_process_keeps_its_consumer(
    broker: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranges of two topics in turn, forward and backward, by one consumer: none mixes them up."""
    made: list[Reader] = []

    class Counting(Reader):
        def __init__(self, *given: Any, **more: Any) -> None:
            made.append(self)
            super().__init__(*given, **more)

    monkeypatch.setattr(ranges_module, "Reader", Counting)
    kept = ranges_module.KeptOpen(1, Reader.close)
    monkeypatch.setattr(ranges_module, "_READERS", kept)
    topics = {name: new_topic(broker, 2) for name in ("clicks", "orders")}
    source = source_of(broker, {n: topic_options(t) for n, t in topics.items()}, check_ms=101)
    positions, notes = first_positions(source)
    for number, topic in enumerate(topics.values()):
        send(broker, topic, numbered(3000, 2, first=10_000 * number))
    end = source.current_end(source.relations())
    planner = source.open_ranges(source.relations(), positions, notes, lambda: None, end)
    found = planner.cut(20, 6000)
    for part in [*found[::2], *reversed(found)]:
        columns = [change.columns for change in part.read()]
        read = [n for column in columns for n in column[2].to_list()]
        first = 10_000 * (part.relation.name == "orders") + part.partition
        assert read == [first + 2 * offset for offset in range(part.begin, part.end)]
    assert len(made) == 1 and len(found) >= 20
    planner.close()


@BOTH
def test_a_bad_record_stops_its_source_where_it_lies(broker: EmbeddedKafka, reading: type) -> None:
    topic = new_topic(broker)
    source = source_of(broker, {"clicks": topic_options(topic)})
    positions, notes = snapshot_offsets(source)
    held = TransactionBuffer(positions=positions)
    send(broker, topic, [(0, None, value(0)), (0, None, b"no row"), *numbered(9, first=1)])
    for _ in range(2):
        with reading(source, held, notes) as feed:
            error = feed.failure()
            notes |= feed.notes
        assert (error.code, str(error.relation)) == ("source.bad_record", "shop.clicks")
        assert held.positions["clicks"]["next"] == {"0": 1}
        assert ids(held) == [0]
    repaired = source_of(broker, {"clicks": topic_options(topic)}, on_error="skip")
    with reading(repaired, held, notes) as feed:
        feed.until(lambda held: len(ids(held)) == 10)
        assert feed.feed.skipped == 1


def test_dead_letters_go_to_their_topic(broker: EmbeddedKafka) -> None:
    topic, dead = new_topic(broker), new_topic(broker)
    more = {"on_error": "dead_letter", "dead_letter_topic": dead}
    source = source_of(broker, {"clicks": topic_options(topic, **more)})
    positions, notes = first_positions(source)
    send(broker, topic, [(0, b"k", b"no row"), *numbered(3)])
    held = TransactionBuffer(positions=positions)
    read_to_end(source, held, notes)
    assert [(r.key, r.value) for r in read_all(broker, dead)] == [(b"k", b"no row")]
    assert [row[2] for row in held.rejected] == [b"0:0"]


def _delete_some(broker: EmbeddedKafka, topic: str) -> None:
    with admin_of(broker) as admin:
        admin.delete_records({TopicPartition(topic, 0): 5})


def _make_again(broker: EmbeddedKafka, topic: str) -> None:
    drop_topic(broker, topic)
    new_topic(broker, name=topic)
    send(broker, topic, numbered(50, first=100))


@pytest.mark.parametrize(
    ("what", "code"),
    [
        (_delete_some, "source.offsets_gone"),
        (drop_topic, "source.topic_missing"),
        (_make_again, "source.topic_recreated"),
    ],
)
def test_what_is_gone_between_cutting_and_reading_is_named(
    broker: EmbeddedKafka, what: Any, code: str
) -> None:
    topic = new_topic(broker)
    source = source_of(broker, {"clicks": topic_options(topic)})
    positions, notes = first_positions(source)
    send(broker, topic, numbered(10))
    end = source.current_end(source.relations())
    planner = source.open_ranges(source.relations(), positions, notes, lambda: None, end)
    found = planner.cut(1, 100)
    what(broker, topic)
    with pytest.raises(TidemarkError) as refused:
        [change for part in found for change in part.read()]
    assert (refused.value.code, str(refused.value.relation)) == (code, "shop.clicks")
    planner.close()


@pytest.mark.whole
def test_the_planner_names_a_topic_that_is_gone(broker: EmbeddedKafka) -> None:
    topic = new_topic(broker)
    source = source_of(broker, {"clicks": topic_options(topic)})
    positions, notes = snapshot_offsets(source)
    with RangeSubscriptions(source, TransactionBuffer(positions=positions), notes) as feed:
        drop_topic(broker, topic)
        error = feed.failure()
    assert (error.code, str(error.relation)) == ("source.topic_missing", "shop.clicks")


def test_a_log_that_ends_before_our_position_is_refused(broker: EmbeddedKafka) -> None:
    topic = new_topic(broker)
    send(broker, topic, numbered(10))
    source = source_of(broker, {"clicks": topic_options(topic)})
    positions, notes = snapshot_offsets(source)
    positions["clicks"]["next"] = {"0": 500}
    with RangeSubscriptions(source, TransactionBuffer(positions=positions), notes) as feed:
        assert feed.failure().code == "source.offsets_gone"


def test_ranges_grow_with_what_a_task_can_hold(
    broker: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few records first; of large ones no more than fit. One range never takes more than that."""
    monkeypatch.setattr(ranges_module, "FIRST_RECORDS", 2)
    monkeypatch.setattr(ranges_module, "TASK_BYTES", 100_000)
    topic = new_topic(broker)
    source = source_of(broker, {"people": upsert_options(topic)})
    positions, notes = first_positions(source)
    large = [(0, b"%d" % n, value(n, "x" * 10_000)) for n in range(60)]
    send(broker, topic, large)
    held = TransactionBuffer(positions=positions)
    feed = read_to_end(source, held, notes)
    assert len(names(held, "people")) == 60
    sizes = [part.size for part in feed.ranges]
    assert max(sizes) <= 10 and sizes[0] == 2
    monkeypatch.setattr(ranges_module, "MAX_RANGE_BYTES", 50_000)
    monkeypatch.setattr(ranges_module, "CHUNK_BYTES", 20_000)
    monkeypatch.setattr(ranges_module, "FIRST_RECORDS", 1000)
    again = TransactionBuffer(positions=dict(first_positions(source)[0]))
    read_to_end(source, again, {})
    assert names(again, "people") == names(held, "people")


def test_what_is_not_read_in_ranges_is_said(broker: EmbeddedKafka) -> None:
    columns = [{"name": "id", "type": "int8"}]
    debezium = {"format": "debezium-json", "mode": "upsert", "key": ["id"], "columns": columns}
    given = {"people": {"topic": "p", **debezium}, "clicks": topic_options("c")}
    found = source_of(broker, given)
    people, clicks = (reader_of(found, r) for r in found.relations())
    assert clicks == BY_EXECUTORS
    assert people.startswith("driver, because Debezium")
    whole = source_of(broker, given, transactions="t")
    assert all("transactions" in reader_of(whole, r) for r in whole.relations())
