"""Executors that read a source's ranges for the view of an engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from connectors.feed_source import RangePlanner
from connectors.source import SourceBatch
from dataflow.schema import RelationName


@dataclass(frozen=True)
class RangeReader:
    """What a feed needs of an engine whose view's tasks read ranges.

    is_ready: whether what they read has no other readers at present. read: as `Driver.read`; the
    batch must be the next one that the engine steps. note: called with what reads each relation.
    """

    is_ready: Callable[[], bool]
    read: Callable[[RangePlanner, int], SourceBatch | None]
    note: Callable[[Mapping[RelationName, str]], None]
