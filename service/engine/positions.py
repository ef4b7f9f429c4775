"""The position of the state: its epoch, each source's position, and the sources' notes.

Invariant: all of it is written in the same commit as the state that it describes.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from connectors.feed_source import FeedPosition, FeedStart
from connectors.sink import Progress
from connectors.source import MAIN_SOURCE, SourceBatch
from storage.store import Store

PROGRESS = "progress"
_NOTES = "note/"
_BEGUN = "begun/"


class Positions:
    """The positions of one store; changes belong to the open epoch.

    - source: the name of the database's position
    - awaited: the sink's epoch up to which the state replays; 0 if it does not replay
    - acknowledged: an epoch that the sink has, the newest or one before it
    - floor: the epoch in which the last view was dropped; up to it nothing is left, and the sink
      has
    no progress. Numbers continue after it, so that a rewind of the sink beyond it is detected.
    """

    def __init__(self, store: Store, source: str) -> None:
        self._store = store
        self._source = source
        self.progress: Progress | None = None
        self.awaited = self.acknowledged = self.floor = 0
        stored = store.get(PROGRESS)
        if stored is not None:
            facts = json.loads(stored)
            self.progress = Progress(facts["epoch"], facts["positions"])
            self.awaited = facts.get("awaited", 0)
            self.acknowledged = facts.get("acknowledged", 0)
            self.floor = facts.get("floor", 0)

    @property
    def epoch(self) -> int:
        """Return the number of the newest epoch; 0 before the first."""
        return 0 if self.progress is None else self.progress.epoch

    @property
    def by_source(self) -> dict[str, Any]:
        """Return the database's position, and the offsets of the other sources' relations."""
        return {} if self.progress is None else dict(self.progress.positions)

    @property
    def database(self) -> int:
        """Return the database's position; 0 if nothing of it has been read."""
        return self.by_source.get(self._source, 0)

    def offsets(self, source: str) -> dict[str, FeedPosition]:
        """Return the offsets of a source's relations; not for the database."""
        return dict(self.by_source.get(source, {}))

    def notes(self, source: str) -> dict[str, bytes]:
        """Return what a source stores with the state."""
        prefix = f"{_NOTES}{source}/"
        return {key[len(prefix) :]: value for key, value in self._store.items(prefix)}

    def note(self, source: str, name: str) -> bytes | None:
        """Return one of these; None if there is none of this name."""
        return self._store.get(f"{_NOTES}{source}/{name}")

    def begin(self, source: str, position: int | Mapping[str, FeedStart]) -> None:
        """Start reading a source, or more of its relations, at this position."""
        if isinstance(position, int):
            self._move(self.epoch, source, position)
            return
        self._move(self.epoch, source, {name: start.position for name, start in position.items()})
        for start in position.values():
            self._store_notes(source, start.notes)

    def note_begun(self, source: str, relations: Collection[str], shown: int) -> None:
        """Record that these relations were first read when the sink already had epoch `shown`."""
        for name in relations:
            self._store.put(f"{_BEGUN}{source}/{name}", str(shown).encode())

    def is_begun_after(self, source: str, relation: str, shown: int) -> bool:
        """Return True if a relation was first read when the sink already had this epoch."""
        stored = self._store.get(f"{_BEGUN}{source}/{relation}")
        return stored is not None and int(stored) >= shown

    def forget(self, source: str, relations: Collection[str]) -> None:
        """Stop reading these relations of a source; without relations, its notes are removed."""
        for name in relations:
            self._store.put(f"{_BEGUN}{source}/{name}", None)
        positions = self.by_source
        remaining = {n: p for n, p in self.offsets(source).items() if n not in relations}
        positions[source] = remaining
        if not remaining:
            del positions[source]
            self._store_notes(source, dict.fromkeys(self.notes(source)))
        self.progress = Progress(self.epoch, positions)

    def forget_database(self) -> None:
        """Stop reading the database and drop its position."""
        positions = self.by_source
        positions.pop(self._source, None)
        self.progress = Progress(self.epoch, positions)

    def pass_over(self, batch: SourceBatch, epoch: int) -> None:
        """Move past a batch, which epoch `epoch` contains."""
        if batch.source == MAIN_SOURCE:
            self._move(epoch, self._source, batch.position)
            return
        self._move(epoch, batch.source, batch.positions or {})
        self._store_notes(batch.source, batch.notes)

    def restore(self, progress: Progress, source: str, notes: Mapping[str, bytes | None]) -> None:
        """Move to where an epoch ends that is already committed elsewhere.

        source, notes: what was read, and what it stores with the state.
        """
        self.progress = progress
        self._store_notes(source, notes)

    def take_up(self, progress: Progress, notes: Mapping[str, Mapping[str, bytes]]) -> None:
        """Begin where a view of another group is handed over, in a store without positions.

        The sink gets this progress before the store is used. notes: of each external source.
        """
        self.progress = progress
        self.floor = self.acknowledged = progress.epoch
        for source, found in notes.items():
            self._store_notes(source, found)

    def set_epoch(self, epoch: int) -> None:
        """Start another epoch at the same positions."""
        self.progress = Progress(epoch, self.by_source)

    def clear(self) -> None:
        """Drop all positions and notes, once the last view is gone."""
        self.floor = self.epoch
        self.progress = Progress(self.floor, {})
        self.awaited = self.acknowledged = 0
        for prefix in (_NOTES, _BEGUN):
            for key, _ in list(self._store.items(prefix)):
                self._store.put(key, None)

    def save(self) -> None:
        """Write the positions as part of the commit."""
        if self.progress is not None:
            progress = self.progress
            facts = {
                "epoch": progress.epoch,
                "positions": dict(progress.positions),
                "awaited": self.awaited,
                "acknowledged": self.acknowledged,
                "floor": self.floor,
            }
            self._store.put(PROGRESS, json.dumps(facts).encode())

    def _move(self, epoch: int, source: str, position: int | Mapping[str, FeedPosition]) -> None:
        if not isinstance(position, int):
            position = {**self.offsets(source), **position}
        self.progress = Progress(epoch, {**self.by_source, source: position})

    def _store_notes(self, source: str, notes: Mapping[str, bytes | None]) -> None:
        for key, value in notes.items():
            self._store.put(f"{_NOTES}{source}/{key}", value)
