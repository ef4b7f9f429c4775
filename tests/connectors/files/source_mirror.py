"""What a service keeps of a source of files: rows by key, places, notes, rejected rows."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

from connectors.files import source as connector
from connectors.files.source import FilesSource
from connectors.source import SourceBatch
from dataflow.changes import Changes
from dataflow.errors import TemporaryError
from tests.connectors import feed_mirror
from tests.connectors.feed_mirror import DEADLINE_S, Row


def make_source(options: Mapping[str, Any], name: str = "in") -> FilesSource:
    """The source as the service makes it."""
    return feed_mirror.make_source(connector, options, name)


class SourceMirror:
    """One relation as its source tells it, checked as the engine would check it."""

    def __init__(self, source: FilesSource, relation: int = 0) -> None:
        self.relation = source.relations()[relation]
        self.rows: dict[tuple[str, int], Row] = {}
        self.rejected: dict[str, tuple[str, bytes]] = {}
        self.notes: dict[str, bytes] = {}
        self.position: dict[str, Any] = {}
        self.batches = 0
        self._names = [f.name for f in self.relation.fields]
        self._key = [self._names.index(name) for name in ("_file", "_row")]

    @property
    def name(self) -> str:
        return self.relation.name.name

    def begin(self, source: FilesSource, parts: int = 3) -> None:
        """Pin, and read the snapshot."""
        start_position = source.start_position(self.relation)
        self.position, self.notes = dict(start_position.position), dict(start_position.notes)
        self.load(source, parts)

    def load(self, source: FilesSource, parts: int = 3) -> None:
        """The snapshot of where the relation stands, in place of what was there."""
        before, self.rows = self.rows, {}
        try:
            self._load(source, parts)
        except TemporaryError:
            self.rows = before
            raise

    def _load(self, source: FilesSource, parts: int) -> None:
        columns = range(len(self.relation.fields))
        snapshot = source.open_snapshot([self.relation], {self.name: self.position}, self.notes)
        cut = snapshot.parts(self.relation, columns, parts)
        assert len({part.name for part in cut}) == len(cut)
        for part in cut:
            for delta in part.read():
                assert (delta.weights == 1).all()
                for key, row in self._texts(delta.columns):
                    assert key not in self.rows, key
                    self.rows[key] = row
            self._reject(part.rejected())
        snapshot.close()

    def open(self, source: FilesSource, on_ready: Any = lambda: None) -> Any:
        """A feed from here on."""
        positions = {self.name: self.position}
        return source.open_feed([self.relation], positions, self.notes, on_ready)

    def apply(self, batch: SourceBatch) -> None:
        """One batch, as an epoch would."""
        self.batches += 1
        assert batch.later is None
        for changes in batch.changes:
            self._apply(changes)
        feed_mirror.take_notes(self.notes, batch)
        if batch.positions and self.name in batch.positions:
            self.position = dict(batch.positions[self.name])
        if batch.rejected is not None:
            self._reject(batch.rejected)

    def follow(self, source: FilesSource, wanted: Any, max_rows: int = 10_000) -> None:
        """Apply what a feed tells until `wanted(self)` holds."""
        ready = threading.Event()
        feed = self.open(source, ready.set)
        try:
            self.drain(feed, ready, wanted, max_rows)
        finally:
            feed.close()

    def drain(self, feed: Any, ready: threading.Event, wanted: Any, max_rows: int) -> None:
        end = time.monotonic() + DEADLINE_S
        while not wanted(self):
            assert time.monotonic() < end, f"still {len(self.rows)} rows"
            batch = feed.poll(max_rows)
            if batch is None:
                ready.wait(0.05)
                ready.clear()
            else:
                self.apply(batch)

    def _apply(self, changes: Changes) -> None:
        kinds = changes.kinds.tolist()
        for kind, (key, row) in zip(kinds, self._texts(changes.columns), strict=True):
            if kind == Changes.REMOVE:
                self.rows.pop(key, None)
            elif kind == Changes.UPSERT:
                assert not self.relation.is_append
                self.rows[key] = row
            else:
                assert kind == Changes.INSERT and self.relation.is_append
                assert key not in self.rows, key
                self.rows[key] = row

    def _reject(self, rejected: Any) -> None:
        for row, weight in rejected.rows():
            source, relation, position, code, reason, _, value = row
            assert (source.decode(), relation.decode()) == (
                self.relation.name.source,
                self.relation.name.name,
            )
            assert reason
            if weight > 0:
                self.rejected[position.decode()] = (code.decode(), value)
            else:
                del self.rejected[position.decode()]

    def _texts(self, columns: Any) -> list[tuple[tuple[str, int], Row]]:
        found = []
        for row in feed_mirror.texts_of(self.relation, columns):
            file, number = (row[i] for i in self._key)
            found.append(((str(file), int(number or 0)), row))
        return found
