"""What a service holds of a source's relations: positions, notes, rejected records, and rows."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from connectors.feed_source import Connector, FeedSource, SourceFeed
from connectors.formats.declared import declared_type
from connectors.source import SourceBatch
from dataflow.changes import Changes
from dataflow.delta import Delta
from dataflow.errors import TemporaryError
from dataflow.schema import Field, Relation, RelationName
from dataflow.values import to_text

DEADLINE_S = 60.0
Row = tuple[str | None, ...]


def make_source(connector: Connector, options: Mapping[str, Any], name: str = "in") -> Any:
    """The source as the service makes it: declared, its types resolved, made."""
    relations = []
    for number, declared in enumerate(connector.declare(options), start=1):
        fields = tuple(
            Field(column, declared_type(type)[0], column not in declared.key)
            for column, type in declared.columns
        )
        names = [f.name for f in fields]
        key = tuple(names.index(column) for column in declared.key)
        own = RelationName(name, name, declared.name)
        relations.append(Relation(own, number, fields, key, is_append=declared.is_append))
    return connector.make(name, options, relations)


def take_notes(held: dict[str, bytes], batch: SourceBatch) -> None:
    """Store the notes of a batch, and forget those that it deletes."""
    for name, note in batch.notes.items():
        if note is None:
            held.pop(name, None)
        else:
            held[name] = note


def texts_of(relation: Relation, columns: Sequence[Any]) -> list[Row]:
    """Rows as PostgreSQL prints them."""
    texts = [to_text(f.type, c).texts() for f, c in zip(relation.fields, columns, strict=True)]
    return list(zip(*texts, strict=True))


class FeedMirror:
    """Follows a source as the engine would; a subclass holds the rows.

    is_patient: temporary errors are met as the service does, by opening the feed again.
    """

    is_patient = False

    def __init__(self, source: FeedSource) -> None:
        self.source = source
        self.relations = {r.name.name: r for r in source.relations()}
        self.rejected: Counter[tuple[str, bytes]] = Counter()
        self.positions: dict[str, Any] = {}
        self.notes: dict[str, bytes] = {}
        self.feed: SourceFeed | None = None
        self._ready = threading.Event()

    def apply(self, changes: Changes) -> None:
        """Change the rows."""
        raise NotImplementedError

    def start(self) -> None:
        """Take the first position of each relation."""
        for name, relation in self.relations.items():
            start = self.source.start_position(relation)
            self.positions[name] = start.position
            self.notes |= start.notes

    def parts(self) -> list[tuple[Relation, Any]]:
        """The parts of a snapshot of all relations."""
        relations = list(self.relations.values())
        opened = self.source.open_snapshot(relations, self.positions, self.notes)
        found: list[tuple[Relation, Any]] = []
        for relation in relations:
            parts = opened.parts(relation, range(len(relation.fields)), 3)
            assert len({part.name for part in parts}) == len(parts)
            found += [(relation, part) for part in parts]
        return found

    def rows_of(self, relation: Relation, part: Any) -> list[Row]:
        """The rows of a part."""
        found: list[Row] = []
        for delta in part.read():
            assert (delta.weights == 1).all()
            found += texts_of(relation, delta.columns)
        return found

    def open(self) -> None:
        """Follow from where it is."""
        self.close()
        relations = list(self.relations.values())
        self.feed = self.source.open_feed(relations, self.positions, self.notes, self._ready.set)

    def close(self) -> None:
        """Close the feed."""
        if self.feed is not None:
            self.feed.close()
            self.feed = None

    def follow(self, is_there: Callable[[Self], bool], *, is_patient: bool | None = None) -> None:
        """Take what comes until it is so. What the feed raises passes through."""
        deadline = time.monotonic() + DEADLINE_S
        while not is_there(self):
            assert self.feed is not None
            assert time.monotonic() < deadline, vars(self)
            try:
                batch = self.feed.poll(1000)
            except TemporaryError:
                if not (self.is_patient if is_patient is None else is_patient):
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
        """Apply a batch, as an epoch would."""
        for changes in batch.whole():
            self.apply(changes)
        self.positions |= batch.positions or {}
        take_notes(self.notes, batch)
        if batch.rejected is not None:
            self.reject(batch.rejected)

    def reject(self, rejected: Delta) -> None:
        """Store rejected records, and forget those that are valid or gone."""
        for row, weight in rejected.rows():
            self.rejected[row[3].decode(), row[6]] += weight
        self.rejected = Counter({one: n for one, n in self.rejected.items() if n})
