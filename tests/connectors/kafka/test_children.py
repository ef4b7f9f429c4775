"""Oracle: the records that were produced, and the model of a view's rows: whenever a child of the
client is killed, a source and a sink continue without a row lost or doubled."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from connectors.feed_source import read_in_ranges
from connectors.kafka import sink as sinks
from connectors.kafka.embedded import EmbeddedKafka
from connectors.kafka.options import read_options
from connectors.outside.guarded import guarded
from connectors.view_sink import ViewEpoch, ViewSink
from dataflow.errors import SinkError, TemporaryError
from service.ingest.declared_sources import connector
from tests.connectors.kafka.reading import (
    RangesFeed,
    SourceSubscriptions,
    TransactionBuffer,
    ids,
    relations_of,
    snapshot,
    snapshot_offsets,
    topic_options,
    value,
)
from tests.connectors.kafka.writing import BAG, KEYED, Model, compare, options
from tests.harness.broker import new_topic, producer_of, unique_name
from tests.harness.tiers import count
from tests.harness.waiting import WITHIN_S
from tests.security.test_hostile_kafka import children

RECORDS = 3000
KILLS = count("TIDEMARK_TEST_KILLS", 5, 40)
SEED = int(os.environ.get("TIDEMARK_TEST_SEED", "3"))


def source_of(broker: EmbeddedKafka, topics: Mapping[str, Mapping[str, Any]]) -> Any:
    """As the service makes it, behind the boundary and with its client in children."""
    given = {"bootstrap_servers": broker.bootstrap, "check_ms": 100, "topics": topics}
    return connector("kafka").make("shop", given, relations_of(read_options(given)))


def kill_children() -> None:
    for pid in children():
        os.kill(pid, signal.SIGKILL)


def produce(broker: EmbeddedKafka, topic: str, first: int, stop: int) -> None:
    with producer_of(broker) as producer:
        for number in range(first, stop):
            producer.send(topic, value(number), partition=number % 2)
        producer.flush()


def test_a_feed_whose_child_is_killed(broker: EmbeddedKafka) -> None:
    print(f"repeat: TIDEMARK_TEST_SEED={SEED}")
    pick = random.Random(SEED)
    topic = new_topic(broker, partitions=2)
    source = source_of(broker, {"clicks": topic_options(topic)})
    positions, notes = snapshot_offsets(source)
    held, kills = TransactionBuffer(positions=positions), 0
    writer = threading.Thread(target=produce, args=(broker, topic, 0, RECORDS))
    writer.start()
    deadline = time.monotonic() + 2 * WITHIN_S
    while len(ids(held)) < RECORDS or kills < KILLS:
        assert time.monotonic() < deadline, (len(ids(held)), kills)
        with SourceSubscriptions(source, held, notes) as feed:
            wanted = len(ids(held)) + pick.randrange(RECORDS // KILLS)
            try:
                while len(ids(held)) < min(wanted, RECORDS):
                    feed.step(max_rows=pick.choice((1, 50, 1000)))
                notes |= feed.notes
                if kills < KILLS:
                    kills += 1
                    kill_children()
                    feed.step()
            except TemporaryError as error:
                assert error.code == "source.process_ended" and "signal 9" in error.detail
                notes |= feed.notes
    writer.join()
    assert ids(held) == list(range(RECORDS))
    assert source.is_replayable


def test_parts_and_ranges_are_read_by_children(broker: EmbeddedKafka) -> None:
    topic = new_topic(broker, partitions=2)
    source = source_of(broker, {"clicks": topic_options(topic)})
    first = source.first_position(source.relations()[0])
    produce(broker, topic, 0, 100)
    positions, notes = snapshot_offsets(source)
    assert ids(snapshot(source, positions, notes)) == list(range(100))
    ranged = read_in_ranges(source)
    assert ranged is not None and not ranged.unranged(source.relations()[0])
    held, is_ready = TransactionBuffer(), threading.Event()
    feed = RangesFeed(
        ranged.open_ranges(
            source.relations(), {"clicks": first.position}, first.notes, is_ready.set
        )
    )
    deadline = time.monotonic() + WITHIN_S
    while len(ids(held)) < 100:
        assert time.monotonic() < deadline
        batch = feed.poll(1000)
        if batch is None:
            is_ready.wait(0.2)
        else:
            held.add_batch(batch)
    feed.close()
    assert ids(held) == list(range(100))


def written(sink: ViewSink, epochs: list[ViewEpoch], known: int | None) -> int:
    """Write those after the sink's progress, again and again until all are there; how often it was
    opened."""
    opened = 0
    while True:
        try:
            opened += 1
            reached = sink.open(known) or 0
            for epoch in epochs[reached:]:
                sink.write([epoch])
            return opened
        except TemporaryError as error:
            assert error.code in ("sink.process_ended", "sink.unreachable", "sink.transaction_lost")


@pytest.mark.parametrize("table", [KEYED, BAG], ids=["keyed", "multiset"])
def test_a_sink_whose_child_is_killed(broker: EmbeddedKafka, table: Any) -> None:
    chosen, identity = options(broker), unique_name("id")
    model = Model(table, SEED)
    epochs = [model.epoch() for _ in range(20)]
    sink = guarded("sink", "kafka", sinks).make(chosen, table, identity, "public.v/events")
    is_over = threading.Event()

    def kill() -> None:
        pick = random.Random(SEED)
        for _ in range(KILLS):
            if is_over.wait(pick.uniform(0.05, 1.0)):
                return
            kill_children()

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        written(sink, epochs, None)
    finally:
        is_over.set()
        killer.join()
    kill_children()
    # What it finds out by the call that opens it.
    assert written(sink, epochs, 20) <= 2
    sink.close()
    compare(broker, chosen, model)


def test_a_sink_that_lost_its_child_is_still_fenced(broker: EmbeddedKafka) -> None:
    chosen, identity = options(broker), unique_name("id")
    model = Model(KEYED, 1)
    first, second = (sinks.make(chosen, KEYED, identity, "public.v/events") for _ in range(2))
    assert first.open() is None
    kill_children()
    assert second.open() is None
    with pytest.raises(TemporaryError):
        first.write([model.epoch()])
    with pytest.raises(SinkError) as caught:
        first.open()
    assert caught.value.code == "sink.fenced"
    for one in (first, second):
        one.close()


def test_an_interrupted_sink_ends_soon(broker: EmbeddedKafka) -> None:
    sink = sinks.make(options(broker), KEYED, unique_name("id"), "public.v/events")
    sink.open()
    sink.interrupt()
    with pytest.raises(TemporaryError) as caught:
        sink.write([Model(KEYED, 1).epoch()])
    assert caught.value.code == "sink.stopped"
    sink.close()
    assert not children()


def test_rows_that_cannot_be_read_here_leave_no_child(broker: EmbeddedKafka) -> None:
    def deltas() -> Iterator[Any]:
        yield from model.epoch().deltas
        raise SinkError("sink.failed", "the rows cannot be read")

    model, chosen, identity = Model(KEYED, 1), options(broker), unique_name("id")
    sink = sinks.make(chosen, KEYED, identity, "public.v/events")
    assert sink.open() is None
    with pytest.raises(SinkError, match="the rows cannot be read"):
        sink.write([ViewEpoch(1, {}, deltas(), 20, True)])
    assert not children()
    assert sink.open() is None
    sink.close()
