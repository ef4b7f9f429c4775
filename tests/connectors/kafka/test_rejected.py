"""Oracle: the records that were written: which of them are rows is known to the test."""

from __future__ import annotations

from typing import Any

import pytest

from connectors.feed_source import REJECTED_KINDS
from connectors.kafka.embedded import EmbeddedKafka
from connectors.kafka.topic_source import KafkaSource
from dataflow.delta import Delta
from dataflow.errors import SourceError
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
from tests.harness.broker import drop_topic, new_topic, producer_of, read_all, send, unique_name

POISON = [b"{", b'{"id": "many"}', b"\xff", b""]


def mixed(first: int = 0) -> list[Any]:
    """Rows 0 to 4 with a poison record after each of the first four."""
    records = []
    for n in range(5):
        records.append((0, b"k%d" % n, value(first + n)))
        records += [(0, b"bad", poison) for poison in POISON[n : n + 1]]
    return records


def start(source: KafkaSource) -> tuple[TransactionBuffer, dict[str, bytes]]:
    positions, notes = snapshot_offsets(source)
    return TransactionBuffer(positions=positions), notes


def test_dead_letters_are_reported_whole(broker: EmbeddedKafka) -> None:
    topic = new_topic(broker)
    source = source_of(broker, {"clicks": topic_options(topic)}, on_error="dead_letter")
    held, notes = start(source)
    send(broker, topic, mixed())
    with SourceSubscriptions(source, held, notes) as feed:
        feed.until(lambda held: held.positions["clicks"]["next"] == {"0": 9})
    assert ids(held) == [0, 1, 2, 3, 4]
    assert [row[:3] for row in held.rejected] == [
        (b"shop", b"clicks", b"0:%d" % offset) for offset in (1, 3, 5, 7)
    ]
    assert [row[5:] for row in held.rejected] == [(b"bad", poison) for poison in POISON]
    assert all(row[3].startswith(b"record.") and row[4] for row in held.rejected)
    # The snapshot tells the same ones.
    again = snapshot(source, held.positions, notes, 2)
    assert (ids(again), again.rejected) == (ids(held), held.rejected)


def test_skipped_records_are_counted(broker: EmbeddedKafka) -> None:
    topic = new_topic(broker)
    options = topic_options(topic, on_error="skip")
    source = source_of(broker, {"clicks": options}, on_error="fail")
    held, notes = start(source)
    send(broker, topic, mixed())
    with SourceSubscriptions(source, held, notes) as feed:
        feed.until(lambda held: held.positions["clicks"]["next"] == {"0": 9})
        assert feed.feed.skipped == 4
    assert (ids(held), held.rejected) == ([0, 1, 2, 3, 4], [])
    again = snapshot(source, held.positions, notes)
    assert (ids(again), again.rejected) == ([0, 1, 2, 3, 4], [])


def test_dead_letters_go_to_a_topic_before_the_position_moves(broker: EmbeddedKafka) -> None:
    topic, dead = new_topic(broker), new_topic(broker)
    options = {"on_error": "dead_letter", "dead_letter_topic": dead}
    source = source_of(broker, {"clicks": topic_options(topic)}, **options)
    source.check()
    held, notes = start(source)
    send(broker, topic, mixed())
    with SourceSubscriptions(source, held, notes) as feed:
        feed.until(lambda held: len(held.rejected) == 4)
        # The feed is still open: what it has told is there already.
        found = read_all(broker, dead)
    assert [(one.key, one.value or b"") for one in found] == [(b"bad", p) for p in POISON]
    told = [{name: text.decode() for name, text in one.headers} for one in found]
    positions = [f"{one['tidemark.partition']}:{one['tidemark.offset']}".encode() for one in told]
    assert positions == [row[2] for row in held.rejected]
    assert {one["tidemark.topic"] for one in told} == {topic}
    assert {one["tidemark.relation"] for one in told} == {"clicks"}
    pairs = [(one["tidemark.code"].encode(), one["tidemark.reason"].encode()) for one in told]
    assert pairs == [row[3:5] for row in held.rejected]
    # A snapshot tells them once more.
    snapshot(source, held.positions, notes)
    assert len(read_all(broker, dead)) == 8


def test_no_position_moves_past_what_the_topic_does_not_take(broker: EmbeddedKafka) -> None:
    topic, dead = new_topic(broker), unique_name()
    one = topic_options(topic, on_error="dead_letter", dead_letter_topic=dead)
    source = source_of(broker, {"clicks": one})
    with pytest.raises(SourceError, match=r"source\.dead_letter_topic"):
        source.check()
    new_topic(broker, settings={"max.message.bytes": "300"}, name=dead)
    held, notes = start(source)
    before = dict(held.positions)
    send(broker, topic, [(0, b"k", b"{" * 2000)])
    with SourceSubscriptions(source, held, notes) as feed:
        assert feed.failure().code == "source.dead_letter_topic"
    assert (held.positions, held.rejected) == (before, [])
    drop_topic(broker, dead)
    new_topic(broker, name=dead)
    with SourceSubscriptions(source, held, notes) as feed:
        feed.until(lambda held: len(held.rejected) == 1)
    assert [record.value for record in read_all(broker, dead)] == [b"{" * 2000]


@pytest.mark.parametrize("more", [{}, {"on_error": "skip"}, {"on_error": "dead_letter"}])
def test_a_topic_of_dead_letters_must_fit(broker: EmbeddedKafka, more: dict[str, str]) -> None:
    """It needs the policy, and is never one that is read."""
    with pytest.raises(SourceError, match=r"source\.bad_option"):
        source_of(broker, {"clicks": topic_options("t", dead_letter_topic="t", **more)})
    with pytest.raises(SourceError, match=r"source\.bad_option"):
        source_of(broker, {"clicks": topic_options("t")}, **more, dead_letter_topic="t")


def test_a_bad_record_stops_its_source_where_it_lies(broker: EmbeddedKafka) -> None:
    topic = new_topic(broker)
    source = source_of(broker, {"clicks": topic_options(topic)})
    held, notes = start(source)
    send(broker, topic, mixed())
    for _ in range(2):  # again and again at the same place
        with SourceSubscriptions(source, held, notes) as feed:
            error = feed.failure()
        assert (error.code, str(error.relation)) == ("source.bad_record", "shop.clicks")
        assert "0:1" in error.detail
        assert held.positions["clicks"]["next"] == {"0": 1}
        assert ids(held) == [0]
    positions, _ = snapshot_offsets(source)
    with pytest.raises(SourceError, match=r"source\.bad_record"):
        snapshot(source, positions, notes)
    # Once the source is told to pass them over, it continues from there.
    repaired = source_of(broker, {"clicks": topic_options(topic)}, on_error="skip")
    with SourceSubscriptions(repaired, held, notes) as feed:
        feed.until(lambda held: len(ids(held)) == 5)
    assert ids(held) == [0, 1, 2, 3, 4]


def test_removals_of_what_is_only_added_are_rejected(broker: EmbeddedKafka) -> None:
    topic = new_topic(broker)
    columns = [{"name": "id", "type": "int8", "in": "key", "path": "$"}]
    options = topic_options(topic, columns=columns, key_format="json", on_error="dead_letter")
    source = source_of(broker, {"clicks": options})
    held, notes = start(source)
    send(broker, topic, [(0, b"1", b"{}"), (0, b"1", None)])
    with SourceSubscriptions(source, held, notes) as feed:
        feed.until(lambda held: held.positions["clicks"]["next"] == {"0": 2})
    assert list(held.rows["clicks"].elements()) == [(1,)]
    assert [row[2:4] for row in held.rejected] == [(b"0:1", b"record.removal")]


def rejected_delta(held: TransactionBuffer) -> Delta:
    return Delta.of(REJECTED_KINDS, held.rejected)


def test_rejected_records_are_rows_once_their_columns_are_repaired(broker: EmbeddedKafka) -> None:
    topic = new_topic(broker)
    columns = {"id": "int2", "_timestamp": "timestamptz"}
    options = topic_options(topic, columns=columns, on_error="dead_letter")
    held, notes = start(source_of(broker, {"clicks": options}))
    with producer_of(broker) as producer:
        for number, at in ((1, 1000), (70_000, 2000)):
            producer.send(topic, value(number), timestamp_ms=946_684_800_000 + at)
        producer.send(topic, b"never")
    with SourceSubscriptions(source_of(broker, {"clicks": options}), held, notes) as feed:
        feed.until(lambda held: held.positions["clicks"]["next"] == {"0": 3})
    assert len(held.rejected) == 2
    repaired = source_of(broker, {"clicks": {**options, "columns": {**columns, "id": "int8"}}})
    batch = repaired.decode_again(repaired.relations()[0], rejected_delta(held))
    assert batch.positions is None
    assert batch.rejected is not None
    assert [(row[2], weight) for row, weight in batch.rejected.rows()] == [(b"0:1", -1)]
    held.rejected = []
    held.add_batch(batch)
    assert sorted(held.rows["clicks"].elements()) == [(1, 1_000_000), (70_000, 2_000_000)]


def test_an_old_upsert_never_replaces_a_newer_row(broker: EmbeddedKafka) -> None:
    topic = new_topic(broker)
    columns = [
        {"name": "id", "type": "int8", "in": "key", "path": "$"},
        {"name": "name", "type": "varchar(3)"},
    ]
    options = upsert_options(topic, columns=columns, on_error="dead_letter")
    source = source_of(broker, {"clicks": options})
    held, notes = start(source)
    texts = [(1, "long one"), (2, "long two"), (3, "long three"), (1, "new"), (3, None)]
    records = [(0, b"%d" % k, value(k, t) if t else None) for k, t in texts]
    send(broker, topic, records)
    with SourceSubscriptions(source, held, notes) as feed:
        feed.until(lambda held: held.positions["clicks"]["next"] == {"0": 5})
    assert names(held) == {1: "new"}
    assert len(held.rejected) == 3
    wider = [columns[0], {"name": "name", "type": "text"}]
    repaired = source_of(broker, {"clicks": {**options, "columns": wider}})
    batch = repaired.decode_again(repaired.relations()[0], rejected_delta(held))
    assert batch.rejected is not None
    assert sorted(row[2] for row, _ in batch.rejected.rows()) == [b"0:0", b"0:1", b"0:2"]
    held.add_batch(batch)
    assert names(held) == {1: "new", 2: "long two"}
