"""Sinks of the tests: a view's random epochs, the model of its rows after each, and a reader."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from connectors.kafka.embedded import EmbeddedKafka
from connectors.kafka.make_sink import make
from connectors.kafka.topic_sink import TopicSink
from connectors.sink import SinkTable
from connectors.view_sink import ViewEpoch
from dataflow.delta import Delta
from dataflow.schema import Field
from dataflow.types import FLOAT8, INT4, TEXT
from tests.harness.broker import ends_of, unique_name
from tests.harness.topic_reader import TopicReader, canonical

FIELDS = (Field("id", INT4, False), Field("name", TEXT), Field("x", FLOAT8))
KEYED = SinkTable("public", "v", FIELDS, (0,))
BAG = SinkTable("public", "b", FIELDS, ())
POSITION = {"source": "0/1A"}
# Transactions that take too long are looked for often.
QUICK = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 200}


def options(broker: EmbeddedKafka, **more: Any) -> dict[str, Any]:
    return {"bootstrap_servers": broker.bootstrap, "topic": unique_name("sink"), **more}


def sink_of(table: SinkTable, chosen: dict[str, Any], identity: str | None = None) -> TopicSink:
    return make(chosen, table, identity or unique_name("id"), f"{table.title}/events")


class Model:
    """Random epochs of a view, and its rows after each."""

    def __init__(self, table: SinkTable, seed: int) -> None:
        self._table = table
        self._random = random.Random(seed)
        self._rows: Counter[tuple] = Counter()
        self.number = 0
        self.after: dict[int, Counter[str]] = {}

    def epoch(self, rows: int = 20) -> ViewEpoch:
        pick, before = self._random, self._rows.copy()
        for _ in range(rows):
            row = (pick.randrange(200), f'n "{pick.randrange(5)}"\n\té', pick.choice((0.5, -1e300)))
            if self._table.key:
                for old in [r for r in self._rows if r[0] == row[0]]:
                    del self._rows[old]
            if pick.random() < 0.7 or not self._rows:
                self._rows[row] += 1
            elif self._rows:
                gone = pick.choice(list(self._rows))
                self._rows[gone] -= 1
                self._rows += Counter()
        changed = Counter(self._rows)
        changed.subtract(before)
        weights = {row: n for row, n in changed.items() if n}
        delta = Delta.of("isf", weights, weights.values())
        self.number += 1
        self.after[self.number] = self.shown()
        return ViewEpoch(self.number, POSITION, [delta], len(delta), self.number == 1)

    def shown(self) -> Counter[str]:
        names = [f.name for f in FIELDS]
        rows = {canonical(dict(zip(names, r, strict=True))): n for r, n in self._rows.items()}
        return Counter(rows)


def compare(broker: EmbeddedKafka, chosen: dict[str, Any], model: Model, **how: Any) -> int:
    """Read the topic from the start; the records that were there."""
    reader = TopicReader(broker, chosen["topic"], **how)
    try:
        for seen in reader.epochs(until=lambda: reader.last_epoch == model.number):
            assert reader.rows() == model.after[seen.number], f"epoch {seen.number}"
            assert seen.position == POSITION
    finally:
        reader.close()
    return reader.records


def has_no_open_transaction(broker: EmbeddedKafka, topic: str) -> bool:
    return ends_of(broker, topic, is_committed=True) == ends_of(broker, topic, is_committed=False)
