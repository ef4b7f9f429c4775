"""kafka-python and confluent-kafka on the same records, and our feed, which also decodes them.

A broker on this machine has one topic of JSON records. Each client, in a process of its own, reads
all of it and writes some of it. Timing starts once the client is connected; for readers, at the
second batch. The broker uses part of the machine, so the client's CPU seconds are reported besides
wall time.
"""

from __future__ import annotations

import json
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PlainPartition

from bench.measure import in_child, peak_rss_mb, percentile
from bench.record import measuring
from connectors.formats.declared import declared_type
from connectors.kafka.embedded import EmbeddedKafka, missing
from connectors.kafka.options import read_options
from connectors.kafka.topic_source import KafkaSource
from dataflow.schema import Field, Relation, RelationName

KAFKA = "kafka"
TOPIC, WRITTEN = "page_views", "written"
COLUMNS = {
    "id": "int8",
    "user_id": "int8",
    "url": "text",
    "country": "text",
    "duration_ms": "int4",
    "price": "numeric(12,2)",
    "is_mobile": "bool",
    "at": "timestamptz",
}
MAX_POLLED = 10_000


@dataclass(frozen=True)
class Sizes:
    """records: read by each client. written: written by each. singles: sent one after the other."""

    records: int = 1_000_000
    written: int = 100_000
    singles: int = 1_000


QUICK = Sizes(5_000, 2_000, 20)


@dataclass
class Timed:
    """One measurement of one client: wall and CPU seconds."""

    records: int
    wall_s: float
    cpu_s: float
    peak_rss_mb: float = 0.0


def run(folder: Path, *, is_quick: bool) -> None:
    """Measure all clients; write one record a client."""
    sizes = QUICK if is_quick else Sizes()
    reason = missing()
    if reason is not None:
        for runner in RUNNERS:
            with measuring(KAFKA, runner, asdict(sizes), folder) as record:
                record.missing = reason
        return
    with EmbeddedKafka() as broker:
        make_topics(broker.bootstrap)
        for _ in write_confluent(broker.bootstrap, TOPIC, sizes.records):
            continue
        for runner, things in RUNNERS.items():
            with measuring(KAFKA, runner, asdict(sizes), folder) as record:
                for thing, function in things.items():
                    record.figures[thing] = in_child(function, broker.bootstrap, sizes)
            print(f"kafka {runner}: {record.seconds:.0f} s", file=sys.stderr, flush=True)


def make_topics(bootstrap: str) -> None:
    """Create topics of one partition each, which one consumer reads."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    made = admin.create_topics([NewTopic(name, 1, 1) for name in (TOPIC, WRITTEN)])
    for future in made.values():
        future.result()


def page_view(number: int) -> dict[str, Any]:
    """Return the fields of a record."""
    return {
        "id": number,
        "user_id": number * 7919 % 100_003,
        "url": f"https://shop.example/products/{number % 5000}",
        "country": ("AT", "DE", "FR", "IT")[number % 4],
        "duration_ms": number % 30_000,
        "price": round(number % 9_973 / 7, 2),
        "is_mobile": number % 3 == 0,
        "at": f"2026-11-{number % 28 + 1:02}T12:{number % 60:02}:00Z",
    }


def value_of(number: int) -> bytes:
    """Return a record of about 200 bytes."""
    view = page_view(number)
    return json.dumps({**view, "url": f"{view['url']}?from=mail"}).encode()


def timed(steps: Iterator[int]) -> dict[str, Any]:
    """Time the steps, each of so many records; the first is warm-up.

    If the first step had all records, as with a small topic, it is what is timed.
    """
    own = resource.getrusage(resource.RUSAGE_SELF)
    started, cpu_before = time.monotonic(), own.ru_utime + own.ru_stime
    first = next(steps)
    own = resource.getrusage(resource.RUSAGE_SELF)
    began, cpu = time.monotonic(), own.ru_utime + own.ru_stime
    records = sum(steps)
    if not records:
        records, began, cpu = first, started, cpu_before
    own = resource.getrusage(resource.RUSAGE_SELF)
    wall, used = time.monotonic() - began, own.ru_utime + own.ru_stime - cpu
    return asdict(Timed(records, wall, used, peak_rss_mb()))


def write_confluent(bootstrap: str, topic: str, count: int) -> Iterator[int]:
    """Produce with confluent-kafka; all records are acknowledged at the end."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5}
    )
    producer.list_topics(topic, timeout=10)
    yield 0
    for number in range(count):
        while True:
            try:
                producer.produce(topic, value_of(number))
                break
            except BufferError:
                producer.poll(0.05)
    producer.flush()
    yield count


def write_plain(bootstrap: str, topic: str, count: int) -> Iterator[int]:
    """Produce with kafka-python."""
    producer = KafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True, linger_ms=5)
    producer.partitions_for(topic)
    yield 0
    for number in range(count):
        producer.send(topic, value_of(number))
    producer.flush()
    yield count
    producer.close()


def read_confluent(bootstrap: str, count: int) -> Iterator[int]:
    """Consume with confluent-kafka: value and offset of each record."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "bench", "fetch.queue.backoff.ms": 20}
    consumer = Consumer({**settings, "isolation.level": "read_committed"})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    left = count
    while left > 0:
        found = consumer.consume(MAX_POLLED, 0.05)
        values = [(one.offset(), one.value()) for one in found]
        left -= len(values)
        yield len(values)
    consumer.close()


def read_plain(bootstrap: str, count: int) -> Iterator[int]:
    """Consume with kafka-python."""
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        isolation_level="read_committed",
        enable_auto_commit=False,
        max_poll_records=MAX_POLLED,
    )
    partition = PlainPartition(TOPIC, 0)
    consumer.assign([partition])
    consumer.seek(partition, 0)
    left = count
    while left > 0:
        for found in consumer.poll(timeout_ms=50).values():
            values = [(one.offset, one.value) for one in found]
            left -= len(values)
            yield len(values)
    consumer.close()


def options_of(bootstrap: str, topic: str, columns: Mapping[str, str]) -> dict[str, Any]:
    """Return the options of a source with one append topic of JSON."""
    topics = {TOPIC: {"topic": topic, "format": "json", "columns": columns}}
    return {"bootstrap_servers": bootstrap, "topics": topics}


def source_of(
    bootstrap: str, topic: str, columns: Mapping[str, str] = COLUMNS
) -> tuple[KafkaSource, dict[str, Any]]:
    """Return a source with one append topic of JSON, at its first offsets."""
    options = read_options(options_of(bootstrap, topic, columns))
    fields = tuple(Field(name, declared_type(of)[0]) for name, of in columns.items())
    relation = Relation(RelationName("bench", "bench", TOPIC), 1, fields, is_append=True)
    source = KafkaSource("bench", options, [relation])
    position = dict(source.start_position(relation).position)
    return source, {TOPIC: {**position, "next": {"0": 0}}}


def read_ours(bootstrap: str, count: int, columns: Mapping[str, str] = COLUMNS) -> Iterator[int]:
    """Read with our feed: changes in columns of their SQL types."""
    source, positions = source_of(bootstrap, TOPIC, columns)
    ready = threading.Event()
    feed = source.open_feed(source.relations(), positions, {}, ready.set)
    feed.poll(MAX_POLLED)
    left = count
    while left > 0:
        ready.clear()
        batch = feed.poll(MAX_POLLED)
        if batch is None:
            ready.wait(0.05)
            continue
        left -= batch.rows
        yield sum(len(change) for change in batch.whole())
    feed.close()


def latencies(bootstrap: str, sizes: Sizes) -> dict[str, Any]:
    """Time single records, one after the other: from the produce call until the row is read."""
    source, _ = source_of(bootstrap, WRITTEN)
    position = dict(source.start_position(source.relations()[0]).position)
    ready = threading.Event()
    feed = source.open_feed(source.relations(), {TOPIC: position}, {}, ready.set)
    feed.poll(MAX_POLLED)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    took = []
    for number in range(sizes.singles + 20):
        began = time.monotonic()
        producer.produce(WRITTEN, value_of(number))
        producer.flush()
        while not (batch := feed.poll(MAX_POLLED)) or not batch.rows:
            ready.wait(0.001)
            ready.clear()
        took.append((time.monotonic() - began) * 1000)
    feed.close()
    counted = took[20:]
    return {"p50_ms": percentile(counted, 0.5), "p99_ms": percentile(counted, 0.99)}


def _read(function: Callable[[str, int], Iterator[int]], bootstrap: str, sizes: Sizes) -> Any:
    return timed(function(bootstrap, sizes.records))


def reading_plain(bootstrap: str, sizes: Sizes) -> Any:
    """Run in a child process."""
    return _read(read_plain, bootstrap, sizes)


def reading_confluent(bootstrap: str, sizes: Sizes) -> Any:
    """Run in a child process."""
    return _read(read_confluent, bootstrap, sizes)


def reading_ours(bootstrap: str, sizes: Sizes) -> Any:
    """Run in a child process; a first read does not count."""
    for _ in read_ours(bootstrap, min(2_000, sizes.records)):
        continue
    return _read(read_ours, bootstrap, sizes)


def writing_plain(bootstrap: str, sizes: Sizes) -> Any:
    """Run in a child process."""
    return timed(write_plain(bootstrap, WRITTEN, sizes.written))


def writing_confluent(bootstrap: str, sizes: Sizes) -> Any:
    """Run in a child process."""
    return timed(write_confluent(bootstrap, WRITTEN, sizes.written))


RUNNERS: dict[str, dict[str, Callable[[str, Sizes], Any]]] = {
    "kafka-python": {"read": reading_plain, "write": writing_plain},
    "confluent-kafka": {"read": reading_confluent, "write": writing_confluent},
    "ours": {"read": reading_ours, "single": latencies},
}
