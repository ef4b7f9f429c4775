"""Oracle: the table that the events tell of, kept by the test itself; and proposals for samples."""

from __future__ import annotations

import json
from typing import Any

import pytest

from connectors.kafka import source as connector
from connectors.kafka.embedded import EmbeddedKafka
from dataflow.changes import Changes
from dataflow.errors import SourceError
from tests.connectors.kafka.reading import (
    Following,
    Held,
    names,
    pins,
    snapshot,
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
    places, notes = pins(source)
    events = [event("c", 9, "gone"), event("t"), event("c", 1, "a"), event("c", 2, "b")]
    events += [event("u", 1, "c"), event("d", 2), event("c", 3, "d")]
    send(broker, topic, [(0, b"k", value) for value in [*events, None]])
    with Following(source, Held(places=places), notes) as feed:
        batches = []
        while feed.held.places["clicks"]["next"] != {"0": 8}:
            batch = feed.feed.poll(100)
            if batch is not None:
                batches.append(batch)
                feed.held.places.update(batch.places or {})
    kinds = [k for b in batches for c in b.whole() for k in c.kinds.tolist()]
    assert bytes(kinds) == b"UTUUURU"
    ends, notes = pins(source)
    assert names(snapshot(source, ends, notes)) == {1: "c", 3: "d"}


def test_values_that_were_not_sent_are_told_as_such(broker: EmbeddedKafka) -> None:
    topic = new_topic(broker)
    source = source_of(broker, {"clicks": options_of(topic)})
    places, notes = pins(source)
    send(broker, topic, [(0, b"k", event("c", 1, "long")), (0, b"k", event("u", 1, UNSENT))])
    changes: list[Changes] = []
    with Following(source, Held(places=places), notes) as feed:
        while sum(map(len, changes)) < 2:
            batch = feed.feed.poll(100)
            changes += [] if batch is None else batch.whole()
    masks = [mask for change in changes for mask in change.unchanged.get(1, [False] * len(change))]
    assert masks == [False, True]
    places, notes = pins(source)
    with pytest.raises(SourceError, match=r"source\.unavailable"):
        snapshot(source, places, notes)
    columns = {"_offset": "int8", **COLUMNS}
    append = {"mode": "append", "key": None, "columns": columns, "on_error": "dead_letter"}
    added = source_of(broker, {"clicks": options_of(topic, **append)})
    held = snapshot(added, *pins(added))
    assert [row[2:4] for row in held.rejected] == [(b"0:1", b"record.unavailable")]


def test_a_truncation_among_partitions_is_refused(broker: EmbeddedKafka) -> None:
    topic = new_topic(broker, 2)
    source = source_of(broker, {"clicks": options_of(topic)})
    places, notes = pins(source)
    send(broker, topic, [(0, b"k", event("t"))])
    with Following(source, Held(places=places), notes) as feed:
        assert feed.failure().code == "source.truncation"
    with pytest.raises(SourceError, match=r"source\.truncation"):
        snapshot(source, *pins(source))


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
