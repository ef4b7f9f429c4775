"""Oracle: the records as they were written, each once and in order."""

from __future__ import annotations

import time

from connectors.kafka.client import Client
from connectors.kafka.connection import Connection
from connectors.kafka.deltas import DeltaReader
from connectors.kafka.embedded import EmbeddedKafka
from connectors.option_reader import OptionReader
from tests.harness.broker import new_topic, send

BURSTS, EACH = 4, 3
# Longer than a broker holds back an empty answer, which is what tells a consumer of the end.
GAP_S = 0.8


def test_what_comes_after_the_end_in_one_batch_is_read_too(broker: EmbeddedKafka) -> None:
    topic = new_topic(broker)
    options = OptionReader({"bootstrap_servers": broker.bootstrap}, "source")
    reader = DeltaReader(Client(Connection.of(options), "source", "deltas"), topic)
    assert reader.read(30) == []
    for burst in range(BURSTS):
        records = range(burst * EACH, (burst + 1) * EACH)
        send(broker, topic, [(0, None, b"%d" % number) for number in records])
        time.sleep(GAP_S)
    found: list[object] = []
    deadline = time.monotonic() + 60
    while len(found) < BURSTS * EACH and time.monotonic() < deadline:
        found += reader.read(5)
    reader.close()
    assert found == list(range(BURSTS * EACH))
