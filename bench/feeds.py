"""What a feed takes to turn the rows of a source into columns of changes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from connectors.feed_source import FeedSource, FeedStart


def read_rows(
    source: FeedSource, start: FeedStart, count: int, begin: Callable[[], object] = lambda: None
) -> tuple[float, float]:
    """Return (seconds, CPU seconds of this process) of so many rows of a source's one relation.

    begin: lets the source send them, once the feed is open.
    """
    [relation] = source.relations()
    is_ready = threading.Event()
    started, cpu, read = time.perf_counter(), time.process_time(), 0
    positions = {relation.name.name: start.position}
    opened = source.open_feed([relation], positions, dict(start.notes), is_ready.set)
    begin()
    while read < count:
        batch = opened.poll(20_000)
        if batch is None:
            is_ready.wait(0.05)
            is_ready.clear()
        else:
            read += sum(len(change) for chunk in batch.chunks() for change in chunk)
    taken = time.perf_counter() - started, time.process_time() - cpu
    opened.close()
    return taken
