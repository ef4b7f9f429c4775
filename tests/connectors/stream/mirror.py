"""What a service keeps of a stream: rows, positions, notes, rejected messages."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from connectors.feed_source import REJECTED_KINDS, SourceFeed, gaps_of
from connectors.source import SourceBatch
from connectors.stream import source as connector
from connectors.stream.inbox import INBOXES
from dataflow.changes import Changes
from dataflow.delta import Delta
from dataflow.schema import Relation
from dataflow.values import to_text
from tests.connectors.polled_mirror import make_source

DEADLINE_S = 60.0


class StreamMirror:
    """One relation of a source, applied as the engine would."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = options
        self.rows: list[tuple[str | None, ...]] = []
        self.rejected: Counter[tuple[str, bytes]] = Counter()
        self.letters: dict[str, tuple[Any, ...]] = {}
        self.notes: dict[str, bytes] = {}
        self.gaps = 0
        self.feed: SourceFeed | None = None
        self._ready = threading.Event()
        self._make()
        start = self.source.start_position(self.relation)
        self.positions: dict[str, Any] = {self.relation.name.name: start.position}
        self.open()

    def _make(self) -> None:
        self.source = make_source(connector, self.options)
        [relation] = self.source.relations()
        self.relation: Relation = replace(relation, is_append=not relation.key)

    @property
    def position(self) -> Mapping[str, Any]:
        [found] = self.positions.values()
        return found

    @property
    def keyed(self) -> dict[tuple[str | None, ...], tuple[str | None, ...]]:
        return {tuple(row[i] for i in self.relation.key): row for row in self.rows}

    def open(self) -> None:
        """Follow from where it is."""
        self.close()
        self.feed = self.source.open_feed(
            [self.relation], self.positions, self.notes, self._ready.set
        )

    def close(self) -> None:
        if self.feed is not None:
            self.gaps += gaps_of(self.feed)
            self.feed.close()
            self.feed = None

    def crash(self) -> None:
        """What the process has in memory is gone, and another one goes on."""
        self.feed = None
        INBOXES.close()
        self._make()
        self.open()

    def declared_again(self, options: Mapping[str, Any]) -> None:
        """Other options."""
        self.options = options
        self._make()
        self.open()

    def follow(self, is_there: Callable[[StreamMirror], bool], *, is_patient: bool = True) -> None:
        """Take what comes until it is so. Temporary errors are met as the service does."""
        deadline = time.monotonic() + DEADLINE_S
        while not is_there(self):
            assert self.feed is not None
            assert time.monotonic() < deadline, (self.rows[-5:], self.position)
            try:
                batch = self.feed.poll(1000)
            except Exception as error:
                if not (is_patient and getattr(error, "is_temporary", False)):
                    raise
                time.sleep(0.02)
                self.open()
                continue
            if batch is not None:
                self.take(batch)
            else:
                self._ready.wait(0.02)
                self._ready.clear()

    def take(self, batch: SourceBatch) -> None:
        for changes in batch.whole():
            self._change(changes)
        self.positions |= batch.positions or {}
        for name, note in batch.notes.items():
            if note is None:
                self.notes.pop(name, None)
            else:
                self.notes[name] = note
        if batch.rejected is not None:
            self.reject(batch.rejected)

    def reject(self, rejected: Delta) -> None:
        for row, weight in rejected.rows():
            self.rejected[row[3].decode(), row[6]] += weight
            self.letters[row[2].decode()] = row
            if weight < 0:
                del self.letters[row[2].decode()]
        self.rejected = Counter({one: n for one, n in self.rejected.items() if n})

    def retry(self) -> None:
        """Retry all dead letters."""
        rejected = Delta.of(REJECTED_KINDS, list(self.letters.values()))
        self.take(self.source.decode_again(self.relation, rejected))

    def snapshot(self) -> list[tuple[str | None, ...]]:
        """The rows as another view would begin with them."""
        names = [self.relation]
        opened = self.source.open_snapshot(names, self.positions, self.notes)
        parts = opened.parts(self.relation, range(len(self.relation.fields)), 3)
        assert len({part.name for part in parts}) == len(parts)
        found = []
        for part in parts:
            for delta in part.read():
                assert (delta.weights == 1).all()
                found += self._texts(delta.columns)
        return found

    def _change(self, changes: Changes) -> None:
        texts = self._texts(changes.columns)
        for kind, row in zip(changes.kinds.tolist(), texts, strict=True):
            if kind == Changes.INSERT:
                self.rows.append(row)
                continue
            key = tuple(row[i] for i in self.relation.key)
            keyed = self.keyed
            keyed.pop(key, None)
            if kind == Changes.UPSERT:
                keyed[key] = row
            else:
                assert kind == Changes.REMOVE
            self.rows = list(keyed.values())

    def _texts(self, columns: Any) -> list[tuple[str | None, ...]]:
        texts = [
            to_text(f.type, column).texts()
            for f, column in zip(self.relation.fields, columns, strict=True)
        ]
        return list(zip(*texts, strict=True))


def numbers(mirror: StreamMirror) -> list[int]:
    """The first column."""
    return [int(row[0] or 0) for row in mirror.rows]
