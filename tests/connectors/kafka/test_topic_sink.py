"""Oracle: a bag of rows in plain Python; kafka-python, reading committed records alone, holds it
at every END mark, whatever was killed, fenced or timed out."""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import pytest

from connectors.kafka.embedded import EmbeddedKafka
from connectors.kafka.make_sink import check, make
from connectors.kafka.topic_sink import TopicSink
from connectors.sink import SinkTable
from connectors.view_sink import ViewEpoch
from dataflow.delta import Delta
from dataflow.errors import SinkError, TemporaryError
from tests.connectors.kafka.writing import (
    BAG,
    KEYED,
    POSITION,
    QUICK,
    Model,
    compare,
    has_no_open_transaction,
    options,
    sink_of,
)
from tests.harness import http
from tests.harness.broker import (
    ends_of,
    new_topic,
    send,
    topic_names,
)
from tests.harness.registry import Registry
from tests.harness.waiting import wait_until


@pytest.fixture
def chosen(broker: EmbeddedKafka) -> dict[str, Any]:
    return options(broker, partitions=3)


@pytest.fixture
def registry() -> Iterator[Registry]:
    running = Registry()
    yield running
    running.stop()


def decode_avro(registry: Registry) -> Callable[[bytes], Any]:
    """Values by fastavro, with the schema that each one names."""

    def decode(raw: bytes) -> Any:
        assert raw[:1] == b"\0"
        number = int.from_bytes(raw[1:5], "big")
        schema = http.get(f"{registry.url}/schemas/ids/{number}").json()["schema"]
        parsed = fastavro.parse_schema(json.loads(schema))
        rest = BytesIO(raw[5:])
        value = fastavro.schemaless_reader(rest, parsed, None)
        assert not rest.read(), "bytes behind the value"
        return value

    return functools.lru_cache(100_000)(decode)


WAYS = [
    (KEYED, {}, {}),
    (BAG, {}, {}),
    (KEYED, {"mode": "upsert"}, {"is_upsert": True}),
    (KEYED, {"mode": "upsert", "values": "before_after"}, {"is_upsert": True}),
]


@pytest.mark.parametrize(("table", "more", "how"), WAYS)
def test_every_epoch_is_the_view(
    broker: EmbeddedKafka, table: SinkTable, more: dict, how: dict
) -> None:
    chosen, model = options(broker, partitions=3, **more), Model(table, 3)
    sink = sink_of(table, chosen)
    assert sink.open() is None
    sink.write([model.epoch()])
    sink.write([model.epoch() for _ in range(10)])
    for _ in range(5):
        sink.write([model.epoch()])
    sink.write([ViewEpoch(17, POSITION, [], 0)])
    model.after[17], model.number = model.after[16], 17
    sink.close()
    assert compare(broker, chosen, model, **how)


@pytest.mark.parametrize(("table", "more", "how"), WAYS)
def test_every_epoch_is_the_view_in_avro(
    broker: EmbeddedKafka, registry: Registry, table: SinkTable, more: dict, how: dict
) -> None:
    more = {**more, "format": "avro", "registry": registry.url}
    chosen, model = options(broker, partitions=2, **more), Model(table, 4)
    assert check(chosen, table, "t")["topic"] == chosen["topic"]
    sink = sink_of(table, chosen)
    sink.open()
    for _ in range(6):
        sink.write([model.epoch()])
    sink.close()
    assert compare(broker, chosen, model, decode=decode_avro(registry), **how)
    assert set(registry.subjects) == {f"{chosen['topic']}-key", f"{chosen['topic']}-value"}


def test_a_registry_that_is_away_is_requested_again(
    broker: EmbeddedKafka, registry: Registry
) -> None:
    chosen = options(broker, format="avro", registry=registry.url)
    registry.stop()
    sink = sink_of(KEYED, chosen)
    with pytest.raises(TemporaryError) as raised:
        sink.open()
    assert raised.value.code == "registry.unreachable"
    registry.start()
    assert sink.open() is None
    sink.close()


def test_the_reader_of_the_documentation(broker: EmbeddedKafka, chosen: dict) -> None:
    page = (Path(__file__).parents[3] / "docs" / "KAFKA_SINK.md").read_text()
    example = page.split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {}
    exec(example, names)
    model, sink = Model(BAG, 10), sink_of(BAG, chosen)
    sink.open()
    for _ in range(8):
        sink.write([model.epoch()])
    sink.close()
    for epoch, position, rows in names["follow"](broker.bootstrap, chosen["topic"]):
        assert (rows, position) == (model.after[epoch], POSITION)
        if epoch == model.number:
            break


def test_progress_is_in_the_transaction(broker: EmbeddedKafka, chosen: dict) -> None:
    """A writer that ends in the middle of an epoch leaves nothing; the next one continues."""
    model = Model(KEYED, 5)
    first = sink_of(KEYED, chosen, "one")
    assert first.open() is None
    first.write([model.epoch()])
    torn = model.epoch()

    def rows() -> Iterator[Delta]:
        yield from torn.deltas
        raise TemporaryError("test.cut", "cut")

    with pytest.raises(TemporaryError):
        first.write([ViewEpoch(torn.number, POSITION, rows(), torn.rows)])
    # Never closed: as after kill -9, the transaction is open until someone takes over.
    second = sink_of(KEYED, chosen, "one")
    assert second.open() == 1
    second.write([torn, model.epoch()])
    second.close()
    third = sink_of(KEYED, chosen, "one")
    assert third.open() == 3
    third.close()
    compare(broker, chosen, model)


def test_a_zombie_is_fenced(broker: EmbeddedKafka, chosen: dict) -> None:
    model = Model(KEYED, 6)
    zombie = sink_of(KEYED, chosen, "two")
    zombie.open()
    zombie.write([model.epoch()])
    heir = sink_of(KEYED, chosen, "two")
    assert heir.open() == 1
    late = model.epoch()
    with pytest.raises(TemporaryError) as lost:
        zombie.write([late])
    assert lost.value.code == "sink.transaction_lost"
    with pytest.raises(SinkError) as raised:
        zombie.open()
    assert raised.value.code == "sink.fenced"
    heir.write([late])
    heir.write([model.epoch()])
    heir.close()
    zombie.close()
    compare(broker, chosen, model)


@pytest.mark.whole
def test_a_transaction_that_takes_too_long_is_written_again() -> None:
    """The broker gives the transaction up while the rows are still on their way."""
    with EmbeddedKafka(QUICK) as broker:
        chosen = options(broker, transaction_timeout_ms=1000)
        model = Model(KEYED, 7)
        sink = sink_of(KEYED, chosen)
        sink.open()
        sink.write([model.epoch()])
        slow = model.epoch()

        def rows() -> Iterator[Delta]:
            yield from slow.deltas
            sink._flush()
            assert ends_of(broker, chosen["topic"], is_committed=True) < slow.rows
            wait_until(lambda: has_no_open_transaction(broker, chosen["topic"]))

        with pytest.raises(TemporaryError) as raised:
            sink.write([ViewEpoch(slow.number, POSITION, rows(), slow.rows)])
        assert raised.value.code == "sink.transaction_lost"
        assert sink.open() == 1
        sink.write([slow])
        sink.close()
        compare(broker, chosen, model)


@pytest.mark.whole
@pytest.mark.parametrize("moment", ["before", "during"])
def test_broker_is_killed_and_comes_back(own_broker: EmbeddedKafka, moment: str) -> None:
    chosen, model = options(own_broker), Model(KEYED, 8)
    sink = sink_of(KEYED, chosen)
    sink.open()
    sink.write([model.epoch()])
    late = model.epoch()

    def rows() -> Iterator[Delta]:
        yield from late.deltas
        if moment == "during":
            sink._flush()
            own_broker.kill()
            timer.start()

    timer = threading.Timer(3.0, own_broker.start)
    if moment == "before":
        own_broker.kill()
        timer.start()
    write_until_there(sink, ViewEpoch(late.number, POSITION, rows(), late.rows), late)
    timer.join()
    sink.write([model.epoch()])
    sink.close()
    compare(own_broker, chosen, model)


def write_until_there(sink: TopicSink, first: ViewEpoch, again: ViewEpoch) -> None:
    """As a follower does: after a failure the topic itself says whether the epoch is there."""
    try:
        sink.write([first])
        return
    except TemporaryError as error:
        print(f"told: {error}")
    while True:
        try:
            if sink.open() != again.number:
                sink.write([again])
            return
        except TemporaryError as error:
            print(f"told: {error}")


@pytest.mark.whole
def test_an_interrupt_ends_the_operation(own_broker: EmbeddedKafka) -> None:
    sink, model = sink_of(KEYED, options(own_broker)), Model(KEYED, 9)
    sink.open()
    own_broker.kill()
    threading.Timer(0.5, sink.interrupt).start()
    with pytest.raises(TemporaryError) as raised:
        sink.write([model.epoch()])
    assert raised.value.code == "sink.stopped"
    sink.close()


def test_topics_are_made_and_checked(broker: EmbeddedKafka, chosen: dict) -> None:
    other = new_topic(broker, 2, {"cleanup.policy": "compact"})
    with pytest.raises(SinkError) as raised:
        check({**chosen, "topic": other, "partitions": 0}, KEYED, "t")
    assert raised.value.code == "sink.topic_settings"
    assert "cleanup.policy is compact, not delete" in raised.value.detail
    with pytest.raises(SinkError) as raised:
        check({**chosen, "topic": other, "mode": "upsert"}, KEYED, "t")
    assert raised.value.detail == "it has 2 partitions, not 3"
    taken = new_topic(broker, 3, {"retention.ms": "-1"})
    assert check({**chosen, "topic": taken}, KEYED, "t")["markers"] == f"{taken}.markers"
    earlier = check({**chosen, "topic": taken, "marks": "named"}, KEYED, "t")
    assert earlier["markers"] == "named" and "marks" not in earlier
    send(broker, taken, [(1, b"k", b"v")])
    with pytest.raises(SinkError) as raised:
        check({**chosen, "topic": taken}, KEYED, "t")
    assert raised.value.code == "sink.topic_not_empty"
    with pytest.raises(SinkError) as raised:
        sink_of(KEYED, {**chosen, "topic": taken}).open()
    assert raised.value.code == "sink.topic_not_empty"
    sink = sink_of(KEYED, chosen)
    sink.open()
    sink.write([Model(KEYED, 1).epoch()])
    assert topic_names(broker) >= {chosen["topic"], f"{chosen['topic']}.markers"}
    rows = ends_of(broker, chosen["topic"], is_committed=True)
    for _ in range(2):
        sink.detach()
        assert topic_names(broker) & {chosen["topic"], f"{chosen['topic']}.markers"} == {
            chosen["topic"]
        }
    assert ends_of(broker, chosen["topic"], is_committed=True) == rows
    sink.close()
    chosen = options(broker)
    sink = sink_of(KEYED, chosen)
    sink.open()
    sink.write([Model(KEYED, 1).epoch()])
    sink.remove()
    sink.remove()
    assert not topic_names(broker) & {chosen["topic"], f"{chosen['topic']}.markers"}
    sink.close()


BAD = [
    ({"mode": "sometimes"}, KEYED, "mode"),
    ({"mode": "upsert"}, BAG, "mode"),
    ({"values": "before_after"}, KEYED, "values"),
    ({"format": "avro"}, KEYED, "registry"),
    ({"registry": "http://127.0.0.1:1"}, KEYED, "registry"),
    ({"topic": "a b"}, KEYED, "topic"),
    ({"markers": "x", "topic": "x"}, KEYED, "markers"),
    ({"partitions": -1}, KEYED, "partitions"),
    ({"nosuch": 1}, KEYED, "nosuch"),
    ({"bootstrap_servers": 5}, KEYED, "bootstrap_servers"),
    ({"transaction_timeout_ms": 10**9}, KEYED, "transaction_timeout_ms"),
]


@pytest.mark.parametrize(("more", "table", "name"), BAD)
def test_bad_options_are_refused(more: dict, table: SinkTable, name: str) -> None:
    with pytest.raises(SinkError) as raised:
        make({"bootstrap_servers": "127.0.0.1:1", **more}, table, "i", "t")
    assert raised.value.code == "sink.bad_option" and f'"{name}"' in raised.value.what


def test_a_row_that_is_too_large_is_refused(broker: EmbeddedKafka, chosen: dict) -> None:
    sink = sink_of(KEYED, chosen)
    sink.open()
    delta = Delta.of("isf", [(1, "x" * 2_000_000, 0.0)])
    with pytest.raises(SinkError) as raised:
        sink.write([ViewEpoch(1, POSITION, [delta], 1, True)])
    assert raised.value.code == "sink.record_too_large"
    sink.close()
