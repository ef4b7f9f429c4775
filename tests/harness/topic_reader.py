"""An independent reader of a view's topic: kafka-python, read_committed, from the start.

It implements only docs/KAFKA_SINK.md. It reads the progress markers, and after each END every
partition of the rows up to END's offset; its rows are then the view at that epoch.
"""

from __future__ import annotations

import json
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from kafka import KafkaConsumer, TopicPartition

from connectors.kafka.embedded import EmbeddedKafka

# How bytes become what the topic says: JSON unless a test passes Avro's.
Decode = Callable[[bytes], Any]


@dataclass(frozen=True)
class EpochSeen:
    """One epoch, from its END marker."""

    number: int
    position: dict[str, Any]
    is_initial: bool
    records: int


class TopicReader:
    """Rows as a multiset of JSON texts (mode changes), or by key (mode upsert)."""

    def __init__(
        self,
        broker: EmbeddedKafka,
        topic: str,
        *,
        is_upsert: bool = False,
        decode: Decode = json.loads,
    ) -> None:
        self._topic, self._is_upsert, self._decode = topic, is_upsert, decode
        self._consumer = KafkaConsumer(
            bootstrap_servers=broker.bootstrap,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            max_poll_records=10_000,
        )
        self._marks = TopicPartition(f"{topic}.markers", 0)
        self._waiting: dict[TopicPartition, deque[Any]] = {self._marks: deque()}
        self._places: dict[TopicPartition, int] = {self._marks: 0}
        self._began: dict[str, Any] | None = None
        self._last_end: dict[int, int] = {}
        self.bag: Counter[str] = Counter()
        self.by_key: dict[str, Any] = {}
        self.records = 0
        self.last_epoch = 0
        self._assign()

    def close(self) -> None:
        """End the session."""
        self._consumer.close()

    def rows(self) -> Counter[str]:
        """The view's rows, each as JSON with its keys in order."""
        if self._is_upsert:
            return Counter(map(canonical, self.by_key.values()))
        return self.bag

    def epochs(self, until: Callable[[], bool], timeout_s: float = 60) -> Iterator[EpochSeen]:
        """Each epoch once it is whole and applied, until nothing is left and `until` is true."""
        deadline = time.monotonic() + timeout_s
        while True:
            mark = self._next(self._marks)
            if mark is None:
                if until():
                    return
                assert time.monotonic() < deadline, f"still at epoch {self.last_epoch}"
                continue
            seen = self._apply(json.loads(mark.value))
            if seen is not None:
                yield seen

    def _apply(self, mark: dict[str, Any]) -> EpochSeen | None:
        if mark["mark"] == "BEGIN":
            assert self._began is None, f"{mark} within {self._began}"
            self._began = mark
        if mark["mark"] != "END":
            return None
        assert self._began is not None and self._began["epoch"] == mark["epoch"], mark
        assert mark["epoch"] > self.last_epoch, f"{mark} after epoch {self.last_epoch}"
        total = 0
        for number, place in mark["partitions"].items():
            total += place["records"]
            self._read(int(number), mark["epoch"], place["records"], place["end"])
        assert all(count > 0 for count in self.bag.values()), f"negative at {mark['epoch']}"
        self.last_epoch = mark["epoch"]
        seen = EpochSeen(mark["epoch"], mark["position"], self._began["initial"], total)
        self._began = None
        return seen

    def _read(self, number: int, epoch: int, records: int, end: int) -> None:
        partition = TopicPartition(self._topic, number)
        if partition not in self._places:
            self._assign()
        deadline = time.monotonic() + 60
        found = 0
        while found < records:
            record = self._next(partition)
            assert time.monotonic() < deadline, f"{found} of {records} in {number} at {epoch}"
            if record is None:
                continue
            headers = dict(record.headers)
            assert headers["epoch"] == str(epoch).encode(), f"{record} in epoch {epoch}"
            assert record.offset < end, f"{record} is not before {end}"
            self._take(record, headers["op"].decode())
            found += 1
        if found:
            assert record.offset == end - 1

    def _take(self, record: Any, operation: str) -> None:
        self.records += 1
        value = None if record.value is None else self._decode(record.value)
        key = canonical(self._decode(record.key))
        if not self._is_upsert:
            assert value["op"] == operation == ("insert" if value["weight"] > 0 else "delete")
            row = canonical(value["row"])
            self.bag[row] += value["weight"]
            if not self.bag[row]:
                del self.bag[row]
        elif value is None:
            self.by_key.pop(key, None)
        elif "after" in value and "before" in value:
            assert canonical(self.by_key.get(key)) == canonical(value["before"])
            assert operation == value["op"]
            if value["after"] is None:
                del self.by_key[key]
            else:
                self.by_key[key] = value["after"]
        else:
            assert operation == ("update" if key in self.by_key else "insert")
            self.by_key[key] = value

    def _next(self, partition: TopicPartition) -> Any:
        """The next record of a partition, None when none has arrived within a moment."""
        if not self._waiting[partition]:
            for arrived, records in self._consumer.poll(timeout_ms=100).items():
                self._waiting[arrived].extend(records)
        queue = self._waiting[partition]
        return queue.popleft() if queue else None

    def _assign(self) -> None:
        numbers = self._consumer.partitions_for_topic(self._topic) or set()
        for number in sorted(numbers):
            self._waiting.setdefault(TopicPartition(self._topic, number), deque())
        new = [p for p in self._waiting if p not in self._consumer.assignment()]
        kept = {p: self._consumer.position(p) for p in self._consumer.assignment()}
        self._consumer.assign(list(self._waiting))
        self._places = {p: kept.get(p, 0) for p in self._waiting}
        self._consumer.seek_to_beginning(*new)
        for partition, place in kept.items():
            self._consumer.seek(partition, place)


def canonical(value: Any) -> str:
    """JSON that is the same for equal values."""
    return json.dumps(value, sort_keys=True)
