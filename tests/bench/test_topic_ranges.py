"""Oracle: how many records were written."""

from __future__ import annotations

from pathlib import Path

from bench.topic_ranges import DRIVER, EXECUTORS, View, produce
from connectors.kafka.embedded import EmbeddedKafka
from connectors.spark.maintained.scheduler import InProcessScheduler
from connectors.spark.maintained.tasks import STATES
from tests.harness.broker import unique_name


def test_both_ways_count_all_records(broker: EmbeddedKafka, tmp_path: Path) -> None:
    topic = unique_name("measured")
    produce(broker, topic, 2_500)
    try:
        for way in (DRIVER, EXECUTORS):
            scheduler = InProcessScheduler(str(tmp_path / "caches"), 2)
            view = View(broker, topic, tmp_path / way, scheduler)
            view.follow(way)
            assert view.sink.counted == 2_500, way
    finally:
        STATES.close()
