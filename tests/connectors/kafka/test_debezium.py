"""Oracle: the table that the events tell of, kept by the test itself; and proposals for samples."""

from __future__ import annotations

import json
from typing import Any

import pytest

from connectors.kafka import source as connector
from connectors.kafka.embedded import EmbeddedKafka
from connectors.kafka.topic_source import KafkaSource
from dataflow.changes import Changes
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
)
from tests.harness.broker import new_topic, send

COLUMNS = {"id": "int8", "name": "text"}
UNSENT = "__debezium_unavailable_value"


def event(op: str, id: int = 0, name: str | None = None) -> bytes:
    row = {"id": id, "name": name}
    before, after = (row, None) if op == "d" else (None, row)
    return json.dumps({"op": op, "before": before, "after": after, "source": {}}).encode()


def options_of(topic: str, **more: Any) -> dict[str, Any]:
    envelope = {"format": "debezium-json", "mode": "upsert", "key": ["id"], "columns": COLUMNS}
    return topic_options(topic, **{**envelope, **more})


def test_events_make_the_table(broker: EmbeddedKafka) -> None:
    topic = new_topic(broker)
    source = source_of(broker, {"clicks": options_of(topic)})
    positions, notes = snapshot_offsets(source)
    events = [event("c", 9, "gone"), event("t"), event("c", 1, "a"), event("c", 2, "b")]
    events += [event("u", 1, "c"), event("d", 2), event("c", 3, "d")]
    send(broker, topic, [(0, b"k", value) for value in [*events, None]])
    with SourceSubscriptions(source, TransactionBuffer(positions=positions), notes) as feed:
        batches = []
        while feed.held.positions["clicks"]["next"] != {"0": 8}:
            batch = feed.feed.poll(100)
            if batch is not None:
                batches.append(batch)
                feed.held.positions.update(batch.positions or {})
    kinds = [k for b in batches for c in b.whole() for k in c.kinds.tolist()]
    assert bytes(kinds) == b"UTUUURU"
    ends, notes = snapshot_offsets(source)
    assert names(snapshot(source, ends, notes)) == {1: "c", 3: "d"}


def test_values_that_were_not_sent_are_marked(broker: EmbeddedKafka) -> None:
    topic = new_topic(broker)
    source = source_of(broker, {"clicks": options_of(topic)})
    positions, notes = snapshot_offsets(source)
    send(broker, topic, [(0, b"k", event("c", 1, "long")), (0, b"k", event("u", 1, UNSENT))])
    changes: list[Changes] = []
    with SourceSubscriptions(source, TransactionBuffer(positions=positions), notes) as feed:
        while sum(map(len, changes)) < 2:
            batch = feed.feed.poll(100)
            changes += [] if batch is None else batch.whole()
    masks = [mask for change in changes for mask in change.unchanged.get(1, [False] * len(change))]
    assert masks == [False, True]
    positions, notes = snapshot_offsets(source)
    with pytest.raises(SourceError, match=r"source\.unavailable"):
        snapshot(source, positions, notes)
    told = source_of(broker, {"clicks": options_of(topic, on_error="dead_letter")})
    held = snapshot(told, *snapshot_offsets(told))
    assert [row[2:4] for row in held.rejected] == [(b"0:1", b"record.unavailable")]
    columns = {"_offset": "int8", **COLUMNS}
    append = {"mode": "append", "key": None, "columns": columns, "on_error": "dead_letter"}
    added = source_of(broker, {"clicks": options_of(topic, **append)})
    held = snapshot(added, *snapshot_offsets(added))
    assert [row[2:4] for row in held.rejected] == [(b"0:1", b"record.unavailable")]


def test_a_truncation_among_partitions_is_refused(broker: EmbeddedKafka) -> None:
    topic = new_topic(broker, 2)
    source = source_of(broker, {"clicks": options_of(topic)})
    positions, notes = snapshot_offsets(source)
    send(broker, topic, [(0, b"k", event("t"))])
    with SourceSubscriptions(source, TransactionBuffer(positions=positions), notes) as feed:
        assert feed.failure().code == "source.truncation"
    with pytest.raises(SourceError, match=r"source\.truncation"):
        snapshot(source, *snapshot_offsets(source))


def test_columns_are_proposed_from_samples(broker: EmbeddedKafka) -> None:
    topic, other = new_topic(broker, 2), new_topic(broker)
    values = [{"id": n, "price": n / 4, "at": "2026-11-22T10:00:00Z"} for n in range(8)]
    send(broker, topic, [(n % 2, None, json.dumps(v).encode()) for n, v in enumerate(values)])
    known = topic_options(other)
    options = {
        "bootstrap_servers": broker.bootstrap,
        "topics": {"seen": {"topic": topic, "format": "json"}, "known": known},
    }
    found = connector.discover(options)
    assert found["topics"]["known"] == known
    proposed = {c["name"]: c["type"] for c in found["topics"]["seen"]["columns"]}
    assert proposed == {"id": "int8", "price": "numeric", "at": "timestamptz"}
    assert [relation.name for relation in connector.declare(found)] == ["seen", "known"]


def told(op: str, lsn: int, id: int = 0, name: str | None = None) -> bytes:
    """An event with its order at the database: a transaction of its own for each LSN."""
    envelope = json.loads(event(op, id, name))
    envelope["source"] = {"lsn": lsn, "sequence": json.dumps([str(lsn - 1), str(lsn)])}
    envelope["transaction"] = {"id": f"t{lsn}", "total_order": 1, "data_collection_order": 1}
    return json.dumps(envelope).encode()


def send_told(broker: EmbeddedKafka, topic: str, values: list[bytes], partition: int = 0) -> None:
    send(broker, topic, [(partition, b"k", value) for value in values])


def read_to(
    source: KafkaSource, held: TransactionBuffer, notes: dict[str, bytes], end: int
) -> list[Any]:
    """A feed of its own up to an offset: (kind, name) of all that it tells; notes continue."""
    found: list[Any] = []
    with SourceSubscriptions(source, held, notes) as feed:
        while feed.held.positions["clicks"]["next"].get("0") != end:
            batch = feed.step(max_rows=2)
            if batch is None:
                continue
            notes.update({key: text for key, text in batch.notes.items() if text is not None})
            for change in batch.whole():
                at = len(change.columns) - 1
                found += zip(change.kinds.tolist(), change.columns[at].to_list(), strict=True)
    return found


def test_events_delivered_again_are_reported_once_across_restarts(broker: EmbeddedKafka) -> None:
    topic = new_topic(broker)
    source = source_of(broker, {"clicks": options_of(topic)})
    positions, notes = snapshot_offsets(source)
    held = TransactionBuffer(positions=positions)
    log = [told("c", 10, 1, "a"), told("u", 20, 1, "b"), told("u", 30, 1, "c")]
    send_told(broker, topic, log)
    first = read_to(source, held, notes, 3)
    assert [name for _, name in first] == [b"a", b"b", b"c"]
    before = json.loads(json.dumps(held.positions)), dict(notes)
    send_told(broker, topic, [*log[1:], told("u", 40, 1, "d")])
    again = read_to(source, held, notes, 6)
    assert [name for _, name in again] == [b"d"]
    assert names(held) == {1: "d"}
    # A state that fell back takes its notes along: the same is told once more.
    assert read_to(source, TransactionBuffer(positions=before[0]), before[1], 6) == again
    assert len(notes["seen/clicks"]) < 200


def test_a_snapshot_amid_repeated_events_never_goes_back(broker: EmbeddedKafka) -> None:
    topic = new_topic(broker)
    source = source_of(broker, {"clicks": options_of(topic)})
    log = [told("c", 10, 1, "a"), told("u", 20, 1, "b"), told("u", 30, 1, "c")]
    send_told(broker, topic, [*log, log[0]])
    positions, notes = snapshot_offsets(source)
    held = snapshot(source, positions, notes)
    assert names(held) == {1: "c"}
    send_told(broker, topic, [*log[1:], told("u", 40, 1, "d")])
    assert [name for _, name in read_to(source, held, notes, 7)] == [b"d"]
    positions, notes = snapshot_offsets(source)
    assert names(snapshot(source, positions, notes)) == names(held) == {1: "d"}


def test_a_repeated_truncation_removes_nothing_new(broker: EmbeddedKafka) -> None:
    topic = new_topic(broker)
    source = source_of(broker, {"clicks": options_of(topic)})
    log = [told("t", 10), told("c", 20, 1, "a")]
    send_told(broker, topic, [*log, *log])
    positions, notes = snapshot_offsets(source)
    held = snapshot(source, positions, notes)
    assert names(held) == {1: "a"}
    send_told(broker, topic, [*log, told("c", 30, 2, "b")])
    assert read_to(source, held, notes, 7) == [(Changes.UPSERT, b"b")]
    assert names(held) == {1: "a", 2: "b"}


def test_rows_that_are_only_added_are_added_once(broker: EmbeddedKafka) -> None:
    topic = new_topic(broker, 2)
    columns = {"_partition": "int4", "_offset": "int8", **COLUMNS}
    append = {"mode": "append", "key": None, "columns": columns}
    source = source_of(broker, {"clicks": options_of(topic, **append)})
    log = [told("c", lsn, lsn) for lsn in range(1, 41)]
    # By partition the first half, then the last ten of it again.
    for partition in (0, 1):
        mine = log[partition::2]
        send_told(broker, topic, [*mine[:10], *mine[5:10]], partition)
    positions, notes = snapshot_offsets(source)
    held = snapshot(source, positions, notes)
    assert ids(held) == list(range(1, 21))
    for partition in (0, 1):
        mine = log[partition::2]
        send_told(broker, topic, [*mine[7:15], *mine[3:]], partition)
    with SourceSubscriptions(source, held, notes) as feed:
        feed.until(lambda held: held.positions["clicks"]["next"] == {"0": 40, "1": 40})
    assert ids(held) == list(range(1, 41))


def test_what_an_earlier_reading_knew_is_forgotten_by_a_start_position(
    broker: EmbeddedKafka,
) -> None:
    topic = new_topic(broker)
    source = source_of(broker, {"clicks": options_of(topic)})
    positions, notes = snapshot_offsets(source)
    held = TransactionBuffer(positions=positions)
    send_told(broker, topic, [told("c", 10, 1, "a")])
    read_to(source, held, notes, 1)
    send_told(broker, topic, [told("u", 20, 1, "b"), told("u", 30, 1, "c")])
    later, more = snapshot_offsets(source)
    notes |= more
    held = snapshot(source, later, notes)
    send_told(broker, topic, [told("u", 20, 1, "b"), told("u", 40, 1, "d")])
    assert [name for _, name in read_to(source, held, notes, 5)] == [b"d"]
