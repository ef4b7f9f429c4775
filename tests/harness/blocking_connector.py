"""A source and a sink behind our own contracts of which each method blocks while a file says so.

`python -m tests.harness.blocking_connector serve` is the service with them in place of the types
`dbapi` and `webhook`. The folder TIDEMARK_TEST_BLOCK has, for a source called NAME, NAME.count: its
relation `t` has the rows 1 to that number; and NAME.METHOD: that method does not return while the
file is there. In the same way NAME.METHOD blocks a sink whose option `of` is NAME, and NAME.rows
has the rows that it was given.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from connectors.feed_source import (
    REJECTED_KINDS,
    DeclaredRelation,
    FeedPosition,
    FeedPositions,
    FeedStart,
    rejected_row,
)
from connectors.sink import SinkTable
from connectors.source import SourceBatch
from connectors.view_sink import Detachment, ViewEpoch
from dataflow.changes import Changes
from dataflow.delta import Delta
from dataflow.schema import Relation
from storage import clock

FOLDER = "TIDEMARK_TEST_BLOCK"
# Methods of a source, its feed, its snapshots and their parts; and of a sink.
SOURCE_METHODS = (
    *("start_position", "open_snapshot", "parts", "read", "close_snapshot"),
    *("open_feed", "poll", "lag", "close", "decode_again"),
)
SINK_METHODS = ("open", "write", "close", "interrupt", "remove")
CHECKS = ("check", "discover", "check_sink")


def pass_through(name: str, method: str) -> None:
    """Return once the method is not blocked; note that it was called."""
    folder = Path(os.environ[FOLDER])
    while (folder / f"{name}.{method}").exists():
        (folder / f"{name}.{method}.blocks").touch()
        time.sleep(0.02)


def _count(name: str) -> int:
    with contextlib.suppress(OSError, ValueError):
        return int((Path(os.environ[FOLDER]) / f"{name}.count").read_text())
    return 0


def _rows(first: int, last: int) -> Delta:
    return Delta.of("i", [(n,) for n in range(first + 1, last + 1)])


def declare(options: Mapping[str, Any]) -> Sequence[DeclaredRelation]:
    return [DeclaredRelation("t", (("id", "bigint"),), is_append=True)]


def discover(options: Mapping[str, Any]) -> Mapping[str, Any]:
    pass_through(options["name"], "discover")
    return options


@dataclass
class BlockingSource:
    """See FeedSource."""

    name: str
    declared: Sequence[Relation]
    is_replayable: bool = True

    def relations(self) -> Sequence[Relation]:
        return self.declared

    def check(self) -> None:
        pass_through(self.name, "check")

    def start_position(self, relation: Relation) -> FeedStart:
        pass_through(self.name, "start_position")
        return FeedStart({"n": _count(self.name)})

    def open_snapshot(
        self, relations: Sequence[Relation], positions: FeedPositions, notes: Mapping[str, bytes]
    ) -> BlockingSnapshot:
        pass_through(self.name, "open_snapshot")
        return BlockingSnapshot(self.name, positions["t"])

    def open_feed(
        self,
        relations: Sequence[Relation],
        positions: FeedPositions,
        notes: Mapping[str, bytes],
        on_ready: Callable[[], None],
    ) -> BlockingFeed:
        pass_through(self.name, "open_feed")
        return BlockingFeed(self, positions["t"]["n"], on_ready)

    def decode_again(self, relation: Relation, rows: Delta) -> SourceBatch:
        pass_through(self.name, "decode_again")
        return SourceBatch(0, [], 0, 0, source=self.name, rejected=rows.negate())


class BlockingFeed:
    """See SourceFeed. Every tenth row comes with a dead letter."""

    skipped = 0
    has_succeeded = True

    def __init__(self, source: BlockingSource, at: int, on_ready: Callable[[], None]) -> None:
        self._source, self._at = source, at
        self._on_ready = on_ready
        self._ended = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while not self._ended.wait(0.05):
            if _count(self._source.name) > self._at:
                self._on_ready()

    @property
    def lag(self) -> int:
        pass_through(self._source.name, "lag")
        return _count(self._source.name) - self._at

    def poll(self, max_rows: int, *, until: FeedPositions | None = None) -> SourceBatch | None:
        name, [relation] = self._source.name, self._source.declared
        pass_through(name, "poll")
        last = min(_count(name), self._at + max_rows)
        if until is not None:
            last = min(last, until["t"]["n"])
        if last <= self._at:
            return None
        first, self._at = self._at, last
        rows = _rows(first, last)
        kinds = np.full(len(rows), Changes.INSERT, np.uint8)
        bad = [
            rejected_row(relation.name, str(n), "source.bad_record", "bad", key=None, value=b"x")
            for n in range(first + 1, last + 1)
            if n % 10 == 0
        ]
        return SourceBatch(
            0,
            [Changes(relation, kinds, tuple(rows.columns))],
            1,
            len(rows),
            commit_time_us=clock.wall_ns() // 1000,
            source=name,
            positions={"t": {"n": last}},
            rejected=Delta.of(REJECTED_KINDS, bad) if bad else None,
        )

    def close(self) -> None:
        pass_through(self._source.name, "close")
        self._ended.set()


@dataclass
class BlockingSnapshot:
    """See FeedSnapshot."""

    name: str
    position: FeedPosition

    def parts(
        self, relation: Relation, columns: Sequence[int], count: int, known: Sequence[str] = ()
    ) -> Sequence[BlockingPart]:
        pass_through(self.name, "parts")
        return [BlockingPart("all", self.name, int(self.position["n"]), len(columns))]

    def close(self) -> None:
        pass_through(self.name, "close_snapshot")


@dataclass
class BlockingPart:
    """See FeedPart."""

    name: str
    source: str
    last: int
    width: int

    def read(self) -> Iterator[Delta]:
        pass_through(self.source, "read")
        yield _rows(0, self.last).project([0] * self.width)

    def rejected(self) -> Delta:
        return Delta.of(REJECTED_KINDS, [])


@dataclass
class BlockingSink:
    """See ViewSink; what it was given is in NAME.rows, each epoch once."""

    name: str

    @property
    def _written(self) -> Path:
        return Path(os.environ[FOLDER]) / f"{self.name}.rows"

    def open(self, known: int | None = None) -> int | None:
        pass_through(self.name, "open")
        lines = self._written.read_text().splitlines() if self._written.exists() else []
        return int(lines[-1].split()[0]) if lines else None

    def write(self, epochs: Sequence[ViewEpoch]) -> None:
        pass_through(self.name, "write")
        with self._written.open("a") as file:
            for epoch in epochs:
                count = sum(len(delta) for delta in epoch.deltas)
                file.write(f"{epoch.number} {count}\n")

    def remove(self) -> None:
        pass_through(self.name, "remove")
        self._written.unlink(missing_ok=True)

    def detachment(self) -> Detachment:
        return Detachment(kept=(str(self._written),))

    def detach(self) -> None:
        pass_through(self.name, "detach")

    def interrupt(self) -> None:
        pass_through(self.name, "interrupt")

    def close(self) -> None:
        pass_through(self.name, "close")


def make(*given: Any) -> BlockingSource | BlockingSink:
    """See Connector and SinkConnector: the one module is both."""
    if isinstance(given[0], str):
        name, _, relations = given
        return BlockingSource(name, relations)
    return BlockingSink(given[0]["of"])


def check(options: Mapping[str, Any], table: SinkTable, title: str) -> dict[str, Any]:
    pass_through(options["of"], "check_sink")
    return dict(options)


def main() -> None:
    """Be the service, with this module in place of two connectors."""
    from tests.harness import blocking_connector

    for name in ("connectors.dbapi.source", "connectors.http.sink"):
        sys.modules[name] = blocking_connector
    from service.cli.main import main as serve

    sys.exit(serve())


if __name__ == "__main__":
    main()
