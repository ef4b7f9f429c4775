"""What a service holds of a stream: rows, rejected messages, and how many gaps there were."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from connectors.feed_source import REJECTED_KINDS, gaps_of
from connectors.stream import source as connector
from connectors.stream.inbox import INBOXES
from dataflow.changes import Changes
from dataflow.delta import Delta
from dataflow.schema import Relation
from tests.connectors.feed_mirror import FeedMirror, Row, make_source, texts_of


class StreamMirror(FeedMirror):
    """One relation of a source, applied as the engine would."""

    is_patient = True

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.rows: list[Row] = []
        self.letters: dict[str, tuple[Any, ...]] = {}
        self.gaps = 0
        self.options = options
        super().__init__(make_source(connector, options))
        self._declare()
        self.start()
        self.open()

    def _declare(self) -> None:
        self.source = make_source(connector, self.options)
        [relation] = self.source.relations()
        self.relation: Relation = replace(relation, is_append=not relation.key)
        self.relations = {relation.name.name: self.relation}

    @property
    def position(self) -> Mapping[str, Any]:
        [found] = self.positions.values()
        return found

    @property
    def keyed(self) -> dict[Row, Row]:
        return {tuple(row[i] for i in self.relation.key): row for row in self.rows}

    def close(self) -> None:
        """See FeedMirror."""
        if self.feed is not None:
            self.gaps += gaps_of(self.feed)
        super().close()

    def crash(self) -> None:
        """What the process has in memory is gone, and another one goes on."""
        self.feed = None
        INBOXES.close()
        self._declare()
        self.open()

    def declared_again(self, options: Mapping[str, Any]) -> None:
        """Other options."""
        self.options = options
        self._declare()
        self.open()

    def reject(self, rejected: Delta) -> None:
        """See FeedMirror."""
        super().reject(rejected)
        for row, weight in rejected.rows():
            self.letters[row[2].decode()] = row
            if weight < 0:
                del self.letters[row[2].decode()]

    def retry(self) -> None:
        """Retry all dead letters."""
        rejected = Delta.of(REJECTED_KINDS, list(self.letters.values()))
        self.take(self.source.decode_again(self.relation, rejected))

    def snapshot(self) -> list[Row]:
        """The rows as another view would begin with them."""
        return [row for relation, part in self.parts() for row in self.rows_of(relation, part)]

    def apply(self, changes: Changes) -> None:
        """See FeedMirror."""
        texts = texts_of(self.relation, changes.columns)
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


def numbers(mirror: StreamMirror) -> list[int]:
    """The first column."""
    return [int(row[0] or 0) for row in mirror.rows]
