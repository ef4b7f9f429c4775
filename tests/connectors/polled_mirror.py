"""What a service holds of a polled source: rows by key."""

from __future__ import annotations

from collections.abc import Sequence

from connectors.feed_source import FeedSource
from dataflow.changes import Changes
from dataflow.delta import Delta
from dataflow.schema import Relation
from tests.connectors.feed_mirror import FeedMirror, Row, texts_of


class PolledMirror(FeedMirror):
    """All relations of a source, each change checked as the engine would."""

    def __init__(self, source: FeedSource) -> None:
        super().__init__(source)
        self.rows: dict[str, dict[tuple, tuple]] = {name: {} for name in self.relations}
        self.changed = 0

    def begin(self) -> None:
        """The first position and the snapshot of each relation."""
        self.start()
        for relation, part in self.parts():
            rows = self.rows[relation.name.name]
            for key, row in _keyed(relation, self.rows_of(relation, part)):
                assert key not in rows
                rows[key] = row
            self.reject(part.rejected())

    def apply(self, changes: Changes) -> None:
        """See FeedMirror."""
        rows = self.rows[changes.relation.name.name]
        keyed = _keyed(changes.relation, texts_of(changes.relation, changes.columns))
        for kind, (key, row) in zip(changes.kinds.tolist(), keyed, strict=True):
            self.changed += 1
            self.change(rows, kind, key, row)

    def change(self, rows: dict[tuple, tuple], kind: int, key: tuple, row: tuple) -> None:
        """One change of a relation's rows."""
        if kind == Changes.UPSERT:
            assert rows.get(key) != row, "a row that is as it was"
            rows[key] = row
        else:
            assert kind == Changes.REMOVE
            del rows[key]

    def reject(self, rejected: Delta) -> None:
        """See FeedMirror; a record is there once."""
        super().reject(rejected)
        assert set(self.rejected.values()) <= {1}


def _keyed(relation: Relation, rows: Sequence[Row]) -> list[tuple[tuple, tuple]]:
    return [(tuple(row[i] for i in relation.key), row) for row in rows]
