"""Ranges of partitions and their planner, as the service's processes and tasks see them.

See `ranges.py`, which runs in child processes. A process keeps the child of a source from range to
range. Invariant: as there.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from connectors.apart.child_process import Child
from connectors.feed_source import FeedRange, RangeResult
from connectors.kafka.client_process import use_of
from connectors.kafka.kept_open import OPEN_READERS, KeptOpen
from connectors.kafka.options import KafkaOptions
from connectors.source import SourceBatch
from dataflow.changes import Changes
from dataflow.errors import TidemarkError
from dataflow.schema import RelationName

_CHILDREN: KeptOpen[Child] = KeptOpen(OPEN_READERS, Child.close)


@dataclass
class RangeApart:
    """A FeedRange. payload: what the child reads."""

    source: str
    options: KafkaOptions
    name: str
    relation: RelationName
    size: int
    payload: bytes = field(repr=False)
    _result: RangeResult | None = field(default=None, repr=False)

    def read(self) -> Iterator[Changes]:
        """See FeedRange."""
        key = pickle.dumps((os.getpid(), self.source, self.options.connection))
        child = _CHILDREN.take(key) or Child(
            use_of("source", self.source, self.options), "connectors.kafka.in_child:range_reader"
        )
        try:
            yield from child.each("read", self.payload)
            self._result = child.call("result")
        except BaseException:
            child.close()
            raise
        _CHILDREN.give(key, child)

    def result(self) -> RangeResult:
        """See FeedRange."""
        assert self._result is not None
        return self._result


class PlannerApart:
    """A RangePlanner in a child."""

    def __init__(self, child: Child, source: str, options: KafkaOptions) -> None:
        self._child = child
        self._source = source
        self._options = options
        self.lag = self.skipped = 0
        self.has_succeeded = False
        self.problem: TidemarkError | None = None

    def has_unread(self) -> bool:
        """See RangePlanner."""
        return self._call("has_unread")

    def cut(self, count: int, max_rows: int) -> Sequence[RangeApart]:
        """See RangePlanner."""
        return self._ranges("cut", count, max_rows)

    def shorten(
        self, ranges: Sequence[FeedRange], results: Sequence[RangeResult]
    ) -> Sequence[RangeApart]:
        """See RangePlanner."""
        return self._ranges("shorten", _payloads(ranges), results)

    def join(self, ranges: Sequence[FeedRange], results: Sequence[RangeResult]) -> SourceBatch:
        """See RangePlanner."""
        return self._call("join", _payloads(ranges), results)

    def close(self) -> None:
        """See RangePlanner."""
        self._child.close()

    def _ranges(self, method: str, *arguments: Any) -> list[RangeApart]:
        found = self._call(method, *arguments)
        return [RangeApart(self._source, self._options, *facts) for facts in found]

    def _call(self, method: str, *arguments: Any) -> Any:
        found, figures = self._child.call(method, *arguments)
        self.lag, self.skipped, self.has_succeeded, self.problem = figures
        return found


def _payloads(ranges: Sequence[FeedRange]) -> list[bytes]:
    return [one.payload for one in cast(Sequence[RangeApart], ranges)]
