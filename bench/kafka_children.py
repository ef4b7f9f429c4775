"""The cost of Kafka's client in a child process: the same feed in this process and in a child.

Both read the same records in turn, and are compared pair by pair: processor time of this process
and, for the second, of its child. What both do once, such as a start, is outside the time.
"""

from __future__ import annotations

import os
import statistics
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench import kafka_clients as clients
from connectors.apart import child_process
from connectors.feed_source import FeedSource
from connectors.kafka import source as apart
from connectors.kafka.embedded import EmbeddedKafka

_TICKS = os.sysconf("SC_CLK_TCK")
MAX_ROWS = 50_000


class _Watched(child_process.Child):
    """A child whose pid is known."""

    last: int = 0

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        _Watched.last = self.pid


def child_s(pid: int) -> float:
    """Return the processor time of a child so far, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def read(source: FeedSource, positions: Mapping[str, Any], count: int) -> tuple[float, float]:
    """Return processor and wall seconds of reading so many records; the first poll is not in it."""
    _Watched.last = 0
    is_ready = threading.Event()
    feed = source.open_feed(source.relations(), positions, {}, is_ready.set)
    left = count
    while (batch := feed.poll(1000)) is None:
        is_ready.wait(0.05)
    left -= batch.rows
    pid = _Watched.last
    own, child, began = time.process_time(), child_s(pid) if pid else 0.0, time.monotonic()
    while left > 0:
        is_ready.clear()
        batch = feed.poll(MAX_ROWS)
        if batch is None:
            is_ready.wait(0.05)
            continue
        left -= batch.rows
        assert sum(map(len, batch.whole())) == batch.rows
    took = time.monotonic() - began
    spent = time.process_time() - own + (child_s(pid) - child if pid else 0.0)
    feed.close()
    return spent, took


def main(count: int, pairs: int) -> None:
    """Print each pair, and the medians."""
    apart.Child = _Watched  # type: ignore[misc]
    with EmbeddedKafka() as broker:
        clients.make_topics(broker.bootstrap)
        for _ in clients.write_confluent(broker.bootstrap, clients.TOPIC, count):
            continue
        inside, positions = clients.source_of(broker.bootstrap, clients.TOPIC)
        given = clients.options_of(broker.bootstrap, clients.TOPIC, clients.COLUMNS)
        child = apart.make("bench", given, inside.relations())
        for source in (inside, child):
            read(source, positions, count)
        ratios = []
        for _ in range(pairs):
            here, there = read(inside, positions, count), read(child, positions, count)
            ratios.append(there[0] / here[0])
            print(
                *(f"{1e6 * spent / count:.2f} us, {took:.2f} s" for spent, took in (here, there)),
                f"{ratios[-1]:.3f}",
                flush=True,
            )
        print(f"median ratio {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
