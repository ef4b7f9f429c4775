"""`python -m bench.topic_ranges [--records N]`: a topic read by the driver, and by executors.

The records are JSON in a topic with four partitions of a local broker; the view counts and sums by
group. For each master, a local one and a standalone one with two workers of one core, both ways
read the same topic in this run, into a new view each, after a smaller topic that warms them. The
clock runs from the first request to the last commit. CPU is that of this process alone, the driver,
and that of all its children but the broker. Printed, and written to a file.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Producer

from bench.record import stamp
from connectors.feed_source import BY_EXECUTORS, reader_of
from connectors.kafka.embedded import EmbeddedKafka
from connectors.kafka.options import read_options
from connectors.kafka.topic_source import KafkaSource
from connectors.source import SourceBatch
from connectors.spark.maintained.driver import Batch, Driver
from connectors.spark.maintained.layout import MaintainedView
from connectors.spark.maintained.output import CommittedEpoch
from connectors.spark.maintained.runtime import new_scheduler, new_session, storage_below
from connectors.spark.maintained.scheduler import Scheduler
from dataflow.expressions.evaluator import NoEvaluator
from dataflow.expressions.ir import ColumnRef
from dataflow.graph import needed_columns
from dataflow.plan.nodes import Aggregate, AggregateCall, Scan
from dataflow.schema import Field, Relation, RelationName
from dataflow.sql.lower.lowering import lower
from dataflow.types import INT8, NUMERIC, TEXT
from tests.connectors.spark.clusters import HOST, standalone

FIGURES = Path(__file__).parent / "topic_ranges.json"
LOCAL, WORKERS = "local[2]", "two workers"
MASTERS = (LOCAL, WORKERS)
DRIVER, EXECUTORS = "driver", "executors"
PARTITIONS, BUCKETS, GROUPS = 4, 4, 1000
# As a run of the program reads them.
EPOCH_ROWS = 200_000
WARMING = 50_000
FIELDS = (Field("id", INT8), Field("place", TEXT), Field("url", TEXT), Field("amount", INT8))


def main(arguments: list[str]) -> int:
    """Measure, print, and write the file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=1_000_000)
    records = parser.parse_args(arguments).records
    figures: dict[str, Any] = {**stamp(), "records": records, "partitions": PARTITIONS}
    figures |= {"buckets": BUCKETS, "epoch_rows": EPOCH_ROWS}
    with EmbeddedKafka() as broker:
        for topic, count in (("warming", min(WARMING, records)), ("measured", records)):
            produce(broker, topic, count)
        for master in MASTERS:
            with tempfile.TemporaryDirectory() as folder:
                figures[master] = measure(broker, master, records, Path(folder))
    FIGURES.write_text(json.dumps(figures, indent=1) + "\n")
    print("\n".join(section()))
    return 0


def produce(broker: EmbeddedKafka, topic: str, count: int) -> None:
    """Write records of about 100 bytes to all partitions in turn."""
    broker.create_topic(topic, PARTITIONS)
    settings = {"bootstrap.servers": broker.bootstrap, "linger.ms": 20, "compression.type": "lz4"}
    producer = Producer(settings)
    for n in range(count):
        place, url = f"place-{n * 7919 % GROUPS}", f"https://example.org/{n % 977}/page"
        value = {"id": n, "place": place, "url": url, "amount": n * 31 % 9973}
        producer.produce(topic, json.dumps(value).encode(), partition=n % PARTITIONS)
        if n % 1000 == 0:
            producer.poll(0.01 if len(producer) < 50_000 else 1.0)
    producer.flush()


def measure(broker: EmbeddedKafka, master: str, records: int, folder: Path) -> dict[str, Any]:
    """Return by way: records a second, and the CPU seconds of the driver and of all others."""
    found = {}
    with _scheduler(master, folder) as scheduler:
        for way in (DRIVER, EXECUTORS):
            for topic, count in (("warming", min(WARMING, records)), ("measured", records)):
                view = View(broker, topic, folder / f"{way}-{topic}", scheduler)
                own, all_s, started = time.process_time(), _cpu_s(), time.perf_counter()
                view.follow(way)
                seconds = time.perf_counter() - started
                own_s = time.process_time() - own
                assert view.sink.counted == count, (view.sink.counted, count)
                found[way] = {
                    "records_a_second": count / seconds,
                    "driver_cpu_s": own_s,
                    "other_cpu_s": _cpu_s() - all_s,
                    "epochs": view.driver.epoch,
                }
    return found


@contextmanager
def _scheduler(master: str, folder: Path) -> Iterator[Scheduler]:
    if master == LOCAL:
        session = new_session(master, {})
        try:
            yield new_scheduler(session, folder / "caches")
        finally:
            session.stop()
        return
    at = {"spark.driver.host": HOST, "spark.driver.bindAddress": HOST}
    with standalone(folder) as url:
        session = new_session(url, {**at, "spark.executor.memory": "512m"})
        try:
            yield new_scheduler(session, folder / "caches")
        finally:
            session.stop()


class _Sink:
    """Adds up how many records the view has counted."""

    def __init__(self) -> None:
        self.epoch = self.counted = 0

    def commit(self) -> str:
        """See EpochSink."""
        return ""

    def progress(self) -> int:
        """See EpochSink."""
        return self.epoch

    def apply(self, epoch: CommittedEpoch) -> None:
        """See EpochSink."""
        self.epoch = epoch.epoch
        counts, weights = epoch.rows.columns[1].values, epoch.rows.weights
        self.counted += int((counts * weights).sum())


class View:
    """SELECT place, count(*), sum(amount) FROM a topic GROUP BY place."""

    def __init__(
        self, broker: EmbeddedKafka, topic: str, folder: Path, scheduler: Scheduler
    ) -> None:
        columns = {"id": "int8", "place": "text", "url": "text", "amount": "int8"}
        given = {topic: {"topic": topic, "format": "json", "columns": columns}}
        options = read_options({"bootstrap_servers": broker.bootstrap, "topics": given})
        relation = Relation(RelationName("bench", "bench", topic), 1, FIELDS, (), is_append=True)
        self.source = KafkaSource("bench", options, [relation])
        assert reader_of(self.source, relation) == BY_EXECUTORS
        scan = Scan(relation, (1, 3), (FIELDS[1], FIELDS[3]))
        calls = (
            AggregateCall("count", None, False, None, Field("n", INT8)),
            AggregateCall("sum", ColumnRef(1, INT8), False, None, Field("total", NUMERIC)),
        )
        fields = (FIELDS[1], *(call.field for call in calls))
        nodes = lower(Aggregate(scan, (ColumnRef(0, TEXT),), calls, fields))
        view = MaintainedView(
            folder.name, nodes, "v", (relation,), needed_columns(nodes), NoEvaluator
        )
        self.sink = _Sink()
        storage = storage_below(str(folder), "shared")
        self.driver = Driver(view, storage, scheduler, self.sink, buckets=BUCKETS)
        self.driver.start()

    def follow(self, way: str) -> None:
        """Read the topic from its beginning to its end of now."""
        relations = self.source.relations()
        (relation,) = relations
        name, start = relation.name.name, self.source.first_position(relation)
        positions, notes = {name: start.position}, dict(start.notes)
        end = self.source.current_end(relations)
        if way == DRIVER:
            for batch in self.source.read_until(relations, positions, notes, end, EPOCH_ROWS):
                self._step(batch)
            return
        planner = self.source.open_ranges(relations, positions, notes, lambda: None, end)
        while (batch := self.driver.read(planner, EPOCH_ROWS)) is not None:
            self._step(batch)
        planner.close()

    def _step(self, batch: SourceBatch) -> None:
        self.driver.step(Batch(dict(batch.positions or {}), batch.whole(), stored=batch.stored))


def _cpu_s() -> float:
    """CPU seconds of the children of this process, without the broker."""
    total = 0.0
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # its parent has what it took, once it has ended
            if "kafka.Kafka" in " ".join(child.cmdline()):
                continue
            times = child.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def section() -> list[str]:
    """Return the lines of RESULTS.md."""
    if not FIGURES.exists():
        return []
    figures = json.loads(FIGURES.read_text())
    lines = [
        "",
        "## A topic read by executors",
        "",
        f"`python -m bench.topic_ranges`: {figures['date']}, revision {figures['revision']}, load "
        f"of the machine {figures['load']}. {figures['records']:,} JSON records of about 100 bytes "
        f"in {figures['partitions']} partitions, counted and summed by {GROUPS:,} groups in "
        f"{figures['buckets']} buckets. Broker, driver and executors share two cores. By the "
        f"driver: what its read-ahead buffer holds, at most {figures['epoch_rows']:,} records an "
        "epoch; by executors: at most as many for each task.",
        "",
        "| master | read by | records/s | CPU of the driver, s | CPU of Spark, s | epochs |",
        "|---|---|---|---|---|---|",
    ]
    for master in MASTERS:
        for way in (DRIVER, EXECUTORS):
            found = figures[master][way]
            lines.append(
                f"| {master} | {way} | {found['records_a_second']:,.0f} | "
                f"{found['driver_cpu_s']:.2f} | {found['other_cpu_s']:.2f} | {found['epochs']} |"
            )
    return lines


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
