"""The marks of a delta topic: where epochs begin and end, and how far its writer has come.

They lie in a topic of one partition beside the rows, written in the rows' own transactions:
OPEN when a writer begins, BEGIN and END for each epoch. END tells for each partition of the rows
how many records the epoch has there and where they end. Invariant: the newest committed END or
OPEN of a sink is its progress. The topics belong to the sink of the first mark that is kept: of
two that begin at once the one that was first goes on, and what the other one left is passed over.
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

# Marks that are looked at from the end backwards: aborted ones, and the broker's own, lie between.
TAIL = 64
# How long the cluster may take for an answer: then it is away, and asked again.
ANSWER_S = 5.0
_POLL_S = 0.2
_DECIDING_S = 0.02
_NO_END = 1 << 62


@dataclass(frozen=True)
class Standing:
    """What the newest mark says. epoch: None before the first one; sink, writer: who wrote it;
    partitions: how many of the rows' topic are used; topic: that topic's id, empty where an
    earlier version wrote the mark."""

    epoch: int | None
    sink: str
    writer: str
    partitions: int
    topic: str = ""


def open_mark(standing: Standing) -> bytes:
    """A writer has begun, at the epoch that it found."""
    return _text("OPEN", epoch=standing.epoch, **_owner(standing))


def begin_mark(epoch: int, *, is_initial: bool) -> bytes:
    """An epoch begins; an initial one holds all rows of the view."""
    return _text("BEGIN", epoch=epoch, initial=is_initial)


def end_mark(
    standing: Standing,
    positions: Mapping[str, Any],
    counts: Mapping[int, int],
    ends: Mapping[int, int],
) -> bytes:
    """An epoch is whole. counts, ends: by partition its records, and the offset behind them."""
    partitions = {str(p): {"records": counts[p], "end": ends[p]} for p in sorted(counts)}
    return _text(
        "END",
        epoch=standing.epoch,
        position=positions,
        partitions=partitions,
        **_owner(standing),
    )


def read_standing(client: Client, topic: str, sink: str) -> Standing | None:
    """The newest committed mark of this sink, or else of whoever wrote there; None in a topic
    without any.

    A topic whose marks have all expired stands at epoch 0: the reader knows what was there.
    """
    with _reading(client) as consumer:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), ANSWER_S)
        start, other = high, None
        while start > low:
            stop, start = start, max(low, start - max(TAIL, high - start))
            for found in reversed(list(_standings(consumer, topic, start, stop))):
                # Another one that came too late has said no more than OPEN.
                if found.sink == sink or found.epoch is not None:
                    return found
                other = other or found
        return other or (Standing(0, "", "", 0) if low > 0 else None)


def read_first(client: Client, topic: str) -> Standing:
    """The first mark that is kept, of a topic that has one of ours: once that can be read, no
    other one will come to stand before it. TemporaryError while what may is not decided."""
    with _reading(client) as consumer:
        low, _ = consumer.get_watermark_offsets(TopicPartition(topic, 0), ANSWER_S)
        deadline = time.monotonic() + ANSWER_S
        while time.monotonic() < deadline:
            for found in _standings(consumer, topic, low, _NO_END):
                return found
            # What was committed just now is shown a moment later.
            time.sleep(_DECIDING_S)
    raise TemporaryError("sink.unreachable", f'the marks in topic "{topic}" are not decided yet')


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
    """The marks with an epoch, and OPENs, in [start, stop)."""
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
