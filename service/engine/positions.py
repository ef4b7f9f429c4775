"""How far the state is: the epoch, each source's position, and what sources keep with it.

Invariant: all of it is written with the state it speaks of, in one commit.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from connectors.feed_source import Pin, Place
from connectors.sink import Progress
from connectors.source import MAIN_SOURCE, SourceBatch
from storage.store import Store

PROGRESS = "progress"
_NOTES = "note/"
_BEGUN = "begun/"


class Positions:
    """Of one store; changes belong to the open epoch. source: the name of the database's.

    awaited: the sink's epoch that the state is being stepped up to, and may be anywhere before; 0
    where it is not. acknowledged: an epoch that the sink has had, the newest or one before it.
    floor: the epoch with which the last view went: of it and those before nothing is left, and the
    sink has no progress then. Numbers go on, so that a sink that was set back over it is told.
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
        """The number of the newest epoch; 0 before the first."""
        return 0 if self.progress is None else self.progress.epoch

    @property
    def by_source(self) -> dict[str, Any]:
        """The database's position, and the places of the others' relations."""
        return {} if self.progress is None else dict(self.progress.positions)

    @property
    def database(self) -> int:
        """The database's position; 0 where nothing of it has been read."""
        return self.by_source.get(self._source, 0)

    def places(self, source: str) -> dict[str, Place]:
        """Where the relations of another source than the database stand."""
        return dict(self.by_source.get(source, {}))

    def notes(self, source: str) -> dict[str, bytes]:
        """What a source keeps with the state."""
        prefix = f"{_NOTES}{source}/"
        return {key[len(prefix) :]: value for key, value in self._store.items(prefix)}

    def begin(self, source: str, position: int | Mapping[str, Pin]) -> None:
        """Read a source, or more relations of it, from here on."""
        if isinstance(position, int):
            self._move(self.epoch, source, position)
            return
        self._move(self.epoch, source, {name: pin.place for name, pin in position.items()})
        for pin in position.values():
            self._keep(source, pin.notes)

    def note_begun(self, source: str, relations: Collection[str], shown: int) -> None:
        """These were first read when the sink had epoch `shown` already: they stand beyond it."""
        for name in relations:
            self._store.put(f"{_BEGUN}{source}/{name}", str(shown).encode())

    def is_begun_after(self, source: str, relation: str, shown: int) -> bool:
        """Whether a relation was first read when the sink had this epoch already."""
        stored = self._store.get(f"{_BEGUN}{source}/{relation}")
        return stored is not None and int(stored) >= shown

    def forget(self, source: str, relations: Collection[str]) -> None:
        """Read these relations of a source no more; with the last one its notes go too."""
        for name in relations:
            self._store.put(f"{_BEGUN}{source}/{name}", None)
        positions = self.by_source
        kept = {n: p for n, p in self.places(source).items() if n not in relations}
        positions[source] = kept
        if not kept:
            del positions[source]
            self._keep(source, dict.fromkeys(self.notes(source)))
        self.progress = Progress(self.epoch, positions)

    def forget_database(self) -> None:
        """Read the database no more, from wherever it was."""
        positions = self.by_source
        positions.pop(self._source, None)
        self.progress = Progress(self.epoch, positions)

    def pass_over(self, batch: SourceBatch, epoch: int) -> None:
        """Stand after a batch, which the given epoch holds."""
        if batch.source == MAIN_SOURCE:
            self._move(epoch, self._source, batch.position)
            return
        self._move(epoch, batch.source, batch.places or {})
        self._keep(batch.source, batch.notes)

    def stand(self, epoch: int) -> None:
        """Another epoch at the same positions."""
        self.progress = Progress(epoch, self.by_source)

    def clear(self) -> None:
        """Start anew: no positions, no notes; when the last view is gone."""
        self.floor = self.epoch
        self.progress = Progress(self.floor, {})
        self.awaited = self.acknowledged = 0
        for prefix in (_NOTES, _BEGUN):
            for key, _ in list(self._store.items(prefix)):
                self._store.put(key, None)

    def save(self) -> None:
        """Write them, as part of the commit."""
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

    def _move(self, epoch: int, source: str, position: int | Mapping[str, Place]) -> None:
        if not isinstance(position, int):
            position = {**self.places(source), **position}
        self.progress = Progress(epoch, {**self.by_source, source: position})

    def _keep(self, source: str, notes: Mapping[str, bytes | None]) -> None:
        for key, value in notes.items():
            self._store.put(f"{_NOTES}{source}/{key}", value)
