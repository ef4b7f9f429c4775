"""The markers of a delta topic: they delimit epochs and store the writer's progress.

They are in a topic of one partition beside the rows, written in the rows' own transactions: OPEN
when a writer starts, BEGIN and END for each epoch. END has for each partition of the rows the
epoch's record count and end offset. Invariant: the newest committed END or OPEN of a sink is its
progress. The topics belong to the sink of the oldest retained marker: if two sinks start at once,
the first one continues, and the markers of the other are ignored.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from connectors.kafka.client import Client
from dataflow.errors import TemporaryError

# How many markers are read backwards from the end: aborted ones and the broker's control records
# lie between.
TAIL = 64
# How long to wait for the cluster; after that it counts as unreachable, and is polled again.
ANSWER_S = 5.0
_POLL_S = 0.2
_DECIDING_S = 0.02
_NO_END = 1 << 62


@dataclass(frozen=True)
class Standing:
    """Content of the newest marker.

    epoch: None before the first one. sink, writer: who wrote the marker. partitions: how many of
    the rows' topic are used. topic: that topic's id, empty if an earlier version wrote the marker.
    """

    epoch: int | None
    sink: str
    writer: str
    partitions: int
    topic: str = ""


def open_marker(standing: Standing) -> bytes:
    """Return the marker of a writer that starts at this epoch."""
    return _text("OPEN", epoch=standing.epoch, **_owner(standing))


def begin_marker(epoch: int, *, is_initial: bool) -> bytes:
    """Return the marker that starts an epoch; an initial one holds all rows of the view."""
    return _text("BEGIN", epoch=epoch, initial=is_initial)


def end_marker(
    standing: Standing,
    positions: Mapping[str, Any],
    counts: Mapping[int, int],
    ends: Mapping[int, int],
) -> bytes:
    """Return the marker that completes an epoch.

    counts, ends: by partition, the epoch's records and the offset after them.
    """
    partitions = {str(p): {"records": counts[p], "end": ends[p]} for p in sorted(counts)}
    return _text(
        "END",
        epoch=standing.epoch,
        position=positions,
        partitions=partitions,
        **_owner(standing),
    )


def read_standing(client: Client, topic: str, sink: str) -> Standing | None:
    """Return the newest committed marker of this sink, or else of any; None if there is none.

    A topic whose markers have all expired counts as epoch 0: it did have some.
    """
    with _reading(client) as consumer:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), ANSWER_S)
        start, other = high, None
        while start > low:
            stop, start = start, max(low, start - max(TAIL, high - start))
            for found in reversed(list(_standings(consumer, topic, start, stop))):
                # A sink that came too late has written only OPEN.
                if found.sink == sink or found.epoch is not None:
                    return found
                other = other or found
        return other or (Standing(0, "", "", 0) if low > 0 else None)


def read_first(client: Client, topic: str) -> Standing:
    """Return the oldest retained marker of a topic that has one of ours.

    Once it can be read, no other marker can come before it. TemporaryError while open transactions
    may still decide this.
    """
    with _reading(client) as consumer:
        low, _ = consumer.get_watermark_offsets(TopicPartition(topic, 0), ANSWER_S)
        deadline = time.monotonic() + ANSWER_S
        while time.monotonic() < deadline:
            for found in _standings(consumer, topic, low, _NO_END):
                return found
            # A marker that was just committed becomes readable a moment later.
            time.sleep(_DECIDING_S)
    raise TemporaryError("sink.unreachable", f'topic "{topic}" has an open transaction')


@contextmanager
def _reading(client: Client) -> Iterator[Consumer]:
    consumer = client.consumer(enable_partition_eof=True)
    try:
        yield consumer
    except KafkaException as error:
        raise client.refused(error, "reading its marks", consumer) from None
    finally:
        consumer.close()


def _standings(consumer: Consumer, topic: str, start: int, stop: int) -> Iterator[Standing]:
    """Yield the markers with an epoch, and OPENs, in [start, stop)."""
    consumer.assign([TopicPartition(topic, 0, start)])
    deadline = time.monotonic() + ANSWER_S
    while time.monotonic() < deadline:
        record = consumer.poll(_POLL_S)
        if record is None:
            continue
        error = record.error()
        if error is not None:
            if error.code() == KafkaError._PARTITION_EOF:
                return
            raise KafkaException(error)
        if (record.offset() or 0) >= stop:
            return
        mark = json.loads(record.value() or b"{}")
        if mark.get("mark") in ("OPEN", "END"):
            facts = (mark["epoch"], mark["sink"], mark["writer"], mark["width"])
            yield Standing(*facts, mark.get("topic", ""))
    raise TemporaryError("sink.unreachable", f'topic "{topic}" cannot be read to its end')


def _owner(standing: Standing) -> dict[str, Any]:
    return {
        "sink": standing.sink,
        "writer": standing.writer,
        "width": standing.partitions,
        "topic": standing.topic,
    }


def _text(mark: str, **facts: Any) -> bytes:
    return json.dumps({"mark": mark, **facts}).encode()
