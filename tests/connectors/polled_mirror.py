"""What a service keeps of a polled source: rows by key, positions, notes, rejected records."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from connectors.feed_source import Connector, FeedSource, SourceFeed
from connectors.formats.declared import declared_type
from connectors.source import SourceBatch
from dataflow.changes import Changes
from dataflow.delta import Delta
from dataflow.schema import Field, Relation, RelationName
from dataflow.values import to_text

DEADLINE_S = 60.0


def make_source(connector: Connector, options: Mapping[str, Any]) -> FeedSource:
    """The source as the service makes it: declared, its types resolved, made."""
    relations = []
    for number, declared in enumerate(connector.declare(options), start=1):
        fields = tuple(
            Field(column, declared_type(type)[0], column not in declared.key)
            for column, type in declared.columns
        )
        names = [f.name for f in fields]
        key = tuple(names.index(column) for column in declared.key)
        relations.append(Relation(RelationName("in", "in", declared.name), number, fields, key))
    return connector.make("in", options, relations)


class PolledMirror:
    """All relations of a source, each change checked as the engine would."""

    def __init__(self, source: FeedSource) -> None:
        self.source = source
        self.relations = {r.name.name: r for r in source.relations()}
        self.rows: dict[str, dict[tuple, tuple]] = {name: {} for name in self.relations}
        self.rejected: Counter[tuple[str, bytes]] = Counter()
        self.positions: dict[str, Any] = {}
        self.notes: dict[str, bytes] = {}
        self.changed = 0
        self.feed: SourceFeed | None = None
        self._ready = threading.Event()

    def begin(self) -> None:
        """The first position and the snapshot of each relation."""
        for name, relation in self.relations.items():
            start = self.source.start_position(relation)
            self.positions[name] = start.position
            self.notes |= start.notes
        snapshot = self.source.open_snapshot(
            list(self.relations.values()), self.positions, self.notes
        )
        for name, relation in self.relations.items():
            parts = snapshot.parts(relation, range(len(relation.fields)), 3)
            assert len({part.name for part in parts}) == len(parts)
            for part in parts:
                for delta in part.read():
                    assert (delta.weights == 1).all()
                    for key, row in self._texts(relation, delta.columns):
                        assert key not in self.rows[name]
                        self.rows[name][key] = row
                self._reject(part.rejected())

    def open(self) -> None:
        """Follow from where it is."""
        self.close()
        relations = list(self.relations.values())
        self.feed = self.source.open_feed(relations, self.positions, self.notes, self._ready.set)

    def close(self) -> None:
        if self.feed is not None:
            self.feed.close()
            self.feed = None

    def follow(self, is_there: Callable[[PolledMirror], bool]) -> None:
        """Take what comes until it is so. What the feed raises passes through."""
        deadline = time.monotonic() + DEADLINE_S
        assert self.feed is not None
        while not is_there(self):
            batch = self.feed.poll(1000)
            if batch is not None:
                self.take(batch)
            else:
                assert time.monotonic() < deadline, self.rows
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
            self._reject(batch.rejected)

    def _change(self, changes: Changes) -> None:
        relation = changes.relation
        rows = self.rows[relation.name.name]
        texts = self._texts(relation, changes.columns)
        for kind, (key, row) in zip(changes.kinds.tolist(), texts, strict=True):
            self.changed += 1
            if kind == Changes.UPSERT:
                assert rows.get(key) != row, "a row that is as it was"
                rows[key] = row
            else:
                assert kind == Changes.REMOVE
                del rows[key]

    def _reject(self, rejected: Delta) -> None:
        for row, weight in rejected.rows():
            self.rejected[row[3].decode(), row[6]] += weight
        self.rejected = Counter({one: n for one, n in self.rejected.items() if n})
        assert set(self.rejected.values()) <= {1}

    def _texts(self, relation: Relation, columns: Any) -> list[tuple[tuple, tuple]]:
        texts = [
            to_text(f.type, column).texts()
            for f, column in zip(relation.fields, columns, strict=True)
        ]
        rows = list(zip(*texts, strict=True))
        return [(tuple(row[i] for i in relation.key), row) for row in rows]
