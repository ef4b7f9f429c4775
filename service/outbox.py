"""The outbox: epochs that the sink may not have yet, kept in the state until it has them.

An epoch's small deltas stand in its own entry; parts that were too much for memory stand beside
it and are written ahead of the commit. Invariant: parts count only with the entry of their epoch,
which the epoch's commit writes; parts without one are left-overs of a crash and are removed.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from connectors.sink import SinkEpoch, SinkPart, SinkTable
from dataflow.errors import InvariantError
from storage.store import Store

_EPOCH = "outbox/"
_PART = "outbox-part/"


@dataclass(frozen=True)
class StoredParts:
    """The parts of one epoch in the store, readable from any thread until they are forgotten."""

    store: Store | None
    epoch: int
    count: int
    rows: Mapping[SinkTable, int]

    def __iter__(self) -> Iterator[SinkPart]:
        assert self.store is not None
        for number in range(self.count):
            stored = self.store.get(_part_key(self.epoch, number))
            if stored is None:
                what = f"part {number} of epoch {self.epoch} is not in the outbox"
                raise InvariantError("state.outbox_gap", what)
            yield pickle.loads(stored)

    def close(self) -> None:
        """Nothing to do: they are kept until `Outbox.forget`."""


class Outbox:
    """Epochs by number, in one store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept: list[tuple[int, int]] = []
        for key, stored in store.items(_EPOCH):
            parts = pickle.loads(stored).later
            self._kept.append((int(key[len(_EPOCH) :]), parts.count if parts else 0))
        known = {number for number, _ in self._kept}
        for key, _ in store.items(_PART):
            if int(key[len(_PART) :].split("/")[0]) not in known:
                store.put(key, None)

    def put(self, epoch: SinkEpoch) -> None:
        """Keep an epoch; part of the open epoch. Its later parts are the stored ones from now."""
        number, count, parts = epoch.progress.epoch, 0, None
        if epoch.later is not None:
            rows: dict[SinkTable, int] = {}
            for part in epoch.later:
                for table, delta in part.deltas:
                    rows[table] = rows.get(table, 0) + len(delta)
                stored = pickle.dumps(part, protocol=pickle.HIGHEST_PROTOCOL)
                self._store.put_ahead(_part_key(number, count), stored)
                count += 1
            # A store is where the entry is found, not what it holds.
            parts = StoredParts(None, number, count, rows)
        entry = replace(epoch, later=parts)
        self._store.put(_epoch_key(number), pickle.dumps(entry, protocol=pickle.HIGHEST_PROTOCOL))
        self._kept.append((number, count))
        self._attach(entry)
        epoch.later = entry.later

    def forget(self, written: int) -> None:
        """Remove all up to epoch `written`; part of the open epoch."""
        while self._kept and self._kept[0][0] <= written:
            number, count = self._kept.pop(0)
            self._store.put(_epoch_key(number), None)
            for part in range(count):
                self._store.put(_part_key(number, part), None)

    def read(self, after: int, newest: int) -> list[SinkEpoch]:
        """The epochs after number `after` up to `newest`, in order, none missing."""
        numbers = [number for number, _ in self._kept if number > after]
        if numbers != list(range(after + 1, newest + 1)):
            raise InvariantError(
                "state.outbox_gap",
                f"the sink is at epoch {after} and the outbox holds {numbers}",
                hint="the sink was restored to an older state: drop and create its views again",
            )
        return [self._epoch(number) for number in numbers]

    def _epoch(self, number: int) -> SinkEpoch:
        return self._attach(pickle.loads(self._store.get(_epoch_key(number)) or b""))

    def _attach(self, epoch: SinkEpoch) -> SinkEpoch:
        if isinstance(epoch.later, StoredParts):
            epoch.later = replace(epoch.later, store=self._store)
        return epoch


def _epoch_key(epoch: int) -> str:
    return f"{_EPOCH}{epoch:020d}"


def _part_key(epoch: int, part: int) -> str:
    return f"{_PART}{epoch:020d}/{part:06d}"
