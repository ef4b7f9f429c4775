"""`python -m bench.topics [--rows N]`: the cost of a view's topic, with a real broker.

Measured are the deltas a second of the sink alone: each format and mode, epochs of 20,000 rows,
exactly once. The peer is the same records by kafka-python in transactions of the same size. Through
the whole service, the time from the commit at the source until a read_committed reader has the
record. The result is printed and written to bench/topics.json.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from bench.measure import percentile
from bench.record import save_figures
from bench.server import session
from bench.service_run import ServiceRun
from connectors.kafka.embedded import EmbeddedKafka
from connectors.kafka.make_sink import make
from connectors.kafka.topic_records import AvroForm, JsonForm, TopicRecords
from connectors.postgres.embedded.server import EmbeddedPostgres
from connectors.sink import SinkTable
from connectors.view_sink import ViewEpoch
from dataflow.delta import Column, Delta
from dataflow.schema import Field
from dataflow.types import FLOAT8, INT8, TEXT, fixed

RESULT = Path(__file__).parent / "topics.json"
TABLE = SinkTable(
    "public",
    "sales",
    (
        Field("order_id", INT8, False),
        Field("region", TEXT, False),
        Field("amount", fixed(12, 2)),
        Field("score", FLOAT8),
        Field("note", TEXT),
    ),
    (0,),
)
POSITION = {"source": "0/1A2B3C4D"}
EPOCH_ROWS = 20_000
PEER_ROWS = 40_000
COMMITS = 200


def epochs(rows: int, first: int = 1) -> Iterator[ViewEpoch]:
    """Return insertions with new keys."""
    for number, start in enumerate(range(0, rows, EPOCH_ROWS), first):
        n = min(EPOCH_ROWS, rows - start)
        yield ViewEpoch(number, POSITION, [_delta(start, n)], n)


def _delta(start: int, n: int) -> Delta:
    words = Column.of("s", ["north", "south", 'the "east"', "west", None])
    pick = np.arange(start, start + n)
    columns = [
        Column(pick),
        words.take(pick % 4),
        Column(pick * 7 % 1_000_000),
        Column(pick / 7),
        words.take(pick % 5),
    ]
    return Delta(columns, np.ones(n, np.int64))


def encoding(rows: int) -> dict[str, float]:
    """Return records encoded a second, without a broker."""
    figures = {}
    for name, form in (("json", JsonForm(TABLE)), ("avro", AvroForm(TABLE, 1, 2))):
        records = TopicRecords(TABLE, form)
        list(records.batches(_delta(0, 10), 1, POSITION))
        began = time.perf_counter()
        made = sum(
            len(batch)
            for epoch in epochs(rows)
            for delta in epoch.deltas
            for batch in records.batches(delta, epoch.number, POSITION)
        )
        figures[name] = made / (time.perf_counter() - began)
    return figures


def writing(broker: EmbeddedKafka, rows: int) -> dict[str, float]:
    """Return deltas a second into a topic of three partitions, exactly once."""
    figures = {}
    for mode in ("changes", "upsert"):
        options = {"bootstrap_servers": broker.bootstrap, "topic": mode, "mode": mode}
        sink = make({**options, "partitions": 3}, TABLE, mode, f"bench/{mode}")
        sink.open()
        sink.write(list(epochs(10)))
        began = time.perf_counter()
        for epoch in epochs(rows, 2):
            sink.write([epoch])
        figures[f"json {mode}"] = rows / (time.perf_counter() - began)
        sink.close()
    return figures


def writing_by_peer(broker: EmbeddedKafka, rows: int) -> float:
    """Write the same records by kafka-python, in transactions of the same size."""
    made = [
        record
        for epoch in epochs(rows)
        for delta in epoch.deltas
        for batch in TopicRecords(TABLE, JsonForm(TABLE)).batches(delta, 1, POSITION)
        for record in zip(batch.keys.to_list(), batch.values.to_list(), strict=True)
    ]
    producer = KafkaProducer(
        bootstrap_servers=broker.bootstrap, transactional_id="peer", acks="all", linger_ms=5
    )
    producer.init_transactions()
    began = time.perf_counter()
    for start in range(0, len(made), EPOCH_ROWS):
        producer.begin_transaction()
        for key, value in made[start : start + EPOCH_ROWS]:
            producer.send("changes", key=key, value=value)
        producer.commit_transaction()
    elapsed = time.perf_counter() - began
    producer.close()
    return len(made) / elapsed


def latency(broker: EmbeddedKafka, commits: int) -> dict[str, float]:
    """Return milliseconds from single commits at the source until their records are read."""
    with EmbeddedPostgres() as server, TemporaryDirectory() as folder:
        with session(server.dsn) as cursor:
            cursor.execute("CREATE TABLE orders (id bigint PRIMARY KEY, amount bigint NOT NULL)")
        with ServiceRun(server.dsn, Path(folder)) as service:
            service.create("copy", "SELECT id, amount FROM orders", "local")
            chosen = {"bootstrap_servers": broker.bootstrap, "topic": "latency"}
            service.create_sink("copy", "bench", chosen)
            reader = _reader(broker, "latency")
            in_topic = []
            with session(server.dsn) as cursor:
                for number in range(commits):
                    cursor.execute("INSERT INTO orders VALUES (%s, 1)", (number,))
                    committed = time.perf_counter()
                    while not reader.poll(timeout_ms=1000):
                        continue
                    in_topic.append((time.perf_counter() - committed) * 1000)
            reader.close()
    rest = in_topic[commits // 10 :]
    return {"p50_ms": percentile(rest, 0.5), "p99_ms": percentile(rest, 0.99)}


def _reader(broker: EmbeddedKafka, topic: str) -> KafkaConsumer:
    reader = KafkaConsumer(
        bootstrap_servers=broker.bootstrap, isolation_level="read_committed", fetch_max_wait_ms=100
    )
    partition = TopicPartition(topic, 0)
    reader.assign([partition])
    reader.seek_to_beginning(partition)
    return reader


def main(arguments: list[str]) -> int:
    """Measure, print, and write the file."""
    parser = argparse.ArgumentParser(prog="python -m bench.topics", description=__doc__)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--commits", type=int, default=COMMITS)
    options = parser.parse_args(arguments)
    with EmbeddedKafka() as broker:
        measured = {
            "encoded_a_second": encoding(options.rows),
            "written_a_second": writing(broker, options.rows),
            "kafka_python_a_second": {"json changes": writing_by_peer(broker, PEER_ROWS)},
            "commit_to_topic": latency(broker, options.commits),
        }
    figures = {
        part: {name: round(value, 1) for name, value in found.items()}
        for part, found in measured.items()
    }
    sizes = {"rows": options.rows, "epoch_rows": EPOCH_ROWS, "commits": options.commits}
    save_figures(RESULT, sizes, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
